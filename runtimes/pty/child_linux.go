package pty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/sealed"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// child is a custody process that was just started. It leads a session of its own and shares nothing
// with this process but two pipes, both closed once it is prepared.
type child struct {
	proc  *os.Process
	stdin *os.File
	out   *os.File
	done  chan struct{} // closed once it was waited for
}

// startChild forks once. The child is waited for by a goroutine, so that it never stays a zombie while
// this process lives; if this process dies first, init does it.
func startChild(img *sealed.Image, argv, env []string, dir *os.File) (*child, error) {
	stdinR, stdinW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdinR.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		stdinW.Close()
		return nil, err
	}
	defer outW.Close()
	fail := func(err error) (*child, error) {
		stdinW.Close()
		outR.Close()
		return nil, err
	}
	// What it says before it opens its own log (a missing kernel feature, a panic) goes to that log too.
	fd, err := unix.Openat(int(dir.Fd()), "seat.log", unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fail(fmt.Errorf("open seat.log: %w", err))
	}
	log := os.NewFile(uintptr(fd), "seat.log")
	defer log.Close()
	p, err := os.StartProcess(img.Path, argv, &os.ProcAttr{
		Dir:   "/", // a directory that may be unmounted or removed must not be held for days
		Env:   env,
		Files: []*os.File{stdinR, outW, log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fail(err)
	}
	c := &child{proc: p, stdin: stdinW, out: outR, done: make(chan struct{})}
	go func() {
		_, _ = p.Wait()
		close(c.done)
	}()
	return c, nil
}

// prepare hands over the launch record and waits for "prepared <pid> <ticks> <boot id>".
func (c *child) prepare(ctx context.Context, launch []byte) (seat.Identity, error) {
	defer c.closePipes()
	stop := context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = c.stdin.SetDeadline(past)
		_ = c.out.SetDeadline(past)
	})
	defer stop()
	_, werr := c.stdin.Write(launch)
	werr = errors.Join(werr, c.stdin.Close())
	if err := fpSpawnLaunched.Hit(); err != nil {
		return seat.Identity{}, err
	}
	line, err := readLine(c.out)
	if ctx.Err() != nil {
		return seat.Identity{}, fmt.Errorf("cotal-seat said nothing in time: %w", ctx.Err())
	}
	if line == "" {
		return seat.Identity{}, fmt.Errorf("cotal-seat ended without a word: %w", errors.Join(werr, err))
	}
	f := strings.Fields(line)
	if f[0] == "error" {
		return seat.Identity{}, errors.New("cotal-seat: " + strings.TrimPrefix(line, "error "))
	}
	if len(f) != 4 || f[0] != "prepared" {
		return seat.Identity{}, fmt.Errorf("cotal-seat said %.100q instead of prepared", line)
	}
	pid, err1 := strconv.Atoi(f[1])
	ticks, err2 := strconv.ParseUint(f[2], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return seat.Identity{}, fmt.Errorf("cotal-seat said %.100q: %w", line, err)
	}
	if pid != c.proc.Pid {
		return seat.Identity{}, fmt.Errorf("cotal-seat calls itself process %d and is %d", pid, c.proc.Pid)
	}
	return seat.Identity{PID: pid, StartTicks: ticks, BootID: f[3]}, nil
}

// readLine reads up to a newline or 4 KiB.
func readLine(r io.Reader) (string, error) {
	buf := make([]byte, 4<<10)
	n := 0
	for n < len(buf) {
		m, err := r.Read(buf[n:])
		n += m
		if i := bytes.IndexByte(buf[:n], '\n'); i >= 0 {
			return strings.TrimSpace(string(buf[:i])), nil
		}
		if err != nil {
			return strings.TrimSpace(string(buf[:n])), err
		}
	}
	return "", errors.New("a line over 4 KiB")
}

func (c *child) closePipes() {
	_ = c.stdin.Close()
	_ = c.out.Close()
}

// kill ends the child and waits for its end. The process is held by a pidfd: its number is not reused
// before it was waited for.
func (c *child) kill(ctx context.Context) error {
	c.closePipes()
	if err := c.proc.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill cotal-seat %d: %w", c.proc.Pid, err)
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cotal-seat %d did not end after SIGKILL", c.proc.Pid)
	}
}

// logTail returns the end of seat.log for an error text, or nothing.
func logTail(dir *os.File) string {
	fd, err := unix.Openat(int(dir.Fd()), "seat.log", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), "seat.log")
	defer f.Close()
	const most = 512
	if st, err := f.Stat(); err == nil && st.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, most))
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return ""
	}
	return fmt.Sprintf(" (seat.log ends: %q)", text)
}
