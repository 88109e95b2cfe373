package mesh

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func someone(actor, status string) wire.Presence {
	return wire.Presence{
		Card:   wire.AgentCard{ID: "local." + actor, Name: actor, Kind: wire.CardAgent, ProtocolVersion: wire.ProtocolVersion},
		Status: status, TS: 1, LifecycleUID: "aaaaaaaaaaaaaaaaaaaaaaaaaa",
	}
}

// A step of the life of a view, at a moment from its beginning.
type rosterStep struct {
	at time.Duration
	do func(s *rosterState, now time.Time)
}

// proves: SEAT-2, E10
func TestWhatAViewMayConclude(t *testing.T) {
	t.Parallel()
	sec := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	arm := func(s *rosterState, now time.Time) { s.armed(false, now) }
	again := func(s *rosterState, now time.Time) { s.armed(true, now) }
	full := func(s *rosterState, _ time.Time) { s.full = true }
	beat := func(s *rosterState, now time.Time) { s.hear(now); s.put("local.a", someone("a", "idle"), 0, now) }
	old := func(s *rosterState, now time.Time) { s.put("local.a", someone("a", "idle"), sec(5), now) }
	hear := func(s *rosterState, now time.Time) { s.hear(now) }
	leave := func(s *rosterState, now time.Time) { s.hear(now); s.put("local.a", someone("a", "offline"), 0, now) }
	drop := func(s *rosterState, now time.Time) { s.hear(now); s.remove("local.a", now) }
	// the server says every second that there is nothing new
	quiet := func(from, to int) (steps []rosterStep) {
		for i := from; i <= to; i++ {
			steps = append(steps, rosterStep{sec(float64(i)), hear})
		}
		return steps
	}
	cat := func(parts ...[]rosterStep) (all []rosterStep) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	begin := []rosterStep{{0, arm}, {0, full}, {0, beat}}
	for name, tc := range map[string]struct {
		steps  []rosterStep
		at     time.Duration
		state  string
		status string // of a; "" : not in the view
	}{
		"nothing is known before the first records are read":                   {[]rosterStep{{0, arm}}, 0, ViewUnpopulated, ""},
		"an empty bucket is an answer":                                         {[]rosterStep{{0, arm}, {0, full}}, 0, ViewCurrent, ""},
		"who was heard of is there":                                            {begin, sec(1), ViewCurrent, "idle"},
		"who is silent for a window while the server is heard is gone":         {cat(begin, quiet(1, 7)), sec(7), ViewCurrent, "offline"},
		"who is silent for less is there":                                      {cat(begin, quiet(1, 5)), sec(5.9), ViewCurrent, "idle"},
		"when the server is silent too the view is stale":                      {begin, sec(6.1), ViewStale, "idle"},
		"and takes nobody for gone, however long that lasts":                   {begin, sec(600), ViewStale, "idle"},
		"a view that hears again after a silence waits before it judges":       {cat(begin, quiet(1, 2), []rosterStep{{sec(20), hear}}), sec(20), ViewStale, "idle"},
		"and judges when everybody had the time to be heard":                   {cat(begin, quiet(1, 2), quiet(20, 31)), sec(31), ViewCurrent, "offline"},
		"who is heard of in that time was never gone":                          {cat(begin, quiet(20, 26), []rosterStep{{sec(26), beat}}, quiet(27, 31)), sec(31), ViewCurrent, "idle"},
		"a watch that begins anew waits as well":                               {cat(begin, []rosterStep{{sec(1), again}}, quiet(2, 10)), sec(10.5), ViewStale, "idle"},
		"and is current when that time is over":                                {cat(begin, []rosterStep{{sec(1), again}}, quiet(2, 9), []rosterStep{{sec(9), beat}}, quiet(10, 12)), sec(12), ViewCurrent, "idle"},
		"a record from before the watch counts from when it was written":       {cat([]rosterStep{{0, arm}, {0, old}, {0, full}}, quiet(1, 2)), sec(2), ViewCurrent, "offline"},
		"and not from when it was read":                                        {cat([]rosterStep{{0, arm}, {0, old}, {0, full}}, quiet(1, 1)), sec(1), ViewCurrent, "idle"},
		"who says goodbye is gone at once":                                     {cat(begin, []rosterStep{{sec(1), leave}}), sec(1), ViewCurrent, "offline"},
		"who says goodbye and comes back is there":                             {cat(begin, []rosterStep{{sec(1), leave}, {sec(2), beat}}), sec(2), ViewCurrent, "idle"},
		"a deleted record is a goodbye":                                        {cat(begin, []rosterStep{{sec(1), drop}}), sec(1), ViewCurrent, "offline"},
		"a goodbye is believed by a stale view too, which judges nothing":      {cat(begin, []rosterStep{{sec(1), again}, {sec(2), leave}}), sec(2), ViewStale, "offline"},
		"a server that has just started leaves everybody the time to return":   {[]rosterStep{{0, again}, {0, full}}, sec(1), ViewStale, ""},
		"a process that was stopped reads its buffers and judges nobody by it": {cat(begin, []rosterStep{{sec(15), hear}, {sec(15), hear}}), sec(15), ViewStale, "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			var s rosterState
			zero := time.Now()
			for _, st := range tc.steps {
				now := zero.Add(st.at)
				st.do(&s, now)
				s.tick(now)
			}
			now := zero.Add(tc.at)
			s.tick(now)
			rows := s.list(listing{}).rows
			got := ""
			if len(rows) > 0 {
				got = rows[0].Status
			}
			if s.state(now) != tc.state || got != tc.status {
				t.Errorf("%s and %q, want %s and %q", s.state(now), got, tc.state, tc.status)
			}
		})
	}
}

