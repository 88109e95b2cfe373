package tmux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// handleState is Handle.State. It is enough to find the seat, and to prove its end, when its directory
// is gone or the host now uses another seat root.
type handleState struct {
	Socket   string       `json:"socket"`
	Seat     sdk.Identity `json:"seat"`
	Place    place        `json:"place"`
	SeatRoot string       `json:"seatRoot"`
	GraceMs  int          `json:"graceMs"`
}

// view is everything that can be read of one seat without changing anything. Every source has its own
// error, because a record that cannot be read must never count as one that is not there.
type view struct {
	s      *settings
	id     string
	dir    string
	exists bool // the directory is there and ours

	rec       record.Seat
	recErr    error // nil, fs.ErrNotExist, or broken
	intent    record.Intent
	intentErr error
	exit      record.Exit
	exitErr   error
	agent     record.Agent
	agentErr  error
	token     []byte
	tokenErr  error
	place     place // of the directory, else of the handle
	placeErr  error

	state handleState // of the handle; zero without one
	nonce string      // of the record, the intent or the request; empty when nobody knows
}

// view reads a seat. Errors: sdk.ErrInvalid for a malformed id or handle, or another runtime's seat;
// sdk.ErrUnavailable when the directory exists and is not trustworthy.
func (s *settings) view(id string, h sdk.Handle, nonce string) (*view, error) {
	if err := checkSeatID(id); err != nil {
		return nil, err
	}
	v := &view{s: s, id: id, nonce: nonce}
	if h.Version != 0 || h.Ref != "" {
		if h.Version != handleVersion {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle of seat %s has version %d and this runtime reads %d; upgrade the tmux runtime", id, h.Version, handleVersion)
		}
		if h.Ref != id {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle is of seat %q, not of %s", h.Ref, id)
		}
		if err := json.Unmarshal(h.State, &v.state); err != nil {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle of seat %s: state: %v", id, err)
		}
	}
	v.dir = filepath.Join(s.rootPath, id)
	if err := v.read(); err != nil {
		return nil, err
	}
	if of, known := v.runtime(); known && of != Name {
		return nil, sdk.Errorf(sdk.ErrInvalid, "seat %s was made for the runtime %s, not for %s", id, of, Name)
	}
	return v, nil
}

func (v *view) read() error {
	d, err := seatdir.OpenOwnAt(int(v.s.root.Fd()), v.id, v.dir)
	switch {
	case missing(err):
		v.exists = false
		v.recErr, v.intentErr, v.exitErr, v.agentErr, v.tokenErr, v.placeErr = err, err, err, err, err, err
		v.place = v.state.Place
		return nil
	case err != nil:
		return retryable("%v", err)
	}
	d.Close()
	v.exists = true
	// The exit record before the seat record: read the other way round, a Reap in between would make a
	// seat that has ended look like one that lost its custody.
	v.exit, v.exitErr = record.ReadExit(v.dir)
	v.rec, v.recErr = record.ReadSeat(v.dir)
	v.intent, v.intentErr = record.ReadIntent(v.dir)
	v.agent, v.agentErr = record.ReadAgent(v.dir)
	v.token, v.tokenErr = record.ReadToken(v.dir)
	v.place, v.placeErr = readPlace(v.dir)
	if v.placeErr != nil {
		v.place = v.state.Place
	}
	switch {
	case v.recErr == nil:
		v.nonce = v.rec.Nonce
	case v.intentErr == nil:
		v.nonce = v.intent.Nonce
	}
	return nil
}

// runtime returns which runtime the seat's directory was made for. A place in tmux is as good as an
// intent; an intent that names nobody is of the time when there was only one runtime.
func (v *view) runtime() (name string, known bool) {
	switch {
	case !v.exists:
		return "", false
	case v.placeErr == nil:
		return Name, true
	case v.intentErr == nil && v.intent.Runtime == "":
		return "pty", v.recErr == nil
	case v.intentErr == nil:
		return v.intent.Runtime, true
	}
	return "", false
}

