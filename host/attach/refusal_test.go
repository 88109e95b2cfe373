package attach

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// shown are seats whose terminals are shown by a program.
type shown struct{ *seats }

func (shown) Terminal(context.Context, wire.Target, wire.TerminalArgs) (wire.TerminalReply, error) {
	return wire.TerminalReply{Runtime: "mux", Argv: []string{"/usr/bin/mux"}}, nil
}

// Whatever refuses an attach before its session is there, the refusal says that nothing was done, and nothing was: no
// place, no rail and no entry for the next incarnation is left.
//
// proves: OUT-6, ATTACH-4
func TestARefusedAttachHasDoneNothing(t *testing.T) {
	one := []wire.AgentRow{{Name: "x", SeatID: "one"}}
	for name, c := range map[string]struct {
		seats Seats
		spoil func(*Sessions)
		code  string
		taken int // places, by others
	}{
		"a life that is gone": {
			seats: &seats{rows: []wire.AgentRow{{}}, err: wire.Refuse(wire.CodeExpired, "gone")}, code: wire.CodeExpired,
		},
		"a seat that does not run": {
			seats: &seats{rows: []wire.AgentRow{{}}, err: wire.Refuse(wire.CodeFailedPrecondition, "exited")}, code: wire.CodeFailedPrecondition,
		},
		"a host that is full": {
			seats: &seats{rows: one}, spoil: func(s *Sessions) { _, _ = s.claim(nil) }, code: wire.CodeResourceExhausted, taken: 1,
		},
		"a host that stops": {
			seats: &seats{rows: one}, spoil: (*Sessions).Close, code: wire.CodeUnavailable,
		},
		"a mesh that cannot be reached": {
			seats: &seats{rows: one}, code: wire.CodeUnavailable,
			spoil: func(s *Sessions) {
				s.cfg.Lines = Shared(func(context.Context, func()) (Rails, error) { return nil, errors.New("nobody is there") })
			},
		},
		"a runtime that has no stream": {
			seats: shown{&seats{rows: one}}, code: wire.CodeFailedPrecondition,
		},
		"a seat that is replaced meanwhile": {
			seats: &seats{rows: []wire.AgentRow{{Name: "x", SeatID: "one"}, {Name: "x", SeatID: "two"}}}, code: wire.CodeFailedPrecondition,
		},
		"a terminal that cannot be reached": {
			seats: &seats{rows: one}, code: wire.CodeUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRails()
			set := sessions(t, c.seats, r, 1)
			if c.spoil != nil {
				c.spoil(set)
			}
			err := attach(set)
			if err == nil || err.Code != c.code || err.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("%v; want %s, not-executed", err, c.code)
			}
			if n := set.Count(); n != c.taken {
				t.Errorf("%d places are taken, want %d", n, c.taken)
			}
			if len(r.on) != 0 || len(r.sent) != 0 {
				t.Errorf("it listens on %d rails and has sent to %d", len(r.on), len(r.sent))
			}
			if text, err := os.ReadFile(set.cfg.LedgerPath); len(text) != 0 {
				t.Errorf("the ledger holds %q, %v", text, err)
			}
		})
	}
}

// A mesh of which the server confirms nothing.
type unconfirmed struct{ *rails }

func (unconfirmed) Flush(context.Context) error { return errors.New("no answer") }

