//go:build linux

package custody

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	courtesyWait   = 20 * time.Millisecond  // longest single wait for a viewer
	courtesyBudget = 500 * time.Millisecond // waiting in any second, all viewers together
	courtesyVain   = 80 * time.Millisecond  // what a wait in vain costs besides: there are five a second
	batchFrom      = 2 << 10                // a read this large is part of a flood
	batchTo        = 32 << 10               // and is sent when so much has come together,
	batchWait      = 200_000                // or nothing more within so many nanoseconds
)

// readTerminal drains the terminal into the ring until every slave is closed.
func (s *server) readTerminal(pty *terminalPair) {
	defer close(s.outEnd)
	buf := s.ring.space()
	var n int
	var end bool
	read := func(uintptr) bool {
		n, end = gather(pty.fd, buf)
		return n > 0 || end
	}
	for pty.raw.Read(read) == nil && n > 0 { // EIO is the end of the output, not an error
		s.mu.Lock()
		s.ring.put(n)
		for _, c := range s.clients {
			c.push()
		}
		s.courtesy()
		next := s.ring.space()
		if s.ring.next-s.spill.next >= s.ring.size()/4 {
			kick(s.spillCh)
		}
		s.mu.Unlock()
		s.modes.Write(buf[:n]) // its place in the ring is not read into before the next turn
		s.modeBits.Store(uint32(s.modes.Modes()))
		buf = next
	}
}

func kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// gather reads what there is now. In a flood the kernel hands out 4 KiB at a time and needs a moment
// for the next, so a large read waits for more before it is sent: fewer, larger frames cost seat and
// viewers fewer wake-ups. A keystroke's echo is small and never held back.
func gather(fd int, p []byte) (n int, end bool) {
	for n < min(len(p), batchTo) {
		m, err := unix.Read(fd, p[n:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			if n < batchFrom || !readable(fd) {
				return n, false
			}
		case err != nil || m <= 0:
			return n, true
		default:
			if n += m; m < batchFrom {
				return n, false
			}
		}
	}
	return n, false
}

// readable waits a moment for more output. The wait is a call of its own and not the runtime's
// poller: in a flood it ends within microseconds.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Ppoll(p, &unix.Timespec{Nsec: batchWait}, nil)
	return err == nil && n > 0
}

// late reports whether a viewer that is waited for is further behind than limit, or the spill about to
// lose what the ring overwrites next. mu is held.
func (s *server) late(limit uint64) bool {
	return !s.spill.off && s.ring.next-s.spill.next > s.ring.size()/4*3 ||
		slices.ContainsFunc(s.clients, func(c *client) bool { return c.behind() && !c.stalled && c.lag() > limit })
}

// courtesy gives viewers that are late up to 20 ms to come close again. Who does not is stalled, and
// is not waited for until it has. The spill gets the same moment, out of the same budget: on a busy machine
// it may not have run at all since a flood began. mu is held, and given up while it waits.
func (s *server) courtesy() {
	start := time.Now()
	if start.Sub(s.second) >= time.Second {
		s.second, s.patience = start, courtesyBudget
	}
	if s.patience <= 0 || !s.late(lagHigh) {
		return
	}
	timeout := false
	timer := time.AfterFunc(min(courtesyWait, s.patience), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		timeout = true
		s.drained.Broadcast()
	})
	for !timeout && s.late(lagLow) {
		s.drained.Wait()
	}
	timer.Stop()
	s.patience -= time.Since(start)
	if !timeout {
		return
	}
	s.patience -= courtesyVain
	for _, c := range s.clients {
		c.stalled = c.stalled || c.behind() && c.lag() > lagLow
	}
}
