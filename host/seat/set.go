package seat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Plugins gives live plugins by name; the host implements it over plugins/catalog. The first two methods
// wait until the plugin is ready, within ctx.
type Plugins interface {
	Connector(ctx context.Context, name string) (sdk.Connector, sdk.Info, error)
	Runtime(ctx context.Context, name string) (sdk.Runtime, sdk.Info, error)
	Runtimes() []string // every runtime of the manifest, whether it runs or not
}

// Lease says whether this host may start something now: no other process may be in its place. host/lease implements it.
type Lease interface {
	// Check returns why not; Await waits until it may, and returns why it never will, or that ctx ended.
	Check() error
	Await(ctx context.Context) error
}

// Config configures a Set. Everything without a default is required.
type Config struct {
	InstanceID string
	Space      string
	Epoch      uint64 // fence: seats refuse a host with a lower one
	Root       string // workspace root, absolute
	SeatRoot   string // seat directories, absolute
	EndedDir   string // where the last output of ended seats is kept; empty keeps none
	Runtime    string // runtime for new seats; default "pty"
	Servers    string // broker URL handed to connectors; holds no secret
	MaxSeats   int    // default config.DefaultMaxSeats
	// Cooling is how long the place of a seat that ended by itself stays taken, from its start; default
	// config.DefaultCooling, negative: none.
	Cooling  time.Duration
	Material func() (wire.LaunchMaterial, error) // what a launched program needs to reach the mesh; nil: nothing
	Journal  *journal.Journal
	Goals    *goal.Store
	Plugins  Plugins
	Log      hclog.Logger
	Environ  []string    // the host's environment; default os.Environ()
	EnvAllow []string    // extra variables the operator lets agents see, by name
	Agent    string      // default connector; default "claude"
	Roster   Roster      // who is on the mesh; nil: nobody knows
	Lease    Lease       // what this host may start processes by; nil: always
	Busy     func() bool // whether others wait for answers of this host, to whom launches leave room; nil: never
	Lives    Lives       // what seats have on the mesh; nil: they have no credentials of their own, as in an open space
	Policy   authz.Policy

	Health   time.Duration // between two looks at what running seats depend on; default 5 s
	ExitPoll time.Duration // between two looks for the end of a seat on a runtime that tells of none, while it gets ready; default 1 s
	// RestartWait is the wait before a process that follows the second end in a row; it doubles. Default 1 s.
	RestartWait time.Duration
	ViewWait    time.Duration // how long a spawn waits for the first view of the mesh; default 3 s
}

// Set is every seat of one host. Safe for concurrent use.
type Set struct {
	cfg  Config
	life context.Context // ends when the host gives up its seats (not when seats end)
	quit context.CancelFunc
	wg   sync.WaitGroup

	listing  listing
	changes  atomic.Uint64 // of everything that a row shows
	pace     pace
	adopting chan struct{} // holds one token for each life that is being taken over

	mu       sync.Mutex
	byID     map[string]*actor // every live seat, by custody id
	byAlias  map[string]*actor // who holds a name
	spawning map[goal.Key]*actor
	ended    []*Snapshot // newest last; those that ps tells of
	past     pasts       // those that are known
	names    names
	retired  retired
	cap      capacity
	closing  string         // why new spawns are refused; empty while they are not
	unlisted string         // why it is not known which seats this machine has; empty once it is
	unread   bool           // the seat directories could not be read: seats of further runtimes may not be known
	foreign  map[string]int // seats of other instances, by the runtime that listed them
	counted  time.Time      // when they were counted
	counting chan struct{}  // closed when that is done; nil while nobody counts
}

// keepEnded bounds the rows of ended seats that ps still shows. Of those before them less is known, see keepPast.
const (
	keepEnded    = 64
	keepEndedFor = time.Hour
)

// New returns an empty set; Recover fills it from the journal and the seat directories.
func New(cfg Config) *Set {
	if cfg.Runtime == "" {
		cfg.Runtime = "pty"
	}
	if cfg.MaxSeats == 0 {
		cfg.MaxSeats = config.DefaultMaxSeats
	}
	if cfg.Cooling == 0 {
		cfg.Cooling = config.DefaultCooling
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	if cfg.Health == 0 {
		cfg.Health = 5 * time.Second
	}
	if cfg.ExitPoll == 0 {
		cfg.ExitPoll = exitPoll
	}
	if cfg.RestartWait == 0 {
		cfg.RestartWait = restartWait
	}
	if cfg.ViewWait == 0 {
		cfg.ViewWait = snapshotWait
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	life, quit := context.WithCancel(context.Background())
	return &Set{
		cfg: cfg, life: life, quit: quit, pace: newPace(cfg.Busy), adopting: make(chan struct{}, adoptLimit),
		byID: map[string]*actor{}, byAlias: map[string]*actor{}, spawning: map[goal.Key]*actor{}, foreign: map[string]int{},
		cap: capacity{max: cfg.MaxSeats, cool: max(0, cfg.Cooling)},
	}
}

// dir is the directory of one seat.
func (s *Set) dir(seatID string) string { return filepath.Join(s.cfg.SeatRoot, seatID) }

// Fence refuses new spawns from now on, saying why. The first reason stands.
func (s *Set) Fence(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == "" {
		s.closing = why
	}
}

// Drain waits until every accepted spawn has its terminal, or ctx ends.
func (s *Set) Drain(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		n := len(s.spawning)
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d spawns still run: %w", n, ctx.Err())
		case <-tick.C:
		}
	}
}

