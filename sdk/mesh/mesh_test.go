package mesh_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	token = "test-token-0123456789"
	space = "main"
)

// server is a broker with the messaging plane of a space.
type server struct {
	*broker.Broker
	dir string
}

func startServer(t testing.TB) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	s.start(t, 0)
	s.setUp(t)
	return s
}

func (s *server) start(t testing.TB, port int) {
	t.Helper()
	b, err := broker.Start(t.Context(), broker.Config{StoreDir: s.dir, Port: port, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	s.Broker = b
}

// setUp makes the streams and buckets, as a host does when it starts.
func (s *server) setUp(t testing.TB) {
	t.Helper()
	b := s.bus(t)
	defer b.Close()
	err := b.SetUpMessaging(t.Context(), space, func(string) bool { return false }, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
}

func (s *server) bus(t testing.TB) *bus.Bus {
	t.Helper()
	b, err := bus.Connect(t.Context(), bus.Config{URL: s.URL(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// client connects somebody of a name. It reconnects, as everybody does who stays.
func (s *server) client(t testing.TB, name string, edit ...func(*mesh.Config)) *mesh.Client {
	t.Helper()
	cfg := mesh.Config{URL: s.URL(), Token: token, Space: space, Name: name, Reconnect: true}
	for _, f := range edit {
		f(&cfg)
	}
	c, err := mesh.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (s *server) roster(t testing.TB, c *mesh.Client, opts ...mesh.RosterOption) *mesh.Roster {
	t.Helper()
	r, err := c.WatchPresence(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func join(t testing.TB, c *mesh.Client, cfg mesh.JoinConfig) *mesh.Presence {
	t.Helper()
	p, err := c.Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// eventually asks for a fact until it holds, for as long as limit is on this machine.
func eventually(t testing.TB, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !ok(); <-tick.C {
		if busy.Over(begin, limit) {
			t.Fatalf("not within %s: %s", time.Since(begin), what)
		}
	}
}

func is(c *mesh.Client, status string) func(wire.Presence) bool {
	return func(p wire.Presence) bool { return p.Card.ID == c.Caller().Principal() && p.Status == status }
}
