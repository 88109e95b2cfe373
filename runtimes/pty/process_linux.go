package pty

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"syscall"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// proc is one row of the process table.
type proc struct {
	pid, ppid int
	comm      string
	state     byte
	ticks     uint64
}

func (p proc) dead() bool { return p.state == 'Z' || p.state == 'X' }

func procOf(pid int, st seat.Stat) proc {
	return proc{pid: pid, ppid: st.PPID, comm: st.Comm, state: st.State, ticks: st.StartTicks}
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

// sweep is what a hunt for survivors did.
type sweep struct {
	killed []sdk.Killed
	left   []string // what still lives or may not be signalled, "pid (comm): why"
}

// sweepNonce kills every process of ours that carries the nonce, and everything below it, and looks
// again until a look finds none. The nonce is random and secret enough that nobody carries it by
// chance; the other direction does not hold (a program may erase its environment), which is why an
// empty sweep alone proves nothing while custody could tell better.
//
// An error means that the table could not be read; survivors that resist are in sweep.left.
func sweepNonce(ctx context.Context, nonce string) (sweep, error) {
	ctx, cancel := context.WithTimeout(ctx, survivorWait)
	defer cancel()
	var sw sweep
	hit := map[int]proc{} // signalled and not yet seen dead
	for {
		found, err := survivors(nonce)
		if err != nil {
			return sw, err
		}
		sw.left = nil
		for _, p := range found {
			if err := kill(p); errors.Is(err, seat.ErrProcessGone) {
				continue
			} else if err != nil {
				sw.left = append(sw.left, fmt.Sprintf("%d (%s): %v", p.pid, p.comm, err))
				continue
			}
			if hit[p.pid].ticks != p.ticks {
				sw.killed = append(sw.killed, sdk.Killed{PID: p.pid, Command: p.comm, Signal: "SIGKILL"})
			}
			hit[p.pid] = p
		}
		// A process that is being torn down has no environment any more and may still hold a port:
		// what was signalled counts until it is dead.
		for pid, p := range hit {
			st, err := seat.ReadProc(pid)
			switch now := procOf(pid, st); {
			case errors.Is(err, seat.ErrProcessGone), err == nil && (now.dead() || now.ticks != p.ticks):
				delete(hit, pid)
			default:
				sw.left = append(sw.left, fmt.Sprintf("%d (%s): still there after SIGKILL", pid, p.comm))
			}
		}
		if len(found) == 0 && len(sw.left) == 0 {
			return sw, nil
		}
		if pause(ctx, pollEvery) != nil {
			return sw, nil
		}
	}
}

// survivors returns the living carriers of a nonce and their descendants, without this process.
func survivors(nonce string) ([]proc, error) {
	carriers, err := seat.FindByNonce(nonce)
	if err != nil {
		return nil, fmt.Errorf("look for processes by nonce: %w", err)
	}
	var found []proc
	roots := map[int]bool{}
	for _, c := range carriers {
		if c.PID == os.Getpid() {
			continue
		}
		p := proc{pid: c.PID, ppid: c.PPID, comm: c.Comm, ticks: c.StartTicks}
		roots[c.PID] = true
		found = append(found, p)
	}
	if len(found) == 0 {
		return nil, nil
	}
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	for _, p := range descendants(table, roots) {
		if p.pid != os.Getpid() {
			found = append(found, p)
		}
	}
	return found, nil
}

// kill sends SIGKILL to exactly this process, whatever its pid names by now.
func kill(p proc) error {
	self, err := seat.SelfIdentity()
	if err != nil {
		return err
	}
	return seat.SignalExact(seat.Identity{PID: p.pid, StartTicks: p.ticks, BootID: self.BootID}, syscall.SIGKILL)
}

// sweepTree kills everything below a living custody process, and then custody itself. Custody is a
// subreaper: as long as it lives, every descendant is below it, whatever it did to its environment,
// group or session. So an empty look is proof, and only after it custody is killed.
func sweepTree(ctx context.Context, custody seat.Identity) (sweep, error) {
	ctx, cancel := context.WithTimeout(ctx, survivorWait)
	defer cancel()
	var sw sweep
	told := map[int]uint64{}
	for {
		table, err := processTable()
		if err != nil {
			return sw, err
		}
		top, ok := table[custody.PID]
		if !ok || top.dead() || top.ticks != custody.StartTicks {
			return sw, fmt.Errorf("custody process %d ended while its tree was being killed", custody.PID)
		}
		below := descendants(table, map[int]bool{custody.PID: true})
		sw.left = nil
		if len(below) == 0 {
			break
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
		if pause(ctx, pollEvery) != nil {
			return sw, nil
		}
	}
	if err := endProcess(ctx, custody); err != nil {
		sw.left = append(sw.left, err.Error())
	}
	return sw, nil
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
