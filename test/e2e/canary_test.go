package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// canaries are the secrets of one seat: what it was given in its environment, what its hooks speak to its bridge with,
// and what its terminal is dialled with. The token of an open mesh is every seat's.
type canaries struct {
	row  wire.AgentRow
	dir  string // of the seat
	key  string // an environment variable of its program
	mine map[string]string
}

// A secret of a seat is with that seat and nowhere else: in no argv, no environment but its own, no log, no journal, no
// store of the mesh, nothing that a command prints. That stays so when its host is killed and when it has ended.
func TestCanary_ASecretIsWithItsSeatAlone(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	debug := harness.HostOptions{Args: []string{"--log-level", "debug"}}
	h := w.Start(debug)
	c, _ := watchPresence(t, w)
	seats := map[string]*canaries{}
	for _, name := range []string{"first", "second"} {
		key := "canary-" + rand.Text()
		args := w.FakeArgs(name, `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)
		args.LaunchOptions["mesh"] = "stdin"
		args.LaunchOptions["env"] = map[string]any{"PROVIDER_API_KEY": key}
		if _, err := harness.Launch(t.Context(), c, args); err != nil {
			t.Fatal(err)
		}
		row := w.Inspect(name)
		s := &canaries{row: row, dir: filepath.Join(w.SeatRoot, row.SeatID), key: key}
		m, err := mesh.ReadMaterial(filepath.Join(s.dir, "launch", "material.json"))
		if err != nil {
			t.Fatal(err)
		}
		token := strings.TrimSpace(read(t, filepath.Join(s.dir, "token")))
		if token == "" || m.ControlToken == "" || m.Token == "" {
			t.Fatal("a secret of the seat is missing")
		}
		s.mine = map[string]string{"its provider key": key, "its control token": m.ControlToken, "its seat token": token, "the token of the mesh": m.Token}
		seats[name] = s
	}
	// Two seats talk, a person looks, one of them fails at something, and a spawn with a secret is refused.
	for _, name := range []string{"first", "second"} {
		harness.Eventually(t, harness.DefaultWait, name+" is on the mesh", func() (bool, string) {
			row := w.Inspect(name)
			return row.Mesh == wire.StatusWorking && row.MeshBy == "process", fmt.Sprintf("%+v", row)
		})
	}
	if _, err := c.SendDirect(t.Context(), seats["second"].row.ID, "hello"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "a message arrives", func() (bool, string) {
		out := w.CLI("logs", "second").Stdout
		return strings.Contains(out, "hello"), out
	})
	refused := w.FakeArgs("third", `[]`)
	refused.LaunchOptions["env"] = map[string]any{"PROVIDER_API_KEY": seats["first"].key, "COTAL_NAME": "x"}
	if _, err := harness.Launch(t.Context(), c, refused); err == nil {
		t.Fatal("an environment that is the host's is set")
	}
	said := func() string {
		var all strings.Builder
		for _, argv := range [][]string{{"ps"}, {"ps", "--json", "--all"}, {"inspect", "first"}, {"inspect", "first", "--json"}, {"logs", "second"}, {"status", "--json"}, {"roster", "--json"}, {"ext", "list", "--json"}} {
			r := w.CLI(argv...)
			all.WriteString(r.Stdout + r.Stderr)
		}
		return all.String() + h.Stdout() + h.Stderr()
	}
	check := func(when string) {
		t.Helper()
		for name, s := range seats {
			s.scan(t, w, when+", of "+name, said())
		}
	}
	check("while they run")
	h.Kill()
	h = w.Start(debug)
	check("when their host was killed")
	for _, name := range []string{"first", "second"} {
		w.CLI("stop", name).OK()
	}
	check("when they have ended")
	for name, s := range seats {
		if _, err := os.Stat(s.dir); err == nil {
			if _, err := os.Stat(filepath.Join(s.dir, "launch", "material.json")); err == nil {
				t.Errorf("the material of %s outlives it", name)
			}
		}
	}
}

// scan looks for the secrets of one seat wherever they do not belong.
func (s *canaries) scan(t *testing.T, w *harness.World, when, said string) {
	t.Helper()
	found := func(where string, text []byte, but ...string) {
		t.Helper()
	next:
		for what, secret := range s.mine {
			for _, b := range but {
				if what == b {
					continue next
				}
			}
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s: %s is in %s", when, what, where)
			}
		}
	}
	found("what commands and the host say", []byte(said))
	procs := w.Procs()
	own := map[int]bool{} // what runs in the seat; its custody is no part of it
	for again := true; again; {
		again = false
		for _, p := range procs {
			if !own[p.PID] && (p.PPID == s.row.SeatPID || own[p.PPID]) {
				own[p.PID], again = true, true
			}
		}
	}
	keyed := false
	for _, p := range procs {
		if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); err == nil {
			found(fmt.Sprintf("the argv of %v", p), args)
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		switch {
		case err != nil: // it has ended
		case own[p.PID]:
			found(fmt.Sprintf("the environment of %v", p), env, "its provider key")
			keyed = keyed || bytes.Contains(env, []byte(s.key))
		default:
			found(fmt.Sprintf("the environment of %v", p), env)
		}
	}
	if len(own) > 0 && !keyed {
		t.Errorf("%s: the seat itself has not its key: this test would find nothing", when)
	}
	files := 0
	err := filepath.WalkDir(w.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it went away meanwhile, or is a socket
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		files++
		switch rel, _ := filepath.Rel(s.dir, path); {
		case rel == filepath.Join("launch", "material.json"):
			found(path, text, "its control token", "the token of the mesh")
		case rel == "token":
			found(path, text, "its seat token")
		case filepath.Base(path) == "material.json", strings.HasSuffix(path, "broker.token"):
			found(path, text, "the token of the mesh")
		default:
			found(path, text)
		}
		return nil
	})
	if err != nil || files < 10 {
		t.Errorf("looked at %d files: %v", files, err)
	}
}

// A variable of the host that its configuration names for seats is in the environment of seats, and the host's own, and
// nowhere else.
func TestCanary_AKeyOfTheOperatorIsInEnvironmentsOfSeatsAlone(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	key := "canary-" + rand.Text()
	w.Write(filepath.Join(".cotal", "config.toml"), "[spawn]\nenv = [\"PROVIDER_API_KEY\"]\n")
	h := w.Start(harness.HostOptions{Env: []string{"PROVIDER_API_KEY=" + key}, Args: []string{"--log-level", "debug"}})
	row := w.SpawnFake("keyed", `[{"print": "up\n"}, {"hang": true}]`)
	w.Inspect("keyed")
	has := map[int]bool{}
	for _, p := range w.Procs() {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		has[p.PID] = bytes.Contains(env, []byte(key))
		if bytes.Contains(args, []byte(key)) {
			t.Errorf("the key is in the argv of %v", p)
		}
		if has[p.PID] && p.PID != h.PID && p.PID != row.PID {
			t.Errorf("the key is in the environment of %v", p)
		}
	}
	if !has[h.PID] || !has[row.PID] {
		t.Error("host or seat has not the key: this test would find nothing")
	}
	if said := w.CLI("inspect", "keyed", "--json").Stdout + h.Stdout() + h.Stderr(); strings.Contains(said, key) {
		t.Error("the key is said")
	}
	_ = filepath.WalkDir(w.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(key)) {
			t.Errorf("the key is in %s", path)
		}
		return nil
	})
}
