//go:build linux

package custody

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// input is the queue in front of the terminal. The kernel takes about 4 KiB from a program that does
// not read; up to 64 KiB wait here, and more is refused as busy.
type input struct {
	pending atomic.Int64 // bytes accepted and not yet taken; written with mu held
	wake    chan struct{}

	mu    sync.Mutex
	queue []typed
	line  int  // bytes of the unfinished line, while the terminal is in canonical mode
	gone  bool // the agent was reaped
}

// typed is one INPUT frame. It is written as a whole: nothing comes between its bytes.
type typed struct {
	c    *client
	id   uint32
	p    []byte
	done int
}

// input types p for one request and answers it, at once or when the terminal has taken all of it.
func (s *server) typeIn(c *client, id uint32, p []byte) *seat.Error {
	in := &s.input
	in.mu.Lock()
	defer in.mu.Unlock()
	s.mu.Lock()
	refusal := s.mayType(c)
	pty := s.pty
	s.mu.Unlock()
	if refusal == nil && in.gone {
		refusal = seat.Refuse(seat.CodeNotRunning, "the agent has ended")
	}
	if refusal != nil {
		return refusal
	}
	if len(p) > seat.MaxInput {
		return seat.Refuse(seat.CodeTooLarge, "an INPUT frame holds 65536 bytes")
	}
	if in.pending.Load()+int64(len(p)) > seat.MaxInput {
		c.answer(seat.AppendInputAck(nil, id, seat.InputBusy, 0))
		return nil
	}
	line, ok := in.line, true
	if t, err := pty.modes(); err == nil {
		line, ok = lineAfter(line, p, t)
	}
	if !ok {
		return &seat.Error{
			Code: seat.CodeLineTooLong, Outcome: seat.OutcomeNotExecuted,
			Text: "the program reads whole lines and the terminal would cut this one at 4095 bytes; nothing was typed",
		}
	}
	in.line = line
	n := 0
	if len(in.queue) == 0 {
		n = writeSome(pty.fd, p)
	}
	if n == len(p) {
		c.answer(seat.AppendInputAck(nil, id, seat.InputWritten, uint32(n)))
		return nil
	}
	in.queue = append(in.queue, typed{c: c, id: id, p: append([]byte(nil), p[n:]...), done: n})
	in.pending.Add(int64(len(p) - n))
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return nil
}

// mayType checks rights and state. server.mu is held.
func (s *server) mayType(c *client) *seat.Error {
	if !c.role.Has(seat.RoleInput) {
		return forbidden("this connection is read-only")
	}
	if err := s.stale(c); err != nil {
		return err
	}
	if s.state != seat.StateRunning {
		return seat.Refuse(seat.CodeNotRunning, "the seat is "+s.state.String())
	}
	return nil
}

// run writes what the terminal did not take at once.
func (in *input) run(s *server) {
	s.mu.Lock()
	pty := s.pty
	s.mu.Unlock()
	raw, err := pty.file.SyscallConn()
	if err != nil {
		return
	}
	for range in.wake {
		for in.turn(pty) {
			// The deadline is for a wake-up that the kernel gave before there was room.
			_ = pty.file.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			waited := false
			err := raw.Write(func(uintptr) bool {
				again := waited
				waited = true
				return again
			})
			if err != nil && !os.IsTimeout(err) {
				return
			}
		}
	}
}

// turn writes what it can and reports whether anything is left.
func (in *input) turn(pty *terminalPair) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.queue) > 0 {
		q := &in.queue[0]
		if q.done == 0 && q.c.gone() { // nobody was told that it was typed
			in.pending.Add(-int64(len(q.p)))
			in.shift()
			continue
		}
		n := writeSome(pty.fd, q.p)
		q.p, q.done = q.p[n:], q.done+n
		in.pending.Add(-int64(n))
		if len(q.p) > 0 {
			return true
		}
		q.c.answer(seat.AppendInputAck(nil, q.id, seat.InputWritten, uint32(q.done)))
		in.shift()
	}
	return false
}

func (in *input) shift() {
	if in.queue = in.queue[1:]; len(in.queue) == 0 {
		in.queue = nil
	}
}

// abandon answers what can no longer be typed.
func (in *input) abandon() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.gone = true
	for _, q := range in.queue {
		q.c.answer(seat.AppendInputAck(nil, q.id, seat.InputEnded, uint32(q.done)))
	}
	in.queue = nil
	in.pending.Store(0)
}

// writeSome writes without blocking and returns how much the terminal took.
func writeSome(fd int, p []byte) int {
	n := 0
	for n < len(p) {
		m, err := unix.Write(fd, p[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || m <= 0 {
			break
		}
		n += m
	}
	return n
}

// lineAfter says how long the terminal's unfinished line is after p was typed behind a line of n
// bytes, and whether no line on the way is longer than the terminal keeps: it would cut it silently.
// Outside canonical mode there are no lines.
func lineAfter(n int, p []byte, t *unix.Termios) (int, bool) {
	if t.Lflag&unix.ICANON == 0 {
		return 0, true
	}
	special := func(i int, c byte) bool { return t.Cc[i] != 0 && t.Cc[i] == c }
	quoted := false
	for _, c := range p {
		switch {
		case quoted:
			quoted = false
			n++
		case c == '\r' && t.Iflag&unix.IGNCR != 0:
			continue
		case c == '\n' && t.Iflag&unix.INLCR == 0,
			c == '\r' && t.Iflag&unix.ICRNL != 0,
			special(unix.VEOL, c), special(unix.VEOL2, c), special(unix.VEOF, c):
			n = 0
		case t.Lflag&unix.ISIG != 0 && t.Lflag&unix.NOFLSH == 0 &&
			(special(unix.VINTR, c) || special(unix.VQUIT, c) || special(unix.VSUSP, c)):
			n = 0 // the line is thrown away
		case special(unix.VKILL, c):
			n = 0
		case special(unix.VERASE, c):
			n = max(n-1, 0)
		case special(unix.VLNEXT, c) && t.Lflag&unix.IEXTEN != 0:
			quoted = true
		default:
			n++
		}
		if n > seat.MaxLine {
			return n, false
		}
	}
	return n, true
}
