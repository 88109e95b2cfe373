package trust

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// external starts a NATS server with a configuration as it was exported, edited by the test.
func external(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.conf")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	opts, err := natsd.ProcessConfigFile(path)
	must(t, err)
	opts.NoLog, opts.NoSigs = true, true
	s, err := natsd.NewServer(opts)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(busy.Limit(10 * time.Second)) {
		t.Fatal("the server does not start")
	}
	return s.ClientURL()
}

func exported(t *testing.T, k *Keyring) string {
	t.Helper()
	b, err := k.Bundle()
	must(t, err)
	dir := t.TempDir()
	text := b.Config(ServerConfig{Listen: "127.0.0.1:-1", StoreDir: dir + "/js", Accounts: dir + "/acc"})
	for _, line := range strings.Split(text, "\n") {
		for _, seed := range []string{"SO", "SA", "SU"} {
			if strings.Contains(line, " "+seed) {
				t.Errorf("a seed is in the configuration: %s", line)
			}
		}
	}
	return text
}

func verdicts(facts []Fact) map[string]Verdict {
	out := map[string]Verdict{}
	for _, f := range facts {
		name, _, _ := strings.Cut(f.Name, " ")
		if f.Verdict != Good || out[name] == "" {
			out[name] = f.Verdict
		}
	}
	return out
}

// A server with the exported configuration serves a space: credentials work, and a revocation reaches it.
func TestAnExternalServerWithTheExportedConfigurationServesASpace(t *testing.T) {
	r := &rig{t: t, root: t.TempDir(), clock: &clock{}}
	r.keys = openKeys(t, r.root)
	url := external(t, exported(t, r.keys))
	r.auth = r.static(bus.Config{URL: url})
	before := r.auth.Examine(t.Context())
	if got := verdicts(before); got["broker"] != Good || got["server"] != Good || got["resolver"] != Good || got["ledger"] != Note {
		t.Errorf("before the first serve: %+v", before)
	}
	r.setUp()
	if facts := r.auth.Examine(t.Context()); Worst(facts) != Good {
		t.Errorf("%+v", facts)
	}
	uid := r.activate()
	c := r.mint(Request{Profile: Agent, UID: uid})
	cl, err := dialAs(url, c)
	must(t, err)
	t.Cleanup(cl.Close)
	if got, err := r.auth.Revoke(t.Context(), Life{UID: uid}); err != nil || got.Servers != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	ends(t, cl, 5*time.Second)
}

// What is wrong with a broker is told apart, and each with what to do.
func TestDoctorTellsWhatIsWrongWithABroker(t *testing.T) {
	for name, tc := range map[string]struct {
		edit    func(string) string
		verdict map[string]Verdict
		text    string
	}{
		"a short control line": {
			func(s string) string {
				return strings.Replace(s, "max_control_line: 65536", "max_control_line: 8192", 1)
			},
			map[string]Verdict{"broker": Good, "server": Wrong, "resolver": Good},
			"max_control_line has to be 65536",
		},
		"a control line that is too short for anything": {
			func(s string) string {
				return strings.Replace(s, "max_control_line: 65536", "max_control_line: 512", 1)
			},
			map[string]Verdict{"broker": Wrong},
			"auth export",
		},
		"a small payload": {
			func(s string) string { return strings.Replace(s, "max_payload: 1048576", "max_payload: 65536", 1) },
			map[string]Verdict{"broker": Good, "server": Wrong, "resolver": Good},
			"max_payload has to be 262144",
		},
		"no store": {
			func(s string) string {
				return strings.Join(slices.DeleteFunc(strings.Split(s, "\n"), func(l string) bool { return strings.HasPrefix(l, "jetstream") }), "\n")
			},
			map[string]Verdict{"broker": Good, "jetstream": Wrong},
			"auth export",
		},
		"accounts that nobody can change": {
			func(s string) string {
				i, j := strings.Index(s, "resolver {"), strings.Index(s, "resolver_preload")
				return s[:i] + "resolver: MEMORY\n" + s[j:]
			},
			map[string]Verdict{"broker": Good, "resolver": Wrong},
			"auth export",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{t: t, root: t.TempDir(), clock: &clock{}}
			r.keys = openKeys(t, r.root)
			r.auth = r.static(bus.Config{URL: external(t, tc.edit(exported(t, r.keys)))})
			facts := r.auth.Examine(t.Context())
			got := verdicts(facts)
			for what, want := range tc.verdict {
				if got[what] != want {
					t.Errorf("%s is %q, want %q", what, got[what], want)
				}
			}
			if !slices.ContainsFunc(facts, func(f Fact) bool { return f.Verdict == Wrong && strings.Contains(f.Repair, tc.text) }) {
				t.Errorf("no repair says %q: %+v", tc.text, facts)
			}
		})
	}
}

