package tmux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// installHint is the fix for a machine without tmux.
const installHint = "install tmux 3.2 or newer (apt install tmux, dnf install tmux, apk add tmux) where the host's PATH finds it, or use --runtime pty"

// verdict says how a tmux command ended. Only answered is an answer, and only noServer and noTarget are
// statements about the seat; nothing of it proves that a process is gone.
type verdict int

const (
	answered    verdict = iota
	noServer            // nobody listens at the socket
	noTarget            // the server answers and has no such pane
	skewed              // client and server do not speak the same protocol
	hung                // no answer in time
	lost                // the server ended while it was asked
	unavailable         // the program could not be executed
	failed              // anything else; the text says what
)

func (v verdict) String() string {
	return [...]string{
		"answered", "no server", "no such pane", "version skew between tmux client and server",
		"no answer in time", "the tmux server ended under the command", "tmux cannot be executed", "tmux failed",
	}[v]
}

// judge tells apart how a tmux command ended by its exit status, its words and its time.
func judge(exit int, stderr string, late bool, startErr error) verdict {
	text := strings.ToLower(stderr)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case late:
		return hung
	case startErr != nil:
		return unavailable
	case exit == 0:
		return answered
	case has("protocol version mismatch", "server version is too", "unknown imsg", "version mismatch"):
		return skewed
	case has("no server running", "error connecting to", "no such file or directory", "connection refused"):
		return noServer
	case has("server exited unexpectedly", "lost server"):
		return lost
	case has("can't find pane", "can't find window", "can't find session", "no current session"):
		return noTarget
	}
	return failed
}

// callError is a tmux command that did not answer.
type callError struct {
	verdict verdict
	text    string
}

func (e *callError) Error() string {
	if e.text == "" {
		return e.verdict.String()
	}
	return e.verdict.String() + ": " + e.text
}

func verdictOf(err error) verdict {
	var e *callError
	if errors.As(err, &e) {
		return e.verdict
	}
	return failed
}

// environment is what a tmux command and the server it may start get: nothing of ours, and UTF-8.
func environment() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", "TERM=xterm-256color", "LC_ALL=C.UTF-8", "SHELL=/bin/sh"}
	if path := os.Getenv("PATH"); path != "" {
		env[0] = "PATH=" + path
	}
	return env
}

// run executes one tmux command line, which may take limit. The command gets a process group of its own, which
// is killed as a whole at the deadline, and its pipes are not waited for longer than callWait: a wrapper
// that leaves a process behind holds nothing up.
func run(ctx context.Context, limit time.Duration, program string, stdin []byte, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = "/", environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = callWait
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	var out, errs capped
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Start()
	if err != nil {
		return "", &callError{judge(0, "", false, err), err.Error()}
	}
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		// It ended and somebody it left behind holds its pipes: that is no answer to trust less.
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		err = nil
	}
	late := ctx.Err() != nil && err != nil
	if err == nil {
		return out.String(), nil
	}
	text := strings.TrimSpace(errs.String())
	if late {
		text = fmt.Sprintf("%s within %s", filepath.Base(program), limit)
	}
	return out.String(), &callError{judge(cmd.ProcessState.ExitCode(), errs.String(), late, nil), text}
}

// capped keeps the first maxAnswer bytes.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxAnswer - c.Len(); room < len(p) {
		c.Buffer.Write(p[:max(room, 0)])
	} else {
		c.Buffer.Write(p)
	}
	return len(p), nil
}

// findTmux returns the tmux of the host's PATH, once it is known to be new enough.
// Errors: sdk.ErrUnavailable with the fix.
func findTmux(ctx context.Context, configured string) (string, error) {
	program := configured
	if program == "" {
		path, err := exec.LookPath("tmux")
		if err != nil {
			return "", sdk.Errorf(sdk.ErrUnavailable, "the tmux runtime needs tmux, which is not in PATH (%s); %s", os.Getenv("PATH"), installHint)
		}
		program = path
	}
	if !filepath.IsAbs(program) {
		return "", sdk.Errorf(sdk.ErrUnavailable, "tmux was found at %s, which is no absolute path; %s", program, installHint)
	}
	out, err := run(ctx, callTimeout, program, nil, "-V")
	if err != nil {
		return "", custodied.Unavailable("ask %s for its version: %v; %s", program, err, installHint)
	}
	if !newEnough(out) {
		return "", sdk.Errorf(sdk.ErrUnavailable, "%s is %q, which is too old; %s", program, strings.TrimSpace(out), installHint)
	}
	return program, nil
}

