package pty

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"syscall"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// proc is one row of the process table.
type proc struct {
	pid, ppid int
	session   int
	comm      string
	state     byte
	ticks     uint64
}

func (p proc) dead() bool { return p.state == 'Z' || p.state == 'X' }

func procOf(pid int, st seat.Stat) proc {
	return proc{pid: pid, ppid: st.PPID, session: st.Session, comm: st.Comm, state: st.State, ticks: st.StartTicks}
}

// processTable reads /proc once. Processes that end meanwhile are left out; one that cannot be read
// is an error, because what is below it would be missed.
func processTable() (map[int]proc, error) {
	pids, err := seat.Processes()
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	table := make(map[int]proc, len(pids))
	for _, pid := range pids {
		st, err := seat.ReadProc(pid)
		if errors.Is(err, seat.ErrProcessGone) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read process table: %w", err)
		}
		table[pid] = procOf(pid, st)
	}
	return table, nil
}

// descendants returns the living processes below the roots (which are not part of it), by pid.
func descendants(table map[int]proc, roots map[int]bool) []proc {
	var out []proc
	for pid, p := range table {
		if roots[pid] || p.dead() {
			continue
		}
		// A chain of parents is at most as long as the table; a torn snapshot may hold a loop.
		for up, n := p.ppid, 0; up > 1 && n < len(table); n++ {
			if roots[up] {
				out = append(out, p)
				break
			}
			up = table[up].ppid
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].pid < out[j].pid })
	return out
}

// kill sends SIGKILL to exactly this process, whatever its pid names by now.
func kill(p proc) error {
	self, err := seat.SelfIdentity()
	if err != nil {
		return err
	}
	return seat.SignalExact(seat.Identity{PID: p.pid, StartTicks: p.ticks, BootID: self.BootID}, syscall.SIGKILL)
}

// killBelow kills everything below a living custody process until a look finds nothing. Custody is a
// subreaper: as long as it lives, every descendant is below it, whatever it did to its environment,
// group or session. So an empty look is proof.
//
// An error means that this could not be carried through, also because ctx ended; survivors that resist
// are in sweep.left.
func killBelow(ctx context.Context, custody seat.Identity) (sweep, error) {
	bound, cancel := context.WithTimeout(ctx, survivorWait)
	defer cancel()
	var sw sweep
	told := map[int]uint64{}
	for {
		if err := over(ctx); err != nil {
			return sw, err
		}
		below, err := belowCustody(custody)
		if err != nil {
			return sw, err
		}
		sw.left = nil
		if len(below) == 0 {
			return sw, nil
		}
		for _, p := range below {
			if err := kill(p); err != nil && !errors.Is(err, seat.ErrProcessGone) {
				sw.left = append(sw.left, fmt.Sprintf("%d (%s): %v", p.pid, p.comm, err))
				continue
			}
			sw.left = append(sw.left, fmt.Sprintf("%d (%s): still there after SIGKILL", p.pid, p.comm))
			if told[p.pid] != p.ticks {
				told[p.pid] = p.ticks
				sw.killed = append(sw.killed, sdk.Killed{PID: p.pid, Command: p.comm, Signal: "SIGKILL"})
			}
		}
		if pause(bound, pollEvery) != nil {
			return sw, over(ctx)
		}
	}
}

// belowCustody returns the living processes below a custody process, which must live.
func belowCustody(custody seat.Identity) ([]proc, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	top, ok := table[custody.PID]
	if !ok || top.dead() || top.ticks != custody.StartTicks {
		return nil, fmt.Errorf("custody process %d ended while its tree was looked at", custody.PID)
	}
	return descendants(table, map[int]bool{custody.PID: true}), nil
}

// over returns an error once the caller has gone or its time is up. It is asked before everything that
// reaches a process: whoever no longer waits for a stop must not have it go on behind his back.
func over(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the call ended before the seat did: %w", err)
	}
	return nil
}

// endProcess kills exactly the process id and waits until it is dead.
func endProcess(ctx context.Context, id seat.Identity) error {
	if err := seat.SignalExact(id, syscall.SIGKILL); err != nil && !errors.Is(err, seat.ErrProcessGone) {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	return awaitDeath(ctx, id)
}

// awaitDeath waits until the process is proven dead, or until ctx ends.
func awaitDeath(ctx context.Context, id seat.Identity) error {
	for {
		live, why := seat.Check(id)
		if live == seat.Dead {
			return nil
		}
		if pause(ctx, pollEvery) != nil {
			return fmt.Errorf("process %d is not proven dead: %s", id.PID, why)
		}
	}
}

func identityOf(id seat.Identity) sdk.Identity {
	return sdk.Identity{PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID}
}

func seatIdentity(id sdk.Identity) seat.Identity {
	return seat.Identity{PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID}
}