func TestDoctorTellsABrokerThatRefusesFromOneThatIsNotThere(t *testing.T) {
	mine, other := openKeys(t, t.TempDir()), openKeys(t, t.TempDir())
	r := &rig{t: t, root: t.TempDir(), clock: &clock{}, keys: mine}
	r.auth = r.static(bus.Config{URL: external(t, exported(t, other))})
	if facts := r.auth.Examine(t.Context()); len(facts) != 1 || facts[0].Verdict != Wrong || !strings.Contains(facts[0].Repair, "auth export") {
		t.Errorf("another operator's: %+v", facts)
	}
	r.auth = r.static(bus.Config{URL: "nats://127.0.0.1:1"})
	if facts := r.auth.Examine(t.Context()); len(facts) != 1 || facts[0].Verdict != Unasked {
		t.Errorf("nobody: %+v", facts)
	}
}

// proves: CRED-25, G13
func TestDoctorJudgesCredentialFilesByWhatTheySay(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	write := func(name string, c Credential) {
		file, err := c.File()
		must(t, err)
		must(t, r.store.Write(CredentialFile(space, name, uid), file))
	}
	write("fresh", r.mint(Request{Profile: Agent, UID: uid}))
	write("short", r.mint(Request{Profile: Agent, UID: uid, Life: time.Minute}))
	must(t, r.store.Write(CredentialFile(space, "torn", uid), []byte("-----BEGIN NATS USER JWT-----\nx")))
	write("foreign", newRig(t).mint(Request{Profile: Observer}))
	got := map[string]Fact{}
	for _, f := range ExamineKeys(r.store, space, time.Now().Add(2*time.Minute)) {
		got[strings.TrimSuffix(strings.TrimPrefix(f.Name, credsDir(space)), "."+uid+".creds")] = f
	}
	for name, want := range map[string]Verdict{"fresh": Good, "short": Wrong, "torn": Wrong, "foreign": Wrong, "keys": Good, "signing key": Good} {
		if got[name].Verdict != want {
			t.Errorf("%s: %+v, want %s", name, got[name], want)
		}
	}
	if f := ExamineKeys(r.store, "other", time.Now()); len(f) != 1 || f[0].Verdict != Wrong {
		t.Errorf("a space without keys: %+v", f)
	}
	facts := ExamineKeys(r.store, space, time.Now().Add(staleKey+time.Hour))
	if i := slices.IndexFunc(facts, func(f Fact) bool { return f.Name == "signing key" }); facts[i].Verdict != Note || facts[i].Repair != "cotal auth rotate" {
		t.Errorf("an old key: %+v", facts[i])
	}
}

func TestOlder(t *testing.T) {
	for a, want := range map[string]bool{"2.11.9": true, "2.12.0": false, "2.12.0-RC.1": false, "2.15.2": false, "3.0.0": false, "dev": false, "1.99": true} {
		if got := older(a, "2.12.0"); got != want {
			t.Errorf("%s: %t", a, got)
		}
	}
}

// The file of a seat has the key of that seat, which is nowhere else: whoever removed it would have lost the seat.
func TestNobodyIsToldToRemoveTheCredentialOfASeat(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	foreign, err := newRig(t).mint(Request{Profile: Observer}).File()
	must(t, err)
	torn := []byte("-----BEGIN NATS USER JWT-----\nx")
	for name, content := range map[string][]byte{
		CredentialFile(space, "torn", uid): torn, CredentialFile(space, "foreign", uid): foreign,
		CredentialFile(space, "open", uid): foreign, OperatorFile(space, uid): torn,
	} {
		must(t, r.store.Write(name, content))
	}
	must(t, os.Chmod(filepath.Join(r.store.Dir(), CredentialFile(space, "open", uid)), 0o644))
	for _, f := range ExamineKeys(r.store, space, time.Now()) {
		seats := strings.HasSuffix(f.Name, uid+".creds")
		if seats && (f.Verdict != Wrong || f.Repair == "" || strings.Contains(f.Repair, "remove it")) {
			t.Errorf("%+v", f)
		}
		if f.Name == OperatorFile(space, uid) && !strings.Contains(f.Repair, "remove it") {
			t.Errorf("that of the person can be made again: %+v", f)
		}
	}
}
