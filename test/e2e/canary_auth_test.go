package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// seed is the secret of a key pair, in a file of keys or of a credential.
var seed = regexp.MustCompile(`\bS[AOU][A-Z2-7]{56}\b`)

// token is the signed part of a credentials file. It is no secret for a broker, which wants a signature beside it, and is
// shown to nobody else.
var token = regexp.MustCompile(`eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`)

// keysOf makes known what is secret in one file below the directory of the world.
func (c *canary) keysOf(t *testing.T, what, path string) {
	t.Helper()
	text := []byte(read(t, path))
	rel, err := filepath.Rel(c.w.Dir, path)
	if err != nil {
		t.Fatal(err)
	}
	found := seed.FindAll(text, -1)
	if len(found) == 0 {
		t.Fatalf("no seed is in %s", path)
	}
	for _, s := range found {
		c.add(t, secret{what: "a seed of " + what, text: string(s), files: []string{rel}})
	}
	if m := token.Find(text); m != nil && bytes.Contains(text, []byte("USER JWT")) {
		// All tokens begin alike: what is looked for is what differs.
		_, sig, _ := strings.Cut(string(m[bytes.IndexByte(m, '.')+1:]), ".")
		c.add(t, secret{what: "the token of " + what, text: sig, files: []string{rel}})
	}
}

// Where seats have credentials, keys and credentials are in the files that they were made for, and nowhere else: in no
// argument, no environment, no log, no journal, and in nothing that a command says.
func TestCanary_ACredentialIsInItsFileAlone(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	w.UsePresence(0)
	debug := harness.HostOptions{Args: []string{"--log-level", "debug"}}
	h := w.Start(debug)
	look := newCanary(w)
	look.watch(t)
	keys, err := filepath.Glob(w.Path(".cotal", "auth", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range keys {
		if !strings.HasPrefix(filepath.Base(path), "revoked.") {
			look.keysOf(t, filepath.Base(path), path)
		}
	}
	if len(look.secrets) < 3 {
		t.Fatalf("there are %d keys", len(look.secrets))
	}
	look.keysOf(t, "the operator", w.Endpoint().CredsFile)
	c := w.Mesh()
	var rows []wire.AgentRow
	for _, name := range []string{"first", "second"} {
		args := w.PresenceArgs(name, `[{"print": "up\n"}, {"join": {}}, {"hang": true}]`)
		if name == "second" {
			args = w.FakeArgs(name, `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)
			args.LaunchOptions["mesh"] = "stdin"
		}
		if _, err := harness.Launch(t.Context(), c, args); err != nil {
			t.Fatal(err)
		}
		row := w.AwaitStatus(name, "running")
		rows = append(rows, row)
		look.seat(t, row)
		raw := read(t, filepath.Join(w.SeatRoot, row.SeatID, "launch", "material.json"))
		m, err := wire.DecodeLaunchMaterial([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		look.keysOf(t, name, m.Creds)
	}
	w.CLI("send", "second", "hello").OK()
	check := func(when string) {
		t.Helper()
		for _, leak := range look.scan(t, said(w, h, "first", "second")) {
			t.Errorf("%s: %s", when, leak)
		}
	}
	check("while they run")
	for _, place := range look.missed() {
		t.Errorf("not found, as anything else would not be: %s", place)
	}
	h.Kill()
	h = w.Start(debug)
	check("when their host was killed")
	for _, row := range rows {
		w.CLI("stop", row.Name).OK()
	}
	check("when they have ended")
	for _, s := range look.secrets {
		for _, path := range s.files {
			if _, err := os.Stat(filepath.Join(w.Dir, path)); err == nil && (strings.HasSuffix(s.what, " of first") || strings.HasSuffix(s.what, " of second")) {
				t.Errorf("%s outlives its seat in %s", s.what, path)
			}
		}
	}
}