// owner returns whose seat it is, if any readable source says so.
func (v *view) owner() (o sdk.SeatOwner, known bool) {
	switch {
	case v.recErr == nil:
		return sdk.SeatOwner(v.rec.Record.Owner), true
	case v.intentErr == nil:
		return sdk.SeatOwner(v.intent.Owner), true
	}
	return sdk.SeatOwner{}, false
}

// ownerless returns an error when nobody can say whose seat it is because a record is broken.
func (v *view) ownerless() error {
	if _, known := v.owner(); known || !v.exists {
		return nil
	}
	for _, err := range []error{v.recErr, v.intentErr} {
		if err != nil && !missing(err) {
			return fmt.Errorf("nobody can say whose seat it is: %w", err)
		}
	}
	return nil
}

// fence returns the epoch of the host that made the seat, or 0.
func (v *view) fence() uint64 {
	switch {
	case v.recErr == nil:
		return v.rec.Fence
	case v.intentErr == nil:
		return v.intent.Fence
	}
	return 0
}

// admit refuses a caller that has no say over this seat.
func (v *view) admit(instance string, fence uint64) error {
	if o, known := v.owner(); known && o.InstanceID != instance {
		return sdk.Errorf(sdk.ErrNotOurs, "seat %s (%s) belongs to host instance %s", v.id, o.Alias, o.InstanceID)
	}
	if f := v.fence(); f > fence {
		return sdk.Errorf(sdk.ErrStaleFence, "seat %s has seen host epoch %d and this is epoch %d", v.id, f, fence)
	}
	return nil
}

// custody returns the identity of the custody process: of the record, else of the handle.
func (v *view) custody() (id seat.Identity, known bool) {
	if v.recErr == nil {
		return v.rec.Identity(), true
	}
	id = seatIdentity(v.state.Seat)
	return id, id.PID > 0 && id.StartTicks > 0 && id.BootID != ""
}

// quarry returns what leads to the seat's processes once custody cannot tell.
func (v *view) quarry() proctree.Quarry {
	q := proctree.Quarry{Nonce: v.nonce}
	if id, known := v.custody(); known {
		q.Custody = id
	}
	if v.agentErr == nil {
		q.Agent = v.agent
	}
	return q
}

// socket returns where custody listens, or would.
func (v *view) socket() string {
	switch {
	case v.recErr == nil:
		return v.rec.Socket
	case v.state.Socket != "":
		return v.state.Socket
	}
	return v.s.socketPath(v.id)
}

// server returns the seat's tmux server as far as it is known: by its record, else by its place alone.
// It is talked to with its own program, else with the one that is installed now.
func (v *view) server() server {
	sv := server{socket: v.s.tmuxPath(v.id)}
	if v.place.known() {
		sv.socket, sv.id = v.place.Socket, seatIdentity(v.place.Server)
		if path, ok := ownProgram(sv.id); ok {
			sv.program = path
			return sv
		}
	}
	sv.program = v.s.installed(v.place.Program)
	return sv
}

// installed returns a tmux to talk with: the configured one, the one in PATH, else the given one.
func (s *settings) installed(last string) string {
	if s.tmux != "" {
		return s.tmux
	}
	if path, err := lookTmux(); err == nil {
		return path
	}
	return last
}

func (v *view) handle() sdk.Handle {
	id, known := v.custody()
	if !known {
		return sdk.Handle{}
	}
	st := handleState{Socket: v.socket(), Seat: identityOf(id), Place: v.place, SeatRoot: filepath.Dir(v.dir), GraceMs: v.state.GraceMs}
	if v.recErr == nil {
		st.GraceMs = v.rec.Record.StopGraceMs
	}
	return handleOf(st, v.id)
}

func handleOf(state handleState, id string) sdk.Handle {
	text, _ := json.Marshal(state) // strings and numbers: cannot fail
	return sdk.Handle{Version: handleVersion, Ref: id, State: text}
}

// status returns what is known from the records, without a state.
func (v *view) status() sdk.SeatStatus {
	st := sdk.SeatStatus{SeatID: v.id, Handle: v.handle()}
	st.Owner, _ = v.owner()
	if id, known := v.custody(); known {
		st.Identity = identityOf(id)
	}
	if v.recErr == nil {
		st.Rows, st.Cols = v.rec.Rows, v.rec.Cols
	}
	return st
}

