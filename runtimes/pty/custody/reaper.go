//go:build linux

package custody

import (
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	treeGrace  = time.Second           // leftovers get so long to end politely
	treeTick   = 10 * time.Millisecond // between two looks at a tree that is being ended
	maxKilled  = 64                    // leftovers named in the exit record
	treeReport = 10 * time.Second      // how often a tree that will not die is logged
)

// reaper is the parent of the agent and, as a subreaper, of everything the agent's tree leaves
// behind. A process it has not waited for keeps its number, so signals to its children are exact.
type reaper struct {
	wake chan struct{} // a child may have ended

	mu      sync.Mutex // around fork and wait4: a child must be known before it can be reaped
	agent   seat.Identity
	alive   bool // the agent was started and not reaped
	hurry   bool // a host asked for KILL: leftovers get no grace
	none    bool // wait4 said ECHILD
	reaped  map[int]unix.WaitStatus
	collect bool // remember the status of everything reaped
}

func (r *reaper) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// start executes the agent: a new session on the terminal, default signals, only the environment of
// the launch. Errors name the path.
func (s *server) start() error {
	l := s.launch
	var st unix.Stat_t
	if err := unix.Stat(l.Cwd, &st); err != nil {
		return errors.New("enter working directory " + l.Cwd + ": " + err.Error())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return errors.New("enter working directory " + l.Cwd + ": not a directory")
	}
	if err := unix.Access(l.Cwd, unix.X_OK); err != nil {
		return errors.New("enter working directory " + l.Cwd + ": " + err.Error())
	}
	env := append(append(make([]string, 0, len(l.Env)+1), l.Env...), seat.NonceVar+"="+l.Nonce)
	attr := &syscall.ProcAttr{
		Dir:   l.Cwd,
		Env:   env,
		Files: []uintptr{uintptr(s.pty.slave), uintptr(s.pty.slave), uintptr(s.pty.slave)},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true},
	}
	r := &s.reaper
	// The child gets the signal mask of the thread that forks.
	done := make(chan error)
	go func() {
		lockThreadForGood()
		var none unix.Sigset_t
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		pid, err := syscall.ForkExec(l.Path, append([]string{l.Path}, l.Args...), attr)
		if err == nil {
			r.agent, err = seat.IdentityOf(pid)
			if err != nil { // unreadable /proc: the number alone is still exact while it is our child
				r.agent, err = seat.Identity{PID: pid, BootID: s.self.BootID}, nil
			}
			r.alive, r.none = true, false
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return errors.New("execute " + l.Path + ": " + err.Error())
	}
	return nil
}

// loop reaps every child that ends. It is the only caller of wait4.
func (r *reaper) loop(s *server) {
	for range r.wake {
		for {
			r.mu.Lock()
			var ws unix.WaitStatus
			pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
			if err == unix.EINTR {
				r.mu.Unlock()
				continue
			}
			r.none = err == unix.ECHILD
			agent := pid > 0 && r.alive && pid == r.agent.PID
			if agent {
				r.alive, r.collect = false, true
				r.reaped = map[int]unix.WaitStatus{}
			} else if pid > 0 && r.collect {
				r.reaped[pid] = ws
			}
			r.mu.Unlock()
			if agent {
				x := seat.ExitRecord{CodeKnown: true, AtUnixNs: time.Now().UnixNano(), Evidence: seat.EvidenceReaped}
				x.Code, x.Signal = exitOf(ws)
				go s.finish(x)
			}
			if pid <= 0 {
				break
			}
		}
	}
}

// exitOf returns the exit code as a shell counts it, and the name of the signal.
func exitOf(ws unix.WaitStatus) (code int, signal string) {
	if ws.Signaled() {
		return 128 + int(ws.Signal()), signalName(ws.Signal())
	}
	return ws.ExitStatus(), ""
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(int(sig))
}

