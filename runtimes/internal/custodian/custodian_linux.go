package custodian

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	treeGrace  = time.Second           // leftovers get so long to end politely
	treeTick   = 10 * time.Millisecond // between two looks at a tree that is being ended
	maxKilled  = 64                    // leftovers named in the exit record
	treeReport = 10 * time.Second      // a tree that is not gone by then is logged

	maxClients   = 64 // connections at once
	helloTimeout = 5 * time.Second
)

// Execute forks and executes the program of the launch: a new session on the terminal, default
// signals, only the environment of the launch. Errors name the path.
func Execute(l *seat.Launch, tty uintptr) (pid int, err error) {
	if err := unix.Access(l.Cwd+"/.", unix.X_OK); err != nil { // else the error below would name the program
		return 0, errors.New("enter working directory " + l.Cwd + ": " + err.Error())
	}
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

// Reap waits for one child that has ended. It returns 0 when none has, and -1 when there is none.
func Reap() (pid int, ws unix.WaitStatus) {
	pid, _ = unix.Wait4(-1, &ws, unix.WNOHANG, nil)
	return pid, ws
}

// ExitOf returns the exit code as a shell counts it, and the name of the signal.
func ExitOf(ws unix.WaitStatus) (code int, signal string) {
	if !ws.Signaled() {
		return ws.ExitStatus(), ""
	}
	sig := ws.Signal()
	return 128 + int(sig), cmp.Or(unix.SignalName(sig), "SIG"+strconv.Itoa(int(sig)))
}

// Signals are the signals of the actions that a seat may be asked for.
var Signals = map[seat.Action]unix.Signal{
	seat.ActionInterrupt: unix.SIGINT,
	seat.ActionHangup:    unix.SIGHUP,
	seat.ActionTerm:      unix.SIGTERM,
	seat.ActionKill:      unix.SIGKILL,
}

// Signal acts on a running agent and on the foreground group of its terminal, 0 when there is none. The
// agent leads its own group, so one kill reaches it and the processes that stayed with it exactly once; the
// foreground group is another when it runs a job. The caller keeps the agent from being waited for meanwhile.
func Signal(agent, foreground int, a seat.Action) {
	foreground = cmp.Or(foreground, agent)
	_ = unix.Kill(-foreground, Signals[a])
	if a == seat.ActionInterrupt {
		return
	}
	if foreground != agent {
		_ = unix.Kill(-agent, Signals[a])
	}
	_ = unix.Kill(-agent, unix.SIGCONT) // a stopped program cannot end politely
}

// leftover is a process that outlived the agent.
type leftover struct {
	id     seat.Identity
	killed seat.Killed
}

// EndTree ends what the agent left behind and returns when this process has no children any more,
// which is the proof that the tree is gone: whatever left its parent came to the subreaper. children is told of
// ended children; once hurry is set nothing gets grace any more.
func EndTree(self int, children <-chan os.Signal, hurry *atomic.Bool, say func(string), x *seat.ExitRecord) {
	start, slow := time.Now(), time.After(treeReport)
	seen := map[int]*leftover{}
	var order []*leftover
	add := func(p seat.Proc) *leftover {
		l := &leftover{id: p.Identity, killed: seat.Killed{PID: p.PID, Command: p.Comm}}
		seen[p.PID], order = l, append(order, l)
		return l
	}
	for {
		pid, ws := Reap()
		if pid < 0 {
			break
		}
		if pid > 0 {
			l := seen[pid]
			if l == nil { // ended before we looked: the kernel hangs the foreground group up itself
				l = add(seat.Proc{Identity: seat.Identity{PID: pid}})
			}
			if _, name := ExitOf(ws); name != "" {
				l.killed.Signal = name
			}
			continue
		}
		send, name := []unix.Signal{unix.SIGHUP, unix.SIGTERM, unix.SIGCONT}, "SIGTERM"
		force := hurry.Load() || time.Since(start) >= treeGrace
		if force {
			send, name = []unix.Signal{unix.SIGKILL}, "SIGKILL"
		}
		all, _ := seat.Descendants(self)
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
		select {
		case <-children:
		case <-slow:
			say("leftover processes do not end")
		case <-time.After(treeTick):
		}
	}
	for _, l := range order {
		say("reaped leftover pid " + strconv.Itoa(l.killed.PID) + " " + l.killed.Command + " " + l.killed.Signal)
		x.Reaped = append(x.Reaped, l.killed)
	}
	if n := len(order) - maxKilled; n > 0 {
		x.Reaped = x.Reaped[:maxKilled]
		x.Detail = strings.TrimPrefix(x.Detail+"; "+strconv.Itoa(n)+" more leftover processes were ended", "; ")
	}
}

// Claim refuses a directory that was used before, or that another custody process holds. The lock is
// on the log, which is standard error by now; once it is rotated, seat.json has long been there.
func Claim(dir string) error {
	if unix.Flock(2, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return errors.New("another custody process holds " + dir)
	}
	for _, name := range []string{"/seat.json", "/exit.json"} {
		if _, err := os.Lstat(dir + name); err == nil {
			return errors.New(dir + name + " exists: this custody id was used before")
		}
	}
	return nil
}

// WriteDurable replaces dir/name so that after a power cut it is the old text or the new. before runs
// when the text is on its way and nothing is certain yet.
func WriteDurable(dir, name string, text []byte, before func() error) error {
	path := dir + "/" + name
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(path + ".tmp") }() // there no more when all went well
	if _, err = f.Write(text); err == nil {
		err = before()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Record makes exit.json durable. A full disk is waited for: an exit that is told and then lost is
// worse than one that is told late. A directory that was removed has nobody left to read it.
func Record(id string, l *seat.Launch, x *seat.ExitRecord, before, after *failpoint.Point, say func(string)) {
	text := seat.ExitJSON(id, l.Nonce, x)
	for {
		err := WriteDurable(l.Dir, "exit.json", text, before.Hit)
		if err == nil {
			err = after.Hit()
		}
		if err != nil {
			say("write exit.json: " + err.Error())
		}
		if err == nil || os.IsNotExist(err) {
			return
		}
		time.Sleep(time.Second)
	}
}

// Listen binds the socket, over one that a killed seat left behind but never over a live one.
func Listen(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, errors.New("make socket: " + err.Error())
	}
	addr := &unix.SockaddrUnix{Name: path}
	defer unix.Umask(unix.Umask(0o177)) // nothing else runs yet that makes files
	err = unix.Bind(fd, addr)
	if errors.Is(err, unix.EADDRINUSE) && errors.Is(unix.Connect(fd, addr), unix.ECONNREFUSED) {
		_ = os.Remove(path)
		err = unix.Bind(fd, addr)
	}
	if err == nil {
		err = unix.Listen(fd, 64)
	}
	if err != nil {
		return -1, errors.New("bind " + path + ": " + err.Error())
	}
	return fd, nil
}

// Accept takes connections until the process ends, and has serve handle each to its end. Who says nothing
// gets the less time (patience) for its HELLO the more connections are open: thousands that say nothing must
// not keep a host out for seconds.
func Accept(listen int, say func(string), serve func(f *os.File, fd int, patience time.Duration)) {
	slots := make(chan struct{}, maxClients)
	for {
		fd, _, err := unix.Accept4(listen, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			if err != unix.EINTR && err != unix.ECONNABORTED {
				say("accept: " + err.Error())
				time.Sleep(100 * time.Millisecond) // out of descriptors: do not spin
			}
			continue
		}
		select {
		case slots <- struct{}{}:
			go func() {
				serve(os.NewFile(uintptr(fd), "connection"), fd, helloTimeout/time.Duration(1+len(slots)/8))
				<-slots
			}()
		default:
			full := seat.AppendError(nil, 0, seat.Refuse(seat.CodeLimit, "64 connections are open"))
			_, _ = unix.SendmsgN(fd, full, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			_ = unix.Close(fd)
		}
	}
}