// newEnough reports whether the answer to tmux -V names 3.2 or newer. Development builds count as new.
func newEnough(text string) bool {
	v, ok := strings.CutPrefix(strings.TrimSpace(text), "tmux ")
	if !ok {
		return false
	}
	v = strings.TrimPrefix(v, "next-")
	if strings.HasPrefix(v, "master") || strings.HasPrefix(v, "openbsd-") {
		return true
	}
	major, rest, _ := strings.Cut(v, ".")
	minor := strings.TrimRightFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a > 3 || a == 3 && b >= 2)
}

// server is the tmux server of one seat as far as it is known.
type server struct {
	program string // what is executed to talk to it
	socket  string
	id      seat.Identity // zero: not known
}

// call runs commands on the server, and asks it to make its socket again if somebody removed that.
func (sv server) call(ctx context.Context, stdin []byte, args ...string) (string, error) {
	return sv.callFor(ctx, callTimeout, stdin, args...)
}

// callFor is call with another limit.
func (sv server) callFor(ctx context.Context, limit time.Duration, stdin []byte, args ...string) (string, error) {
	if sv.program == "" {
		return "", &callError{unavailable, "no tmux is installed and the server's own program cannot be read"}
	}
	full := append([]string{"-u", "-S", sv.socket, "-f", "/dev/null"}, args...)
	out, err := run(ctx, limit, sv.program, stdin, full...)
	if err == nil || verdictOf(err) != noServer || sv.id.PID == 0 {
		return out, err
	}
	if _, serr := os.Lstat(sv.socket); !custodied.Missing(serr) {
		return out, err
	}
	if seat.SignalExact(sv.id, unix.SIGUSR1) != nil { // tmux makes its socket again
		return out, err
	}
	wait, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	for {
		if _, serr := os.Lstat(sv.socket); serr == nil {
			return run(ctx, limit, sv.program, stdin, full...)
		}
		if proctree.Pause(wait, custodied.PollEvery) != nil {
			return out, err
		}
	}
}

// ownProgram is the program the server itself runs, also when another version was installed over it
// since: client and server are then the same.
func ownProgram(id seat.Identity) (path string, ok bool) {
	if live, _ := seat.Check(id); live != seat.Alive {
		return "", false
	}
	path = "/proc/" + strconv.Itoa(id.PID) + "/exe"
	target, err := os.Readlink(path)
	if err != nil || !strings.Contains(filepath.Base(target), "tmux") {
		return "", false
	}
	return path, true
}

// end ends exactly this server process, politely and then by SIGKILL. It goes by the process and not by
// the socket, at which another server may listen by now. The caller has established that it is ours, by
// its tag or by the seat's record.
func (sv server) end(ctx context.Context) (how string, err error) {
	if err := proctree.Over(ctx); err != nil {
		return "", err
	}
	// A server that was stopped takes the signal once it goes on.
	if err := seat.SignalExact(sv.id, unix.SIGTERM); err == nil {
		_ = seat.SignalExact(sv.id, unix.SIGCONT)
	}
	wait, cancel := context.WithTimeout(ctx, custodied.CustodyEnd)
	defer cancel()
	if proctree.AwaitDeath(wait, sv.id) == nil {
		return fmt.Sprintf("tmux server %d is gone", sv.id.PID), nil
	}
	if err := proctree.Over(ctx); err != nil {
		return "", err
	}
	kctx, stop := context.WithTimeout(ctx, custodied.SurvivorWait)
	defer stop()
	if err := proctree.EndProcess(kctx, sv.id); err != nil {
		return "", err
	}
	return fmt.Sprintf("tmux server %d did not end within %s: killed", sv.id.PID, custodied.CustodyEnd), nil
}
