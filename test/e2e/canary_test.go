package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

const (
	theHost  = "the host"                  // it holds what its operator started it with
	question = "a question of a connector" // a program that a connector asks something, such as its models
)

// secret is a text that is with some and with nobody else: in no argv at all, in no environment but those of its
// holders, in no file but those named, and in nothing that anybody says.
type secret struct {
	what, text string
	holders    []string // ids of seats, whose programs have it in their environment; theHost
	asks       bool     // a connector may give it to a program that it asks something
	files      []string // patterns of files below the directory of the world, private ones, each of which holds it
	may        []string // patterns of files that may hold it, below a directory that is private
	forms      [][]byte // what is looked for
}

// canary looks for secrets in a world. What a process was started with is kept, so that a secret that is known only
// later is found with a process that was gone by then.
type canary struct {
	w       *harness.World
	secrets []*secret
	keys    map[string]string // secrets that are given before it is known who has them, by name
	rows    []wire.AgentRow   // of seats that are known
	found   map[string]bool   // where secrets were that belong there
	leaks   map[string]bool

	mu    sync.Mutex
	procs map[string]startedWith
}

// startedWith is what everybody, and what every process of the same user, can read of a process.
type startedWith struct {
	proc      harness.Proc
	in        string // id of the seat that it runs in, theHost, question, or empty
	argv, env []byte
}

func newCanary(w *harness.World) *canary {
	return &canary{w: w, keys: map[string]string{}, procs: map[string]startedWith{}}
}

// maxForm is how much of a secret is looked for: more than nobody else has, and no more than is found fast.
const maxForm = 48

// add makes a secret known. Its text needs 12 characters at least: a shorter one could stand anywhere.
func (c *canary) add(t *testing.T, s secret) *secret {
	t.Helper()
	if len(s.text) < 12 {
		t.Fatalf("%s is %q: too short to be looked for", s.what, s.text)
	}
	s.forms = [][]byte{[]byte(s.text[:min(len(s.text), maxForm)])}
	for before := range 3 { // in base64 a text looks different behind one, two and three others
		pad := strings.Repeat("x", before)
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			whole := enc.EncodeToString([]byte(pad + s.text))
			form := []byte(whole[(before*8+5)/6 : (before+len(s.text))*8/6])
			form = form[:min(len(form), maxForm)]
			if !slices.ContainsFunc(s.forms, func(f []byte) bool { return bytes.Equal(f, form) }) {
				s.forms = append(s.forms, form)
			}
		}
	}
	c.secrets = append(c.secrets, &s)
	return &s
}

// in returns the secrets that a text holds.
func (c *canary) in(text []byte) (all []*secret) {
	for _, s := range c.secrets {
		if slices.ContainsFunc(s.forms, func(form []byte) bool { return bytes.Contains(text, form) }) {
			all = append(all, s)
		}
	}
	return all
}

func (c *canary) leak(s *secret, where string) { c.leaks[s.what+" is in "+where] = true }

// look takes down what processes run now, and in which seat: below its custody, which itself is in none.
func (c *canary) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	in, above := map[int]string{}, map[int]string{} // above: what a process is above of
	for _, p := range c.w.Procs() {                 // parents come first
		f := append(strings.Fields(p.Args), "", "")
		switch name := filepath.Base(f[0]); {
		case above[p.PPID] != "":
			in[p.PID], above[p.PID] = above[p.PPID], above[p.PPID]
		case name == "cotal-seat":
			above[p.PID] = f[1]
		case strings.HasPrefix(name, "cotal-connector-"):
			above[p.PID] = question
		case name == "cotal-host" && f[1] == "serve":
			in[p.PID] = theHost
		}
		key := fmt.Sprint(p.PID, p.Ticks, p.Args)
		if _, ok := c.procs[key]; ok {
			continue
		}
		argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			continue
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err != nil || len(argv) == 0 {
			continue // it has ended
		}
		c.procs[key] = startedWith{p, in[p.PID], argv, env}
	}
}

