//go:build linux

package custody

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	courtesyWait   = 20 * time.Millisecond  // longest single wait for a viewer
	courtesyBudget = 500 * time.Millisecond // waiting in any second, all viewers together
	courtesyStalls = 5                      // waits in vain in any second
	batchFrom      = 2 << 10                // a read this large is part of a flood
	batchTo        = 32 << 10               // and is sent when so much has come together,
	batchWait      = 200_000                // or nothing more within so many nanoseconds
)

// courtesy limits how long viewers may hold the terminal up.
type courtesy struct {
	timer  *time.Timer
	second time.Time
	spent  time.Duration
	stalls int
}

func (k *courtesy) left(now time.Time) time.Duration {
	if now.Sub(k.second) >= time.Second {
		k.second, k.spent, k.stalls = now, 0, 0
	}
	if k.stalls >= courtesyStalls || k.spent >= courtesyBudget {
		return 0
	}
	return min(courtesyWait, courtesyBudget-k.spent)
}

// readTerminal drains the terminal into the ring until every slave is closed.
func (s *server) readTerminal() {
	defer close(s.outEnd)
	s.mu.Lock()
	fd := s.pty.fd
	raw, err := s.pty.file.SyscallConn()
	buf := s.ring.space()
	s.mu.Unlock()
	if err != nil {
		s.log.say("terminal: " + err.Error())
		return
	}
	k := courtesy{timer: time.NewTimer(time.Hour)}
	var inline []*client
	var n int
	var end bool
	var spilled uint64 // where the spill was last woken
	read := func(uintptr) bool {
		n, end = readSome(fd, buf)
		return n > 0 || end
	}
	for {
		if err := raw.Read(read); err != nil || n == 0 {
			return // EIO: the end of the output, not an error
		}
		inline = s.publish(buf[:n], inline[:0])
		s.modes.Write(buf[:n])
		bits := uint32(s.modes.Modes())
		s.mu.Lock()
		s.modeBits = bits
		late := s.late(lagHigh)
		if s.ring.next-spilled >= s.spill.batch {
			spilled = s.ring.next
			select {
			case s.spillCh <- struct{}{}:
			default:
			}
		}
		if !late {
			buf = s.ring.space()
			s.mu.Unlock()
			continue
		}
		s.mu.Unlock()
		s.wait(&k)
		s.mu.Lock()
		buf = s.ring.space()
		s.mu.Unlock()
	}
}

// readSome reads what there is now. In a flood the kernel hands out 4 KiB at a time and needs a moment
// for the next, so a large read waits for more before it is sent: fewer, larger frames cost seat and
// viewers fewer wake-ups. A keystroke's echo is small and never held back.
func readSome(fd int, p []byte) (n int, end bool) {
	for n < len(p) {
		m, err := unix.Read(fd, p[n:])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			if n < batchFrom || n >= batchTo || !readable(fd) {
				return n, false
			}
			continue
		case err != nil || m <= 0:
			return n, true
		}
		n += m
		if m < batchFrom || n >= batchTo {
			break
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

// publish makes p, which was read into the ring's space, readable and sends it to every viewer that
// is up to date.
func (s *server) publish(p []byte, inline []*client) []*client {
	s.mu.Lock()
	seq := s.ring.next
	s.ring.put(len(p))
	for _, c := range s.clients {
		if !c.behind() {
			continue
		}
		if c.busy || c.cursor != seq || len(c.rest) > 0 || len(c.answers) > 0 {
			c.cond.Broadcast()
			continue
		}
		c.busy = true
		inline = append(inline, c)
	}
	s.mu.Unlock()
	if len(inline) == 0 {
		return inline
	}
	for _, c := range inline {
		// Only this goroutine overwrites the ring, so p stays what it is without the lock.
		c.sent = c.sendInline(seq, p)
	}
	s.mu.Lock()
	for _, c := range inline {
		c.busy = false
		switch n := c.sent; {
		case n == len(c.head)+len(p):
			c.cursor = s.ring.next
		case n > 0: // the header promised all of it
			c.room()
			c.keep(c.head[min(n, len(c.head)):], p[max(n-len(c.head), 0):])
			c.cursor = s.ring.next
		}
		if c.closed || c.due() {
			c.cond.Broadcast()
		}
	}
	s.mu.Unlock()
	return inline
}

// late reports whether a viewer that is waited for is further behind than limit. mu is held.
func (s *server) late(limit uint64) bool {
	for _, c := range s.clients {
		if c.behind() && !c.stalled && !c.resuming && c.lag() > limit {
			return true
		}
	}
	return false
}

// wait gives viewers that are late up to 20 ms to come close again. Who does not is stalled and is
// never waited for until it has.
func (s *server) wait(k *courtesy) {
	start := time.Now()
	limit := k.left(start)
	if limit == 0 {
		return
	}
	k.timer.Reset(limit)
	timeout := false
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = true
	for !timeout && s.late(lagLow) {
		s.mu.Unlock()
		select {
		case <-s.drained:
		case <-k.timer.C:
			timeout = true
		}
		s.mu.Lock()
	}
	s.waiting = false
	k.timer.Stop()
	k.spent += time.Since(start)
	if !timeout {
		return
	}
	k.stalls++
	for _, c := range s.clients {
		if c.behind() && !c.resuming && c.lag() > lagLow {
			c.stalled = true
		}
	}
}

// spillLoop writes output to disk before the ring gives it up.
func (s *server) spillLoop() {
	for range s.spillCh {
		if !s.spillOut() {
			return
		}
	}
}

// spillOut writes everything that is not on disk yet. It writes straight from the ring: the span is
// looked at again afterwards, and what was overwritten meanwhile becomes a hole. It returns false once
// the spill is off.
func (s *server) spillOut() bool {
	sp := s.spill
	sp.io.Lock() // the last call may meet the loop
	defer sp.io.Unlock()
	for {
		s.mu.Lock()
		first := s.ring.first
		s.mu.Unlock()
		if sp.off {
			return false
		}
		at, err := sp.begin(first)
		if err == nil {
			s.mu.Lock()
			var p []byte
			if at >= s.ring.first {
				p = s.ring.view(at, spillBatch)
			}
			s.mu.Unlock()
			if len(p) == 0 {
				return true
			}
			err = sp.write(at, p)
		}
		if err != nil {
			s.log.say("spill is off: " + err.Error())
			sp.disable()
			return false
		}
		s.mu.Lock()
		torn := at < s.ring.first
		s.mu.Unlock()
		if torn {
			sp.forget()
		}
	}
}
