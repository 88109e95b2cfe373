// Package goal holds the durable actions of a host. The truth about a goal is on the mesh: an index entry,
// a bind, a record, and one result fact (docs/architecture.md, "Goals"). The journal keeps what only this
// machine knows, that a goal is ours, with its seat and deadline, and an outbox of the ends that were
// decided here and have yet to become durable there.
//
// Three functions change a goal: Bind accepts it, commit gives it its one terminal, and Reconcile finds
// what an earlier incarnation left.
package goal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Key identifies a goal: the caller's triple and the goal id the caller chose. Two callers that
// choose the same id hold two goals.
type Key string

// KeyOf returns the key of a caller's goal.
func KeyOf(c wire.Caller, id string) Key {
	return Key(c.Owner + "." + c.Actor + "." + c.UID + "/" + id)
}

// keyOfRef is the key of a goal of the manager endpoint.
func keyOfRef(ref wire.GoalRef) Key { return KeyOf(ref.Caller, ref.ID) }

// Split returns the caller and the goal id of a key. ok is false when the key is malformed.
func (k Key) Split() (c wire.Caller, id string, ok bool) {
	triple, id, ok := strings.Cut(string(k), "/")
	parts := strings.Split(triple, ".")
	if !ok || len(parts) != 3 || id == "" {
		return wire.Caller{}, "", false
	}
	return wire.Caller{Owner: parts[0], Actor: parts[1], UID: parts[2]}, id, true
}

// ref is the goal as the mesh names it.
func (k Key) ref() wire.GoalRef {
	c, id, _ := k.Split()
	return wire.GoalRef{Endpoint: wire.EndpointManager, Caller: c, ID: id}
}

// Publisher tells followers about progress. A lost event is harmless: the durable result decides.
type Publisher func(c wire.Caller, goalID string, p wire.GoalProgress)

// Records is the mesh's store as goals use it; *bus.Records is one.
type Records interface {
	Space() string
	Create(ctx context.Context, key wire.Key, value []byte) (rev uint64, err error)
	Update(ctx context.Context, key wire.Key, value []byte, rev uint64) (uint64, error)
	Delete(ctx context.Context, key wire.Key, rev uint64) error
	Get(ctx context.Context, key wire.Key) (bus.Entry, error)
	Scan(ctx context.Context, prefix string) ([]bus.Entry, error)
	PutFact(ctx context.Context, f wire.FactSubject, value []byte) (seq uint64, err error)
	GetFact(ctx context.Context, f wire.FactSubject) ([]byte, error)
	LastFact(ctx context.Context, f wire.FactSubject) (bus.Fact, error)
	NextFact(ctx context.Context, endpoint string, kind wire.FactKind, from uint64) (bus.Fact, error)
	EvictFact(ctx context.Context, f wire.FactSubject, value []byte, seq uint64) error
	DropFact(ctx context.Context, seq uint64) error
	DropGoal(ctx context.Context, ref wire.GoalRef) error
}

// Config configures a Store. Journal is required.
type Config struct {
	Journal *journal.Journal
	// Records is the mesh's store. Without one the journal is the only store: goals end with the machine.
	Records    Records
	InstanceID string
	Epoch      uint64
	Publish    Publisher // default: nobody is told
	// Retention is how long the data of a terminal of this host is kept; default wire.ResultRetention.
	Retention time.Duration
	Now       func() time.Time // default time.Now
	Log       hclog.Logger
}

// Store accepts and settles goals. Safe for concurrent use. Its mutex is never held over I/O.
type Store struct {
	cfg Config
	// life ends when the store is closed: nothing is pushed to the mesh any more.
	life context.Context
	quit context.CancelFunc
	stop chan struct{} // closed when Close begins: what waits for its next try does not wait any longer
	wg   sync.WaitGroup
	room chan struct{} // one place per commit on its way

	evictFrom uint64 // where Evict goes on; its own

	mu     sync.Mutex
	phases map[Key]string // of goals without a terminal; memory only
	live   map[Key]*footing
	// settling holds goals whose terminal is being committed together with the state it is about. It
	// is hidden until that state is shown too, or a caller could see "succeeded" and then a seat that
	// does not run yet.
	settling map[Key]int
	pushing  map[Key]bool
	fence    func(context.Context) error // nil until the store is opened
	closed   string                      // why nothing is accepted yet; empty once it is
	closing  bool
}

// footing is what this process knows of a goal that it accepted itself, so that it need not be read.
type footing struct {
	acc                 wire.Acceptance
	index, spec, status uint64 // revisions; 0: read it
}

