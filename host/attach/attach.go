// Package attach carries the terminals of seats over the mesh: the sessions of the attach command on the
// session rails of the wire contract.
//
//	viewer ── <session>.in ──► session ── INPUT, RESIZE ──► seat
//	viewer ◄── <session>.out ── session ◄── OUTPUT, GAP, EXIT ── seat
//
// A session is one connection to the seat's own socket and two subjects. It keeps no output: the cursor that the
// seat keeps for the connection is the queue. While the viewer gives no credit, nothing is read from the seat.
//
// What can befall a session, and what follows, is the table in state.go.
package attach

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// DefaultMaxSessions is how many sessions may be open at once when nothing else is said.
const DefaultMaxSessions = 64

// Bounds, with the reason of each.
const (
	redeemWait   = 5 * time.Second        // from the answer to ready: it is one message away
	maxOffered   = 24                     // sessions of one holder that wait for it at one seat: half of what a seat takes
	minOffered   = 8                      // and at a host, where half of its places are fewer
	beatEvery    = time.Second            // a viewer that hears nothing for some of these looks for the host
	holderSilent = time.Minute            // a holder that says every second that it is there, and then for so long nothing, is not
	staleInput   = 4 * time.Second        // what was typed longer after a beat was held up on the way
	screenWait   = 300 * time.Millisecond // for the screen: a mirror that is slow must not make an attach slow
	dialWait     = 2 * time.Second        // a seat is on this machine and answers at once, or is stopped
	leaseWait    = 500 * time.Millisecond // for the keyboard that a session of the same holder has just left
	refuseFor    = 10 * time.Minute       // sessions of an earlier incarnation are told so when their holders say something
	endFlush     = time.Second            // for the ends to reach the server when the host stops
	replayMax    = 256 << 10              // bytes of earlier output that are shown for want of a screen
	repaintGap   = time.Second            // between two repaints of a viewer that loses output again and again
	resyncMax    = 4096                   // bytes skipped to find a place where output can be picked up
	gatherTime   = time.Millisecond       // how long a flood is gathered for a frame
	floodSize    = 2 << 10                // bytes in a frame from which on what follows at once is a flood
	inputBusy    = 100 * time.Millisecond // the longest pause while a program does not read
)

// sessionTime is how long a session lasts at most. A credential for it may live no longer than wire.MaxSessionTTL.
const sessionTime = wire.MaxSessionTTL - time.Minute

// Seats is what a session needs of the host's seats; seat.Set implements it.
type Seats interface {
	// Standing is the row of the life a target names, without asking anybody.
	Standing(t wire.Target) (wire.AgentRow, error)
	Terminal(ctx context.Context, t wire.Target, args wire.TerminalArgs) (wire.TerminalReply, error)
}

// Config configures Sessions. Everything without a default is required.
type Config struct {
	Space       string
	Endpoint    string // default wire.EndpointManager
	InstanceID  string
	Epoch       uint64
	SeatRoot    string // seat directories, absolute
	MaxSessions int    // default DefaultMaxSessions
	LedgerPath  string // file that remembers open sessions for the next incarnation; empty: none
	Lines       Lines  // to the mesh; closed with the sessions
	Seats       Seats
	Log         hclog.Logger
}

// Sessions is every attach session of one host. Safe for concurrent use.
type Sessions struct {
	cfg    Config
	ledger ledger

	mu      sync.Mutex
	open    map[string]*session
	claimed int // sessions that are open or being opened
	number  uint64
	beside  sync.WaitGroup // of what sessions do; added to under the mu of one that has not ended, or under mu before closing
	closing bool
	refused []func() // stop speaking for sessions of earlier incarnations
}

// New returns an empty set. Recover speaks for earlier incarnations.
func New(cfg Config) *Sessions {
	if cfg.Endpoint == "" {
		cfg.Endpoint = wire.EndpointManager
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = DefaultMaxSessions
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	return &Sessions{cfg: cfg, ledger: ledger{path: cfg.LedgerPath}, open: map[string]*session{}}
}

func (s *Sessions) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*session, 0, len(s.open))
	for _, x := range s.open {
		list = append(list, x)
	}
	return list
}

// Count is how many sessions are open or being opened.
func (s *Sessions) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimed
}

// Close tells every holder that the host restarts and gives the seats back. New sessions are refused.
func (s *Sessions) Close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.stopRefusing()
	list := s.all()
	for _, x := range list {
		x.happen(evRestart)
	}
	for _, x := range list {
		<-x.done
	}
	s.beside.Wait()
	s.cfg.Lines.Close()
}

// claim reserves a place, before anything is opened or made. Where none is left, a holder that comes back lends it that
// of its own session, one of before, which ends only once nothing is refused any more: until then there is one more.
// The release may be called more than once.
func (s *Sessions) claim(before []*session) (release func(), err *wire.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lender *session
	switch {
	case s.closing:
		return nil, wire.Refuse(wire.CodeUnavailable, "this host is stopping")
	case s.claimed >= s.cfg.MaxSessions:
		i := slices.IndexFunc(before, func(x *session) bool { return s.open[x.id] == x && !x.lent })
		if i < 0 {
			return nil, wire.Refuse(wire.CodeResourceExhausted,
				"%d attach sessions are open, as many as this host allows; detach one, or start the host with a larger --max-sessions", s.claimed)
		}
		lender = before[i]
		lender.lent = true
	}
	s.claimed++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.claimed--
		if lender != nil {
			lender.lent = false
		}
	}), nil
}