// standingSession is a session that its holder has, in a set, as if it had been granted and redeemed.
func standingSession(t testing.TB, set *Sessions, caller wire.Caller, target wire.Target) *session {
	t.Helper()
	release, refused := set.claim(nil)
	if refused != nil {
		t.Fatal(refused)
	}
	o, err := set.offer(t.Context(), caller, target)
	if err != nil {
		t.Fatal(err)
	}
	x := newSession(set, o.rails, o.grant, target, wire.AgentRow{Name: "x", SeatID: "one"}, &view{writer: true, conn: &seat.Conn{}}, release)
	if err := set.establish(x, o); err != nil {
		t.Fatal(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.phase = live
	return x
}

// A host that has closed its sessions gives up what they stand on: nothing of them may run any more.
func TestTheCloseOfSessionsWaitsForWhatTheyDo(t *testing.T) {
	r := newRails()
	set := sessions(t, &seats{rows: []wire.AgentRow{{}}}, r, 1)
	x := standingSession(t, set, wire.Caller{Owner: wire.OwnerLocal, Actor: "A", UID: wire.NewUID()}, wire.Target{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()})
	var over atomic.Bool
	x.goSafe(func() {
		<-x.ctx.Done()
		for range 100 {
			runtime.Gosched() // what it still has to do
		}
		over.Store(true)
	})
	set.Close()
	if !over.Load() {
		t.Error("something of a session runs on")
	}
	x.goSafe(func() { t.Error("something of a session begins behind its end") })
	set.beside.Wait()
}

// offerTo is a session that its holder has not come to yet.
func offerTo(t *testing.T, set *Sessions, caller wire.Caller, target wire.Target) *session {
	t.Helper()
	x := standingSession(t, set, caller, target)
	x.mu.Lock()
	x.phase = offered
	x.mu.Unlock()
	set.crowd(x)
	return x
}

func over(x *session) bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// What one caller asks for and does not come to has a bound of its own: it takes neither the seat nor the host from
// others, nor what the caller has come to.
func TestOffersThatACallerDoesNotTakeGiveWayToItsNext(t *testing.T) {
	one := wire.Target{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()}
	greedy := wire.Caller{Owner: wire.OwnerLocal, Actor: "A", UID: wire.NewUID()}
	other := wire.Caller{Owner: wire.OwnerLocal, Actor: "C", UID: wire.NewUID()}
	for name, c := range map[string]struct {
		max, left int
		target    func() wire.Target
	}{
		"at one seat": {DefaultMaxSessions, maxOffered, func() wire.Target { return one }},
		"at many seats": {DefaultMaxSessions, DefaultMaxSessions / 2, func() wire.Target {
			return wire.Target{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()}
		}},
		"at a small host": {minOffered + 4, minOffered, func() wire.Target { return one }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRails()
			set := sessions(t, &seats{rows: []wire.AgentRow{{}}}, r, c.max)
			theirs := offerTo(t, set, other, one)
			taken := standingSession(t, set, greedy, one)
			var mine []*session
			for range 2 * c.max {
				mine = append(mine, offerTo(t, set, greedy, c.target()))
			}
			for i, x := range mine {
				if want := i < len(mine)-c.left; over(x) != want {
					t.Errorf("the offer at %d is over: %v", i, !want)
				}
			}
			if over(theirs) || over(taken) {
				t.Errorf("ended: what another caller was offered, %v; what was taken, %v", over(theirs), over(taken))
			}
			if n := set.Count(); n != c.left+2 {
				t.Errorf("%d places are taken, want %d", n, c.left+2)
			}
		})
	}
}

// All terminals of a user are one caller. When their host came back they asked for their sessions at once, and each from
// the ninth on ended that of another before it was come to, which was then lost and asked again.
func TestTwentyTerminalsOfAUserThatComeBackAtOnceAreNotInEachOthersWay(t *testing.T) {
	r := newRails()
	set := sessions(t, &seats{rows: []wire.AgentRow{{}}}, r, 0)
	user := wire.Caller{Owner: wire.OwnerLocal, Actor: "A", UID: wire.NewUID()}
	targets := []wire.Target{
		{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()},
		{Owner: wire.OwnerLocal, Actor: "C", LifecycleUID: wire.NewUID()},
	}
	var back []*session
	for i := range 30 {
		back = append(back, offerTo(t, set, user, targets[i/20])) // twenty at one seat, ten at another
	}
	for i, x := range back {
		if over(x) {
			t.Errorf("the session of the terminal at %d is ended before anybody could come to it", i)
		}
	}
}

// What refuses the attach of a holder that comes back is known before its own session is ended: it goes on.
func TestARefusedAttachLeavesTheSessionThatItWasToReplace(t *testing.T) {
	one := []wire.AgentRow{{Name: "x", SeatID: "one"}}
	for name, c := range map[string]struct {
		seats Seats
		rails func(*rails) Rails // nil: as it is
		code  string
	}{
		"a life that is gone": {
			seats: &seats{rows: []wire.AgentRow{{}}, err: wire.Refuse(wire.CodeExpired, "gone")}, code: wire.CodeExpired,
		},
		"a runtime that has no stream": {seats: shown{&seats{rows: one}}, code: wire.CodeFailedPrecondition},
		"a seat that is replaced meanwhile": {
			seats: &seats{rows: []wire.AgentRow{{Name: "x", SeatID: "one"}, {Name: "x", SeatID: "two"}}}, code: wire.CodeFailedPrecondition,
		},
		"a rail that the server does not confirm": {
			seats: &seats{rows: one}, rails: func(r *rails) Rails { return unconfirmed{r} }, code: wire.CodeUnavailable,
		},
		"a terminal that cannot be reached": {seats: &seats{rows: one}, code: wire.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRails()
			set := sessions(t, c.seats, r, 1)
			caller := wire.Caller{Owner: wire.OwnerLocal, Actor: "A", UID: wire.NewUID()}
			target := wire.Target{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()}
			x := standingSession(t, set, caller, target)
			if c.rails != nil {
				set.cfg.Lines = Shared(func(context.Context, func()) (Rails, error) { return c.rails(r), nil })
			}
			_, err := set.Grant(t.Context(), caller, target, wire.AttachArgs{Replaces: x.id})
			if got := wire.ErrorFrom(err); got == nil || got.Code != c.code || got.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("%v; want %s, not-executed", err, c.code)
			}
			select {
			case <-x.done:
				t.Error("the session was ended, and nothing has come in its stead")
			default:
			}
			if n := set.Count(); n != 1 || x.lent {
				t.Errorf("%d places are taken; the one of the session is lent: %v", n, x.lent)
			}
			if len(r.on) != 1 || len(r.sent) != 0 {
				t.Errorf("it listens on %d rails and has sent to %d; want its own, none", len(r.on), len(r.sent))
			}
		})
	}
}

