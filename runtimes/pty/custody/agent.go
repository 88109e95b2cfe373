//go:build linux

package custody

import (
	"cmp"
	"errors"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	treeGrace  = time.Second           // leftovers get so long to end politely
	treeTick   = 10 * time.Millisecond // between two looks at a tree that is being ended
	maxKilled  = 64                    // leftovers named in the exit record
	treeReport = 10 * time.Second      // a tree that is not gone by then is logged
)

// start executes the agent, and from then on the seat is running. Errors name the path; the seat is
// as before.
func (s *server) start() error {
	s.mu.Lock()
	pty, rows, cols := s.pty, s.rows, s.cols
	s.mu.Unlock()
	pid, err := s.execute(pty.slave)
	if err != nil {
		// The child that failed was leader of the terminal's session: its end hung the terminal up.
		if fresh, perr := openTerminal(rows, cols); perr == nil {
			s.mu.Lock()
			s.pty = fresh
			s.mu.Unlock()
			pty.close()
		}
		return err
	}
	agent, err := seat.IdentityOf(pid)
	if err != nil { // unreadable /proc: the number alone is still exact while it is our child
		agent = seat.Identity{PID: pid, BootID: s.self.BootID}
	}
	pty.closeSlave()
	s.log.say("agent started, pid " + strconv.Itoa(pid))
	s.mu.Lock()
	s.state, s.agent = seat.StateRunning, agent
	close(s.begun)
	s.questions.Left(seat.RoleMirror, time.Now()) // one that is on its way sees the first questions
	s.news()
	s.mu.Unlock()
	go s.readTerminal(pty)
	go s.typeLoop(pty)
	return nil
}

// execute forks and executes the program of the launch: a new session on the terminal, default
// signals, only the environment of the launch.
func (s *server) execute(slave int) (pid int, err error) {
	l := s.launch
	if err := unix.Access(l.Cwd+"/.", unix.X_OK); err != nil { // else the error below would name the program
		return 0, errors.New("enter working directory " + l.Cwd + ": " + err.Error())
	}
	tty := uintptr(slave)
	pid, err = syscall.ForkExec(l.Path, append([]string{l.Path}, l.Args...), &syscall.ProcAttr{
		Dir:   l.Cwd,
		Env:   append(l.Env[:len(l.Env):len(l.Env)], seat.NonceVar+"="+l.Nonce),
		Files: []uintptr{tty, tty, tty},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true},
	})
	if err != nil {
		return 0, errors.New("execute " + l.Path + ": " + err.Error())
	}
	return pid, nil
}

// reapAgent waits for the end of the agent and for every orphan before it. An agent that was not
// waited for keeps its number, and it is waited for with mu held: a signal sent with mu held to a
// running agent is exact.
func (s *server) reapAgent() unix.WaitStatus {
	for {
		s.mu.Lock()
		pid, ws := reap()
		if pid == s.agent.PID {
			s.state = seat.StateDraining
			s.abandonInput()
			s.news()
			s.mu.Unlock()
			return ws
		}
		s.mu.Unlock()
		if pid <= 0 {
			<-s.children
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

// signal acts on the running agent. It leads its own group, so one kill reaches it and the helpers
// that stayed with it exactly once; the foreground group is another when it runs a job. mu is held.
func (s *server) signal(a seat.Action) {
	agent := s.agent.PID
	foreground := cmp.Or(s.pty.foreground(), agent)
	_ = unix.Kill(-foreground, signals[a])
	if a == seat.ActionInterrupt {
		return
	}
	if foreground != agent {
		_ = unix.Kill(-agent, signals[a])
	}
	_ = unix.Kill(-agent, unix.SIGCONT) // a stopped program cannot end politely
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
			if l == nil { // ended before we looked: the kernel hangs the foreground group up itself
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
			s.log.say("leftover processes do not end")
		}
		select {
		case <-s.children:
		case <-time.After(treeTick):
		}
	}
	for _, l := range order {
		s.log.say("reaped leftover pid " + strconv.Itoa(l.killed.PID) + " " + l.killed.Command + " " + l.killed.Signal)
		x.Reaped = append(x.Reaped, l.killed)
	}
	if n := len(order) - maxKilled; n > 0 {
		x.Reaped = x.Reaped[:maxKilled]
		x.Detail = strconv.Itoa(n) + " more leftover processes were ended"
	}
}