// Grant opens a session on the terminal of a seat and returns the grant of it. The order is: the same life, which
// runs; a place; the rails, which the server has confirmed; the terminal. After each step that takes time the life
// is looked at again. Every refusal is not-executed and leaves nothing behind, but one that comes after the keyboard
// was taken from another terminal, or left by the session that this one replaces: its outcome is unknown.
//
// Errors: *wire.Error expired, failed-precondition (not running; replaced meanwhile; the runtime has no stream),
// resource-exhausted (names --max-sessions), conflict (somebody else has the keyboard), unavailable.
func (s *Sessions) Grant(ctx context.Context, caller wire.Caller, target wire.Target, args wire.AttachArgs) (wire.AttachReply, error) {
	x, err := s.grant(ctx, caller, target, args)
	if err != nil {
		var refused *wire.Error
		if !errors.As(err, &refused) || refused.Outcome == "" {
			return wire.AttachReply{}, wire.Refuse(wire.CodeUnavailable, "attach: %v", err)
		}
		return wire.AttachReply{}, refused
	}
	p, err := x.grant.Encode()
	if err != nil {
		x.happen(evClose)
		return wire.AttachReply{}, wire.Refuse(wire.CodeInternal, "attach: %v", err)
	}
	role := wire.AttachObserver
	if x.writer {
		role = wire.AttachWriter
	}
	return wire.AttachReply{Grant: json.RawMessage(p), Role: role}, nil
}

func (s *Sessions) grant(ctx context.Context, caller wire.Caller, target wire.Target, args wire.AttachArgs) (x *session, err error) {
	row, err := s.cfg.Seats.Standing(target)
	if err != nil {
		return nil, err
	}
	before := s.before(caller, target, args.Replaces)
	release, refused := s.claim(before)
	if refused != nil {
		return nil, refused
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	screen, err := s.screen(ctx, target, row)
	if err != nil {
		return nil, err
	}
	o, err := s.offer(ctx, caller, target)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			o.withdraw()
		}
	}()
	if err := s.same(target, row); err != nil {
		return nil, err
	}
	v, err := s.openTerminal(ctx, row, args, screen, before)
	if err != nil {
		return nil, err
	}
	if err = s.same(target, row); err == nil {
		x = newSession(s, o.rails, o.grant, target, row, v, release)
		x.replaces = args.Replaces
		err = s.establish(x, o)
	}
	if err != nil {
		v.conn.Close()
		return nil, v.refused(err)
	}
	succeed(before)
	s.crowd(x)
	return x, nil
}

// crowd ends the oldest sessions that the holder of x has asked for and not come to, where they take more than half of
// the seat or of the host. Fewer it may well need: all terminals of a user are one holder, and when a host comes back
// they do at once.
func (s *Sessions) crowd(x *session) {
	s.giveWay(maxOffered, func(o *session) bool { return o.grant.Holder == x.grant.Holder && o.target == x.target })
	s.giveWay(max(minOffered, s.cfg.MaxSessions/2), func(o *session) bool { return o.grant.Holder == x.grant.Holder })
}

// giveWay ends the oldest of some sessions that nobody has come to, but for most of them.
func (s *Sessions) giveWay(most int, some func(*session) bool) {
	waiting := slices.DeleteFunc(s.all(), func(o *session) bool { return !some(o) || !o.waits() })
	if len(waiting) <= most {
		return
	}
	slices.SortFunc(waiting, func(a, b *session) int { return cmp.Compare(a.number, b.number) })
	for _, o := range waiting[:len(waiting)-most] {
		o.happen(evUnredeemed)
	}
}

// before is the session that its holder comes back from, and any offer in its stead whose answer was lost on the way.
func (s *Sessions) before(caller wire.Caller, target wire.Target, replaces string) (list []*session) {
	if replaces == "" {
		return nil
	}
	for _, x := range s.all() {
		if x.grant.Holder.ID != caller.Principal() || x.grant.Holder.LifecycleUID != caller.UID || x.target != target {
			continue
		}
		if x.id == replaces || x.replaces == replaces {
			list = append(list, x)
		}
	}
	return list
}

// succeed ends sessions whose holder has come back with another one.
func succeed(before []*session) {
	for _, x := range before {
		x.happen(evSucceed)
		<-x.done
	}
}

// same refuses when the life has another custody, or none, than when it was looked at first.
func (s *Sessions) same(target wire.Target, row wire.AgentRow) error {
	now, err := s.cfg.Seats.Standing(target)
	if err != nil {
		return err
	}
	if now.SeatID != row.SeatID {
		return wire.Refuse(wire.CodeFailedPrecondition, "%s was replaced while the attach was being authorised; attach again", row.Name)
	}
	return nil
}

// ownRuntime is the runtime whose seats have their terminal at their socket, whoever answers for it.
const ownRuntime = "pty"

