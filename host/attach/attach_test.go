package attach

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// rails is a mesh on which nothing is heard but what was sent.
type rails struct {
	mu   sync.Mutex
	sent map[string][][]byte
	on   map[string]func(bus.RailFrame)
}

func newRails() *rails {
	return &rails{sent: map[string][][]byte{}, on: map[string]func(bus.RailFrame){}}
}

func (r *rails) Listen(subject string, fn func(bus.RailFrame)) (func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on[subject] = fn
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.on, subject)
	}, nil
}

func (r *rails) Send(subject string, frame []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[subject] = append(r.sent[subject], slices.Clone(frame))
	return nil
}

func (r *rails) Beat(subject, _ string, frame []byte, _ int64) error { return r.Send(subject, frame) }
func (r *rails) Flush(context.Context) error                         { return nil }
func (r *rails) Close()                                              {}

// seats answers with one row after the other; the last one stays.
type seats struct {
	mu    sync.Mutex
	rows  []wire.AgentRow
	err   error
	looks int
}

func (s *seats) Standing(wire.Target) (wire.AgentRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	row := s.rows[0]
	if len(s.rows) > 1 {
		s.rows = s.rows[1:]
	}
	return row, s.err
}

func (s *seats) Terminal(context.Context, wire.Target, wire.TerminalArgs) (wire.TerminalReply, error) {
	return wire.TerminalReply{}, nil
}

func sessions(t *testing.T, s Seats, r Rails, max int) *Sessions {
	t.Helper()
	set := New(Config{
		Space: "main", InstanceID: wire.NewUID(), Epoch: 7, SeatRoot: t.TempDir(), MaxSessions: max, Seats: s,
		LedgerPath: filepath.Join(t.TempDir(), "sessions"),
		Lines:      Shared(func(context.Context, func()) (Rails, error) { return r, nil }),
	})
	t.Cleanup(set.Close)
	return set
}

func attach(set *Sessions) *wire.Error {
	_, err := set.Grant(context.Background(), wire.Caller{Owner: wire.OwnerLocal, Actor: "A", UID: wire.NewUID()},
		wire.Target{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()}, wire.AttachArgs{})
	var refused *wire.Error
	errors.As(err, &refused)
	return refused
}

// proves: ATTACH-3, ATTACH-4
func TestASeatThatIsReplacedMeanwhileIsNotAttachedTo(t *testing.T) {
	s := &seats{rows: []wire.AgentRow{{Name: "x", SeatID: "one"}, {Name: "x", SeatID: "two"}}}
	set := sessions(t, s, newRails(), 1)
	if err := attach(set); err == nil || err.Code != wire.CodeFailedPrecondition || err.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("another custody: %v", err)
	}
	if s.looks < 2 {
		t.Errorf("the life was looked at %d times", s.looks)
	}
	if n := set.Count(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// proves: ATTACH-3, ATTACH-5
func TestNothingIsOpenedWithoutAPlace(t *testing.T) {
	dialled := false
	set := sessions(t, &seats{rows: []wire.AgentRow{{Name: "x", SeatID: "one"}}}, newRails(), 1)
	set.cfg.Lines = Shared(func(context.Context, func()) (Rails, error) {
		dialled = true
		return newRails(), nil
	})
	release, refused := set.claim(nil)
	if refused != nil {
		t.Fatal(refused)
	}
	if err := attach(set); err == nil || err.Code != wire.CodeResourceExhausted || err.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("a full host: %v", err)
	}
	if dialled {
		t.Error("the mesh was dialled for an attach that has no place")
	}
	release()
	release() // once counts
	if n := set.Count(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
	if err := attach(set); err == nil || err.Code != wire.CodeUnavailable { // no such seat directory
		t.Errorf("a seat that cannot be reached: %v", err)
	}
	if n := set.Count(); n != 0 || !dialled {
		t.Errorf("%d places are taken by an attach that failed", n)
	}
}

func TestASeatThatIsGoneIsRefusedAsTheSeatsSay(t *testing.T) {
	set := sessions(t, &seats{rows: []wire.AgentRow{{}}, err: wire.Refuse(wire.CodeExpired, "gone")}, newRails(), 1)
	if err := attach(set); err == nil || err.Code != wire.CodeExpired {
		t.Errorf("%v", err)
	}
}

func TestAHostThatStopsRefuses(t *testing.T) {
	set := sessions(t, &seats{rows: []wire.AgentRow{{SeatID: "one"}}}, newRails(), 1)
	set.Close()
	if err := attach(set); err == nil || err.Code != wire.CodeUnavailable || err.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("%v", err)
	}
}

// A successor tells the holders of sessions it finds in the ledger, at once and when they say something.
func TestASuccessorRefusesSessionsOfAnEarlierEpoch(t *testing.T) {
	r := newRails()
	set := sessions(t, &seats{}, r, 1)
	open, over := wire.NewSessionID(), wire.NewSessionID()
	before := ledger{path: set.cfg.LedgerPath}
	for _, s := range []standing{{open, 6}, {over, 6}, {over, 6}} {
		if err := before.add(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, out, err := set.subjects(open, 6)
	if err != nil {
		t.Fatal(err)
	}
	want := func(n int) {
		t.Helper()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.sent[out]) != n || len(r.sent) != 1 {
			t.Fatalf("%d frames were sent to the session, and to %d sessions; want %d, one", len(r.sent[out]), len(r.sent), n)
		}
		f, err := wire.DecodeFrame(r.sent[out][n-1])
		if err != nil {
			t.Fatal(err)
		}
		if e, err := wire.DecodeTerminalFrame(f.Data); err != nil || e.Kind != wire.TerminalEnd || e.Reason != wire.EndManagerRestart {
			t.Errorf("the session is told %+v, %v", e, err)
		}
	}
	want(1)
	r.on[in](bus.RailFrame{Data: []byte(`{"t":"credit","ack":0}`)})
	want(2)
	if text, err := os.ReadFile(set.cfg.LedgerPath); err != nil || len(text) != 0 {
		t.Errorf("the ledger of the successor begins with %q, %v", text, err)
	}
}

func TestParseLedger(t *testing.T) {
	a, b := wire.NewSessionID(), wire.NewSessionID()
	for _, c := range []struct {
		name, text string
		want       []standing
	}{
		{"nothing", "", nil},
		{"a session that is open", a + " 3\n", []standing{{a, 3}}},
		{"a session that has ended", a + " 3\n" + b + " 3\n" + a + " 3\n", []standing{{b, 3}}},
		{"a session of this epoch or a later one is not of an earlier incarnation", a + " 7\n" + b + " 8\n", nil},
		{"a line that was cut short", a + " 3\n" + b[:9], []standing{{a, 3}}},
		{"what is no session", "../../etc 3\n" + a + "\n" + b + " x\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := parseLedger([]byte(c.text), 7); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestTheLedgerDoesNotGrowForEver(t *testing.T) {
	l := ledger{path: filepath.Join(t.TempDir(), "sessions")}
	stay := standing{wire.NewSessionID(), 1}
	for range 2 * ledgerMax / 40 {
		if err := l.add(standing{wire.NewSessionID(), 1}, []standing{stay}); err != nil {
			t.Fatal(err)
		}
		if l.size > ledgerMax {
			t.Fatalf("%d bytes", l.size)
		}
	}
	text, err := os.ReadFile(l.path)
	if err != nil || len(text) > ledgerMax || !slices.Contains(parseLedger(text, 2), stay) {
		t.Errorf("%d bytes, %v; the session that stayed is lost", len(text), err)
	}
}
