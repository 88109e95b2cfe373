//go:build linux

package wire

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// instanceOnly are commands of this host alone, which are about one host and on no other rail.
var instanceOnly = map[string]bool{"shutdown": true, "plugin-restart": true, "plugin-reload": true}

// commandDoc is one command of a cluster document.
type commandDoc struct {
	Name, Class, Capability   string
	Targeted, Action          bool
	Modes                     []string
	InputDigest, OutputDigest string
}

// described is the answer to describe.
type described struct {
	Public     bool
	Descriptor struct {
		Endpoint, Owner string
		Protocol        struct{ V int }
		Clusters        []struct {
			Digest   string
			Commands []string
			Document json.RawMessage
		}
	}
}

// describe asks for the commands and remembers the incarnation that answers.
func (r *rig) describe() {
	r.t.Helper()
	q := r.request("describe", nil)
	p := r.call(q)
	if !p.OK {
		r.t.Fatalf("describe: %v", p)
	}
	if err := json.Unmarshal([]byte(p.epoch), &r.epoch); err != nil {
		r.t.Fatalf("the epoch of an answer is %s", p.epoch)
	}
	r.description = described{}
	if err := json.Unmarshal(p.Data, &r.description); err != nil {
		r.t.Fatalf("describe answers %s: %v", p.Data, err)
	}
	r.commands = map[string]commandDoc{}
	for _, cluster := range r.description.Descriptor.Clusters {
		var doc struct{ Commands []commandDoc }
		if err := json.Unmarshal(cluster.Document, &doc); err != nil {
			r.t.Fatalf("cluster document %s: %v", cluster.Document, err)
		}
		for _, c := range doc.Commands {
			r.commands[c.Name] = c
		}
	}
}

// contracts are requests with other digests than the contract's.
var contracts = []refusal{
	{what: "another input digest", spoil: digests("inputDigest", "sha256:"+strings.Repeat("0", 64)), code: "contract-mismatch"},
	{what: "another output digest", spoil: digests("outputDigest", "sha256:"+strings.Repeat("f", 64)), code: "contract-mismatch"},
	{what: "no input digest", spoil: digests("inputDigest", nil), code: "contract-mismatch"},
	{what: "no output digest", spoil: digests("outputDigest", nil), code: "contract-mismatch"},
	{what: "no digest at all", spoil: func(r *rig, c command, q *request) bool {
		delete(q.op(), "outputDigest")
		return digests("inputDigest", nil)(r, c, q)
	}, code: "contract-mismatch"},
	{what: "the digests of another command", spoil: func(r *rig, c command, q *request) bool {
		other := "inspect"
		if c.name == other {
			other = "goal-result"
		}
		q.op()["inputDigest"], q.op()["outputDigest"] = r.commands[other].InputDigest, r.commands[other].OutputDigest
		return c.name != "describe" && r.commands[other].InputDigest != ""
	}, code: "contract-mismatch"},
}

// digests changes one digest; describe alone takes none.
func digests(name string, v any) func(*rig, command, *request) bool {
	return func(r *rig, c command, q *request) bool {
		opMember(name, v)(r, c, q)
		return c.name != "describe"
	}
}

// artifact reads one document of the contract store and holds it against its digest.
func (r *rig) artifact(sha string) []byte {
	r.t.Helper()
	hex, ok := strings.CutPrefix(sha, "sha256:")
	if !ok {
		r.t.Fatalf("%q is no digest", sha)
	}
	var got struct {
		Error   *struct{ Description string }
		Message struct{ Data []byte }
	}
	r.ask("STREAM.MSG.GET.EPC_"+r.space, map[string]any{"last_by_subj": r.subject("epc", hex)}, &got)
	if got.Error != nil {
		r.t.Fatalf("contract store: %s: %s", sha, got.Error.Description)
	}
	if sha256Of(got.Message.Data) != sha || !bytes.Equal(got.Message.Data, canonical(r.t, got.Message.Data)) {
		r.t.Errorf("the artifact under %s is another, or not canonical: %s", sha, got.Message.Data)
	}
	return got.Message.Data
}

// closure reads the root document of a closure digest.
func (r *rig) closure(sha string) []byte {
	r.t.Helper()
	var m struct {
		V       int
		Root    string
		Members []string
	}
	if text := r.artifact(sha); json.Unmarshal(text, &m) != nil || m.V != 1 || m.Members == nil {
		r.t.Fatalf("manifest %s: %s", sha, text)
	}
	for _, member := range m.Members {
		r.artifact(member)
	}
	return r.artifact(m.Root)
}

