//go:build linux

package custody

import (
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	lagHigh    = 128 << 10 // the pty reader waits for a viewer this far behind, once
	lagLow     = 64 << 10  // it counts as keeping up again when this close
	jumpBack   = 128 << 10 // after a gap a viewer goes on this far behind the newest byte
	maxOwed    = 64 << 10  // answers a connection may leave unread before its requests wait
	outputHead = 13        // bytes before the output in an OUTPUT frame
)

// client is one connection: a cursor into the ring, not a queue. Everything is guarded by server.mu.
// Whoever has something for it sends at once, without blocking (push); once the socket is full, or the
// spill has to be read, sending is handed to the connection's own goroutine (writeLoop) until it has
// caught up.
type client struct {
	s    *server
	f    *os.File
	fd   int
	cond *sync.Cond // handed, closed or answers changed

	role     seat.Role
	fence    uint64
	cursor   uint64 // next output byte to send
	resuming bool   // has not caught up since it came
	stalled  bool   // not waited for; a mirror never is
	handed   bool   // writeLoop sends, and nobody else
	answers  []byte // frames to send before more output
	rest     []byte // what is left of the frame under way
	buf      []byte // holds an OUTPUT frame; allocated when first needed

	closed, statusDue, exitSent bool
}

// due reports whether there is something to send. mu is held, as in all that follows.
func (c *client) due() bool {
	return len(c.rest) > 0 || len(c.answers) > 0 || c.statusDue || c.behind() ||
		c.s.state == seat.StateExited && !c.exitSent
}

func (c *client) behind() bool { return c.role.Has(seat.RoleOutput) && c.lag() > 0 }

func (c *client) lag() uint64 { return c.s.ring.next - c.cursor }

// hungUp asks the kernel whether the peer has closed.
func (c *client) hungUp() bool {
	p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

func (c *client) answer(frame []byte) {
	if !c.closed {
		c.answers = append(c.answers, frame...)
		c.push()
	}
}

// push sends what is due, as far as that needs neither waiting nor the disk.
func (c *client) push() {
	for !c.closed && !c.handed && c.due() {
		if c.send(false) != nil {
			c.handed = true
			c.cond.Broadcast()
		}
	}
}

// writeLoop sends what push could not, and closes the connection once it was dropped.
func (c *client) writeLoop() {
	raw, err := c.f.SyscallConn()
	c.s.mu.Lock()
	for err == nil && !c.closed {
		if !c.handed {
			c.cond.Wait()
			continue
		}
		c.s.mu.Unlock()
		err = raw.Write(func(uintptr) bool { return c.catchUp() })
		c.s.mu.Lock()
	}
	c.s.mu.Unlock()
	_ = c.f.Close()
}

// catchUp sends until nothing is due. It returns false when it has to wait for room in the socket.
func (c *client) catchUp() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for !c.closed && c.due() {
		switch c.send(true) {
		case nil, unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			c.drop()
		}
		c.s.drained.Broadcast()
		c.cond.Broadcast() // a request may wait for room for its answer
	}
	c.handed = false
	return true
}

// send sends one frame, or as much of it as the socket takes. mayRead says that the spill may be read,
// with mu given up meanwhile.
func (c *client) send(mayRead bool) error {
	if len(c.rest) == 0 {
		c.rest = c.frame(mayRead)
	}
	if c.closed || len(c.rest) == 0 {
		return unix.EINTR // nothing was sent, and nothing is wrong
	}
	n, err := sendNow(c.fd, c.rest)
	c.rest = c.rest[n:]
	return err
}

// sendNow returns how much was sent: all of it, or less and the reason.
func sendNow(fd int, p []byte) (int, error) {
	n, err := unix.SendmsgN(fd, p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if err == nil && n < len(p) {
		err = unix.EAGAIN
	}
	return max(n, 0), err
}

// frame takes the next thing to send: nothing when it is on disk and that may not be read.
func (c *client) frame(mayRead bool) []byte {
	s := c.s
	if c.statusDue {
		c.statusDue = false
		c.answers = seat.AppendStatus(c.answers, 0, s.status(c))
	}
	switch {
	case len(c.answers) > 0:
		out := c.answers
		c.answers = nil
		return out
	case !c.behind():
		c.exitSent = true // due for nothing else
		return seat.AppendExit(nil, s.status(c), s.exit)
	}
	if c.buf == nil {
		c.buf = make([]byte, outputHead+seat.MaxOutput)
	}
	from, n := c.cursor, 0
	switch {
	case from >= s.ring.first:
		n = s.ring.copyOut(c.buf[outputHead:], from)
	case !mayRead:
		return nil
	default:
		if n = s.readSpill(c.buf[outputHead:], from); n == 0 {
			return c.gap()
		}
	}
	c.cursor += uint64(n)
	if c.lag() <= lagLow {
		c.stalled, c.resuming = c.role.Has(seat.RoleMirror), false
	}
	seat.AppendOutputHeader(c.buf[:0], from, n)
	return c.buf[:outputHead+n]
}

// gap moves the cursor over what it cannot have and says so.
func (c *client) gap() []byte {
	s := c.s
	from, reason := c.cursor, seat.GapLagged
	c.cursor = max(s.ring.first, s.ring.next-min(s.ring.next, jumpBack))
	if c.resuming { // it asked for more than is kept, which is not slowness
		c.resuming, reason, c.cursor = false, seat.GapGone, s.ring.first
		if oldest := s.oldest(); oldest > from {
			c.cursor = oldest
		}
	}
	return seat.AppendGap(nil, from, c.cursor, reason)
}

// drop ends a connection; writeLoop closes it.
func (c *client) drop() {
	if c.closed {
		return
	}
	s := c.s
	c.closed = true
	s.questions.Left(c.role, time.Now())
	s.clients = slices.DeleteFunc(s.clients, func(o *client) bool { return o == c })
	if s.writer == c {
		s.writer = nil
	}
	s.news()
	c.cond.Broadcast()
	s.drained.Broadcast()
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // frees whoever is blocked on it
}