// watch looks again and again until the end of the test: what is there for a moment only had arguments and an environment,
// too.
func (c *canary) watch(t *testing.T) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			c.look()
			select {
			case <-tick.C:
			case <-stop:
				tick.Stop()
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// scan returns every place where a secret is and does not belong: with processes that ran since the last scan, in files,
// and in what was said. What it found where it belongs is in c.found.
func (c *canary) scan(t *testing.T, said map[string]string) []string {
	t.Helper()
	c.found, c.leaks = map[string]bool{}, map[string]bool{}
	c.look()
	c.mu.Lock()
	procs := c.procs
	c.procs = map[string]startedWith{}
	c.mu.Unlock()
	for _, p := range procs {
		for _, s := range c.in(p.argv) {
			c.leak(s, fmt.Sprintf("the argv of %v", p.proc))
		}
		for _, s := range c.in(p.env) {
			if slices.Contains(s.holders, p.in) {
				c.found[s.what+" in the environment of "+p.in] = true
			} else if !s.asks || p.in != question {
				c.leak(s, fmt.Sprintf("the environment of %v", p.proc))
			}
		}
	}
	for where, text := range said {
		for _, s := range c.in([]byte(text)) {
			c.leak(s, where)
		}
	}
	files := 0
	err := filepath.WalkDir(c.w.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it went away meanwhile, or is a socket
		}
		text, err := os.ReadFile(path)
		info, serr := d.Info()
		if err != nil || serr != nil || isProgram(text) {
			return nil
		}
		files++
		c.file(path, info, text)
		return nil
	})
	if err != nil || files < 10 || len(procs) == 0 {
		t.Errorf("looked at %d files and %d processes: %v", files, len(procs), err)
	}
	return slices.Sorted(maps.Keys(c.leaks))
}

// isProgram reports whether a file is an executable or a library, which nobody wrote at run time. An image of a process
// is of the same format, and is none of them.
func isProgram(text []byte) bool {
	return len(text) > 17 && bytes.HasPrefix(text, []byte("\x7fELF")) && (text[16] == 2 || text[16] == 3)
}

func (c *canary) file(path string, info fs.FileInfo, text []byte) {
	held := c.in(text)
	if len(held) == 0 {
		return
	}
	rel, _ := filepath.Rel(c.w.Dir, path)
	var dirs []fs.FileMode // modes of the directories that it is in; that of the world protects nothing
	for dir := filepath.Dir(path); dir != c.w.Dir; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return // it went away meanwhile
		}
		dirs = append(dirs, info.Mode().Perm())
	}
	dirs = append(dirs, 0o777)
	for _, s := range held {
		fits := func(pattern string) bool { ok, _ := filepath.Match(pattern, rel); return ok }
		mode := fmt.Sprintf("%s for others: its mode is %04o, of its directory %04o", path, info.Mode().Perm(), dirs[0])
		switch i := slices.IndexFunc(s.files, fits); {
		case i >= 0:
			c.found[s.what+" in "+s.files[i]] = true
			if info.Mode().Perm()&0o077 != 0 || dirs[0]&0o077 != 0 {
				c.leak(s, mode)
			}
		case !slices.ContainsFunc(s.may, fits):
			c.leak(s, path)
		case !slices.ContainsFunc(dirs, func(perm fs.FileMode) bool { return perm&0o077 == 0 }):
			c.leak(s, mode) // of a program that leaves it to a directory above
		}
	}
}

// missed are the places where the last scan should have found a secret and did not: it would have found nothing elsewhere
// either.
func (c *canary) missed() (all []string) {
	for _, s := range c.secrets {
		for _, id := range s.holders {
			if place := s.what + " in the environment of " + id; !c.found[place] {
				all = append(all, place)
			}
		}
		for _, pattern := range s.files {
			if place := s.what + " in " + pattern; !c.found[place] {
				all = append(all, place)
			}
		}
	}
	return all
}

// seat makes known what every seat has of its own: what its terminal is dialled with, and what its hooks speak to its
// bridge with. It returns the path of its directory, below that of the world.
func (c *canary) seat(t *testing.T, row wire.AgentRow) string {
	t.Helper()
	c.rows = append(c.rows, row)
	c.look()
	dir := filepath.Join("seats", row.SeatID)
	m, err := mesh.ReadMaterial(filepath.Join(c.w.Dir, dir, "launch", "material.json"))
	if err != nil {
		t.Fatal(err)
	}
	c.add(t, secret{what: "the control token of " + row.Name, text: m.ControlToken, files: []string{dir + "/launch/material.json"}})
	c.add(t, secret{what: "the seat token of " + row.Name, text: strings.TrimSpace(read(t, filepath.Join(c.w.Dir, dir, "token"))), files: []string{dir + "/token"}})
	return dir
}

