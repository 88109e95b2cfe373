package pty

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// quarry is what leads to the processes of a seat whose custody process cannot tell any more.
type quarry struct {
	nonce   string
	custody seat.Identity // zero: nobody knows. Nothing of the seat is older
	agent   record.Agent  // zero: never recorded
}

// sweep is what a hunt for survivors did.
type sweep struct {
	killed []sdk.Killed
	left   []string // what still lives or may not be signalled, "pid (comm): why"
	doubts []string // what may be the seat's and is not proven to be; never signalled
}

// hunt kills every process that is provably the seat's, and everything below it, and looks again until
// a look finds none. Provably are: the carriers of the nonce, which is random and secret enough that
// nobody carries it by chance; exactly the process that was recorded as the agent; and the members of
// the agent's session while something pins its number.
//
// What hides its environment and hangs where an orphan of the seat would is a doubt: nobody may call
// the seat gone while it lives. A process that erased its environment, left the session and lost its
// parent has no link to the seat any more: without a cgroup nobody can find it.
//
// An error means that the table could not be read, or that ctx ended: then nothing more was signalled.
// Survivors that resist are in sweep.left.
func hunt(ctx context.Context, q quarry) (sweep, error) {
	bound, cancel := context.WithTimeout(ctx, survivorWait)
	defer cancel()
	h := hunter{quarry: q, hit: map[int]proc{}, mates: map[int]proc{}}
	var sw sweep
	for {
		if err := over(ctx); err != nil {
			return sw, err
		}
		found, doubts, err := h.look()
		if err != nil {
			return sw, err
		}
		sw.left, sw.doubts = nil, doubts
		for _, p := range found {
			if err := kill(p); errors.Is(err, seat.ErrProcessGone) {
				continue
			} else if err != nil {
				sw.left = append(sw.left, fmt.Sprintf("%d (%s): %v", p.pid, p.comm, err))
				continue
			}
			if h.hit[p.pid].ticks != p.ticks {
				sw.killed = append(sw.killed, sdk.Killed{PID: p.pid, Command: p.comm, Signal: "SIGKILL"})
			}
			h.hit[p.pid] = p
		}
		// A process that is being torn down has no environment any more and may still hold a port:
		// what was signalled counts until it is dead.
		for pid, p := range h.hit {
			st, err := seat.ReadProc(pid)
			switch now := procOf(pid, st); {
			case errors.Is(err, seat.ErrProcessGone), err == nil && (now.dead() || now.ticks != p.ticks):
				delete(h.hit, pid)
			default:
				sw.left = append(sw.left, fmt.Sprintf("%d (%s): still there after SIGKILL", pid, p.comm))
			}
		}
		if len(found) == 0 && len(sw.left) == 0 {
			return sw, nil
		}
		if pause(bound, pollEvery) != nil {
			return sw, over(ctx)
		}
	}
}

// hunter is one hunt under way.
type hunter struct {
	quarry
	hit   map[int]proc // signalled and not yet seen dead
	mates map[int]proc // proven members of the agent's session
}

// look returns the living processes of the seat and the doubts, without signalling anything.
func (h *hunter) look() (found []proc, doubts []string, err error) {
	carriers, hidden, err := seat.SearchNonce(h.nonce)
	if err != nil {
		return nil, nil, fmt.Errorf("look for processes by nonce: %w", err)
	}
	table, err := processTable()
	if err != nil {
		return nil, nil, err
	}
	roots := map[int]bool{}
	add := func(p proc) {
		if p.pid != os.Getpid() && !p.dead() && !roots[p.pid] {
			roots[p.pid] = true
			found = append(found, p)
		}
	}
	if h.nonce != "" {
		for _, c := range carriers {
			add(proc{pid: c.PID, ppid: c.PPID, session: c.Session, comm: c.Comm, ticks: c.StartTicks})
		}
	}
	doubts = h.session(table, found, add)
	for _, p := range descendants(table, roots) {
		add(p)
	}
	for _, p := range hidden {
		if !roots[p.PID] && p.PID != os.Getpid() && h.suspect(table, p) {
			doubts = append(doubts, fmt.Sprintf("%d (%s) hides its environment and may be the seat's", p.PID, p.Comm))
		}
	}
	return found, doubts, nil
}

// session adds the recorded agent and what is provably in its session. A member that is not provable
// is a doubt: the agent is dead, so its number may name another session by now.
func (h *hunter) session(table map[int]proc, carriers []proc, add func(proc)) (doubts []string) {
	id := h.agent.Identity()
	if boot, err := seat.SelfIdentity(); err != nil || id.PID == 0 || boot.BootID != id.BootID {
		return nil
	}
	if live, _ := seat.Check(id); live == seat.Alive {
		p := table[id.PID]
		if p.ticks != id.StartTicks { // it was not in the table by accident
			p = proc{pid: id.PID, session: id.PID, comm: "agent", ticks: id.StartTicks}
		}
		h.mates[p.pid] = p
		add(p)
	}
	if now, ok := table[id.PID]; ok && now.ticks != id.StartTicks {
		return nil // the number was given out again, which it is not while its session has a member
	}
	pinned := exists(id.PID, id.StartTicks)
	for _, c := range carriers {
		pinned = pinned || c.session == id.PID && exists(c.pid, c.ticks)
	}
	for pid, m := range h.mates {
		pinned = pinned || exists(pid, m.ticks)
	}
	for _, p := range table {
		switch m, known := h.mates[p.pid]; {
		case p.session != id.PID || p.dead() || p.ticks < id.StartTicks:
		case pinned, known && m.ticks == p.ticks:
			h.mates[p.pid] = p
			add(p)
		default:
			doubts = append(doubts, fmt.Sprintf("%d (%s) is in session %d, which was the agent's", p.pid, p.comm, id.PID))
		}
	}
	return doubts
}

// exists reports whether exactly this process has not been waited for yet; a dead one pins the numbers
// of its session as well.
func exists(pid int, ticks uint64) bool {
	st, err := seat.ReadProc(pid)
	return err == nil && st.StartTicks == ticks
}

// suspect reports whether a process that hides its environment may be the seat's: it is not older, and
// it hangs below what takes in orphans, or in a session or on the terminal of the seat.
func (h *hunter) suspect(table map[int]proc, p seat.Proc) bool {
	if h.custody.PID == 0 || p.StartTicks < h.custody.StartTicks {
		return false
	}
	return p.Session == h.custody.PID || h.agent.PID != 0 && p.Session == h.agent.PID ||
		h.agent.TTY != 0 && p.TTY == h.agent.TTY || takesOrphans(table, p.PPID)
}

// takesOrphans reports whether a process may be the one that orphans of a seat come to. The kernel does
// not say who is a subreaper: process 1 and a service manager are, and what this process descends from
// may be. Its parent, the host, is none.
func takesOrphans(table map[int]proc, pid int) bool {
	if pid == 1 || table[pid].comm == "systemd" {
		return true
	}
	up := table[os.Getppid()].ppid
	for n := 0; up > 1 && n < len(table); n++ {
		if up == pid {
			return true
		}
		up = table[up].ppid
	}
	return false
}
