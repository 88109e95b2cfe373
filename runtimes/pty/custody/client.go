//go:build linux

package custody

import (
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	lagHigh  = 128 << 10 // the pty reader waits for a viewer this far behind, once
	lagLow   = 64 << 10  // it counts as keeping up again when this close
	jumpBack = 128 << 10 // after a gap a viewer goes on this far behind the newest byte
	maxOwed  = 64 << 10  // answers a connection may leave unread before its requests wait
)

// client is one connection: a cursor into the ring, not a queue. Whoever sets busy owns the socket's
// sending side until it clears it: the pty reader (inline, never blocking) or the writer goroutine.
type client struct {
	s    *server
	f    *os.File
	fd   int
	cond *sync.Cond // over server.mu

	// All below guarded by server.mu, but buf, head, iov and msg, which belong to the owner of busy.
	role      seat.Role
	fence     uint64
	cursor    uint64 // next output byte to send
	resuming  bool   // has not caught up since it came: not waited for
	gapped    bool   // was told once that what it asked for is gone
	stalled   bool   // too slow: not waited for
	busy      bool
	closed    bool
	statusDue bool
	exitSent  bool
	sent      int    // what the inline path sent; of the pty reader
	answers   []byte // frames to send before more output
	rest      []byte // end of a frame that was sent in part; aliases buf

	buf  []byte // one frame, allocated when first needed
	head [13]byte
	iov  [2]unix.Iovec
	msg  unix.Msghdr
}

// due reports whether there is something to send. server.mu is held.
func (c *client) due() bool {
	return len(c.rest) > 0 || len(c.answers) > 0 || c.statusDue || c.behind() ||
		c.s.state == seat.StateExited && !c.exitSent
}

func (c *client) behind() bool { return c.role.Has(seat.RoleOutput) && c.cursor < c.s.ring.next }

// gone reports whether the connection has ended. Lock order: input.mu may be held.
func (c *client) gone() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.closed
}

// hungUp asks the kernel whether the peer has closed. server.mu is held and the connection not dropped.
func (c *client) hungUp() bool {
	p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

func (c *client) lag() uint64 { return c.s.ring.next - c.cursor }

// answer queues a frame, or sends it at once when nothing is under way.
func (c *client) answer(frame []byte) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return
	}
	if c.busy || len(c.rest) > 0 || len(c.answers) > 0 {
		c.answers = append(c.answers, frame...)
		c.cond.Broadcast()
		return
	}
	c.busy = true
	s.mu.Unlock()
	n := sendNow(c.fd, frame)
	s.mu.Lock()
	c.busy = false
	if n < len(frame) {
		c.keep(frame[n:])
	}
	if c.closed || c.due() {
		c.cond.Broadcast()
	}
}

// flush waits until what is queued was sent, at most a second.
func (c *client) flush() {
	s := c.s
	late := time.AfterFunc(farewell, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.drop()
	})
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !c.closed && (c.busy || len(c.rest) > 0 || len(c.answers) > 0) {
		c.cond.Wait()
	}
}

// keep stores what was left of a frame. The socket belongs to the caller and rest is empty.
func (c *client) keep(parts ...[]byte) {
	c.buf = c.buf[:0]
	for _, p := range parts {
		c.buf = append(c.buf, p...)
	}
	c.rest = c.buf
}

// room makes sure that buf holds one full OUTPUT frame.
func (c *client) room() {
	if cap(c.buf) < seat.MaxOutput+len(c.head) {
		c.buf = make([]byte, 0, seat.MaxOutput+len(c.head))
	}
}

// sendInline sends output that just arrived without blocking. The caller owns the socket and nothing
// else is queued. It returns how much of the frame was sent, header included.
func (c *client) sendInline(seq uint64, p []byte) int {
	head := seat.AppendOutputHeader(c.head[:0], seq, len(p))
	c.iov[0].Base, c.iov[1].Base = &head[0], &p[0]
	c.iov[0].SetLen(len(head))
	c.iov[1].SetLen(len(p))
	c.msg.Iov = &c.iov[0]
	c.msg.SetIovlen(2)
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
			return int(n)
		case unix.EINTR:
		default: // EAGAIN: the writer waits; anything else: the writer finds out
			return 0
		}
	}
}