// mesh makes the token of an open mesh known, which is every seat's and in no environment.
func (c *canary) mesh(t *testing.T) {
	t.Helper()
	token := strings.TrimSpace(read(t, c.w.Path(".cotal", "host", "broker.token")))
	c.add(t, secret{what: "the token of the mesh", text: token, files: []string{"ws/.cotal/host/broker.token"}, may: []string{"seats/*/launch/material.json"}})
}

// said is what commands say, all that tell of seats, and what a host printed.
func said(w *harness.World, h *harness.Host, seats ...string) map[string]string {
	all := map[string]string{"what the host printed": h.Stdout() + h.Stderr()}
	run := func(argv ...string) {
		r := w.CLI(argv...)
		all["what cotal "+strings.Join(argv, " ")+" says"] = r.Stdout + r.Stderr
	}
	for _, line := range []string{
		"ps", "ps --json --all", "status --json", "roster --json", "ext list --json", "describe --json", "personas list --json", "history team --json",
	} {
		run(strings.Fields(line)...)
	}
	for _, name := range seats {
		run("inspect", name)
		run("inspect", name, "--json")
		run("logs", name, "--raw", "--bytes", "1048576")
	}
	return all
}

// A secret of a seat is with that seat and nowhere else. That stays so when its host is killed and when it has ended.
func TestCanary_ASecretIsWithItsSeatAlone(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	debug := harness.HostOptions{Args: []string{"--log-level", "debug"}}
	h := w.Start(debug)
	c, _ := watchPresence(t, w)
	look := newCanary(w)
	look.mesh(t)
	names := []string{"first", "second"}
	keys, rows, goals := map[string]string{}, map[string]wire.AgentRow{}, []string{}
	for _, name := range names {
		keys[name] = "canary-" + rand.Text()
		args := w.FakeArgs(name, `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)
		args.LaunchOptions["mesh"] = "stdin"
		args.LaunchOptions["env"] = map[string]any{"PROVIDER_API_KEY": keys[name]}
		l, err := harness.Launch(t.Context(), c, args)
		if err != nil {
			t.Fatal(err)
		}
		goals = append(goals, l.Acceptance.GoalID)
		rows[name] = w.Inspect(name)
		look.seat(t, rows[name])
		look.add(t, secret{what: "the provider key of " + name, text: keys[name], holders: []string{rows[name].SeatID}})
	}
	// Two seats talk, a person looks, one of them fails at something, and a spawn with a secret is refused.
	for _, name := range names {
		harness.Eventually(t, harness.DefaultWait, name+" is on the mesh", func() (bool, string) {
			row := w.Inspect(name)
			return row.Mesh == wire.StatusWorking && row.MeshBy == "process", fmt.Sprintf("%+v", row)
		})
	}
	if _, err := c.SendDirect(t.Context(), rows["second"].ID, "hello"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "a message arrives", func() (bool, string) {
		out := w.CLI("logs", "second").Stdout
		return strings.Contains(out, "hello"), out
	})
	refused := w.FakeArgs("third", `[]`)
	refused.LaunchOptions["env"] = map[string]any{"PROVIDER_API_KEY": keys["first"], "COTAL_NAME": "x"}
	if _, err := harness.Launch(t.Context(), c, refused); err == nil {
		t.Fatal("an environment that is the host's is set")
	}
	check := func(when string) {
		t.Helper()
		texts := said(w, h, names...)
		for _, id := range goals {
			texts["the result of a goal"] += w.CLI("goal", id, "--json").Stdout
		}
		for _, leak := range look.scan(t, texts) {
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
	for _, name := range names {
		w.CLI("stop", name).OK()
	}
	check("when they have ended")
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(w.SeatRoot, rows[name].SeatID, "launch", "material.json")); err == nil {
			t.Errorf("the material of %s outlives it", name)
		}
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
	w.SpawnFake("keyed", `[{"print": "up\n"}, {"hang": true}]`)
	look := newCanary(w)
	look.add(t, secret{what: "the key of the operator", text: key, holders: []string{theHost, w.Inspect("keyed").SeatID}})
	for _, leak := range append(look.scan(t, said(w, h, "keyed")), look.missed()...) {
		t.Error(leak)
	}
}

// Whatever leaks is found: each of these was done to a world in which nothing had leaked.
func TestCanary_FindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	c, _ := watchPresence(t, w)
	look := newCanary(w)
	key := "canary-" + rand.Text()
	args := w.FakeArgs("owner", `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)
	args.LaunchOptions["env"] = map[string]any{"PROVIDER_API_KEY": key}
	if _, err := harness.Launch(t.Context(), c, args); err != nil {
		t.Fatal(err)
	}
	row := w.Inspect("owner")
	dir := look.seat(t, row)
	look.mesh(t)
	s := look.add(t, secret{what: "the key", text: key, holders: []string{row.SeatID}})
	if leaks := append(look.scan(t, said(w, h, "owner")), look.missed()...); len(leaks) > 0 {
		t.Fatalf("before anything is planted: %q", leaks)
	}
	write := func(path, text string) func() {
		return func() {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	gone := func() { // looked at while it is there, and gone when the scan begins
		row := w.Spawn("passing", "/usr/bin/env", "PASSING="+key, "/bin/sleep", "3600")
		harness.Eventually(t, harness.DefaultWait, "it sleeps", func() (bool, string) { return len(w.ProcsLike("sleep 3600")) > 0, "" })
		look.look()
		w.KillPID(row.PID)
	}
	for _, plant := range []struct {
		name string
		do   func()
		want string // in one of the leaks
	}{
		{"a file in the workspace", write(w.Path("note"), "so it is "+key+"."), "the key is in " + w.Path("note")},
		{"a header in a log", write(w.Path("log1"), base64.StdEncoding.EncodeToString([]byte("opencode:"+key))), "the key is in " + w.Path("log1")},
		{"another header", write(w.Path("log2"), base64.StdEncoding.EncodeToString([]byte("a user:"+key+"\n"))), "the key is in " + w.Path("log2")},
		{"a third one", write(w.Path("log3"), base64.URLEncoding.EncodeToString([]byte("Bearer: "+key+"..."))), "the key is in " + w.Path("log3")},
		{"its own file for everybody", func() {
			if err := os.Chmod(filepath.Join(w.Dir, dir, "token"), 0o604); err != nil {
				t.Fatal(err)
			}
		}, "the seat token of owner is in " + filepath.Join(w.Dir, dir, "token") + " for others: its mode is 0604"},
		{"its own file in a directory for others", func() {
			if err := os.Chmod(filepath.Join(w.Dir, dir, "launch"), 0o750); err != nil {
				t.Fatal(err)
			}
		}, "the control token of owner is in " + filepath.Join(w.Dir, dir, "launch", "material.json") + " for others"},
		{"the screen of its own program", func() { w.CLI("input", "owner", "--text", key).OK() }, "the key is in what cotal logs owner"},
		{"a message", func() {
			if _, err := c.SendChannel(t.Context(), "team", "take "+key); err != nil {
				t.Fatal(err)
			}
		}, "the key is in what cotal history team --json says"},
		{"the broker's store", func() {}, filepath.Join(".cotal", "host", "nats")},
		{"the environment of another seat, which is gone", gone, "the key is in the environment of"},
		{"the arguments in its row", func() {}, filepath.Join(".cotal", "host", "journal.db")},
		{"arguments", func() { w.Spawn("argued", "/bin/sh", "-c", "sleep 3600; : "+key) }, "the key is in the argv of"},
	} {
		plant.do()
		found := func() (bool, string) { // the screen takes a moment
			leaks := look.scan(t, said(w, h, "owner"))
			return slices.ContainsFunc(leaks, func(l string) bool { return strings.Contains(l, plant.want) }), strings.Join(leaks, "\n")
		}
		if plant.want == "the key is in the environment of" {
			if ok, leaks := found(); !ok {
				t.Errorf("%s: not found among\n%s", plant.name, leaks)
			}
			continue
		}
		harness.Eventually(t, harness.DefaultWait, plant.name+" is found", found)
	}
	s.holders = append(s.holders, "a seat that is none")
	if missed := look.missed(); !slices.Contains(missed, "the key in the environment of a seat that is none") {
		t.Errorf("a place that a scan did not reach is not named: %q", missed)
	}
}
