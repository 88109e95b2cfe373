package mesh_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/relay"
)

// Every watch that was built anew once left its consumer on the server. A link that breaks again and again costs one watch,
// whatever it was before, as soon as the server has forgotten those that nobody reads.
//
// proves: I3
func TestALinkThatBreaksAgainAndAgainLeavesNoConsumers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until the server forgets")
	}
	s := startServer(t)
	nc, err := nats.Connect(s.URL(), nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	consumers := func() (n int) {
		for range js.ConsumerNames("KV_cotal_presence_" + space) {
			n++
		}
		return n
	}
	link := relay.New(t).Lead(strings.TrimPrefix(s.URL(), "nats://"))
	watcher := s.client(t, "watcher", func(c *mesh.Config) { c.URL = link.URL() })
	r := s.roster(t, watcher)
	worker := s.client(t, "worker")
	p := join(t, worker, mesh.JoinConfig{})
	if _, err := r.Await(t.Context(), is(worker, wire.StatusIdle)); err != nil {
		t.Fatal(err)
	}
	base := consumers()
	if base == 0 {
		t.Fatal("nobody watches")
	}
	most := 0
	for n := range 8 {
		link.Cut()
		// It is heard again: the watch was built anew.
		activity := fmt.Sprintf("after break %d", n)
		if err := p.SetStatus(t.Context(), wire.StatusWorking, activity); err != nil {
			t.Fatal(err)
		}
		heard := func(p wire.Presence) bool { return p.Card.ID == worker.Caller().Principal() && p.Activity == activity }
		if _, err := r.Await(t.Context(), heard); err != nil {
			t.Fatal(err)
		}
		most = max(most, consumers())
	}
	eventually(t, "the server has forgotten the watches before", 30*time.Second, func() bool { return consumers() <= base })
	t.Logf("%d consumers before, %d at most", base, most)
}