func (v *view) unknown(format string, args ...any) sdk.SeatStatus {
	st := v.status()
	st.State, st.Reason = sdk.SeatUnknown, fmt.Sprintf(format, args...)
	return st
}

func (v *view) notFound(format string, args ...any) sdk.SeatStatus {
	st := v.status()
	st.State, st.Reason = sdk.SeatNotFound, fmt.Sprintf(format, args...)
	return st
}

func (v *view) exited(x record.Exit) sdk.SeatStatus {
	st := v.status()
	st.State, st.Exit = sdk.SeatExited, exitOf(x)
	return st
}

func exitOf(x record.Exit) *sdk.Exit {
	e := &sdk.Exit{
		Code: x.Code, Signal: x.Signal, At: x.At, Asked: x.Asked,
		Evidence: sdk.Evidence(x.Evidence), Detail: x.Detail, Last: x.Last,
	}
	for _, k := range x.Reaped {
		e.Reaped = append(e.Reaped, sdk.Killed(k))
	}
	return e
}

// live turns what custody says into a status. The second result is false when the seat has exited and
// its record must be read.
func (v *view) live(s seat.Status) (sdk.SeatStatus, bool) {
	st := v.status()
	st.Identity = identityOf(s.Seat)
	if s.Agent.PID != 0 {
		st.Agent = identityOf(s.Agent)
	}
	st.Rows, st.Cols = s.Rows, s.Cols
	switch s.State {
	case seat.StatePrepared:
		st.State = sdk.SeatPrepared
	case seat.StateRunning:
		st.State = sdk.SeatRunning
	case seat.StateDraining:
		// Not exited before its exit is durable, and no agent to show a pid of.
		st.State, st.Agent = sdk.SeatRunning, sdk.Identity{}
		st.Reason = "the agent has ended; the rest of its tree is being ended and its exit recorded in " + v.dir
	default:
		return st, false
	}
	return st, true
}

