//go:build linux

package chaos

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// weather is one fault of the network between hosts, broker and clients. It lasts as long as it is given.
type weather struct {
	name string
	blow func(a *apart, d time.Duration)
}

var weathers = []weather{
	{"the host is cut off", func(a *apart, d time.Duration) { a.host.Hold(true, true); wait(d); a.host.Heal() }},
	{"the answers of the host are held up", func(a *apart, d time.Duration) { a.host.Hold(true, false); wait(d); a.host.Heal() }},
	{"the broker restarts", func(a *apart, d time.Duration) { a.broker.Kill(); wait(d / 4); a.broker.Restart() }},
	{"clients are cut off", func(a *apart, d time.Duration) { a.client.Hold(true, true); wait(d); a.client.Heal() }},
	{"acknowledgements are slow", func(a *apart, d time.Duration) { a.host.Slow(150 * time.Millisecond); wait(d); a.host.Slow(0) }},
	{"connections break again and again", func(a *apart, d time.Duration) {
		for range 5 {
			a.host.Cut()
			wait(d / 10)
			a.client.Cut()
			wait(d / 10)
		}
	}},
	{"the broker stands still", func(a *apart, d time.Duration) { a.broker.Stop(); wait(d); a.broker.Cont() }},
}

// wait is the length of a fault, not a wait for something.
func wait(d time.Duration) { <-time.After(d) }

// TestWeatherOfTheNetwork: seats are started, typed into and stopped while the network has one fault after
// the other. Each caller acts on nothing but what it was told: what is not executed may be tried again; what is
// unknown is asked again under the same id if that is idempotent (spawn, despawn) and never otherwise (input).
// In the end nothing was executed twice, nothing that was told is untrue, and nothing is lost.
func TestWeatherOfTheNetwork(t *testing.T) {
	t.Parallel() // most of it is waiting
	rounds, seed, length := 1, uint64(1), 600*time.Millisecond
	if os.Getenv("COTAL_LONG") != "" {
		rounds, seed, length = 5, uint64(time.Now().UnixNano()), partitionRun
	}
	if s := os.Getenv("COTAL_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatalf("COTAL_SEED: %v", err)
		}
	}
	t.Logf("COTAL_SEED=%d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	a := newApart(t)
	c := a.dial(a.client.URL())
	to := a.typist(c, "typist")
	s := &sky{apart: a, c: c, to: to}
	var over atomic.Bool
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for n := 0; !over.Load(); n++ {
				s.life(fmt.Sprintf("s%d-%d", i, n))
			}
		})
	}
	wg.Go(func() {
		for n := 0; !over.Load(); n++ {
			s.line(fmt.Sprintf("line %d", n))
		}
	})
	wg.Go(func() {
		for !over.Load() {
			s.look()
		}
	})
	for range rounds {
		for _, i := range dice.Perm(len(weathers)) {
			w := weathers[i]
			t.Log(w.name)
			w.blow(a, length)
			wait(length / 2) // fair weather between two faults
		}
	}
	over.Store(true)
	wg.Wait()
	s.account()
}

// sky is what callers saw during the weather.
type sky struct {
	*apart
	c  *mesh.Client
	to *wire.Target

	mu     sync.Mutex
	lives  []string
	failed []string                // of those, whose goals failed
	said   map[string]wire.Outcome // lines, by what their caller was told
	broken map[string]bool         // those of them that may be typed in part: without the Return, for all the caller knows
	counts map[wire.Outcome]int
}

// heard counts what callers were told.
func (s *sky) heard(o wire.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[wire.Outcome]int{}
	}
	s.counts[o]++
}

// until calls again, under the same id, until the outcome is known and it is executed. Not for commands that
// are not idempotent.
func (s *sky) until(what string, call mesh.Call, dst any) {
	for end := time.Now().Add(3 * harness.DefaultWait); ; {
		// A request that is given less than the host needs is refused as late for ever.
		call.Deadline = busy.Limit(time.Second)
		_, err := s.c.Call(context.Background(), call, dst)
		s.heard(mesh.OutcomeOf(err))
		switch {
		case err == nil:
			return
		case time.Now().After(end):
			s.t.Errorf("%s: still %v", what, err)
			return
		case mesh.OutcomeOf(err) == wire.OutcomeExecuted:
			s.t.Errorf("%s: executed, and refused: %v", what, err)
			return
		}
		wait(10 * time.Millisecond)
	}
}

