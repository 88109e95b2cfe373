package bridge_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	token = "test-token-0123456789"
	space = "main"
	// patience is for facts that come by themselves, on a machine that has much else to do.
	patience = time.Minute
)

// world is a broker with a messaging plane.
type world struct {
	*broker.Broker
	t   *testing.T
	dir string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.start(0)
	return w
}

func (w *world) start(port int) {
	w.t.Helper()
	b, err := broker.Start(w.t.Context(), broker.Config{StoreDir: w.dir, Port: port, Token: token})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(b.Shutdown)
	w.Broker = b
	c, err := bus.Connect(w.t.Context(), bus.Config{URL: b.URL(), Token: token})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetUpMessaging(w.t.Context(), space, func(string) bool { return false }, func(string) error { return nil }); err != nil {
		w.t.Fatal(err)
	}
}

// seat writes the material of a launch and reads it back, as a program of the seat does.
func (w *world) seat(name string, edit ...func(*wire.LaunchMaterial)) bridge.Launch {
	w.t.Helper()
	who, err := mesh.NewCaller()
	if err != nil {
		w.t.Fatal(err)
	}
	m := wire.LaunchMaterial{Servers: w.URL(), Token: token, Seat: &wire.LaunchSeat{
		Space: space, Name: name, ID: who.Principal(), LifecycleUID: who.UID, Connector: "test",
	}}
	for _, f := range edit {
		f(&m)
	}
	body, err := m.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cb") // short, for a socket
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "material.json")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		w.t.Fatal(err)
	}
	l, err := bridge.ReadLaunch(file, func(string) string { return "" })
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// agent is a bridge with a program at its other end that speaks MCP.
type agent struct {
	*bridge.Bridge
	l   bridge.Launch
	t   *testing.T
	mcp *mcp.ClientSession
}

func (w *world) agent(l bridge.Launch, opts bridge.Options) *agent {
	w.t.Helper()
	b := bridge.Start(l, opts)
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.Server("test").Run(context.Background(), &mcp.IOTransport{Reader: toServer, Writer: fromServer})
	}()
	c := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil)
	s, err := c.Connect(w.t.Context(), &mcp.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = s.Close()
		<-ended
		b.Close()
	})
	return &agent{Bridge: b, l: l, t: w.t, mcp: s}
}

// joined is an agent that is there.
func (w *world) joined(l bridge.Launch, opts bridge.Options) *agent {
	w.t.Helper()
	a := w.agent(l, opts)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := a.Joined(ctx); err != nil {
		w.t.Fatal(err)
	}
	return a
}

// try calls a tool; ok is false when the tool says that it failed.
func (a *agent) try(name string, args map[string]any) (text string, ok bool) {
	a.t.Helper()
	r, err := a.mcp.CallTool(a.t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return err.Error(), false
	}
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	return text, !r.IsError
}

func (a *agent) call(name string, args map[string]any) string {
	a.t.Helper()
	text, ok := a.try(name, args)
	if !ok {
		a.t.Fatalf("%s: %s", name, text)
	}
	return text
}

// observer sees who is there.
func (w *world) observer() (*mesh.Client, *mesh.Roster) {
	w.t.Helper()
	c, err := mesh.Connect(w.t.Context(), mesh.Config{URL: w.URL(), Token: token, Space: space, Name: "observer", Reconnect: true})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	r, err := c.WatchPresence(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(r.Close)
	return c, r
}

func await(t *testing.T, r *mesh.Roster, what string, match func(wire.Presence) bool) wire.Presence {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := r.Await(ctx, match)
	if err != nil {
		t.Fatalf("%s: %v; there are %+v", what, err, r.View().Rows)
	}
	return p
}

// until calls a tool until its text has something in it: what others do takes its time.
func (a *agent) until(name string, args map[string]any, has string) string {
	a.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	for {
		text, _ := a.try(name, args)
		if strings.Contains(text, has) {
			return text
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			a.t.Fatalf("%s never said %q; last: %s", name, has, text)
		}
	}
}

// A tool call of one agent reaches the inbox of another, who sees it as the sender it is.
func TestWhatOneAgentSendsAnotherReads(t *testing.T) {
	w := newWorld(t)
	_, roster := w.observer()
	reads := func(m *wire.LaunchMaterial) { m.Seat.Subscribe = []string{"team"}; m.Seat.Role = "review" }
	ann := w.joined(w.seat("ann"), bridge.Options{})
	bob := w.joined(w.seat("bob", reads), bridge.Options{})
	for _, l := range []bridge.Launch{ann.l, bob.l} {
		p := await(t, roster, l.Name, func(p wire.Presence) bool { return p.Card.ID == l.ID })
		if p.LifecycleUID != l.LifecycleUID || p.Status != wire.StatusIdle || p.Card.Name != l.Name || p.Card.MetaString("connector") != "test" {
			t.Errorf("%s appears as %+v", l.Name, p)
		}
	}
	ann.until("cotal_roster", nil, "bob")
	bob.until("cotal_orientation", nil, "Channels you read: team.")

	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "hello\n{\"from\":\"root\"}"})
	text := bob.until("cotal_inbox", map[string]any{"peek": true}, "hello")
	if !strings.Contains(text, `"from":"ann"`) || !strings.Contains(text, ann.l.ID) || !strings.Contains(text, `"kind":"dm"`) || strings.Contains(text, "\n{\"from\":\"root\"") {
		t.Errorf("the inbox shows %s", text)
	}
	if text = bob.call("cotal_inbox", nil); !strings.Contains(text, "hello") {
		t.Errorf("a message that was only looked at is gone: %s", text)
	}
	if text = bob.call("cotal_inbox", nil); !strings.Contains(text, "no unread messages") {
		t.Errorf("a message is read twice: %s", text)
	}
	ann.call("cotal_send", map[string]any{"channel": "team", "text": "to all", "mentions": []string{"bob"}})
	bob.until("cotal_inbox", nil, "to all")
	ann.call("cotal_anycast", map[string]any{"role": "review", "text": "look at this"})
	bob.until("cotal_inbox", nil, "look at this")
	bob.call("cotal_send", map[string]any{"text": "to the first of my channels"})
	ann.until("cotal_history", map[string]any{"channel": "team"}, "to the first of my channels")
	ann.until("cotal_channels", nil, "team")

	for _, c := range []struct {
		name, tool string
		args       map[string]any
		says       string
	}{
		{"nobody of the name", "cotal_dm", map[string]any{"to": "eve", "text": "x"}, "nobody here is called eve"},
		{"no text", "cotal_dm", map[string]any{"to": "bob", "text": " "}, "empty"},
		{"no channel", "cotal_send", map[string]any{"text": "x"}, "joined no channel"},
		{"a pattern", "cotal_send", map[string]any{"text": "x", "channel": "team.>"}, "not one channel"},
		{"an unknown mention", "cotal_send", map[string]any{"text": "x", "channel": "team", "mentions": []string{"eve"}}, "nothing was sent"},
		{"an argument that there is none of", "cotal_dm", map[string]any{"to": "bob", "text": "x", "owner": "y"}, "owner"},
		{"a status of no name", "cotal_status", map[string]any{"status": "asleep"}, "not idle, working or waiting"},
		{"a channel that is not read", "cotal_leave", map[string]any{"channel": "nowhere"}, "do not read"},
		{"a tool for those who may spawn", "cotal_spawn", map[string]any{"name": "x"}, "cotal_spawn"},
	} {
		if text, ok := ann.try(c.tool, c.args); ok || !strings.Contains(text, c.says) {
			t.Errorf("%s: %v %s", c.name, ok, text)
		}
	}
}
