//go:build linux

package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// storedMemory bounds a host with its own broker, at rest, that keeps twelve thousand goals, in KiB: the server indexes
// the four messages that stay of a goal by their subjects, which is 0.8 KiB for each, and each stream that is written has a
// block of 4 MiB in memory.
const storedMemory = 52 << 10

// TestTheGoalsOfManyLivesDoNotGrowTheBroker: what a host with its own broker keeps of thousands of goals is on disk.
// The goals are written as a host writes them, beside it, so that it takes seconds.
func TestTheGoalsOfManyLivesDoNotGrowTheBroker(t *testing.T) {
	if os.Getenv("COTAL_LONG") == "" {
		t.Skip("COTAL_LONG is not set")
	}
	w := harness.New(t)
	s := &storm{World: w, t: t}
	s.host = s.Start(harness.HostOptions{})
	e := w.Endpoint()
	token, err := mesh.ReadToken(e.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.Connect(t.Context(), bus.Config{URL: e.URL, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r, err := b.Records(t.Context(), "main", func(string) bool { return true }, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	const each, parts = 1500, 8
	for part := range parts {
		var wg sync.WaitGroup
		for lane := range 4 {
			wg.Go(func() {
				for i := lane; i < each; i += 4 {
					if err := writeGoal(t.Context(), r, fmt.Sprintf("g%d-%d", part, i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		s.sample()
	}
	t.Logf("memory of the host in KiB, after each %d goals: %v", each, s.mem)
	// At thousands of goals a second the blocks that were left behind are still in memory; they go after 10 s.
	harness.Eventually(t, harness.DefaultWait, "the host is small again", func() (bool, string) {
		s.sample()
		now := s.mem[len(s.mem)-1]
		return now <= storedMemory, fmt.Sprint(now)
	})
}

// writeGoal writes one goal from its acceptance to its end, in the sizes of a spawn.
func writeGoal(ctx context.Context, r *bus.Records, id string) error {
	ref := wire.GoalRef{Endpoint: wire.EndpointManager, Caller: wire.Caller{Owner: "local", Actor: "operator", UID: strings.Repeat("a", 26)}, ID: id}
	text := func(n int) []byte { return []byte(`{"x":"` + strings.Repeat("x", n) + `"}`) }
	idx, err := r.Create(ctx, ref.IndexKey(), text(300))
	if err != nil {
		return err
	}
	if _, err := r.PutFact(ctx, ref.Bind("main"), text(150)); err != nil {
		return err
	}
	if _, err := r.Create(ctx, ref.Key().Spec(), text(400)); err != nil {
		return err
	}
	status, err := r.Create(ctx, ref.Key().Status(), text(60))
	if err != nil {
		return err
	}
	for range 2 {
		if status, err = r.Update(ctx, ref.Key().Status(), text(60), status); err != nil {
			return err
		}
	}
	if _, err := r.PutFact(ctx, ref.Result("main"), text(700)); err != nil {
		return err
	}
	return r.Delete(ctx, ref.IndexKey(), idx)
}