// TestAClientFindsTheContract follows describe to the contract store as a client does: every digest is that
// of the document behind it, every schema is closed, and every command of the manager is there as the contract
// has it.
func TestAClientFindsTheContract(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.description
	if d.Descriptor.Endpoint != "manager" || d.Descriptor.Owner == "" || d.Descriptor.Protocol.V != 1 || len(d.Descriptor.Clusters) == 0 {
		t.Fatalf("descriptor: %+v", d)
	}
	for _, cluster := range d.Descriptor.Clusters {
		doc := r.closure(cluster.Digest)
		if cluster.Document != nil && closureOf(t, cluster.Document) != cluster.Digest {
			t.Errorf("the document that stands in the answer has closure digest %s, it says %s", closureOf(t, cluster.Document), cluster.Digest)
		}
		var cd struct {
			URN                string
			Revision           *int
			Attributes, Events []json.RawMessage
			Commands           []commandDoc
		}
		if bytes.Contains(doc, []byte(`"effect"`)) {
			t.Error("effect is declared under protocol 1")
		}
		if err := json.Unmarshal(doc, &cd); err != nil || cd.URN != "ai.cotal.manager" || cd.Revision == nil || cd.Attributes == nil || cd.Events == nil {
			t.Errorf("cluster document %v: %s", err, doc)
		}
		var names []string
		for _, c := range cd.Commands {
			names = append(names, c.Name)
		}
		if !slices.Equal(names, cluster.Commands) {
			t.Errorf("the answer lists %v, its document %v", cluster.Commands, names)
		}
		for _, c := range cd.Commands {
			if c.Class != "ephemeral" || c.Targeted != (len(c.Modes) > 0) {
				t.Errorf("command %+v", c)
			}
			for _, sha := range []string{c.InputDigest, c.OutputDigest} {
				schema := r.closure(sha)
				if len(schema) > 256<<10 {
					t.Errorf("a schema of %s is %d bytes", c.Name, len(schema))
				}
			}
			var in struct {
				Type                 any
				AdditionalProperties *bool
			}
			schema := r.closure(c.InputDigest)
			if err := json.Unmarshal(schema, &in); err != nil || in.Type != "null" && (in.AdditionalProperties == nil || *in.AdditionalProperties) {
				t.Errorf("arguments of %s are not closed: %s", c.Name, schema)
			}
		}
	}
	for _, c := range table {
		doc, ok := r.commands[c.name]
		switch {
		case c.name == "describe":
		case !ok:
			t.Errorf("%s is not served", c.name)
		case !slices.Equal(doc.Modes, c.modes):
			t.Errorf("%s admits the modes %v, the contract says %v", c.name, doc.Modes, c.modes)
		case !strings.HasPrefix(doc.Capability, "manager."):
			t.Errorf("%s is granted with %q", c.name, doc.Capability)
		}
	}
	for name := range r.commands {
		if !slices.ContainsFunc(table, func(c command) bool { return c.name == name }) {
			t.Errorf("%s is served and no case here is about it", name)
		}
	}
}

// TestTheHostIsRegistered looks at the record of the instance: written before it serves, and about the epoch
// that answers.
func TestTheHostIsRegistered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var spec struct {
		Endpoint, Owner string
		ClusterDigests  []string
		Protocol        struct{ V int }
	}
	r.record("svc.manager."+r.instance+".spec", &spec)
	var want []string
	for _, c := range r.description.Descriptor.Clusters {
		want = append(want, c.Digest)
	}
	if spec.Endpoint != "manager" || spec.Owner != r.description.Descriptor.Owner || spec.Protocol.V != 1 || !slices.Equal(spec.ClusterDigests, want) {
		t.Errorf("spec %+v; describe says %+v", spec, r.description.Descriptor)
	}
	var status struct {
		Epoch                uint64
		State                string
		ObservedSpecRevision uint64
	}
	revision := r.record("svc.manager."+r.instance+".spec", &spec)
	r.record("svc.manager."+r.instance+".status", &status)
	if status.Epoch != r.epoch || status.State != "ready" || status.ObservedSpecRevision != revision {
		t.Errorf("status %+v; the epoch is %d, the spec has revision %d", status, r.epoch, revision)
	}
}

// record reads one record of the space from its leader and returns its revision.
func (r *rig) record(key string, dst any) uint64 {
	r.t.Helper()
	seq, data := r.entry("KV_cotal_records_"+r.space, "$KV.cotal_records_"+r.space+"."+key)
	if data == nil {
		r.t.Fatalf("there is no record %s", key)
	}
	if err := json.Unmarshal(data, dst); err != nil {
		r.t.Fatalf("record %s: %s: %v", key, data, err)
	}
	return seq
}

// entry reads the last message of a subject; nil when there is none.
func (r *rig) entry(stream, subject string) (uint64, []byte) {
	r.t.Helper()
	var got struct {
		Error   *struct{ Description string }
		Message struct {
			Seq  uint64
			Data []byte
		}
	}
	r.ask("STREAM.MSG.GET."+stream, map[string]any{"last_by_subj": subject}, &got)
	if got.Error != nil {
		return 0, nil
	}
	return got.Message.Seq, got.Message.Data
}
