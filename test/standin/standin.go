// Package standin is what the tests of launchers share whose agent program is the test binary itself: a stand-in for what
// the real program does rarely or only on a bad day. The stand-ins write what they do into a record, and the test reads it.
package standin

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/busy"
)

// recordEnv names the record to the stand-ins.
const recordEnv = "FAKE_RECORD"

// patience is for what comes by itself.
const patience = 30 * time.Second

// Say adds a line to the record.
func Say(format string, args ...any) {
	f, err := os.OpenFile(os.Getenv(recordEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

// UntilSignal says that what is up, waits for TERM, and says that it came.
func UntilSignal(what string) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGTERM)
	Say("%s up", what)
	<-ch
	Say("%s TERM", what)
}

// Launcher is a launcher that runs.
type Launcher struct {
	T      *testing.T
	Cmd    *exec.Cmd
	Stderr bytes.Buffer

	Record string // the path of it
}

// Start runs the test binary as the launcher of a plan; dir is for the record. It is ended with the test.
func Start(t *testing.T, dir, plan string, env ...string) *Launcher {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &Launcher{T: t, Record: filepath.Join(dir, "record"), Cmd: exec.Command(self, "launcher", plan)}
	l.Cmd.Env = append(append(os.Environ(), recordEnv+"="+l.Record), env...)
	l.Cmd.Stderr, l.Cmd.WaitDelay = &l.Stderr, time.Second
	l.Cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // all of it can be ended at once
	if err := l.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l.Cmd.ProcessState == nil {
			_ = syscall.Kill(-l.Cmd.Process.Pid, syscall.SIGKILL)
			_ = l.Cmd.Wait()
		}
	})
	return l
}

// Said is the record.
func (l *Launcher) Said() string {
	data, _ := os.ReadFile(l.Record) // absent until something is said
	return string(data)
}

// Await waits until something is said.
func (l *Launcher) Await(what string) {
	l.T.Helper()
	begin := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(l.Said(), what) {
		if <-tick.C; busy.Over(begin, patience) {
			l.T.Fatalf("waited for %q in:\n%s", what, l.Said())
		}
	}
}

// End waits for the launcher and checks that its server has gone before it.
func (l *Launcher) End(code int) {
	l.T.Helper()
	timer := time.AfterFunc(busy.Limit(patience), func() { _ = syscall.Kill(-l.Cmd.Process.Pid, syscall.SIGKILL) })
	defer timer.Stop()
	_ = l.Cmd.Wait() // the state says what happened
	if got := l.Cmd.ProcessState.ExitCode(); got != code {
		l.T.Errorf("%s, want exit code %d; stderr:\n%s\nrecord:\n%s", l.Cmd.ProcessState, code, l.Stderr.String(), l.Said())
	}
	if pid := l.Server(); syscall.Kill(pid, 0) == nil {
		l.T.Errorf("the server (pid %d) is still there", pid)
	}
}

// Server is the process id of the server, which says it with "serve pid %d".
func (l *Launcher) Server() int {
	l.T.Helper()
	_, rest, _ := strings.Cut(l.Said(), "serve pid ")
	text, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(text)
	if err != nil {
		l.T.Fatalf("no server in the record:\n%s", l.Said())
	}
	return pid
}
