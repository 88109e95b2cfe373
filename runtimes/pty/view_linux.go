package pty

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

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

	state handleState // of the handle; zero without one
	nonce string      // of the record, the intent or the request; empty when nobody knows
}

// look reads a seat. Errors: sdk.ErrInvalid for a malformed id or handle, sdk.ErrUnavailable when the
// directory exists and is not trustworthy.
func (s *settings) look(id string, h sdk.Handle, nonce string) (*view, error) {
	if err := checkSeatID(id); err != nil {
		return nil, err
	}
	v := &view{s: s, id: id, nonce: nonce}
	if h.Version != 0 || h.Ref != "" {
		if h.Version != handleVersion {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle of seat %s has version %d and this runtime reads %d; upgrade the pty runtime", id, h.Version, handleVersion)
		}
		if h.Ref != id {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle is of seat %q, not of %s", h.Ref, id)
		}
		if err := json.Unmarshal(h.State, &v.state); err != nil {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle of seat %s: state: %v", id, err)
		}
	}
	v.dir = filepath.Join(s.rootPath, id)
	return v, v.read()
}

func (v *view) read() error {
	d, err := seatdir.OpenOwnAt(int(v.s.root.Fd()), v.id, v.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.exists = false
		gone := &fs.PathError{Op: "open", Path: v.dir, Err: fs.ErrNotExist}
		v.recErr, v.intentErr, v.exitErr, v.agentErr, v.tokenErr = gone, gone, gone, gone, gone
		return nil
	case err != nil:
		return unavailable("%v", err)
	}
	d.Close()
	v.exists = true
	// The exit record before the seat record: read the other way round, a Reap in between would make
	// a seat that has ended look like one that lost its custody.
	v.exit, v.exitErr = record.ReadExit(v.dir)
	v.rec, v.recErr = record.ReadSeat(v.dir)
	v.intent, v.intentErr = record.ReadIntent(v.dir)
	v.agent, v.agentErr = record.ReadAgent(v.dir)
	v.token, v.tokenErr = record.ReadToken(v.dir)
	switch {
	case v.recErr == nil:
		v.nonce = v.rec.Nonce
	case v.intentErr == nil:
		v.nonce = v.intent.Nonce
	}
	return nil
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

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
	if v.recErr != nil && !missing(v.recErr) {
		return fmt.Errorf("nobody can say whose seat it is: %w", v.recErr)
	}
	if v.intentErr != nil && !missing(v.intentErr) {
		return fmt.Errorf("nobody can say whose seat it is: %w", v.intentErr)
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
	if err := v.ofAnother(); err != nil {
		return err
	}
	if o, known := v.owner(); known && o.InstanceID != instance {
		return sdk.Errorf(sdk.ErrNotOurs, "seat %s (%s) belongs to host instance %s", v.id, o.Alias, o.InstanceID)
	}
	if f := v.fence(); f > fence {
		return staleFence(v.id, f, fence)
	}
	return nil
}

// ofAnother refuses a seat whose directory was made for another runtime.
func (v *view) ofAnother() error {
	if v.intentErr == nil && v.intent.Runtime != "" && v.intent.Runtime != Name {
		return sdk.Errorf(sdk.ErrNotOurs, "seat %s is one of the %s runtime", v.id, v.intent.Runtime)
	}
	return nil
}

func staleFence(id string, seen, have uint64) error {
	return sdk.Errorf(sdk.ErrStaleFence, "seat %s has seen host epoch %d and this is epoch %d", id, seen, have)
}

// identity returns the identity of the custody process: of the record, else of the handle.
func (v *view) identity() (id seat.Identity, known bool) {
	if v.recErr == nil {
		return v.rec.Identity(), true
	}
	id = seatIdentity(v.state.Seat)
	return id, id.PID > 0 && id.StartTicks > 0 && id.BootID != ""
}

// quarry returns what leads to the seat's processes once custody cannot tell.
func (v *view) quarry() proctree.Quarry {
	q := proctree.Quarry{Nonce: v.nonce}
	if id, known := v.identity(); known {
		q.Custody = id
	}
	if v.agentErr == nil {
		q.Agent = v.agent
	}
	return q
}

// socket returns where the seat listens, or would.
func (v *view) socket() string {
	switch {
	case v.recErr == nil:
		return v.rec.Socket
	case v.state.Socket != "":
		return v.state.Socket
	}
	return v.s.socketPath(v.id)
}

func (v *view) handle() sdk.Handle {
	id, known := v.identity()
	if !known {
		return sdk.Handle{}
	}
	st := handleState{Socket: v.socket(), Seat: identityOf(id), SeatRoot: filepath.Dir(v.dir), GraceMs: v.state.GraceMs}
	if v.recErr == nil {
		st.GraceMs = v.rec.Record.StopGraceMs
	}
	return handleOf(st, v.id)
}

// status returns what is known from the records, without a state.
func (v *view) status() sdk.SeatStatus {
	st := sdk.SeatStatus{SeatID: v.id, Handle: v.handle()}
	st.Owner, _ = v.owner()
	if id, known := v.identity(); known {
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

// live turns what a seat says of itself into a status. The second result is false when the seat has
// exited and its record must be read.
func (v *view) live(s seat.Status) (sdk.SeatStatus, bool) {
	st := v.status()
	st.Identity = identityOf(s.Seat)
	if s.Agent.PID != 0 {
		st.Agent = identityOf(s.Agent)
	}
	st.First, st.Next, st.Rows, st.Cols = s.First, s.Next, s.Rows, s.Cols
	st.Attached, st.Modes = int(s.Attached), s.Modes
	switch s.State {
	case seat.StatePrepared:
		st.State = sdk.SeatPrepared
	case seat.StateRunning:
		st.State = sdk.SeatRunning
	case seat.StateDraining:
		// Not exited before its exit is durable, and no agent to show a pid of.
		st.State, st.Agent, st.Reason = sdk.SeatRunning, sdk.Identity{}, v.draining(s.Seat)
	default:
		return st, false
	}
	return st, true
}

// draining says in words why the end of an agent is not told yet.
func (v *view) draining(custody seat.Identity) string {
	const ended = "the agent has ended; "
	if below, err := proctree.Below(custody); err != nil || len(below) > 0 {
		return ended + "the rest of its tree is being ended"
	}
	if err := v.probe(); err != nil {
		return ended + "its exit record cannot be written: " + reasonOf(err) + "; " + fixOf(err, v.dir)
	}
	return ended + "its exit is being recorded"
}

// probe reports whether the seat's directory takes a file of the size of an exit record. It leaves none.
func (v *view) probe() error {
	fd, err := unix.Open(v.dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) { // a file system without nameless files
		return probeNamed(v.dir)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), v.dir)
	_, err = f.Write(make([]byte, probeBytes))
	return errors.Join(err, f.Close())
}

const probeBytes = 16 << 10 // an exit record with all it may name

func probeNamed(dir string) error {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, probeBytes))
	return errors.Join(err, f.Close())
}

