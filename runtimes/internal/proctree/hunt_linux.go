package proctree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Quarry is what leads to the processes of a seat whose custody process cannot tell any more.
type Quarry struct {
	Nonce   string
	Custody seat.Identity // zero: nobody knows. Nothing of the seat is older
	Agent   record.Agent  // zero: never recorded
}

// Sweep is what a hunt for survivors did.
type Sweep struct {
	Killed []sdk.Killed
	Left   []string // what still lives or may not be signalled, "pid (comm): why"
	Doubts []string // what may be the seat's and is not proven to be; never signalled
}

// Hunt kills every process that is provably the seat's, and everything below it, and looks again until
// a look finds none. Provably are: the carriers of the nonce, which is random and secret enough that
// nobody carries it by chance; exactly the process that was recorded as the agent; and the members of
// the agent's session while something pins its number.
//
// What hides its environment and hangs where an orphan of the seat would is a doubt: nobody may call
// the seat gone while it lives. A process that erased its environment, left the session and lost its
// parent has no link to the seat any more: without a cgroup nobody can find it.
//
// An error means that the table could not be read, or that ctx ended: then nothing more was signalled.
// Survivors that resist are in Sweep.left.
func Hunt(ctx context.Context, q Quarry) (Sweep, error) {
	bound, cancel := context.WithTimeout(ctx, survivorWait)
	defer cancel()
	h := hunter{Quarry: q, hit: map[int]Proc{}, mates: map[int]Proc{}}
	var sw Sweep
	for {
		if err := Over(ctx); err != nil {
			return sw, err
		}
		found, doubts, err := h.look()
		if err != nil {
			return sw, err
		}
		sw.Left, sw.Doubts = nil, doubts
		for _, p := range found {
			if err := Kill(p); errors.Is(err, seat.ErrProcessGone) {
				continue
			} else if err != nil {
				sw.Left = append(sw.Left, fmt.Sprintf("%d (%s): %v", p.PID, p.Comm, err))
				continue
			}
			if h.hit[p.PID].Ticks != p.Ticks {
				sw.Killed = append(sw.Killed, sdk.Killed{PID: p.PID, Command: p.Comm, Signal: "SIGKILL"})
			}
			h.hit[p.PID] = p
		}
		// A process that is being torn down has no environment any more and may still hold a port:
		// what was signalled counts until it is dead.
		for pid, p := range h.hit {
			st, err := seat.ReadProc(pid)
			switch now := ProcOf(pid, st); {
			case errors.Is(err, seat.ErrProcessGone), err == nil && (now.Dead() || now.Ticks != p.Ticks):
				delete(h.hit, pid)
			default:
				sw.Left = append(sw.Left, fmt.Sprintf("%d (%s): still there after SIGKILL", pid, p.Comm))
			}
		}
		if len(found) == 0 && len(sw.Left) == 0 {
			return sw, nil
		}
		if Pause(bound, pollEvery) != nil {
			return sw, Over(ctx)
		}
	}
}

// Look returns the living processes of a seat and what may be its, without signalling anything.
// An error means that the table could not be read.
func Look(q Quarry) (found []Proc, doubts []string, err error) {
	h := hunter{Quarry: q, mates: map[int]Proc{}}
	return h.look()
}

// hunter is one hunt under way.
type hunter struct {
	Quarry
	hit   map[int]Proc // signalled and not yet seen dead
	mates map[int]Proc // proven members of the agent's session
}

// look returns the living processes of the seat and the doubts, without signalling anything.
func (h *hunter) look() (found []Proc, doubts []string, err error) {
	carriers, hidden, err := seat.SearchNonce(h.Nonce)
	if err != nil {
		return nil, nil, fmt.Errorf("look for processes by nonce: %w", err)
	}
	table, err := Table()
	if err != nil {
		return nil, nil, err
	}
	roots := map[int]bool{}
	add := func(p Proc) {
		if p.PID != os.Getpid() && !p.Dead() && !roots[p.PID] {
			roots[p.PID] = true
			found = append(found, p)
		}
	}
	if h.Nonce != "" {
		for _, c := range carriers {
			add(Proc{PID: c.PID, PPID: c.PPID, Session: c.Session, Comm: c.Comm, Ticks: c.StartTicks})
		}
	}
	doubts = h.session(table, found, add)
	for _, p := range Descendants(table, roots) {
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
func (h *hunter) session(table map[int]Proc, carriers []Proc, add func(Proc)) (doubts []string) {
	id := h.Agent.Identity()
	boot, err := seat.SelfIdentity()
	if err != nil {
		return nil
	}
	if id.PID != 0 && id.BootID == boot.BootID {
		if live, _ := seat.Check(id); live == seat.Alive {
			p := table[id.PID]
			if p.Ticks != id.StartTicks { // it was not in the table by accident
				p = Proc{PID: id.PID, Session: id.PID, Comm: "agent", Ticks: id.StartTicks}
			}
			h.mates[p.PID] = p
			add(p)
		}
	}
	if id.PID == 0 || id.BootID != boot.BootID {
		return nil
	}
	if now, ok := table[id.PID]; ok && now.Ticks != id.StartTicks {
		return nil // the number was given out again, which it is not while its session has a member
	}
	pinned := Exists(id.PID, id.StartTicks)
	for _, c := range carriers {
		pinned = pinned || c.Session == id.PID && Exists(c.PID, c.Ticks)
	}
	for pid, m := range h.mates {
		pinned = pinned || m.Session == id.PID && Exists(pid, m.Ticks)
	}
	for _, p := range table {
		switch m, known := h.mates[p.PID]; {
		case p.Session != id.PID || p.Dead() || p.Ticks < id.StartTicks:
		case pinned, known && m.Ticks == p.Ticks:
			h.mates[p.PID] = p
			add(p)
		default:
			doubts = append(doubts, fmt.Sprintf("%d (%s) is in session %d, which was the agent's", p.PID, p.Comm, id.PID))
		}
	}
	return doubts
}

// Exists reports whether exactly this process has not been waited for yet; a dead one pins the numbers
// of its session as well.
func Exists(pid int, ticks uint64) bool {
	st, err := seat.ReadProc(pid)
	return err == nil && st.StartTicks == ticks
}

// suspect reports whether a process that hides its environment may be the seat's: it is not older, and
// it hangs below what takes in orphans, or in a session or on the terminal of the seat.
func (h *hunter) suspect(table map[int]Proc, p seat.Proc) bool {
	if h.Custody.PID == 0 || p.StartTicks < h.Custody.StartTicks {
		return false
	}
	return p.Session == h.Custody.PID || h.Agent.PID != 0 && p.Session == h.Agent.PID ||
		h.Agent.TTY != 0 && p.TTY == h.Agent.TTY || takesOrphans(table, p.PPID)
}

// takesOrphans reports whether a process may be the one that orphans of a seat come to. The kernel does
// not say who is a subreaper: process 1 and a service manager are, and what this process descends from
// may be. Its parent, the host, is none.
func takesOrphans(table map[int]Proc, pid int) bool {
	if pid == 1 || table[pid].Comm == "systemd" {
		return true
	}
	up := table[os.Getppid()].PPID
	for n := 0; up > 1 && n < len(table); n++ {
		if up == pid {
			return true
		}
		up = table[up].PPID
	}
	return false
}
