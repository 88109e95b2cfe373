//go:build linux

package custody

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	spillHeader = 4096
	spillBatch  = 256 << 10 // at most so much is written at once; less than any spill holds
)

// spill is the circular file that holds output older than the ring: one page of header (magic, u32
// version, u64 capacity, u64 first, u64 next), then the bytes, offset o at o mod capacity. It is a
// cursor into the ring that nobody waits for. The first failure switches it off.
type spill struct {
	path string
	cap  uint64
	io   sync.Mutex // held by who writes
	f    *os.File   // nil until the first write

	// Guarded by server.mu.
	off         bool
	first, next uint64 // readable: first..next-1
}

// spillOut writes everything that is not on disk yet, straight from the ring. The span is shrunk
// before bytes are overwritten and grows after, so that it never claims what is not there.
func (s *server) spillOut() {
	sp := s.spill
	sp.io.Lock() // the last call may meet the loop
	defer sp.io.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !sp.off {
		if sp.next < s.ring.first { // a hole: what is before it is given up
			sp.first, sp.next = s.ring.first, s.ring.first
		}
		at, p := sp.next, s.ring.view(sp.next, spillBatch)
		if len(p) == 0 {
			return
		}
		end := at + uint64(len(p))
		first := max(sp.first, end-min(end, sp.cap))
		sp.first = first
		s.mu.Unlock()
		err := sp.write(p, first, at)
		if err != nil {
			s.log.say("spill is off: " + err.Error())
			_ = sp.f.Truncate(0) // on a full disk, give the space back; by the file, never by a name
		}
		s.mu.Lock()
		sp.next = end
		if at < s.ring.first { // overwritten in the ring while it was written
			sp.first = end
		}
		if err != nil {
			sp.off, sp.first, sp.next = true, 0, 0
		}
		s.drained.Broadcast()
	}
}

// write stores p, which is the output from offset at on. io is held.
func (sp *spill) write(p []byte, first, at uint64) (err error) {
	if sp.f == nil {
		if sp.f, err = os.OpenFile(sp.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600); err != nil {
			return err
		}
	}
	if err := sp.header(first, at); err != nil {
		return err
	}
	end, pos := at+uint64(len(p)), at%sp.cap
	head := p[:min(uint64(len(p)), sp.cap-pos)]
	if _, err := sp.f.WriteAt(head, int64(spillHeader+pos)); err != nil {
		return err
	}
	if _, err := sp.f.WriteAt(p[len(head):], spillHeader); err != nil {
		return err
	}
	return sp.header(first, end)
}

func (sp *spill) header(first, next uint64) error {
	b := append(make([]byte, 0, 36), "COTALRNG"...)
	b = binary.BigEndian.AppendUint32(b, 1)
	for _, v := range []uint64{sp.cap, first, next} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	_, err := sp.f.WriteAt(b, 0)
	return err
}

// readSpill copies bytes from offset on and returns how many: 0 when they are not held, or were
// overwritten meanwhile. mu is held, and given up for the read.
func (s *server) readSpill(p []byte, from uint64) int {
	sp := s.spill
	if from < sp.first || from >= sp.next {
		return 0
	}
	pos := from % sp.cap
	p = p[:min(uint64(len(p)), sp.next-from, sp.cap-pos)]
	s.mu.Unlock()
	n, err := sp.f.ReadAt(p, int64(spillHeader+pos))
	s.mu.Lock()
	if err != nil || from < sp.first {
		return 0
	}
	return n
}

// oldest returns the first offset that can still be read, from the spill if it reaches to the ring.
// mu is held.
func (s *server) oldest() uint64 {
	if s.spill.next >= s.ring.first {
		return min(s.spill.first, s.ring.first)
	}
	return s.ring.first
}
