package bridge_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/authmesh"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// withCredential is the launch of a seat that has a life on an authenticated mesh.
func withCredential(t *testing.T, m *authmesh.Mesh, a *authmesh.Agent, edit ...func(*wire.LaunchSeat)) bridge.Launch {
	t.Helper()
	material := wire.LaunchMaterial{Servers: m.URL(), Creds: a.Creds, Seat: &wire.LaunchSeat{
		Space: authmesh.Space, Name: a.Alias, ID: a.Principal(), LifecycleUID: a.UID, Connector: "test", Instance: authmesh.Instance,
	}}
	for _, f := range edit {
		f(material.Seat)
	}
	body, err := material.Encode()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cb") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "material.json")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := bridge.ReadLaunch(file, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// With its credential an agent does what it does in an open space, as far as it was granted: it is there, reads what was
// sent to it before it came, writes and reads its channels, and asks its host. What it was not granted is an error that
// says so.
func TestAnAgentWithACredentialDoesWhatItWasGranted(t *testing.T) {
	m := authmesh.New(t)
	stopped := make(chan string, 1)
	m.Serve(map[string]bus.Command{
		wire.CmdStop: {Targeted: true, Modes: []wire.Authz{wire.AuthzSelf}, Handler: bus.HandlerOf(func(_ context.Context, r *bus.Request) (any, error) {
			stopped <- r.Caller().Principal()
			return wire.DespawnReply{Name: "x"}, nil
		})},
	})
	team := provision.Spec{Read: []string{"team"}, Write: []string{"team"}}
	spec := func(alias, role string) provision.Spec { s := team; s.Alias, s.Role = alias, role; return s }
	ann, bob := m.Agent(spec("ann", "")), m.Agent(spec("bob", "review"))
	op, err := mesh.Connect(t.Context(), mesh.Config{URL: m.URL(), Space: authmesh.Space, Name: "op", CredsFile: m.Operator()})
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	if _, err := op.SendDirect(t.Context(), bob.Principal(), "from before"); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	// What the launch says and what the credential grants may differ: the credential counts.
	reads := func(s *wire.LaunchSeat) {
		s.Subscribe, s.AllowSubscribe, s.AllowPublish = []string{"team"}, []string{"team", "ops"}, []string{"team", "ops"}
	}
	a := w.joined(withCredential(t, m, ann, reads), bridge.Options{})
	b := w.joined(withCredential(t, m, bob, reads, func(s *wire.LaunchSeat) { s.Role = "review" }), bridge.Options{})
	a.until("cotal_roster", nil, "bob")
	b.until("cotal_inbox", nil, "from before")
	a.until("cotal_orientation", nil, "Channels you read: team.")
	b.until("cotal_orientation", nil, "Channels you read: team.")
	a.call("cotal_dm", map[string]any{"to": "bob", "text": "hello"})
	b.until("cotal_inbox", nil, "hello")
	a.call("cotal_send", map[string]any{"channel": "team", "text": "to all"})
	b.until("cotal_inbox", nil, "to all")
	a.call("cotal_anycast", map[string]any{"role": "review", "text": "look at this"})
	b.until("cotal_inbox", nil, "look at this")
	b.until("cotal_history", map[string]any{"channel": "team"}, "to all")
	b.until("cotal_channels", nil, "team")
	b.call("cotal_channel_info", map[string]any{"channel": "team"})
	b.call("cotal_status", map[string]any{"status": "working", "activity": "reading"})
	a.until("cotal_roster", nil, "reading")
	for _, c := range []struct {
		name, tool string
		args       map[string]any
		says       []string
	}{
		{"writing elsewhere", "cotal_send", map[string]any{"channel": "ops", "text": "x"}, []string{"ops", "may not write to that channel"}},
		{"reading elsewhere", "cotal_history", map[string]any{"channel": "ops"}, []string{"ops", "denies"}},
		{"joining elsewhere", "cotal_join", map[string]any{"channel": "ops"}, []string{"ops", "denies"}},
		{"writing where the launch does not say it", "cotal_send", map[string]any{"channel": "x", "text": "x"}, []string{"you may not post to channel x"}},
	} {
		begin := time.Now()
		text, ok := a.try(c.tool, c.args)
		for _, s := range c.says {
			if ok || !strings.Contains(text, s) {
				t.Errorf("%s: %t %s", c.name, ok, text)
			}
		}
		if busy.Over(begin, time.Second) {
			t.Errorf("%s took %v", c.name, time.Since(begin))
		}
	}
	a.call("cotal_despawn", nil)
	if who := <-stopped; who != ann.Principal() {
		t.Errorf("the host was asked by %s", who)
	}
}

// A credential that ends while the mesh is away is not shown to it. The agent is told what is in the way, and is there
// again as soon as its host has renewed the file, with what was sent to it meanwhile.
func TestABridgeComesBackWithTheRenewedCredential(t *testing.T) {
	m := authmesh.New(t)
	both := provision.Spec{Read: []string{"team"}, Write: []string{"team"}}
	spec := func(alias string) provision.Spec { s := both; s.Alias = alias; return s }
	ann, bob := m.Agent(spec("ann")), m.Agent(spec("bob"))
	ann.Expire(2 * time.Second)
	w := &world{t: t}
	reads := func(s *wire.LaunchSeat) {
		s.Subscribe, s.AllowSubscribe, s.AllowPublish = []string{"team"}, []string{"team"}, []string{"team"}
	}
	a := w.joined(withCredential(t, m, ann, reads), bridge.Options{})
	b := w.joined(withCredential(t, m, bob, reads), bridge.Options{})
	a.until("cotal_orientation", nil, "Channels you read: team.")
	m.Stop()
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) { // the clock alone decides
		c, err := mesh.ReadCredential(ann.Creds)
		if err != nil {
			t.Fatal(err)
		}
		if c.Ended(time.Now()) {
			break
		}
		if busy.Over(begin, 20*time.Second) {
			t.Fatal("the credential does not end")
		}
	}
	m.Restart()
	b.until("cotal_dm", map[string]any{"to": ann.Principal(), "text": "meanwhile"}, "sent to")
	b.until("cotal_send", map[string]any{"channel": "team", "text": "to all meanwhile"}, "sent to")
	if text, ok := a.try("cotal_dm", map[string]any{"to": bob.Principal(), "text": "x"}); ok {
		t.Errorf("an ended credential sends: %s", text)
	}
	ann.Renew()
	a.until("cotal_inbox", map[string]any{"peek": true}, "\"meanwhile\"")
	a.until("cotal_inbox", map[string]any{"peek": true}, "to all meanwhile")
	a.call("cotal_dm", map[string]any{"to": bob.Principal(), "text": "back"})
	b.until("cotal_inbox", nil, "back")
}
