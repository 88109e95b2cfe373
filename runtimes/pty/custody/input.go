//go:build linux

package custody

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// typed is what is left of one slice of an INPUT frame. A frame is written as a whole: nothing comes between its
// bytes.
type typed struct {
	c    *client
	id   uint32
	p    []byte
	done *uint32 // bytes of the frame that were written

	begun, last bool // begun: some of the slice was written; last: it ends its frame
}

// typeIn puts p behind what is still to be typed and answers when the terminal has taken all of it. What a
// host types is written in slices, and those not begun go with its connection. The kernel takes about 4 KiB from
// a program that does not read; up to 64 KiB of a host and 64 KiB of everybody else wait here, and more is
// refused as busy: a long text of a host does not shut out a person. mu is held.
func (s *server) typeIn(c *client, id uint32, p []byte) *seat.Error {
	switch e := s.stale(c); {
	case c.role&(seat.RoleInput|seat.RoleMirror) == 0:
		return forbidden("this connection is read-only")
	case e != nil:
		return e
	case s.state != seat.StateRunning:
		return seat.Refuse(seat.CodeNotRunning, "the seat is "+s.state.String())
	case len(p) > seat.MaxInput:
		return seat.Refuse(seat.CodeTooLarge, "an INPUT frame holds 65536 bytes")
	case s.untyped(c.role.Has(seat.RoleControl))+len(p) > seat.MaxInput:
		c.answer(seat.AppendInputAck(nil, id, seat.InputBusy, 0))
		return nil
	}
	if t, err := s.pty.modes(); err == nil {
		line, ok := lineAfter(s.line, p, t)
		if !ok {
			return seat.Refuse(seat.CodeLineTooLong, "the program reads whole lines and the terminal would cut this one at 4095 bytes; nothing was typed")
		}
		s.line = line
	}
	if c == s.writer {
		s.questions.Reacted(s.ring.next)
	}
	if c == s.writer && !terminal.IsReport(p) {
		s.typedAt = time.Now()
	}
	parts, done := seat.Slices(append([]byte(nil), p...), c.role.Has(seat.RoleControl)), new(uint32)
	for i, part := range parts {
		s.queue = append(s.queue, typed{c: c, id: id, p: part, done: done, last: i == len(parts)-1})
	}
	if !s.typeSome() {
		kick(s.typeCh)
	}
	return nil
}

// onAnswer types what the mirror says to a question, if that is the mirror's. mu is held.
func (s *server) onAnswer(c *client, id uint32, body []byte) *seat.Error {
	at, p, err := seat.DecodeAnswer(body)
	if err == nil && c.role.Has(seat.RoleMirror) && s.questions.Take(at) {
		_ = s.typeIn(c, id, p) // an agent that has ended asks nothing
	}
	return nil
}

// untyped counts the bytes that wait, those of a host or those of everybody else. mu is held.
func (s *server) untyped(host bool) (n int) {
	for _, q := range s.queue {
		if q.c.role.Has(seat.RoleControl) == host {
			n += len(q.p)
		}
	}
	return n
}

// typeSome writes what the terminal takes now and reports whether nothing is left. mu is held.
func (s *server) typeSome() bool {
	for ; len(s.queue) > 0; s.queue = s.queue[1:] {
		q := &s.queue[0]
		if !q.begun && q.c.closed { // nobody was told that it was typed
			continue
		}
		for len(q.p) > 0 {
			n, err := unix.Write(s.pty.fd, q.p)
			if err != nil && err != unix.EINTR {
				return false
			}
			n = max(n, 0)
			q.p, q.begun = q.p[n:], q.begun || n > 0
			*q.done += uint32(n)
		}
		q.c.answer(seat.SliceAck(q.last, q.id, seat.InputWritten, *q.done))
	}
	s.queue = nil
	return true
}

// typeLoop writes what the terminal did not take at once.
func (s *server) typeLoop(pty *terminalPair) {
	for range s.typeCh {
		for empty := false; !empty; {
			// The deadline is for a wake-up that the kernel gave before there was room.
			_ = pty.file.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			err := pty.raw.Write(func(uintptr) bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				empty = s.typeSome()
				return empty
			})
			if err != nil && !os.IsTimeout(err) {
				return
			}
		}
	}
}

// abandonInput answers what can no longer be typed. mu is held.
func (s *server) abandonInput() {
	for _, q := range s.queue {
		q.c.answer(seat.SliceAck(q.last, q.id, seat.InputEnded, *q.done))
	}
	s.queue = nil
}

// lineAfter says how long the terminal's unfinished line is after p was typed behind a line of n
// bytes, and whether no line on the way is longer than the terminal keeps: it would cut it silently.
// Outside canonical mode there are no lines.
func lineAfter(n int, p []byte, t *unix.Termios) (int, bool) {
	if t.Lflag&unix.ICANON == 0 {
		return 0, true
	}
	special := func(i int, c byte) bool { return t.Cc[i] != 0 && t.Cc[i] == c }
	flushes := t.Lflag&unix.ISIG != 0 && t.Lflag&unix.NOFLSH == 0
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
			special(unix.VEOL, c), special(unix.VEOL2, c), special(unix.VEOF, c), special(unix.VKILL, c),
			flushes && (special(unix.VINTR, c) || special(unix.VQUIT, c) || special(unix.VSUSP, c)):
			n = 0 // the line is complete, or thrown away
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
