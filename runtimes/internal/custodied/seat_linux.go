package custodied

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// State is Handle.State. It is enough to find the seat, and to prove its end, when its directory is gone
// or the host now uses another seat root.
type State struct {
	Socket   string          `json:"socket"`
	Seat     sdk.Identity    `json:"seat"`
	Place    json.RawMessage `json:"place,omitempty"` // what the runtime adds
	SeatRoot string          `json:"seatRoot"`
	GraceMs  int             `json:"graceMs"`
}

// Handle makes the handle of a seat.
func (k *Kind) Handle(id string, state State) sdk.Handle {
	text, _ := json.Marshal(state) // strings, numbers and JSON: cannot fail
	return sdk.Handle{Version: k.HandleVersion, Ref: id, State: text}
}

// RootOf returns the seat root a handle names, which may be another than the one that is configured now,
// and a function that releases it.
func (k *Kind) RootOf(h sdk.Handle, configured *seatdir.Root) (*seatdir.Root, func(), error) {
	var st State
	if h.Version != k.HandleVersion || json.Unmarshal(h.State, &st) != nil || st.SeatRoot == "" || st.SeatRoot == configured.Path {
		return configured, func() {}, nil // Seat reports what is wrong with a handle
	}
	if _, err := os.Lstat(st.SeatRoot); Missing(err) {
		return configured, func() {}, nil
	}
	root, err := seatdir.OpenRoot(filepath.Clean(st.SeatRoot))
	if err != nil {
		return nil, nil, Unavailable("%v", err)
	}
	return root, root.Close, nil
}

// Seat is everything that can be read of one seat without changing anything. Every source has its own
// error, because a record that cannot be read must never count as one that is not there.
type Seat struct {
	Kind *Kind
	Root *seatdir.Root
	Term Terminal

	ID     string
	Dir    string
	Exists bool // the directory is there and ours

	Rec       record.Seat
	RecErr    error // nil, fs.ErrNotExist, or broken
	Intent    record.Intent
	IntentErr error
	Exit      record.Exit
	ExitErr   error
	Agent     record.Agent
	AgentErr  error
	Token     []byte
	TokenErr  error

	State State  // of the handle; zero without one
	Nonce string // of the record, the intent or the request; empty when nobody knows

	sockets string
}

// Seat prepares the reading of a seat, whose Terminal the caller sets before it calls Read. sockets is the
// directory that sockets are made in. Errors: sdk.ErrInvalid for a malformed id or handle.
func (k *Kind) Seat(root *seatdir.Root, sockets, id string, h sdk.Handle, nonce string) (*Seat, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	v := &Seat{Kind: k, Root: root, Term: Bare{}, ID: id, Dir: root.Of(id), Nonce: nonce, sockets: sockets}
	if h.Version != 0 || h.Ref != "" {
		if h.Version != k.HandleVersion {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle of seat %s has version %d and this runtime reads %d; upgrade the %s runtime", id, h.Version, k.HandleVersion, k.Name)
		}
		if h.Ref != id {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle is of seat %q, not of %s", h.Ref, id)
		}
		if err := json.Unmarshal(h.State, &v.State); err != nil {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle of seat %s: state: %v", id, err)
		}
	}
	return v, nil
}

// Read reads the seat again. Errors: sdk.ErrUnavailable when the directory exists and is not trustworthy.
func (v *Seat) Read() error {
	defer v.Term.ReadPlace()
	d, err := v.Root.Open(v.ID)
	switch {
	case Missing(err):
		v.Exists = false
		gone := &fs.PathError{Op: "open", Path: v.Dir, Err: fs.ErrNotExist}
		v.RecErr, v.IntentErr, v.ExitErr, v.AgentErr, v.TokenErr = gone, gone, gone, gone, gone
		return nil
	case err != nil:
		return Unavailable("%v", err)
	}
	d.Close()
	v.Exists = true
	// The exit record before the seat record: read the other way round, a Reap in between would make
	// a seat that has ended look like one that lost its custody.
	v.Exit, v.ExitErr = record.ReadExit(v.Dir)
	v.Rec, v.RecErr = record.ReadSeat(v.Dir)
	v.Intent, v.IntentErr = record.ReadIntent(v.Dir)
	v.Agent, v.AgentErr = record.ReadAgent(v.Dir)
	v.Token, v.TokenErr = record.ReadToken(v.Dir)
	switch {
	case v.RecErr == nil:
		v.Nonce = v.Rec.Nonce
	case v.IntentErr == nil:
		v.Nonce = v.Intent.Nonce
	}
	return nil
}

// Missing reports whether an error says that something is not there.
func Missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Owner returns whose seat it is, if any readable source says so.
func (v *Seat) Owner() (o sdk.SeatOwner, known bool) {
	switch {
	case v.RecErr == nil:
		return sdk.SeatOwner(v.Rec.Record.Owner), true
	case v.IntentErr == nil:
		return sdk.SeatOwner(v.Intent.Owner), true
	}
	return sdk.SeatOwner{}, false
}