func sendNow(fd int, p []byte) int {
	for {
		n, err := unix.SendmsgN(fd, p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		return max(n, 0)
	}
}

// writeLoop sends whatever the inline path could not.
func (c *client) writeLoop() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for !c.closed && (c.busy || !c.due()) {
			c.cond.Wait()
		}
		if c.closed {
			break
		}
		c.busy = true
		out := c.fill()
		s.mu.Unlock()
		_, err := c.f.Write(out)
		s.mu.Lock()
		c.busy = false
		if err != nil {
			c.drop()
			break
		}
		if s.waiting && c.lag() <= lagLow {
			select {
			case s.drained <- struct{}{}:
			default:
			}
		}
		c.cond.Broadcast() // a request may wait for room for its answer
	}
	// The number must not be reused while the pty reader may still send on it.
	for c.busy {
		c.cond.Wait()
	}
	_ = c.f.Close()
}

// fill takes the next thing to send. server.mu is held, and given up while the spill is read; the
// caller owns the socket.
func (c *client) fill() []byte {
	s := c.s
	if len(c.rest) > 0 {
		out := c.rest
		c.rest = nil
		return out
	}
	if c.statusDue {
		c.statusDue = false
		c.answers = seat.AppendStatus(c.answers, 0, s.status(c))
	}
	if len(c.answers) > 0 {
		out := c.answers
		c.answers = nil
		return out
	}
	if c.behind() {
		return c.fillOutput()
	}
	c.exitSent = true // due for nothing else
	return seat.AppendExit(nil, s.status(c), s.exit)
}

func (c *client) fillOutput() []byte {
	s := c.s
	c.room()
	from := c.cursor
	if from < s.ring.first {
		s.mu.Unlock()
		data := c.buf[:cap(c.buf)][len(c.head):][:seat.MaxOutput]
		n := s.spill.read(data, from)
		s.mu.Lock()
		if n > 0 {
			seat.AppendOutputHeader(c.buf[:0], from, n)
			c.cursor = from + uint64(n)
			return c.buf[:len(c.head)+n]
		}
	}
	if from < s.ring.first {
		return c.gap()
	}
	n := int(min(s.ring.next-from, seat.MaxOutput))
	b := seat.AppendOutputHeader(c.buf[:0], from, n)
	b = b[:len(b)+n]
	s.ring.copyOut(b[len(c.head):], from)
	c.cursor = from + uint64(n)
	if s.ring.next-c.cursor <= lagLow {
		c.stalled, c.resuming = false, false
	}
	return b
}

// gap moves the cursor over what it cannot have and says so.
func (c *client) gap() []byte {
	s := c.s
	from, reason := c.cursor, seat.GapLagged
	c.cursor = s.ring.first
	if c.resuming && !c.gapped {
		c.gapped, reason = true, seat.GapGone
		if first, next := s.spill.span(); from < first && first < s.ring.first && next >= s.ring.first {
			c.cursor = first
		}
	} else {
		c.resuming = false
		if s.ring.next-s.ring.first > jumpBack {
			c.cursor = s.ring.next - jumpBack
		}
	}
	return seat.AppendGap(nil, from, c.cursor, reason)
}

// drop ends a connection; writeLoop closes it. server.mu is held.
func (c *client) drop() {
	if c.closed {
		return
	}
	c.closed = true
	s := c.s
	kept := make([]*client, 0, len(s.clients))
	for _, o := range s.clients {
		if o != c {
			kept = append(kept, o)
		}
	}
	s.clients = kept
	if s.writer == c {
		s.writer = nil
	}
	if c.role&(seat.RoleTerminal|seat.RoleMirror|seat.RoleInput) != 0 {
		s.news()
	}
	c.cond.Broadcast()
	if s.waiting {
		select {
		case s.drained <- struct{}{}:
		default:
		}
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // frees whoever is blocked on it
}
