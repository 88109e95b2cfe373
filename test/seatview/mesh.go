package seatview

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Mesh is a viewer of one seat over the mesh.
type Mesh struct {
	*mesh.Session
	t testing.TB

	mu    sync.Mutex
	out   []byte
	news  []mesh.SessionNews
	err   error
	ended chan struct{}
}

// Client connects to the host of a world as a client that survives the loss of the server.
func Client(t testing.TB, w *harness.World) *mesh.Client {
	t.Helper()
	cfg := w.MeshConfig("viewer")
	cfg.Reconnect = true
	c, err := mesh.Connect(context.Background(), cfg)
	if err != nil {
		t.Fatalf("connect to the host: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// Call is an attach to the life that a row shows, by the rail of its host.
func Call(t testing.TB, row wire.AgentRow, role string) mesh.AttachCall {
	t.Helper()
	owner, actor, err := wire.ParsePrincipal(row.ID)
	if err != nil {
		t.Fatal(err)
	}
	return mesh.AttachCall{
		Target: wire.Target{Owner: owner, Actor: actor, LifecycleUID: row.LifecycleUID}, Instance: row.InstanceID,
		Role: role, Rows: 24, Cols: 80, Deadline: harness.DefaultWait,
	}
}

// AttachMesh attaches over the mesh and reads until the end of the session, which is at the latest that of the
// test.
func AttachMesh(t testing.TB, c *mesh.Client, call mesh.AttachCall) (*Mesh, error) {
	t.Helper()
	m := &Mesh{t: t, ended: make(chan struct{})}
	call.OnNews = func(n mesh.SessionNews) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.news = append(m.news, n)
		m.out = fmt.Appendf(m.out, "[%s %s %d]", n.Kind, n.Role, n.Dropped)
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.DefaultWait)
	defer cancel()
	s, err := c.Attach(ctx, call)
	if err != nil {
		return nil, err
	}
	m.Session = s
	go func() {
		defer close(m.ended)
		_, err := s.WriteTo(m)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.err = err
	}()
	t.Cleanup(func() {
		s.Close()
		<-m.ended
	})
	return m, nil
}

// MustAttachMesh is AttachMesh that fails the test.
func MustAttachMesh(t testing.TB, c *mesh.Client, call mesh.AttachCall) *Mesh {
	t.Helper()
	m, err := AttachMesh(t, c, call)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Write keeps what is shown.
func (m *Mesh) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out = append(m.out, p...)
	return len(p), nil
}

// Text is what was shown so far, with news in brackets.
func (m *Mesh) Text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return string(m.out)
}

// News is what happened so far.
func (m *Mesh) News() []mesh.SessionNews {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]mesh.SessionNews(nil), m.news...)
}

// Type types a text.
func (m *Mesh) Type(text string) error {
	_, err := m.Session.Write([]byte(text))
	return err
}

// See waits until a text was shown.
func (m *Mesh) See(text string) {
	m.t.Helper()
	harness.Eventually(m.t, harness.DefaultWait, fmt.Sprintf("the viewer is shown %q", text), func() (bool, string) {
		out := m.Text()
		return strings.Contains(out, text), fmt.Sprintf("it was shown %q", out[max(0, len(out)-1000):])
	})
}

// Ended waits for the end of the session and returns its reason.
func (m *Mesh) Ended() (reason string, err error) {
	m.t.Helper()
	harness.Eventually(m.t, harness.DefaultWait, "the session ends", func() (bool, string) {
		select {
		case <-m.ended:
			return true, ""
		default:
			out := m.Text()
			return false, fmt.Sprintf("it was shown %q", out[max(0, len(out)-1000):])
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Reason(), m.err
}