// Ownerless returns an error when nobody can say whose seat it is because a record is broken.
func (v *Seat) Ownerless() error {
	if _, known := v.Owner(); known || !v.Exists {
		return nil
	}
	for _, err := range []error{v.RecErr, v.IntentErr} {
		if err != nil && !Missing(err) {
			return fmt.Errorf("nobody can say whose seat it is: %w", err)
		}
	}
	return nil
}

// Fence returns the epoch of the host that made the seat, or 0.
func (v *Seat) Fence() uint64 {
	switch {
	case v.RecErr == nil:
		return v.Rec.Fence
	case v.IntentErr == nil:
		return v.Intent.Fence
	}
	return 0
}

// Admit refuses a caller that has no say over this seat. Errors: sdk.ErrNotOurs, sdk.ErrStaleFence.
func (v *Seat) Admit(instance string, fence uint64) error {
	if o, known := v.Owner(); known && o.InstanceID != instance {
		return sdk.Errorf(sdk.ErrNotOurs, "seat %s (%s) belongs to host instance %s", v.ID, o.Alias, o.InstanceID)
	}
	if f := v.Fence(); f > fence {
		return sdk.Errorf(sdk.ErrStaleFence, "seat %s has seen host epoch %d and this is epoch %d", v.ID, f, fence)
	}
	return nil
}

// Custody returns the identity of the custody process: of the record, else of the handle.
func (v *Seat) Custody() (id seat.Identity, known bool) {
	if v.RecErr == nil {
		return v.Rec.Identity(), true
	}
	id = SeatIdentity(v.State.Seat)
	return id, id.PID > 0 && id.StartTicks > 0 && id.BootID != ""
}

// quarry returns what leads to the seat's processes once custody cannot tell.
func (v *Seat) quarry() proctree.Quarry {
	q := proctree.Quarry{Nonce: v.Nonce}
	if id, known := v.Custody(); known {
		q.Custody = id
	}
	if v.AgentErr == nil {
		q.Agent = v.Agent
	}
	return q
}

// Socket returns where the seat listens, or would.
func (v *Seat) Socket() string {
	switch {
	case v.RecErr == nil:
		return v.Rec.Socket
	case v.State.Socket != "":
		return v.State.Socket
	}
	return SocketPath(v.sockets, v.ID)
}

// Handle returns the handle of the seat; none when its custody process is not known.
func (v *Seat) Handle() sdk.Handle {
	id, known := v.Custody()
	if !known {
		return sdk.Handle{}
	}
	st := State{Socket: v.Socket(), Seat: IdentityOf(id), Place: v.State.Place, SeatRoot: v.Root.Path, GraceMs: v.State.GraceMs}
	if v.RecErr == nil {
		st.GraceMs = v.Rec.Record.StopGraceMs
	}
	return v.Kind.Handle(v.ID, st)
}

// status returns what is known from the records, without a state.
func (v *Seat) status() sdk.SeatStatus {
	st := sdk.SeatStatus{SeatID: v.ID, Handle: v.Handle()}
	st.Owner, _ = v.Owner()
	if id, known := v.Custody(); known {
		st.Identity = IdentityOf(id)
	}
	if v.RecErr == nil {
		st.Rows, st.Cols = v.Rec.Rows, v.Rec.Cols
	}
	return st
}

func (v *Seat) unknown(format string, args ...any) sdk.SeatStatus {
	st := v.status()
	st.State, st.Reason = sdk.SeatUnknown, fmt.Sprintf(format, args...)
	return st
}

func (v *Seat) notFound(format string, args ...any) sdk.SeatStatus {
	st := v.status()
	st.State, st.Reason = sdk.SeatNotFound, fmt.Sprintf(format, args...)
	return st
}

func (v *Seat) exited(x record.Exit) sdk.SeatStatus {
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

// seatID is how ids of seats look.
var seatID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// CheckID refuses what is no seat id.
func CheckID(id string) error {
	if !seatID.MatchString(id) {
		return sdk.Errorf(sdk.ErrInvalid, "seat id %q is not 32 lower-case hex digits", id)
	}
	return nil
}

// SocketPath is where the custody process of a seat listens. Sixteen digits keep it short; ids are random,
// so they are still unique, and custody answers with its identity.
func SocketPath(dir, id string) string { return filepath.Join(dir, id[:16]+".sock") }

// CheckSocketPath refuses a directory in which the socket of a seat would have too long a path.
func CheckSocketPath(dir, id string) error {
	if !filepath.IsAbs(dir) {
		return sdk.Errorf(sdk.ErrInvalid, "socket directory %q is not absolute", dir)
	}
	if path := SocketPath(dir, id); len(path) >= maxSocketPath {
		return sdk.Errorf(sdk.ErrInvalid, "socket path %s has %d bytes and the limit is %d; set XDG_RUNTIME_DIR to a shorter directory of yours", path, len(path), maxSocketPath-1)
	}
	return nil
}
