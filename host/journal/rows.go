package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Bounds of a row. A row that could not be written back must not be readable either, so both
// directions check them.
const (
	MaxRow = 256 << 10 // bytes of JSON
	MaxKey = 512       // bytes of a seat id or goal id
)

// RowState is where a seat stands for the journal.
type RowState string

// States of a seat row.
const (
	StateIntent   RowState = "intent"   // identity minted and recorded, nothing may exist yet
	StatePrepared RowState = "prepared" // the runtime's handle is recorded, nothing executed
	StateRunning  RowState = "running"
	StateStopping RowState = "stopping" // a stop was asked and is not proved
	StateExited   RowState = "exited"
	StateFailed   RowState = "failed" // never ran; Cause says why
	StateUnknown  RowState = "unknown"
	// StateRestarting: the process ended by itself and is followed by another one, of which nothing is recorded.
	StateRestarting RowState = "restarting"
)

// Ended reports whether the seat will never run again.
func (s RowState) Ended() bool { return s == StateExited || s == StateFailed }

func (s RowState) valid() bool {
	switch s {
	case StateIntent, StatePrepared, StateRunning, StateStopping, StateExited, StateFailed, StateUnknown, StateRestarting:
		return true
	}
	return false
}

// SeatRow is what only this machine can know of one seat. It holds no secret: the seat's token and
// the launch's credentials stay in the seat directory.
type SeatRow struct {
	SeatID        string          `json:"seatId"` // custody id; the key
	UID           string          `json:"uid"`
	Alias         string          `json:"alias"`
	Principal     string          `json:"principal"`
	Nonce         string          `json:"nonce"`
	RequestID     string          `json:"requestId,omitempty"`
	Fingerprint   string          `json:"fingerprint,omitempty"`
	Caller        string          `json:"caller,omitempty"`
	Persona       string          `json:"persona,omitempty"`
	Agent         string          `json:"agent,omitempty"`
	Runtime       string          `json:"runtime,omitempty"`
	Role          string          `json:"role,omitempty"`
	Model         string          `json:"model,omitempty"`
	Variant       string          `json:"variant,omitempty"`
	Cwd           string          `json:"cwd,omitempty"`
	Form          json.RawMessage `json:"form,omitempty"`
	Grace         int             `json:"graceMs,omitempty"`     // milliseconds
	ReadinessMs   int             `json:"readinessMs,omitempty"` // milliseconds
	State         RowState        `json:"state"`
	Handle        sdk.Handle      `json:"handle,omitzero"`
	Created       time.Time       `json:"created,omitzero"`
	Started       time.Time       `json:"started,omitzero"`
	Ended         time.Time       `json:"ended,omitzero"`
	Fence         uint64          `json:"fence,omitempty"` // epoch of the host that spawned it
	Exit          *sdk.Exit       `json:"exit,omitempty"`
	Cause         string          `json:"cause,omitempty"`
	By            string          `json:"by,omitempty"` // principal of who asked for its end
	Reason        string          `json:"reason,omitempty"`
	Reaped        bool            `json:"reaped,omitempty"`  // its end is proved and nothing of it is left
	ReadyBy       string          `json:"readyBy,omitempty"` // what its connector counts as ready; empty: process
	Ready         time.Time       `json:"ready,omitzero"`    // when its spawn was decided while it ran; zero: it was not
	Restart       *Restart        `json:"restart,omitempty"` // nil: it is not started again when it ends by itself
	LaunchOptions map[string]any  `json:"launchOptions,omitempty"`
	Step          string          `json:"step,omitempty"` // last saga step: "<name>" intended, "<name>+" done
}

// Restart is what is kept of a seat that is started again when its process ends by itself: how often that may
// be, and what has to outlive the process. Each process is a row of its own under a custody id of its own;
// a row takes this over from the one before it.
type Restart struct {
	Restarts int   `json:"restarts"`           // at most so many within WindowMs
	WindowMs int64 `json:"windowMs"`           // milliseconds
	Asked    bool  `json:"asked,omitempty"`    // the caller asked for it; else the connector continues sessions
	Continue bool  `json:"continue,omitempty"` // the connector can reopen a session

	Ends    []time.Time `json:"ends,omitempty"`    // of processes that were followed by another, within the window
	Session string      `json:"session,omitempty"` // that the next process reopens
	Exit    *sdk.Exit   `json:"exit,omitempty"`    // of the last process before this one; nil: this is the first
	Floor   int64       `json:"floor,omitempty"`   // epoch ms: presence up to then is of an earlier process
	Proving bool        `json:"proving,omitempty"` // the process has not shown yet that it is ready
	// Begun: something was said, or may have been, since the first process forked a session: that is not forked again.
	Begun bool `json:"begun,omitempty"`
}