// A full host has the place of its own session for who comes back, once, and no other.
func TestAPlaceIsLentOnce(t *testing.T) {
	r := newRails()
	set := sessions(t, &seats{rows: []wire.AgentRow{{}}}, r, 1)
	target := wire.Target{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()}
	x := standingSession(t, set, wire.Caller{Owner: wire.OwnerLocal, Actor: "A", UID: wire.NewUID()}, target)
	before := []*session{x}
	if _, refused := set.claim(nil); refused == nil || refused.Code != wire.CodeResourceExhausted {
		t.Fatalf("a stranger at a full host: %v", refused)
	}
	release, refused := set.claim(before)
	if refused != nil {
		t.Fatalf("its holder: %v", refused)
	}
	if _, refused := set.claim(before); refused == nil || refused.Code != wire.CodeResourceExhausted {
		t.Errorf("its holder, twice at once: %v", refused)
	}
	release()
	if release, refused = set.claim(before); refused != nil {
		t.Fatalf("its holder, once the first attach was refused: %v", refused)
	}
	succeed(before)
	if n := set.Count(); n != 1 {
		t.Errorf("%d places are taken when the session has ended, want 1", n)
	}
	if _, refused := set.claim(before); refused == nil {
		t.Error("a session that has ended lends a place that it has not")
	}
	release()
	if n := set.Count(); n != 0 {
		t.Errorf("%d places are taken in the end", n)
	}
}

// Who has lost the keyboard does not get it back, so an attach that took it claims nothing when it is refused behind
// that.
func TestAnAttachThatTookTheKeyboardDoesNotClaimThatNothingWasDone(t *testing.T) {
	late := wire.Refuse(wire.CodeFailedPrecondition, "replaced")
	if err := (&view{writer: true}).refused(late); !errors.Is(err, late) {
		t.Errorf("nobody lost anything: %v", err)
	}
	for want, err := range map[string]error{wire.CodeFailedPrecondition: late, wire.CodeUnavailable: errors.New("flush: timeout")} {
		got := wire.ErrorFrom((&view{writer: true, cost: "its neighbour has lost the keyboard"}).refused(err))
		if got.Code != want || got.Outcome != wire.OutcomeUnknown || !strings.Contains(got.Message, "neighbour") {
			t.Errorf("%+v; want %s, unknown", got, want)
		}
	}
}
