package proctree

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// Proc is one row of the process table.
type Proc struct {
	PID, PPID int
	Session   int
	Comm      string
	State     byte
	Ticks     uint64
}

// Dead reports whether the process has ended and only waits to be waited for.
func (p Proc) Dead() bool { return p.State == 'Z' || p.State == 'X' }

// ProcOf is the row of process pid.
func ProcOf(pid int, st seat.Stat) Proc {
	return Proc{PID: pid, PPID: st.PPID, Session: st.Session, Comm: st.Comm, State: st.State, Ticks: st.StartTicks}
}

// Table reads /proc once. Processes that end meanwhile are left out; one that cannot be read
// is an error, because what is below it would be missed.
func Table() (map[int]Proc, error) {
	pids, err := seat.Processes()
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	table := make(map[int]Proc, len(pids))
	for _, pid := range pids {
		st, err := seat.ReadProc(pid)
		if errors.Is(err, seat.ErrProcessGone) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read process table: %w", err)
		}
		table[pid] = ProcOf(pid, st)
	}
	return table, nil
}

// Descendants returns the living processes below the roots (which are not part of it), by pid.
func Descendants(table map[int]Proc, roots map[int]bool) []Proc {
	var out []Proc
	for pid, p := range table {
		if roots[pid] || p.Dead() {
			continue
		}
		// A chain of parents is at most as long as the table; a torn snapshot may hold a loop.
		for up, n := p.PPID, 0; up > 1 && n < len(table); n++ {
			if roots[up] {
				out = append(out, p)
				break
			}
			up = table[up].PPID
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].PID < out[j].PID })
	return out
}

// Kill sends SIGKILL to exactly this process, whatever its pid names by now.
func Kill(p Proc) error {
	self, err := seat.SelfIdentity()
	if err != nil {
		return err
	}
	return seat.SignalExact(seat.Identity{PID: p.PID, StartTicks: p.Ticks, BootID: self.BootID}, syscall.SIGKILL)
}

// KillBelow kills everything below a living custody process until a look finds nothing. Custody is a
// subreaper: as long as it lives, every descendant is below it, whatever it did to its environment,
// group or session. So an empty look is proof.
//
// An error means that this could not be carried through, also because ctx ended; survivors that resist
// are in Sweep.left.
func KillBelow(ctx context.Context, custody seat.Identity) (Sweep, error) {
	bound, cancel := context.WithTimeout(ctx, survivorWait)
	defer cancel()
	var sw Sweep
	told := map[int]uint64{}
	for {
		if err := Over(ctx); err != nil {
			return sw, err
		}
		below, err := Below(custody)
		if err != nil {
			return sw, err
		}
		sw.Left = nil
		if len(below) == 0 {
			return sw, nil
		}
		for _, p := range below {
			if err := Kill(p); err != nil && !errors.Is(err, seat.ErrProcessGone) {
				sw.Left = append(sw.Left, fmt.Sprintf("%d (%s): %v", p.PID, p.Comm, err))
				continue
			}
			sw.Left = append(sw.Left, fmt.Sprintf("%d (%s): still there after SIGKILL", p.PID, p.Comm))
			if told[p.PID] != p.Ticks {
				told[p.PID] = p.Ticks
				sw.Killed = append(sw.Killed, sdk.Killed{PID: p.PID, Command: p.Comm, Signal: "SIGKILL"})
			}
		}
		if Pause(bound, pollEvery) != nil {
			return sw, Over(ctx)
		}
	}
}

// Below returns the living processes below a custody process, which must live.
func Below(custody seat.Identity) ([]Proc, error) {
	table, err := Table()
	if err != nil {
		return nil, err
	}
	top, ok := table[custody.PID]
	if !ok || top.Dead() || top.Ticks != custody.StartTicks {
		return nil, fmt.Errorf("custody process %d ended while its tree was looked at", custody.PID)
	}
	return Descendants(table, map[int]bool{custody.PID: true}), nil
}

// Over returns an error once the caller has gone or its time is up. It is asked before everything that
// reaches a process: whoever no longer waits for a stop must not have it go on behind his back.
func Over(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the call ended before the seat did: %w", err)
	}
	return nil
}

// EndProcess kills exactly the process id and waits until it is dead.
func EndProcess(ctx context.Context, id seat.Identity) error {
	if err := seat.SignalExact(id, syscall.SIGKILL); err != nil && !errors.Is(err, seat.ErrProcessGone) {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	return AwaitDeath(ctx, id)
}

// AwaitDeath waits until the process is proven dead, or until ctx ends.
func AwaitDeath(ctx context.Context, id seat.Identity) error {
	for {
		live, why := seat.Check(id)
		if live == seat.Dead {
			return nil
		}
		if Pause(ctx, pollEvery) != nil {
			return fmt.Errorf("process %d is not proven dead: %s", id.PID, why)
		}
	}
}

// Pause waits for d or for the end of ctx, whose error it returns.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