// GoalRow is what this machine knows of one accepted action: that it is ours, its seat, its deadline. The
// truth is on the mesh; Result is what was decided here, nil until then, and stays in this outbox until the
// mesh has a terminal (Committed), which may be another one: then it stands here too.
type GoalRow struct {
	ID          string           `json:"id"` // caller-qualified; the key
	Command     string           `json:"command,omitempty"`
	Fingerprint string           `json:"fingerprint,omitempty"`
	Acceptance  wire.Acceptance  `json:"acceptance"`
	SeatID      string           `json:"seatId,omitempty"`
	Deadline    time.Time        `json:"deadline,omitzero"`
	Result      *wire.GoalResult `json:"result,omitempty"`
	Accepted    time.Time        `json:"accepted,omitzero"`
	Settled     time.Time        `json:"settled,omitzero"`
	Committed   bool             `json:"committed,omitempty"` // its terminal is durable on the mesh
	Local       bool             `json:"local,omitempty"`     // it was accepted without a mesh: the row is all there is
}

// InOutbox reports whether the mesh has yet to hear of the goal's end.
func (r GoalRow) InOutbox() bool { return r.Result != nil && !r.Committed && !r.Local }

// RowError is a row that cannot be read. It is not an absent row.
type RowError struct {
	Bucket, Key string
	Err         error
}

// Error names the row.
func (e *RowError) Error() string { return fmt.Sprintf("row %s/%q: %v", e.Bucket, e.Key, e.Err) }

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }

func checkKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("key of %d bytes, must be 1..%d", len(key), MaxKey)
	}
	return nil
}

// ErrRowTooLarge says that a row is above MaxRow. The same row will never be written.
var ErrRowTooLarge = errors.New("row too large")

func encodeRow(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(raw) > MaxRow {
		return nil, fmt.Errorf("%w: %d bytes, a row has at most %d", ErrRowTooLarge, len(raw), MaxRow)
	}
	return raw, nil
}

// decodeRow is strict: the schema number says which fields there are, so a field that is not known
// means damage.
func decodeRow(raw []byte, v any) error {
	if len(raw) > MaxRow {
		return fmt.Errorf("%d bytes, a row has at most %d", len(raw), MaxRow)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("something follows the JSON value")
	}
	return nil
}

func encodeSeat(r SeatRow) ([]byte, error) {
	if err := checkKey(r.SeatID); err != nil {
		return nil, fmt.Errorf("seatId: %w", err)
	}
	if !r.State.valid() {
		return nil, fmt.Errorf("state: %q is not a state", r.State)
	}
	return encodeRow(r)
}

func decodeSeat(key, raw []byte) (SeatRow, error) {
	var r SeatRow
	err := decodeRow(raw, &r)
	switch {
	case err != nil:
	case r.SeatID != string(key):
		err = fmt.Errorf("seatId: %q is not its key", r.SeatID)
	case !r.State.valid():
		err = fmt.Errorf("state: %q is not a state", r.State)
	}
	if err != nil {
		return SeatRow{}, &RowError{Bucket: "seats", Key: string(key), Err: err}
	}
	return r, nil
}

func encodeGoal(r GoalRow) ([]byte, error) {
	if err := checkKey(r.ID); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	if r.Result != nil && !terminal(r.Result.State) {
		return nil, fmt.Errorf("result: %q is not a terminal", r.Result.State)
	}
	return encodeRow(r)
}

func decodeGoal(key, raw []byte) (GoalRow, error) {
	var r GoalRow
	err := decodeRow(raw, &r)
	switch {
	case err != nil:
	case r.ID != string(key):
		err = fmt.Errorf("id: %q is not its key", r.ID)
	case r.Result != nil && !terminal(r.Result.State):
		err = fmt.Errorf("result: %q is not a terminal", r.Result.State)
	}
	if err != nil {
		return GoalRow{}, &RowError{Bucket: "goals", Key: string(key), Err: err}
	}
	return r, nil
}

func terminal(state string) bool {
	switch state {
	case wire.GoalSucceeded, wire.GoalFailed, wire.GoalCancelled, wire.GoalExpired, wire.GoalUncertain:
		return true
	}
	return false
}
