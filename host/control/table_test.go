package control

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

var update = flag.Bool("update", false, "write docs/commands.md")

// What people read about the commands is what is served.
func TestCommandsPage(t *testing.T) {
	page, err := Page()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("..", "..", "docs", "commands.md")
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != page {
		t.Errorf("docs/commands.md is not what the table says (%v); raise Revision if the contract changed, then run: go test ./host/control -run TestCommandsPage -update", err)
	}
}

// Every row can be served: it says what it is, who may have it, and what it takes and gives.
func TestEveryRowIsComplete(t *testing.T) {
	capabilities := []string{
		wire.CapManagerRead, wire.CapManagerSpawn, wire.CapManagerLifecycle, wire.CapManagerSelf,
		wire.CapManagerPersona, wire.CapManagerAdmin, wire.CapManagerRun,
	}
	compiled, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	served, err := Contract(wire.OwnerLocal)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range table(Deps{}) {
		if d, ok := served.Document.Command(e.Name); !ok || d.Summary != e.Doc {
			t.Errorf("%s is described as %q, not as %q", e.Name, d.Summary, e.Doc)
		}
		for _, s := range compiled[e.Name] {
			if _, err := wire.NewSchema(s.Document()); err != nil {
				t.Errorf("%s: %v", e.Name, err)
			}
		}
		switch {
		case e.Doc == "", e.Handler == nil, e.Check == nil, e.Reply == nil:
			t.Errorf("%s: a part is missing", e.Name)
		case !slices.Contains(capabilities, e.Capability):
			t.Errorf("%s is granted with %q, which is no capability", e.Name, e.Capability)
		case e.Targeted != (len(e.Modes) > 0):
			t.Errorf("%s: Targeted and Modes disagree", e.Name)
		case e.Class != wire.ClassEphemeral:
			t.Errorf("%s is of class %s; every command of the manager is ephemeral", e.Name, e.Class)
		}
		if e.Name == wire.CmdSpawn && !strings.Contains(string(compiled[e.Name][0].Document()), "the persona; without one") {
			t.Error("nothing says what the name of a spawn is")
		}
		for _, m := range e.Modes {
			if m == wire.AuthzChild || m == wire.AuthzLedger {
				t.Errorf("%s admits %s: no durable record says who started whom", e.Name, m)
			}
		}
	}
}

// A caller can rebuild every digest of the document from the artifacts alone.
func TestContractIsClosed(t *testing.T) {
	c, err := Contract(wire.OwnerLocal)
	if err != nil {
		t.Fatal(err)
	}
	for digest, doc := range c.Artifacts {
		if _, err := wire.VerifyArtifact(doc, digest); err != nil {
			t.Error(err)
		}
	}
	doc, err := c.Descriptor.Clusters[0].Verify()
	if err != nil || !reflect.DeepEqual(doc.Commands, c.Document.Commands) {
		t.Fatalf("the inline document does not verify: %v", err)
	}
	digests := []string{c.Digest}
	for _, d := range doc.Commands {
		digests = append(digests, d.InputDigest, d.OutputDigest)
	}
	for _, digest := range digests {
		m, err := wire.DecodeManifest(c.Artifacts[digest])
		if err != nil {
			t.Fatalf("no manifest %s: %v", digest, err)
		}
		if c.Artifacts[m.Root] == nil {
			t.Errorf("no document %s", m.Root)
		}
	}
	if other, err := newContract(wire.OwnerLocal); err != nil || other.Digest != c.Digest {
		t.Errorf("the same table has the digests %s and %s (%v)", c.Digest, other.Digest, err)
	}
}
