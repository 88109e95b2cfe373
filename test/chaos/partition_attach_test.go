//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// viewer is one terminal attached over the mesh, and what it was told.
type viewer struct {
	s *mesh.Session

	mu     sync.Mutex
	output strings.Builder
	backs  int
	losses int
	unsure int
}

func (a *apart) view(c *mesh.Client, to *wire.Target) *viewer {
	a.t.Helper()
	v := &viewer{}
	s, err := c.Attach(a.t.Context(), mesh.AttachCall{Target: *to, Rows: 24, Cols: 80, OnNews: func(n mesh.SessionNews) {
		v.mu.Lock()
		defer v.mu.Unlock()
		switch n.Kind {
		case mesh.SessionLost:
			v.losses++
			v.unsure += n.Unsure
		case mesh.SessionBack:
			v.backs++
		}
	}})
	if err != nil {
		a.t.Fatalf("attach: %v", err)
	}
	v.s = s
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.WriteTo(v) // its end is the end of the session
	}()
	a.t.Cleanup(func() {
		s.Close()
		<-done
	})
	return v
}

// Write implements io.Writer.
func (v *viewer) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.output.Write(p)
}

func (v *viewer) state() (output string, backs, losses, unsure int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.output.String(), v.backs, v.losses, v.unsure
}

// TestAnAttachOutlivesTheWeather: a terminal over the mesh while it, its host, and its broker are cut off, and
// the broker restarts. It comes back each time and shows what the seat prints; no key is typed twice, none that was
// refused is typed, and as many as were lost it said that it is not sure of.
//
// proves: I5
func TestAnAttachOutlivesTheWeather(t *testing.T) {
	length := partition()
	t.Parallel() // most of it is waiting
	a := newApart(t)
	c := a.dial(a.client.URL())
	to := a.typist(c, "typist")
	v := a.view(c, to)
	keys := map[string]error{}
	n := 0
	press := func() string {
		n++
		key := fmt.Sprintf("key %d;", n)
		_, err := v.s.Write([]byte(key))
		keys[key] = err
		return key
	}
	arrives := func(when string) {
		t.Helper()
		harness.Eventually(t, 2*harness.DefaultWait, "keys arrive "+when, func() (bool, string) {
			key := press()
			if keys[key] != nil {
				return false, keys[key].Error()
			}
			ok, _ := harness.Poll(500*time.Millisecond, func() (bool, string) { return strings.Contains(a.typed("typist"), key), "" })
			return ok, key + " did not"
		})
	}
	arrives("in fair weather")
	for _, w := range []weather{
		{"the client is cut off", func(a *apart, d time.Duration) { a.client.Hold(true, true); wait(d); a.client.Heal() }},
		{"the host is cut off", func(a *apart, d time.Duration) { a.host.Hold(true, true); wait(d); a.host.Heal() }},
		{"everything is slow", func(a *apart, d time.Duration) {
			a.host.Slow(150 * time.Millisecond)
			a.client.Slow(100 * time.Millisecond)
			wait(d)
			a.host.Slow(0)
			a.client.Slow(0)
		}},
		{"connections break", func(a *apart, _ time.Duration) { a.host.Cut(); a.client.Cut() }},
		{"the broker restarts", func(a *apart, d time.Duration) { a.broker.Kill(); wait(d / 4); a.broker.Restart() }},
	} {
		var wg sync.WaitGroup
		wg.Go(func() { w.blow(a, length) })
		for end := time.Now().Add(length / 2); time.Now().Before(end); {
			press()
			wait(length / 20)
		}
		wg.Wait()
		arrives("behind: " + w.name)
	}
	output, backs, losses, unsure := v.state()
	t.Logf("%d keys, %d losses, %d returns, %d bytes unsure, %d bytes of output", len(keys), losses, backs, unsure, len(output))
	typed := a.typed("typist")
	lost := 0
	for key, err := range keys {
		switch n := strings.Count(typed, key); {
		case n > 1:
			t.Errorf("%q was typed %d times", key, n)
		case n == 1 && errors.Is(err, mesh.ErrNotAttached):
			t.Errorf("%q was refused (%v), and typed", key, err)
		case n == 0 && err == nil:
			lost += len(key)
		}
	}
	if lost > unsure {
		t.Errorf("%d bytes of keys were taken and not typed; the session said that it is not sure of %d", lost, unsure)
	}
	if backs == 0 || backs > losses {
		t.Errorf("%d losses, %d returns", losses, backs)
	}
	shown := strings.Count(output, "tick ")
	harness.Eventually(t, harness.DefaultWait, "the terminal shows what is printed now", func() (bool, string) {
		output, _, _, _ := v.state()
		return strings.Count(output, "tick ") > shown+5, fmt.Sprint(shown)
	})
}