// reasonOf puts the failure of a write into the words of an operator.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "no space"
	case errors.Is(err, unix.EDQUOT):
		return "over quota"
	}
	return err.Error()
}

// fixOf says what helps against it.
func fixOf(err error, dir string) string {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return "free space on the file system of " + dir
	}
	return "make " + dir + " writable"
}

// dial connects to the seat, which proves that it lives. A nil connection with a nil refusal means
// that nobody was reached, and why says so; that proves nothing. A refusal is an answer: something
// lives behind the socket. That all its connections are taken is none: a place may get free, so it is
// tried again until the time is up.
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
	for errors.Is(err, seat.ErrLimit) {
		full := err
		if proctree.Pause(ctx, pollEvery) != nil {
			return nil, fmt.Sprintf("no connection was free at %s within %s: %v", v.socket(), dialTimeout, full), nil
		}
		c, err = seat.Dial(ctx, seat.DialConfig{Socket: v.socket(), Token: v.token, Role: role, Fence: fence, From: seat.FromLive})
		if err != nil && ctx.Err() != nil {
			err = full // the time was up in the middle of a try
		}
	}
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
	if id, known := v.identity(); known && id != c.Welcome().Seat {
		got := c.Welcome().Seat
		c.Close()
		return nil, "", fmt.Errorf("process %d answers at %s and the record names process %d", got.PID, v.socket(), id.PID)
	}
	return c, "", nil
}

// at returns the settings to use for a handle, which may name another seat root than the one that is
// configured now. The returned function releases them.
func (s *settings) at(h sdk.Handle) (*settings, func(), error) {
	var st handleState
	if h.Version != handleVersion || json.Unmarshal(h.State, &st) != nil || st.SeatRoot == "" || st.SeatRoot == s.rootPath {
		return s, func() {}, nil // look reports what is wrong with a handle
	}
	if _, err := os.Lstat(st.SeatRoot); missing(err) {
		return s, func() {}, nil
	}
	root, err := seatdir.OpenPrivate(filepath.Clean(st.SeatRoot))
	if err != nil {
		return nil, nil, unavailable("%v", err)
	}
	files, err := os.OpenRoot(fdPath(root))
	if err != nil {
		root.Close()
		return nil, nil, unavailable("%v", err)
	}
	other := &settings{image: s.image, sockets: s.sockets, root: root, rootPath: root.Name(), rootFiles: files}
	return other, func() { files.Close(); root.Close() }, nil
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