func TestAViewForgetsWhoIsLongGone(t *testing.T) {
	t.Parallel()
	var s rosterState
	now := time.Now()
	s.armed(false, now)
	s.full = true
	for i := range keepOffline + 50 {
		s.put(fmt.Sprintf("local.a%04d", i), someone(fmt.Sprintf("a%04d", i), "offline"), 0, now.Add(time.Duration(i)))
	}
	s.put("local.z", someone("z", "idle"), 0, now)
	s.tick(now)
	rows := s.list(listing{}).rows
	if len(rows) != keepOffline+1 || rows[0].Card.Name != "a0050" || rows[len(rows)-1].Card.Name != "z" {
		t.Errorf("%d rows from %s to %s", len(rows), rows[0].Card.Name, rows[len(rows)-1].Card.Name)
	}
}

// bubble is a roster without a server: the test says what the server says, and the clock is the test's.
func bubble(t *testing.T, opts ...RosterOption) *Roster {
	r := newRoster(opts...)
	go r.run()
	t.Cleanup(r.Close)
	r.armed(false)
	r.populated()
	return r
}

func (r *Roster) say(t *testing.T, p wire.Presence) {
	t.Helper()
	body, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.heard()
	r.record(p.Card.ID, false, body, 0)
}

// quiet lets seconds pass in which the server says that there is nothing new.
func (r *Roster) quiet(seconds int) {
	for range seconds {
		time.Sleep(time.Second)
		synctest.Wait()
		r.heard()
	}
}

func TestWhoeverWaitsIsWokenByTimeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bubble(t)
		r.say(t, someone("a", "working"))
		gone := make(chan time.Time, 1)
		start := time.Now()
		go func() {
			_, err := r.Await(t.Context(), func(p wire.Presence) bool { return p.Status == wire.StatusOffline })
			if err != nil {
				t.Error(err)
			}
			gone <- time.Now()
		}()
		r.quiet(7)
		if d := (<-gone).Sub(start); d < wire.PresenceWindow || d > wire.PresenceWindow+watchBeat {
			t.Errorf("gone after %s", d)
		}
		// The view itself grows stale without anybody saying so.
		changed := r.Changed()
		<-changed
		if d := time.Since(start); r.View().State != ViewStale || d < 7*time.Second+wire.PresenceWindow || d > 8*time.Second+wire.PresenceWindow {
			t.Errorf("%s after %s", r.View().State, d)
		}
	})
}

func TestAHeartbeatAloneWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bubble(t)
		p := someone("a", "idle")
		r.say(t, p)
		changed := r.Changed()
		for range 5 {
			time.Sleep(wire.PresenceHeartbeat)
			p.TS = time.Now().UnixMilli()
			r.say(t, p)
		}
		select {
		case <-changed:
			t.Error("somebody was woken")
		default:
		}
		v := r.View()
		if row, _ := v.Row("local.a"); row.TS != p.TS || !v.SeenAt("local.a").Equal(time.Now()) {
			t.Errorf("the heartbeat is not in the view: %+v", row)
		}
		p.Activity = "something else"
		r.say(t, p)
		select {
		case <-changed:
		default:
			t.Error("a change woke nobody")
		}
		// Whoever awaits a heartbeat gets it all the same.
		after := time.Now().UnixMilli()
		go func() {
			time.Sleep(wire.PresenceHeartbeat)
			p.TS = time.Now().UnixMilli()
			r.say(t, p)
		}()
		got, err := r.Await(t.Context(), func(p wire.Presence) bool { return p.TS > after })
		if err != nil || time.Now().UnixMilli()-got.TS > 2*beatLag.Milliseconds() {
			t.Errorf("awaiting a heartbeat: %+v after %s, %v", got, time.Duration(time.Now().UnixMilli()-after)*time.Millisecond, err)
		}
	})
}

func TestAwaitEndsWithItsContextAndWithTheRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bubble(t)
		never := func(wire.Presence) bool { return false }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := r.Await(ctx, never); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("await: %v", err)
		}
		go func() {
			time.Sleep(time.Second)
			r.Close()
		}()
		if _, err := r.Await(t.Context(), never); !errors.Is(err, ErrClosed) {
			t.Errorf("await over the end: %v", err)
		}
		empty := newRoster()
		if err := empty.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ready without a server: %v", err)
		}
	})
}

func TestASettlingViewIsCurrentWhenAllCanBeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bubble(t, Settling())
		start := time.Now()
		if st := r.View().State; st != ViewStale {
			t.Fatalf("at the beginning it is %s", st)
		}
		go r.quiet(12)
		for r.View().State != ViewCurrent {
			<-r.Changed()
		}
		if d := time.Since(start); d != rosterSettle {
			t.Errorf("current after %s", d)
		}
		time.Sleep(rosterSettle)
	})
}

// Views are handed out and kept by others: a later one must not write into an earlier one, in whatever way it is
// made.
func TestAViewStaysAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := bubble(t)
		for _, name := range []string{"c", "a", "b"} {
			r.say(t, someone(name, "idle"))
		}
		names := func(v View) (all string) {
			for _, p := range v.Rows {
				all += p.Card.Name + ":" + p.Status + " "
				if row, ok := v.Row(p.Card.ID); !ok || row.Card.Name != p.Card.Name {
					t.Errorf("row of %s: %+v", p.Card.ID, row)
				}
			}
			return all
		}
		first := r.View()
		r.say(t, someone("b", "working")) // a change in place
		second := r.View()
		renamed := someone("b", "working")
		renamed.Card.Name = "z"
		r.say(t, renamed) // another order
		third := r.View()
		r.say(t, someone("d", "idle")) // one more
		fourth := r.View()
		r.record("local.a", true, nil, 0)
		fifth := r.View()
		for i, c := range []struct {
			v    View
			want string
		}{
			{first, "a:idle b:idle c:idle "},
			{second, "a:idle b:working c:idle "},
			{third, "a:idle c:idle z:working "},
			{fourth, "a:idle c:idle d:idle z:working "},
			{fifth, "a:offline c:idle d:idle z:working "},
		} {
			if got := names(c.v); got != c.want {
				t.Errorf("view %d: %s, want %s", i+1, got, c.want)
			}
		}
		if _, ok := fifth.Row("local.nobody"); ok || !fifth.SeenAt("local.nobody").IsZero() {
			t.Error("somebody is there who is not")
		}
	})
}