// life starts a seat, waits for it to run, and stops it.
func (s *sky) life(name string) {
	s.mu.Lock()
	s.lives = append(s.lives, name)
	s.mu.Unlock()
	id := "goal-" + name
	var a wire.Acceptance
	s.until("spawn of "+name, spawnCall(id, s.counted(name), 0), &a)
	if s.t.Failed() {
		return
	}
	if a.GoalID != id || a.Name != name {
		s.t.Errorf("acceptance of %s: %+v", name, a)
	}
	var g wire.GoalResultReply
	for end := time.Now().Add(3 * harness.DefaultWait); g.Result == nil; {
		s.until("goal of "+name, mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id}}, &g)
		if s.t.Failed() {
			return
		}
		if time.Now().After(end) {
			s.t.Errorf("the goal of %s has no terminal; its phase is %q", name, g.Phase)
			return
		}
	}
	switch g.Result.State {
	case wire.GoalSucceeded:
	case wire.GoalFailed:
		// It may have been accepted, and given up before anything was started: that has to be true for good.
		s.mu.Lock()
		s.failed = append(s.failed, name)
		s.mu.Unlock()
		return
	default:
		s.t.Errorf("the goal of %s ended %s: %v", name, g.Result.State, g.Result.Error)
		return
	}
	// Of what was accepted nothing is lost. An agent that is stopped before its first step would be no proof.
	if ok, state := harness.Poll(harness.DefaultWait, func() (bool, string) { return s.starts(name) > 0, "it has not started" }); !ok {
		s.t.Errorf("the goal of %s has succeeded, and its agent: %s", name, state)
	}
	s.until("despawn of "+name, despawnCall(&wire.Target{Owner: a.Owner, Actor: a.Actor, LifecycleUID: a.UID}, 0), nil)
}

// line types one line, once.
func (s *sky) line(text string) {
	_, err := s.c.Call(context.Background(), inputCall(s.to, text, time.Second), nil)
	o := mesh.OutcomeOf(err)
	s.heard(o)
	s.mu.Lock()
	if s.said == nil {
		s.said, s.broken = map[string]wire.Outcome{}, map[string]bool{}
	}
	s.said[text] = o
	if err != nil && o != wire.OutcomeNotExecuted {
		s.broken[text] = true
	}
	s.mu.Unlock()
	wait(5 * time.Millisecond)
}

// look lists the seats: a list that comes is true of the typist.
func (s *sky) look() {
	var rows []wire.AgentRow
	_, err := s.c.Call(context.Background(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs, Deadline: 500 * time.Millisecond}, &rows)
	s.heard(mesh.OutcomeOf(err))
	if err == nil {
		found := false
		for _, row := range rows {
			found = found || row.Name == "typist" && row.Status == "running"
		}
		if !found {
			s.t.Errorf("ps does not list the typist as running: %+v", rows)
		}
	}
	wait(20 * time.Millisecond)
}

// account compares what callers were told with what was done.
func (s *sky) account() {
	s.t.Logf("%d lives, %d lines; callers were told %v; goals that failed: %v", len(s.lives), len(s.said), s.counts, s.failed)
	for _, name := range s.lives {
		want := 1
		if slices.Contains(s.failed, name) {
			want = 0
		}
		if n := s.starts(name); n != want {
			s.t.Errorf("the agent of %s was started %d times, want %d", name, n, want)
		}
	}
	if len(s.failed)*4 > len(s.lives) {
		s.t.Errorf("%d of %d goals failed", len(s.failed), len(s.lives))
	}
	harness.Eventually(s.t, harness.DefaultWait, "the agents have ended", func() (bool, string) {
		left := s.ProcsLike("started.s")
		return len(left) == 0, fmt.Sprint(left)
	})
	var times map[string]int
	harness.Eventually(s.t, harness.DefaultWait, "what was told to be typed is", func() (bool, string) {
		times = linesOf(s.typed("typist"), s.broken)
		for text, o := range s.said {
			if o == wire.OutcomeExecuted && !s.broken[text] && times[text] == 0 {
				return false, text + " is not"
			}
		}
		return true, ""
	})
	for text, o := range s.said {
		switch n := times[text]; {
		case o == wire.OutcomeExecuted && n != 1 && !s.broken[text], o == wire.OutcomeNotExecuted && n != 0, n > 1:
			s.t.Errorf("%q was typed %d times, its caller was told %s", text, n, o)
		}
		delete(times, text)
	}
	if len(times) > 0 {
		s.t.Errorf("typed, and by nobody: %v", times)
	}
}

