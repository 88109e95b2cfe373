//go:build linux

package auth

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"

	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// external is a NATS server that is not ours, with the configuration that a workspace exports. It ends behind the worlds that
// are made after it.
type external struct{ srv *natsd.Server }

func newExternal(t *testing.T) *external {
	e := &external{}
	t.Cleanup(func() {
		if e.srv != nil {
			e.srv.Shutdown()
			e.srv.WaitForShutdown()
		}
	})
	return e
}

// start exports the configuration, starts the server as its operator does, and returns where it is reached.
func (e *external) start(t *testing.T, w *harness.World) string {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	w.Host("auth", "export", "--output", conf, "--listen", "127.0.0.1:-1", "--store-dir", filepath.Join(dir, "js"), "--accounts-dir", filepath.Join(dir, "accounts")).OK()
	opts, err := natsd.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	opts.NoLog, opts.NoSigs = true, true
	if e.srv, err = natsd.NewServer(opts); err != nil {
		t.Fatal(err)
	}
	e.srv.Start()
	if !e.srv.ReadyForConnections(busy.Limit(10 * time.Second)) {
		t.Fatal("the server does not start")
	}
	return e.srv.ClientURL()
}

// From the keys of a workspace to two hosts of one space on a server that is not ours: it is found fit, seats of both are seen
// by both, neither touches a slot of the other, and a host whose keys the server does not know is refused.
//
// proves: MULTI-1
func TestExternal_TwoHostsOfOneSpaceOnAServerWithTheExportedConfiguration(t *testing.T) {
	t.Parallel()
	server := newExternal(t)
	one, two := harness.NewAuthenticated(t), harness.NewAuthenticated(t)
	url := server.start(t, one)
	first := over(t, one, harness.HostOptions{Args: []string{"--server", url}})
	first.Host("doctor", "auth").OK()
	list := "nats://127.0.0.1:1," + url // of several servers one is down
	second := over2(t, two, first, harness.HostOptions{Args: []string{"--server", list, "--keys", one.Root}})
	if first.instance == second.instance {
		t.Fatal("both are one instance")
	}
	if _, err := os.Stat(two.Path(".cotal", "auth", "broker.json")); !os.IsNotExist(err) {
		t.Errorf("a workspace that uses the keys of another has its own: %v", err)
	}
	a := one.Spawn("here", one.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)
	b := two.Spawn("there", two.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)
	for _, w := range []*harness.World{one, two} {
		out := w.CLI("ps", "--all").OK().Stdout
		if !strings.Contains(out, "here") || !strings.Contains(out, "there") {
			t.Errorf("ps --all of %s: %s", w.Root, out)
		}
		for name, row := range map[string]wire.AgentRow{"here": a, "there": b} {
			if s, ok := first.slot(name); !ok || s.LifecycleUID != row.LifecycleUID || s.Phase != wire.SlotActive {
				t.Errorf("slot of %s: %+v, %v", name, s, ok)
			}
		}
		for line := range strings.Lines(w.Host("doctor", "--json", "--server", url, "--keys", one.Root).OK().Stdout) {
			var f trust.Fact
			if err := json.Unmarshal([]byte(line), &f); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if f.Name == "slots" && f.Text != "1 of this host, 1 of others" {
				t.Errorf("slots of %s: %+v", w.Root, f)
			}
		}
	}

	// The name of a seat of one host is taken for the other, which says whose it is.
	if res := two.CLI("spawn", "--agent", "command", "--name", "here", "--detach", "--", "/bin/sleep", "3600"); res.Code != 1 || !strings.Contains(res.Stderr, first.instance) {
		t.Errorf("a name that a seat of another host has: %v", res)
	}

	// A host that is killed, and one that starts again, change nothing of the other's.
	second.host.Kill()
	if s, ok := first.slot("there"); !ok || s.Phase != wire.SlotActive {
		t.Errorf("the slot of a seat whose host was killed: %+v", s)
	}
	one.CLI("stop", "here").OK()
	second.start(harness.HostOptions{Args: []string{"--server", list, "--keys", one.Root}})
	if again := two.AwaitStatus("there", "running"); again.PID != b.PID || again.LifecycleUID != b.LifecycleUID {
		t.Errorf("behind the restart: %+v, was %+v", again, b)
	}
	two.CLI("stop", "there").OK()
	second.awaitFree("there")

	stranger := harness.NewAuthenticated(t)
	stranger.Host("auth", "export").OK() // keys of its own
	h := stranger.Launch(harness.HostOptions{Args: []string{"--server", url}})
	if exit, ok := h.WaitExit(patience); !ok || exit.Code == 0 || !strings.Contains(h.Stderr(), "cotal-host doctor auth") {
		t.Errorf("a host whose keys the server does not know: %v, %v\n%s", exit, ok, h.Stderr())
	}
}

// over2 is over of a host whose keys are those of another workspace.
func over2(t *testing.T, w *harness.World, keys *rig, o harness.HostOptions) *rig {
	t.Helper()
	r := &rig{World: w, t: t, nc: keys.nc, sys: keys.sys, account: keys.account}
	r.start(o)
	e := w.Endpoint()
	r.space, r.instance = e.Space, e.InstanceID
	return r
}
