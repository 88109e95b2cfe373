package holder

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	treeGrace  = time.Second           // leftovers get so long to end politely
	hangGrace  = 2 * time.Second       // an agent whose terminal is gone gets so long to notice
	treeTick   = 10 * time.Millisecond // between two looks at a tree that is being ended
	maxKilled  = 64                    // leftovers named in the exit record
	treeReport = 10 * time.Second      // a tree that is not gone by then is logged
)

// start executes the agent, and from then on the seat is running. Errors name the path; the seat is as
// before. The agent leads a session of its own on the pane's terminal, so job control in it is what it
// is in any terminal; this process gives its own claim on the terminal up.
func (s *server) start() error {
	l := s.launch
	if err := unix.Access(l.Cwd+"/.", unix.X_OK); err != nil { // else the error below would name the program
		return errors.New("enter working directory " + l.Cwd + ": " + err.Error())
	}
	_ = unix.IoctlSetInt(terminalFD, unix.TIOCNOTTY, 0) // ENOTTY: given up by an earlier try
	pid, err := syscall.ForkExec(l.Path, append([]string{l.Path}, l.Args...), &syscall.ProcAttr{
		Dir:   l.Cwd,
		Env:   append(l.Env[:len(l.Env):len(l.Env)], seat.NonceVar+"="+l.Nonce),
		Files: []uintptr{terminalFD, terminalFD, terminalFD},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true},
	})
	if err != nil {
		return errors.New("execute " + l.Path + ": " + err.Error())
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
	x.Code, x.Signal = exitOf(ws)
	x.AtUnixNs = time.Now().UnixNano()
	if lost || checkTerminal() != nil { // the agent may have died of it before we looked
		x.Detail = "its terminal was taken away: the tmux server or the pane ended"
	}
	s.say("agent ended, code " + strconv.Itoa(x.Code) + " " + x.Signal)
	s.endTree(x)
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
		pid, ws := reap()
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
			s.signal(unix.SIGHUP)
			s.mu.Unlock()
		case <-patience:
			s.mu.Lock()
			s.signal(unix.SIGKILL)
			s.mu.Unlock()
		}
	}
}

// reap waits for one child that has ended. It returns 0 when none has, and -1 when there is none.
func reap() (pid int, ws unix.WaitStatus) {
	pid, _ = unix.Wait4(-1, &ws, unix.WNOHANG, nil)
	return pid, ws
}

// exitOf returns the exit code as a shell counts it, and the name of the signal.
func exitOf(ws unix.WaitStatus) (code int, signal string) {
	if !ws.Signaled() {
		return ws.ExitStatus(), ""
	}
	sig := ws.Signal()
	return 128 + int(sig), cmp.Or(unix.SignalName(sig), "SIG"+strconv.Itoa(int(sig)))
}

var signals = map[seat.Action]unix.Signal{
	seat.ActionInterrupt: unix.SIGINT,
	seat.ActionHangup:    unix.SIGHUP,
	seat.ActionTerm:      unix.SIGTERM,
	seat.ActionKill:      unix.SIGKILL,
}

// signal acts on the running agent. It leads its own group, so one kill reaches it and the processes
// that stayed with it exactly once; the foreground group is another when it runs a job. mu is held.
func (s *server) signal(sig unix.Signal) {
	agent := s.agent.PID
	foreground := cmp.Or(foregroundOf(agent), agent)
	_ = unix.Kill(-foreground, sig)
	if sig == unix.SIGINT {
		return
	}
	if foreground != agent {
		_ = unix.Kill(-agent, sig)
	}
	_ = unix.Kill(-agent, unix.SIGCONT) // a stopped program cannot end politely
}

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

// leftover is a process that outlived the agent.
type leftover struct {
	id     seat.Identity
	killed seat.Killed
}

// endTree ends what the agent left behind and returns when this process has no children any more,
// which is the proof that the tree is gone: whatever left its parent came to the subreaper.
func (s *server) endTree(x *seat.ExitRecord) {
	start, reported := time.Now(), false
	seen := map[int]*leftover{}
	var order []*leftover
	add := func(p seat.Proc) *leftover {
		l := &leftover{id: p.Identity, killed: seat.Killed{PID: p.PID, Command: p.Comm}}
		seen[p.PID], order = l, append(order, l)
		return l
	}
	for {
		pid, ws := reap()
		if pid < 0 {
			break
		}
		if pid > 0 {
			l := seen[pid]
			if l == nil { // ended before we looked
				l = add(seat.Proc{Identity: seat.Identity{PID: pid}})
			}
			if _, name := exitOf(ws); name != "" {
				l.killed.Signal = name
			}
			continue
		}
		late := time.Since(start)
		send, name := []unix.Signal{unix.SIGHUP, unix.SIGTERM, unix.SIGCONT}, "SIGTERM"
		force := s.hurry.Load() || late >= treeGrace
		if force {
			send, name = []unix.Signal{unix.SIGKILL}, "SIGKILL"
		}
		all, _ := seat.Descendants(s.self.PID)
		for _, p := range all {
			l := seen[p.PID]
			if l == nil || l.id != p.Identity {
				l = add(p)
			} else if !force {
				continue // once is polite
			}
			for _, sig := range send {
				_ = seat.SignalExact(p.Identity, sig)
			}
			l.killed.Signal = name
		}
		if late > treeReport && !reported {
			reported = true
			s.say("leftover processes do not end")
		}
		select {
		case <-s.children:
		case <-time.After(treeTick):
		}
	}
	for _, l := range order {
		s.say("reaped leftover pid " + strconv.Itoa(l.killed.PID) + " " + l.killed.Command + " " + l.killed.Signal)
		x.Reaped = append(x.Reaped, l.killed)
	}
	if n := len(order) - maxKilled; n > 0 {
		x.Reaped = x.Reaped[:maxKilled]
		x.Detail = strings.TrimPrefix(x.Detail+"; "+strconv.Itoa(n)+" more leftover processes were ended", "; ")
	}
}