// linesOf counts what was typed, line by line. Behind a part of a line, of one that broke, the next one begins at once,
// and may be a part as well. A part is counted for its line: the one of which it is the whole text, or else one that is
// not accounted for.
func linesOf(typed string, broken map[string]bool) map[string]int {
	texts := slices.Sorted(maps.Keys(broken))
	times, parts := map[string]int{}, []string(nil)
	lines := strings.Split(typed, "\r")
	for n, line := range lines {
		for i := nextLine(line); i > 0 && slices.ContainsFunc(texts, begins(line[:i])); i = nextLine(line) {
			parts, line = append(parts, line[:i]), line[i:]
		}
		switch {
		case n < len(lines)-1:
			times[line]++
		case line != "": // no Return follows
			parts = append(parts, line)
		}
	}
	slices.SortStableFunc(parts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, part := range parts {
		if !broken[part] {
			of := begins(part)
			if i := slices.IndexFunc(texts, func(text string) bool { return times[text] == 0 && of(text) }); i >= 0 {
				part = texts[i]
			}
		}
		times[part]++
	}
	return times
}

// nextLine is where another line begins in what was typed without a Return; 0: none does.
func nextLine(typed string) int {
	const begin = "line "
	rest := strings.TrimPrefix(typed, begin)
	i := strings.Index(rest, begin)
	if i < 0 {
		return 0
	}
	return len(typed) - len(rest) + i
}

// begins says of a text whether it begins with a part.
func begins(part string) func(text string) bool {
	return func(text string) bool { return strings.HasPrefix(text, part) }
}

// A line that broke behind its text has no Return, and the next one stands right behind it: neither was found, and a
// storm failed for what its callers had been told. So did two that broke in a row, and one that is the beginning of
// another.
func TestALineThatBrokeIsToldFromTheNext(t *testing.T) {
	broke := func(texts ...string) map[string]bool {
		broken := map[string]bool{}
		for _, text := range texts {
			broken[text] = true
		}
		return broken
	}
	for name, c := range map[string]struct {
		typed  string
		broken map[string]bool
		want   map[string]int
	}{
		"the next one stands behind it": {
			"line 1\rline 2line 3\rline 4\r", broke("line 2"), map[string]int{"line 1": 1, "line 2": 1, "line 3": 1, "line 4": 1},
		},
		"a line that did not break is no part": {"line 5line 6\r", broke("line 2"), map[string]int{"line 5line 6": 1}},
		"two break in a row": {
			"line 2line 3line 4\rline 5\r", broke("line 2", "line 3"), map[string]int{"line 2": 1, "line 3": 1, "line 4": 1, "line 5": 1},
		},
		"one is the beginning of another": {
			"line 1line 2\rline 12line 13\r", broke("line 1", "line 12"), map[string]int{"line 1": 1, "line 2": 1, "line 12": 1, "line 13": 1},
		},
		"one breaks within its text": {"line 1line 13\r", broke("line 12"), map[string]int{"line 12": 1, "line 13": 1}},
		"two break within their texts": {
			"liline 3\rlline 5\r", broke("line 2", "line 4"), map[string]int{"line 2": 1, "line 3": 1, "line 4": 1, "line 5": 1},
		},
		"the last one breaks": {"line 1\rline", broke("line 2"), map[string]int{"line 1": 1, "line 2": 1}},
		"one that broke and was typed again is told": {
			"line 2line 3\rline 2\r", broke("line 2", "line 20"), map[string]int{"line 2": 2, "line 3": 1},
		},
	} {
		if got := linesOf(c.typed, c.broken); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