// dial connects to custody, which proves that it lives. A nil connection with a nil refusal means that
// nobody was reached, and why says so; that proves nothing. A refusal is an answer: something lives
// behind the socket.
func (v *view) dial(ctx context.Context, role seat.Role, fence uint64) (c *seat.Conn, why string, refusal error) {
	if v.tokenErr != nil {
		if _, err := os.Lstat(v.socket()); missing(err) {
			return nil, "no socket " + v.socket(), nil
		}
		return nil, "the seat's token cannot be read: " + v.tokenErr.Error(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := seat.Dial(ctx, seat.DialConfig{Socket: v.socket(), Token: v.token, Role: role, Fence: fence, From: seat.FromLive})
	var e *seat.Error
	switch {
	case errors.As(err, &e) && e.Code != seat.CodeClosed:
		return nil, "", err
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, "nobody listens at " + v.socket(), nil
	case missing(err):
		return nil, "no socket " + v.socket(), nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Sprintf("no answer at %s within %s", v.socket(), dialTimeout), nil
	case err != nil:
		return nil, err.Error(), nil
	}
	// The name of a socket has half of the id: prove that it is this seat.
	if id, known := v.custody(); known && id != c.Welcome().Seat {
		got := c.Welcome().Seat
		c.Close()
		return nil, "", fmt.Errorf("process %d answers at %s and the record names process %d", got.PID, v.socket(), id.PID)
	}
	return c, "", nil
}

// remember writes down which process the agent is, unless that is known already. Where it cannot be
// written (a full disk) the seat runs all the same, and the next Adopt tries again.
func (v *view) remember(now seat.Status) {
	if now.State != seat.StateRunning || now.Agent.PID == 0 || now.Agent.StartTicks == 0 || !v.exists {
		return
	}
	if v.agentErr == nil && v.agent.Identity() == now.Agent {
		return
	}
	st, err := seat.ReadProc(now.Agent.PID)
	if err != nil || st.StartTicks != now.Agent.StartTicks {
		return // it has ended, and custody knows how
	}
	a := record.Agent{PID: now.Agent.PID, StartTicks: now.Agent.StartTicks, BootID: now.Agent.BootID, TTY: st.TTY}
	if err := record.WriteAgent(v.dir, a); err == nil {
		v.agent, v.agentErr = a, nil
	}
}

// at returns the settings to use for a handle, which may name another seat root than the one that is
// configured now. The returned function releases them.
func (s *settings) at(h sdk.Handle) (*settings, func(), error) {
	var st handleState
	if h.Version != handleVersion || json.Unmarshal(h.State, &st) != nil || st.SeatRoot == "" || st.SeatRoot == s.rootPath {
		return s, func() {}, nil // view reports what is wrong with a handle
	}
	if _, err := os.Lstat(st.SeatRoot); missing(err) {
		return s, func() {}, nil
	}
	other := &settings{holder: s.holder, sockets: s.sockets, tmux: s.tmux, rootPath: filepath.Clean(st.SeatRoot)}
	if err := other.openRoot(); err != nil {
		if other.root != nil {
			other.root.Close()
		}
		return nil, nil, retryable("%v", err)
	}
	return other, func() { other.rootFiles.Close(); other.root.Close() }, nil
}

// lost ends what is left of a seat whose custody process is proven dead and left no exit record, and
// records that end, so that every later answer is the same. An error means that something may live.
func (v *view) lost(ctx context.Context, asked bool) (record.Exit, proctree.Sweep, error) {
	self, err := seat.SelfIdentity()
	if err != nil {
		return record.Exit{}, proctree.Sweep{}, err
	}
	x := record.Exit{CustodyID: v.id, Nonce: v.nonce, At: time.Now().UTC(), Asked: asked, Evidence: record.EvidenceCustodyLost}
	var sw proctree.Sweep
	if v.rec.BootID != self.BootID {
		x.Evidence, x.Detail = record.EvidenceRebooted, "the machine has booted since the seat was started"
	} else {
		if err := fpAdoptLost.Hit(); err != nil {
			return x, sw, err
		}
		// Who the agent is must be known, or be known never to have been written.
		if v.agentErr != nil && !missing(v.agentErr) {
			return x, sw, fmt.Errorf("custody process %d is dead, and what it left cannot be told: %w", v.rec.PID, v.agentErr)
		}
		said := v.lastWord(ctx)
		if sw, err = proctree.Hunt(ctx, v.quarry()); err != nil {
			return x, sw, err
		}
		if err := gone(sw); err != nil {
			return x, sw, fmt.Errorf("custody process %d is dead, and %w", v.rec.PID, err)
		}
		x.Detail = fmt.Sprintf("custody process %d died without a record%s; processes left and killed: %d", v.rec.PID, said, len(sw.Killed))
		for _, k := range sw.Killed {
			x.Reaped = append(x.Reaped, record.Killed(k))
		}
		if err := fpAdoptSwept.Hit(); err != nil {
			return x, sw, err
		}
	}
	if err := record.WriteExit(v.dir, x); err != nil {
		return x, sw, err
	}
	if err := fpAdoptRecorded.Hit(); err != nil {
		return x, sw, err
	}
	// Another Adopt may have been first: its record is the one that counts.
	if first, err := record.ReadExit(v.dir); err == nil {
		x = first
	}
	return x, sw, nil
}

// gone returns an error when a sweep did not prove that nothing is left.
func gone(sw proctree.Sweep) error {
	switch {
	case len(sw.Left) > 0:
		return fmt.Errorf("processes of the seat resist: %s", join(sw.Left))
	case len(sw.Doubts) > 0:
		return fmt.Errorf("the seat is not proven gone: process %s; look at what it is, end it if it is the seat's, and ask again", join(sw.Doubts))
	}
	return nil
}

// lastWord is what tmux says of how a lost custody process ended, for a sentence. It proves nothing about
// the agent, whose code stays unknown.
func (v *view) lastWord(ctx context.Context) string {
	if !v.place.known() {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	p, _, err := v.deadPane(ctx)
	switch {
	case err != nil && !p.dead:
		return " (tmux: " + err.Error() + ")"
	case p.dead && p.signal != 0:
		return " (tmux says by " + nameOf(p.signal) + ")"
	case p.dead && p.status != nil:
		return fmt.Sprintf(" (tmux says with code %d)", *p.status)
	}
	return ""
}