// New returns a store. With Records it accepts nothing before Open and Reconcile.
func New(cfg Config) *Store {
	if cfg.Publish == nil {
		cfg.Publish = func(wire.Caller, string, wire.GoalProgress) {}
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Retention == 0 {
		cfg.Retention = wire.ResultRetention
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	life, quit := context.WithCancel(context.Background())
	s := &Store{
		cfg: cfg, life: life, quit: quit, stop: make(chan struct{}), room: make(chan struct{}, pushLimit),
		phases: map[Key]string{}, live: map[Key]*footing{}, settling: map[Key]int{}, pushing: map[Key]bool{},
	}
	if cfg.Records != nil {
		s.closed = "the goals of this host are not looked through yet"
	}
	return s
}

// NewStore returns a store over the journal alone. publish may be nil.
func NewStore(j *journal.Journal, publish Publisher) *Store {
	return New(Config{Journal: j, Publish: publish})
}

// local reports whether the journal is the only store.
func (s *Store) local() bool { return s.cfg.Records == nil }

// Ready returns nil once goals are accepted, and before that why they are not: unavailable, not-executed.
func (s *Store) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != "" {
		return wire.Refuse(wire.CodeUnavailable, "no goal is accepted yet: %s; ask again in a moment", s.closed)
	}
	return nil
}

// Accept writes what this machine has to know of a goal inside the caller's transaction, before the mesh
// hears of it (Bind). command is the one that was accepted: spawn or launch.
func (s *Store) Accept(tx *journal.Tx, k Key, command, seatID string, a wire.Acceptance, deadline time.Time) error {
	return tx.PutGoal(journal.GoalRow{
		ID: string(k), Command: command, Fingerprint: a.Fingerprint, Acceptance: a, SeatID: seatID,
		Deadline: deadline, Accepted: time.Now().UTC().Truncate(time.Millisecond), Local: s.local(),
	})
}

// Forget drops a goal that the mesh did not accept, inside the caller's transaction.
func (s *Store) Forget(tx *journal.Tx, k Key) error { return tx.DeleteGoal(string(k)) }

// Settle decides the terminal of a goal inside the caller's transaction and returns the one that was
// decided first. A goal that is unknown (the journal was lost) is left alone. Call Announce once the
// transaction is durable: only then does it go to the mesh, where the first one stands.
func (s *Store) Settle(tx *journal.Tx, k Key, result wire.GoalResult) (landed wire.GoalResult, first bool, err error) {
	landed, first, err = tx.SettleGoal(string(k), result)
	if errors.Is(err, journal.ErrNotFound) {
		return result, false, nil
	}
	if err != nil {
		return landed, false, fmt.Errorf("settle goal: %w", err)
	}
	return landed, first, nil
}

// Hide keeps a terminal that is about to be committed out of Result until show is called.
func (s *Store) Hide(k Key) (show func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settling[k]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.settling[k]--; s.settling[k] == 0 {
			delete(s.settling, k)
		}
	}
}

// Announce takes a terminal that is durable in the journal to the mesh, in the background, and publishes
// the one that stands there.
func (s *Store) Announce(k Key, result wire.GoalResult) {
	if s.local() {
		s.ended(k, result)
		return
	}
	_ = fpDecided.Hit()
	s.push(k)
}

// ended tells followers of the terminal that stands.
func (s *Store) ended(k Key, result wire.GoalResult) {
	s.mu.Lock()
	delete(s.phases, k)
	delete(s.live, k)
	s.mu.Unlock()
	if c, id, ok := k.Split(); ok {
		s.cfg.Publish(c, id, wire.GoalProgress{Phase: wire.PhaseTerminal, State: result.State})
	}
}

// Phase publishes progress of a goal that has no terminal yet.
func (s *Store) Phase(k Key, phase string) {
	s.mu.Lock()
	s.phases[k] = phase
	s.mu.Unlock()
	if c, id, ok := k.Split(); ok {
		s.cfg.Publish(c, id, wire.GoalProgress{Phase: phase})
	}
	if phase == wire.PhaseLaunched {
		s.moveLater(k, wire.GoalStatus{State: wire.GoalRunning})
	}
}

// Cancelling says on the mesh that a goal without terminal is being ended; mode is one of the cancel modes
// of the wire. It is progress: the end itself is settled like any other.
func (s *Store) Cancelling(k Key, mode string) {
	s.moveLater(k, wire.GoalStatus{State: wire.GoalCancelling, CancelMode: mode})
}

// moveLater changes a goal's status beside its work. It is for followers: nothing waits for it, and the
// terminal overtakes it.
func (s *Store) moveLater(k Key, to wire.GoalStatus) {
	if s.local() || k == "" {
		return
	}
	s.background(func() {
		ctx, cancel := context.WithTimeout(s.life, moveTimeout)
		defer cancel()
		if err := s.move(ctx, k, to); err != nil && s.life.Err() == nil {
			s.cfg.Log.Debug("progress of a goal is not recorded", "op", string(k), "state", to.State, "err", err)
		}
	})
}

// background runs fn beside everything else and is waited for by Close; once that began nothing new starts.
func (s *Store) background(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.wg.Go(fn)
	return true
}

// Lookup returns the row of a goal, if the journal has one.
func (s *Store) Lookup(k Key) (row journal.GoalRow, ok bool, err error) {
	err = s.cfg.Journal.View(func(tx *journal.Tx) error {
		row, err = tx.Goal(string(k))
		return err
	})
	if errors.Is(err, journal.ErrNotFound) {
		return row, false, nil
	}
	return row, err == nil, err
}

// rest waits before the next try of something; false when the store is being closed.
func (s *Store) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stop:
		return false
	}
}

// Close ends all work on goals, after at most a moment for the ends that are on their way to the mesh. What
// is not there by then stays in the outbox for the next host.
func (s *Store) Close() {
	s.mu.Lock()
	if !s.closing {
		close(s.stop)
	}
	s.closing = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	t := time.NewTimer(closeTimeout)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
	s.quit()
	<-done
}