// screen asks what the terminal shows. Without an answer the output is replayed; a terminal that is shown by
// a program of its runtime has no stream.
func (s *Sessions) screen(ctx context.Context, target wire.Target, row wire.AgentRow) (*wire.TerminalSnapshot, error) {
	own := row.Mode == "" || row.Mode == ownRuntime
	if own {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, screenWait)
		defer cancel()
	}
	reply, err := s.cfg.Seats.Terminal(ctx, target, wire.TerminalArgs{Snapshot: true})
	switch {
	case err == nil && len(reply.Argv) > 0:
		return nil, wire.Refuse(wire.CodeFailedPrecondition,
			"runtime %s has no stream to send: the terminal of %s is shown by a program (%s) on the machine of its host; attach there with: cotal attach %s",
			reply.Runtime, row.Name, reply.Argv[0], row.Name)
	case err == nil:
		return reply.Snapshot, nil
	case own && ctx.Err() != nil, own && codeOf(err) == wire.CodeUnavailable:
		return nil, nil // the plugin is away: the seat is not
	}
	return nil, err
}

func codeOf(err error) string {
	var refused *wire.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// dialSeat connects to the seat's own socket, as its directory says.
func (s *Sessions) dialSeat(ctx context.Context, seatID string, cfg seat.DialConfig) (*seat.Conn, error) {
	dir := filepath.Join(s.cfg.SeatRoot, seatID)
	rec, err := record.ReadSeat(dir)
	if err != nil {
		return nil, err
	}
	if cfg.Token, err = record.ReadToken(dir); err != nil {
		return nil, err
	}
	cfg.Socket = rec.Socket
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	return seat.Dial(ctx, cfg)
}

// offer is a grant that nobody knows yet, and its rails.
type offer struct {
	grant   wire.SessionGrant
	rails   Rails
	session atomic.Pointer[session] // nil until there is one: what comes before is nobody's
	lost    atomic.Bool             // the server was, since the rails were opened
	stop    func()                  // stops listening
}

// withdraw ends what nobody was told of.
func (o *offer) withdraw() {
	o.stop()
	o.rails.Close()
}

// offer makes a grant, opens its rails and listens on them, which the server has confirmed when it returns.
func (s *Sessions) offer(ctx context.Context, caller wire.Caller, target wire.Target) (*offer, error) {
	g, err := wire.NewSessionGrant(s.cfg.Space, s.cfg.Endpoint,
		wire.SessionHolder{ID: caller.Principal(), LifecycleUID: caller.UID},
		wire.SessionServer{InstanceID: s.cfg.InstanceID, Epoch: s.cfg.Epoch}, time.Now(), sessionTime)
	if err != nil {
		return nil, err
	}
	g.Target = &target
	o := &offer{grant: g, stop: func() {}}
	o.rails, err = s.cfg.Lines.Open(ctx, Rail{Session: g.SessionID, Epoch: s.cfg.Epoch, Until: time.UnixMilli(g.Exp)}, func() { s.offline(o) })
	if err != nil {
		return nil, wire.Refuse(wire.CodeUnavailable, "the mesh for attach sessions: %v", err)
	}
	stop, err := o.rails.Listen(g.Subjects.In, func(f bus.RailFrame) {
		if x := o.session.Load(); x != nil {
			x.onFrame(f)
		}
	})
	if err == nil {
		o.stop = stop
		err = o.rails.Flush(ctx)
	}
	if err != nil {
		o.withdraw()
		return nil, err
	}
	return o, nil
}

// offline ends the session of an offer: what was under way is lost, and nobody knows what it was. It waits for nothing.
func (s *Sessions) offline(o *offer) {
	o.lost.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := o.session.Load(); x != nil && !s.closing { // else it is being ended, or establish sees it
		s.beside.Go(func() { x.happen(evOffline) })
	}
}

// establish puts a session on the rail of its offer, before anybody is told of it.
func (s *Sessions) establish(x *session, o *offer) error {
	x.stops = append(x.stops, o.stop)
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return wire.Refuse(wire.CodeUnavailable, "this host is stopping")
	}
	s.open[x.id] = x
	s.number++
	x.number = s.number
	s.beside.Add(1) // until its rails are closed
	s.mu.Unlock()
	o.session.Store(x)
	s.note(x)
	x.timers(redeemWait, time.Until(time.UnixMilli(x.grant.Exp)))
	if o.lost.Load() {
		x.happen(evOffline)
	}
	return nil
}

// note keeps the ledger.
func (s *Sessions) note(x *session) {
	var open []standing
	for _, o := range s.all() {
		open = append(open, standing{o.id, s.cfg.Epoch})
	}
	if err := s.ledger.add(standing{x.id, s.cfg.Epoch}, open); err != nil {
		s.cfg.Log.Warn("ledger of attach sessions", "err", err)
	}
}

// forget is the one place where a session leaves the set.
func (s *Sessions) forget(x *session) {
	s.mu.Lock()
	_, was := s.open[x.id]
	delete(s.open, x.id)
	s.mu.Unlock()
	if was {
		s.note(x)
	}
	x.release()
}