// Close gives up every seat without touching it: seats go on, watches and actors end.
func (s *Set) Close() {
	s.Fence("the host is stopping")
	s.quit()
	s.wg.Wait()
}

// ErrNoSeat says that no live seat has this name.
var ErrNoSeat = errors.New("no such seat")

// find returns the live seat that alias, custody id (or a unique prefix of at least 6 digits) or
// lifecycle UID names.
func (s *Set) find(name string) (*actor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.byAlias[name]; a != nil {
		return a, nil
	}
	var hit *actor
	for id, a := range s.byID {
		if a.snapshot().Row.UID == name || len(name) >= 6 && strings.HasPrefix(id, name) {
			if hit != nil {
				return nil, fmt.Errorf("%q names more than one seat", name)
			}
			hit = a
		}
	}
	if hit == nil {
		return nil, ErrNoSeat
	}
	return hit, nil
}

// Occupancy says how the ceiling is used now.
func (s *Set) Occupancy() wire.Occupancy {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cap.prune(time.Now())
	return wire.Occupancy{Max: s.cap.max, Live: s.cap.live, Pending: s.cap.pending, Cooling: len(s.cap.cooling)}
}

// Snapshots returns every live seat, then the last life of each name that is not held any more, oldest
// first. It waits for nobody.
func (s *Set) Snapshots() []*Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pruneEnded()
	all := make([]*Snapshot, 0, len(s.byID)+len(s.ended))
	for _, a := range s.byID {
		all = append(all, a.snapshot())
	}
	live := len(all)
	for i, snap := range s.ended {
		// Of the lives a name had, the last one tells; while it is held, none does.
		later := func(o *Snapshot) bool { return o.Row.Alias == snap.Row.Alias }
		if s.byAlias[snap.Row.Alias] == nil && !slices.ContainsFunc(s.ended[i+1:], later) {
			all = append(all, snap)
		}
	}
	byCreation := func(a, b *Snapshot) int { return a.Row.Created.Compare(b.Row.Created) }
	slices.SortFunc(all[:live], byCreation)
	slices.SortFunc(all[live:], byCreation)
	return all
}

func (s *Set) pruneEnded() {
	cut := 0
	for cut < len(s.ended) && (len(s.ended)-cut > keepEnded || time.Since(s.ended[cut].Row.Ended) > keepEndedFor) {
		cut++
	}
	s.ended = slices.Delete(s.ended, 0, cut) // which lets go of them: a part of a slice holds all of its array
	s.past.prune(time.Now())
}

// add registers an actor under its id and alias. The caller holds s.mu.
func (s *Set) add(a *actor) {
	row := a.snapshot().Row
	s.changes.Add(1)
	s.byID[row.SeatID] = a
	if s.byAlias[row.Alias] == nil { // a second one of a name, found on disk, is reached by its id alone
		s.byAlias[row.Alias] = a
	}
}

// rekey follows a seat whose next process has a custody id of its own.
func (s *Set) rekey(a *actor, old string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, old)
	s.byID[a.snapshot().Row.SeatID] = a
	s.changes.Add(1)
}

// freed is the one place where a seat stops holding its name and its place. It runs once per seat,
// after the journal says Ended.
func (s *Set) freed(a *actor) {
	snap := a.snapshot()
	launch.ReleasePorts(a.ports)
	defer s.sweepTails()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changes.Add(1)
	delete(s.byID, snap.Row.SeatID)
	if s.byAlias[snap.Row.Alias] == a {
		delete(s.byAlias, snap.Row.Alias)
	}
	delete(s.spawning, goal.Key(snap.Row.RequestID))
	if a.counted {
		s.cap.free(snap.Row.Started, time.Now(), snap.Row.Cause)
	} else {
		s.cap.release()
	}
	if a.acceptErr != nil && a.acceptErr.OutcomeOrUnknown() == wire.OutcomeNotExecuted {
		s.names.giveBack(snap.Row.Alias)
	}
	s.retired.add(life{snap.Row.Alias, snap.Row.Principal, snap.Row.UID})
	if a.acceptErr == nil || a.acceptErr.OutcomeOrUnknown() == wire.OutcomeUnknown { // else nobody was ever told of it
		s.past.add(pastOf(snap.Row, time.Now()))
	}
	if snap.Row.Exit != nil {
		s.ended = append(s.ended, snap)
	}
	s.pruneEnded()
}

// launched turns a reservation into a live seat, once.
func (s *Set) launched(a *actor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !a.counted {
		a.counted = true
		s.cap.promote()
	}
}

// settled forgets that a spawn is in flight.
func (s *Set) settled(k goal.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.spawning, k)
}
