package holder

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodian"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// hangGrace is how long an agent whose terminal is gone gets to notice.
const hangGrace = 2 * time.Second

// start executes the agent, and from then on the seat is running. Errors name the path; the seat is as
// before. The agent leads a session of its own on the pane's terminal, so job control in it is what it
// is in any terminal; this process gives its own claim on the terminal up.
func (s *server) start() error {
	_ = unix.IoctlSetInt(terminalFD, unix.TIOCNOTTY, 0) // ENOTTY: given up by an earlier try
	pid, err := custodian.Execute(s.launch, terminalFD)
	if err != nil {
		return err
	}
	agent, err := seat.IdentityOf(pid)
	if err != nil { // unreadable /proc: the number alone is still exact while it is our child
		agent = seat.Identity{PID: pid, BootID: s.self.BootID}
	}
	s.say("agent started, pid " + strconv.Itoa(pid))
	s.mu.Lock()
	s.state, s.agent = seat.StateRunning, agent
	close(s.begun)
	s.news()
	s.mu.Unlock()
	return nil
}

// awaitAgent waits for the end of the agent and ends what is left of its tree.
func (s *server) awaitAgent() *seat.ExitRecord {
	x := &seat.ExitRecord{CodeKnown: true, Evidence: seat.EvidenceReaped}
	ws, lost := s.reapAgent()
	x.Code, x.Signal = custodian.ExitOf(ws)
	x.AtUnixNs = time.Now().UnixNano()
	if lost || checkTerminal() != nil { // the agent may have died of it before we looked
		x.Detail = "its terminal was taken away: the tmux server or the pane ended"
	}
	s.say("agent ended, code " + strconv.Itoa(x.Code) + " " + x.Signal)
	custodian.EndTree(s.self.PID, s.children, &s.hurry, s.say, x)
	s.mu.Lock()
	defer s.mu.Unlock()
	x.Asked = s.asked
	return x
}

// reapAgent waits for the end of the agent and for every orphan before it. An agent that was not waited
// for keeps its number, and it is waited for with mu held: a signal sent with mu held to a running agent
// is exact. lost reports that the terminal went first.
func (s *server) reapAgent() (ws unix.WaitStatus, lost bool) {
	hungUp := s.hungUp
	var patience <-chan time.Time
	for {
		s.mu.Lock()
		pid, ws := custodian.Reap()
		if pid == s.agent.PID {
			s.state = seat.StateDraining
			s.news()
			s.mu.Unlock()
			return ws, lost
		}
		s.mu.Unlock()
		if pid > 0 {
			continue
		}
		select {
		case <-s.children:
		case <-hungUp:
			// The kernel told the agent, which leads the session, and nobody else.
			hungUp, lost, patience = nil, true, time.After(hangGrace)
			s.say("the terminal is gone")
			s.mu.Lock()
			s.signal(seat.ActionHangup)
			s.mu.Unlock()
		case <-patience:
			s.mu.Lock()
			s.signal(seat.ActionKill)
			s.mu.Unlock()
		}
	}
}

// signal acts on the running agent. mu is held.
func (s *server) signal(a seat.Action) { custodian.Signal(s.agent.PID, foregroundOf(s.agent.PID), a) }

// foregroundOf returns the foreground group of a process's terminal, or 0. The kernel tells it only to
// who is in the session, and in /proc/<pid>/stat.
func foregroundOf(pid int) int {
	p, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(p[strings.LastIndexByte(string(p), ')')+1:]))
	if len(f) < 6 {
		return 0
	}
	group, err := strconv.Atoi(f[5])
	if err != nil || group <= 1 {
		return 0
	}
	return group
}
