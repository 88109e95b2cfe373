package bridge_test

import (
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func (w *world) port() int {
	w.t.Helper()
	u, err := url.Parse(w.URL())
	if err != nil {
		w.t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		w.t.Fatal(err)
	}
	return port
}

// An agent program that starts before the mesh is there works, is told what is in the way, and joins when it comes. When
// the server is lost it is there again with it, with what was sent to it unread.
func TestABridgeOutlivesTheServer(t *testing.T) {
	w := newWorld(t)
	ann := w.seat("ann", func(m *wire.LaunchMaterial) { m.Seat.Subscribe = []string{"team"} })
	bobs := w.seat("bob")
	port := w.port()
	w.Shutdown()
	a := w.agent(ann, bridge.Options{})
	for _, tool := range []string{"cotal_roster", "cotal_inbox", "cotal_orientation"} {
		if text, _ := a.try(tool, nil); !strings.Contains(text, "not connected to the mesh yet") && !strings.Contains(text, "Who is there is not known") {
			t.Errorf("%s without a server: %s", tool, text)
		}
	}
	if _, ok := a.try("cotal_dm", map[string]any{"to": "bob", "text": "x"}); ok {
		t.Error("a message without a server is said to be sent")
	}
	w.start(port)
	a.until("cotal_roster", nil, "ann (you): idle")
	b := w.joined(bobs, bridge.Options{})
	b.until("cotal_roster", nil, "ann")
	b.call("cotal_dm", map[string]any{"to": "ann", "text": "before"})
	a.until("cotal_inbox", map[string]any{"peek": true}, "before")
	w.Shutdown()
	w.start(port)
	a.until("cotal_roster", nil, "ann (you): idle")
	b.until("cotal_dm", map[string]any{"to": "ann", "text": "behind"}, "sent to")
	text := a.until("cotal_inbox", map[string]any{"peek": true}, "behind")
	if strings.Count(text, "before") != 1 {
		t.Errorf("the inbox shows %s", text)
	}
	b.call("cotal_send", map[string]any{"channel": "team", "text": "to all"})
	a.until("cotal_inbox", nil, "to all")
}

// A queue of a role that somebody deleted is opened again.
func TestAQueueOfARoleThatIsGoneComesBack(t *testing.T) {
	w := newWorld(t)
	ann := w.joined(w.seat("ann"), bridge.Options{})
	bob := w.joined(w.seat("bob", func(m *wire.LaunchMaterial) { m.Seat.Role = "review" }), bridge.Options{})
	ann.call("cotal_anycast", map[string]any{"role": "review", "text": "before"})
	bob.until("cotal_inbox", nil, "before")
	nc, err := nats.Connect(w.URL(), nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := wire.StreamName(wire.StreamTask, space)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), stream, wire.DurableService("review")); err != nil {
		t.Fatal(err)
	}
	ann.call("cotal_anycast", map[string]any{"role": "review", "text": "behind"})
	bob.until("cotal_inbox", nil, "behind")
}

// A second bridge of a seat, as when its program starts its servers again, goes on with what the first has left:
// the hooks, and the messages that nobody read.
func TestTheNextBridgeOfASeatGoesOn(t *testing.T) {
	w := newWorld(t)
	_, roster := w.observer()
	bob := w.joined(w.seat("bob"), bridge.Options{})
	l := w.seat("ann")
	first := bridge.Start(l, bridge.Options{})
	await(t, roster, "the first", func(p wire.Presence) bool { return p.Card.ID == l.ID && p.Status == wire.StatusIdle })
	bob.until("cotal_roster", nil, "ann")
	bob.call("cotal_dm", map[string]any{"to": "ann", "text": "for whoever reads"})
	next := w.joined(l, bridge.Options{})
	first.Close()
	next.until("cotal_inbox", nil, "for whoever reads")
	end := time.Now().Add(patience)
	for {
		if err := bridge.Relay(t.Context(), l, bridge.Event{Name: "UserPromptSubmit"}, nil); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the hooks of the next bridge are not heard")
		}
	}
	await(t, roster, "the next works", func(p wire.Presence) bool { return p.Card.ID == l.ID && p.Status == wire.StatusWorking })
}