// signal acts on the running agent. The agent leads its own group, so one kill reaches it and the
// helpers that stayed with it exactly once; the foreground group is another when it runs a job.
func (r *reaper) signal(s *server, a seat.Action, foreground int) *seat.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == seat.ActionKill {
		r.hurry = true
		// One pass now; what is forked meanwhile is ended with the leftovers, when the agent was reaped.
		for _, p := range s.descendants() {
			_ = seat.SignalExact(p.Identity, unix.SIGKILL)
		}
		if r.alive { // even where /proc cannot be read
			_ = unix.Kill(r.agent.PID, unix.SIGKILL)
		}
		return nil
	}
	sig := map[seat.Action]unix.Signal{
		seat.ActionInterrupt: unix.SIGINT,
		seat.ActionHangup:    unix.SIGHUP,
		seat.ActionTerm:      unix.SIGTERM,
	}[a]
	if !r.alive {
		if a == seat.ActionInterrupt {
			return seat.Refuse(seat.CodeNotRunning, "the agent has ended")
		}
		return nil // its leftovers are being ended anyway
	}
	if a == seat.ActionInterrupt && foreground != 0 {
		_ = unix.Kill(-foreground, sig)
		return nil
	}
	_ = unix.Kill(-r.agent.PID, sig)
	if foreground != 0 && foreground != r.agent.PID {
		_ = unix.Kill(-foreground, sig)
	}
	if a != seat.ActionInterrupt {
		_ = unix.Kill(-r.agent.PID, unix.SIGCONT) // a stopped program cannot end politely
	}
	return nil
}

// endTree ends what the agent left behind and returns when this process has no children any more,
// which is the proof that the tree is gone: whatever left its parent came to the subreaper.
func (r *reaper) endTree(s *server, x *seat.ExitRecord) {
	start := time.Now()
	report := start.Add(treeReport)
	seen := map[int]*leftover{}
	var order []*leftover
	sent := unix.Signal(0)
	for {
		r.mu.Lock()
		none, hurry := r.none, r.hurry
		r.mu.Unlock()
		if none {
			break
		}
		sig := unix.SIGTERM
		if hurry || time.Since(start) >= treeGrace {
			sig = unix.SIGKILL
		}
		for _, p := range s.descendants() {
			l := seen[p.PID]
			if l == nil || l.Identity != p.Identity {
				l = &leftover{Proc: p}
				seen[p.PID] = l
				order = append(order, l)
			} else if sig == unix.SIGTERM {
				continue // once is polite
			}
			if sig == unix.SIGTERM {
				_ = seat.SignalExact(p.Identity, unix.SIGHUP)
			}
			_ = seat.SignalExact(p.Identity, sig)
			if sig == unix.SIGTERM {
				_ = seat.SignalExact(p.Identity, unix.SIGCONT)
			}
			l.last = sig
		}
		if sig != sent {
			sent = sig
			if len(order) > 0 {
				s.log.say("ending " + strconv.Itoa(len(order)) + " leftover processes with " + signalName(sig))
			}
		}
		if now := time.Now(); now.After(report) {
			report = now.Add(treeReport)
			s.log.say("leftover processes do not end")
		}
		r.kick()
		time.Sleep(treeTick)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid := range r.reaped { // ended before we looked: the kernel hangs the foreground group up itself
		if seen[pid] == nil {
			order = append(order, &leftover{Proc: seat.Proc{Identity: seat.Identity{PID: pid}}})
		}
	}
	for i, l := range order {
		k := seat.Killed{PID: l.PID, Command: l.Comm}
		if l.last != 0 {
			k.Signal = signalName(l.last)
		}
		if ws, ok := r.reaped[l.PID]; ok && ws.Signaled() { // else its own parent reaped it
			k.Signal = signalName(ws.Signal())
		}
		s.log.say("reaped leftover pid " + strconv.Itoa(k.PID) + " " + k.Command + " " + k.Signal)
		if i < maxKilled {
			x.Reaped = append(x.Reaped, k)
		}
	}
	if n := len(order) - maxKilled; n > 0 {
		x.Detail = strconv.Itoa(n) + " more leftover processes were ended"
	}
	r.reaped, r.collect = nil, false
}

// leftover is a process that outlived the agent, and the last signal it was sent.
type leftover struct {
	seat.Proc
	last unix.Signal
}

// descendants lists every living process below this one.
func (s *server) descendants() []seat.Proc {
	all, err := seat.Descendants(s.self.PID)
	if err != nil {
		s.log.say("walk /proc: " + err.Error())
	}
	return all
}
