package custodied

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// live turns what a seat says of itself into a status. The second result is false when the seat has
// exited and its record must be read.
func (v *Seat) live(s seat.Status) (sdk.SeatStatus, bool) {
	st := v.status()
	st.Identity = IdentityOf(s.Seat)
	if s.Agent.PID != 0 {
		st.Agent = IdentityOf(s.Agent)
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
func (v *Seat) draining(custody seat.Identity) string {
	const ended = "the agent has ended; "
	if below, err := proctree.Below(custody); err != nil || len(below) > 0 {
		return ended + "the rest of its tree is being ended"
	}
	if err := v.probe(); err != nil {
		return ended + "its exit record cannot be written: " + reasonOf(err) + "; " + fixOf(err, v.Dir)
	}
	return ended + "its exit is being recorded"
}

// probe reports whether the seat's directory takes a file of the size of an exit record. It leaves none.
func (v *Seat) probe() error {
	fd, err := unix.Open(v.Dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) { // a file system without nameless files
		return probeNamed(v.Dir)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), v.Dir)
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

// Dial connects to the seat, which proves that it lives. A nil connection with a nil refusal means
// that nobody was reached, and why says so; that proves nothing. A refusal is an answer: something
// lives behind the socket. That all its connections are taken is none: a place may get free, so it is
// tried again until the time is up.
func (v *Seat) Dial(ctx context.Context, role seat.Role, fence uint64) (c *seat.Conn, why string, refusal error) {
	if v.TokenErr != nil {
		if _, err := os.Lstat(v.Socket()); Missing(err) {
			return nil, "no socket " + v.Socket(), nil
		}
		return nil, "the seat's token cannot be read: " + v.TokenErr.Error(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := seat.Dial(ctx, seat.DialConfig{Socket: v.Socket(), Token: v.Token, Role: role, Fence: fence, From: seat.FromLive})
	for errors.Is(err, seat.ErrLimit) {
		full := err
		if proctree.Pause(ctx, PollEvery) != nil {
			return nil, fmt.Sprintf("no connection was free at %s within %s: %v", v.Socket(), dialTimeout, full), nil
		}
		c, err = seat.Dial(ctx, seat.DialConfig{Socket: v.Socket(), Token: v.Token, Role: role, Fence: fence, From: seat.FromLive})
		if err != nil && ctx.Err() != nil {
			err = full // the time was up in the middle of a try
		}
	}
	var e *seat.Error
	switch {
	case errors.As(err, &e) && e.Code != seat.CodeClosed:
		return nil, "", err
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, "nobody listens at " + v.Socket(), nil
	case Missing(err):
		return nil, "no socket " + v.Socket(), nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Sprintf("no answer at %s within %s", v.Socket(), dialTimeout), nil
	case err != nil:
		return nil, err.Error(), nil
	}
	// The name of a socket has half of the id: prove that it is this seat.
	if id, known := v.Custody(); known && id != c.Welcome().Seat {
		got := c.Welcome().Seat
		c.Close()
		return nil, "", fmt.Errorf("process %d answers at %s and the record names process %d", got.PID, v.Socket(), id.PID)
	}
	return c, "", nil
}

// remember writes down which process the agent is, unless that is known already. Where it cannot be
// written (a full disk) the seat runs all the same, and the next Adopt tries again.
func (v *Seat) remember(now seat.Status) {
	if now.State != seat.StateRunning || now.Agent.PID == 0 || now.Agent.StartTicks == 0 || !v.Exists {
		return
	}
	if v.AgentErr == nil && v.Agent.Identity() == now.Agent {
		return
	}
	st, err := seat.ReadProc(now.Agent.PID)
	if err != nil || st.StartTicks != now.Agent.StartTicks {
		return // it has ended, and custody knows how
	}
	a := record.Agent{PID: now.Agent.PID, StartTicks: now.Agent.StartTicks, BootID: now.Agent.BootID, TTY: st.TTY}
	if err := record.WriteAgent(v.Dir, a); err == nil {
		v.Agent, v.AgentErr = a, nil
	}
}

func refusalText(err error) string {
	var e *seat.Error
	if errors.As(err, &e) && e.Text != "" {
		return e.Text
	}
	return err.Error()
}
