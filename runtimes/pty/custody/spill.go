//go:build linux

package custody

import (
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	spillMagic  = "COTALRNG"
	spillHeader = 4096
	spillBatch  = 256 << 10
)

// spill is the circular file that holds output older than the ring: one page of header (magic, u32
// version, u64 capacity, u64 first, u64 next), then the bytes, offset o at o mod capacity. It is a
// cursor into the ring that nobody waits for. The first failure switches it off.
type spill struct {
	path  string
	cap   uint64
	batch uint64

	io  sync.Mutex // held by who writes
	off bool       // a write failed; guarded by io

	mu          sync.Mutex // guards the fields below
	fd          int        // -1 until the first write
	first, next uint64     // readable: first..next-1
}

func newSpill(path string, capacity uint64, ringSize uint64) *spill {
	return &spill{path: path, cap: capacity, batch: min(spillBatch, ringSize/4), fd: -1}
}

func (s *spill) span() (first, next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first, s.next
}

// begin opens the file and says where the next byte goes. from is the oldest byte the ring still has:
// what was lost between is a hole, and everything before the hole is given up.
func (s *spill) begin(from uint64) (at uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		fd, err := unix.Open(s.path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return 0, errors.New("open spill: " + err.Error())
		}
		s.fd = fd
	}
	if s.next < from {
		s.first, s.next = from, from
	}
	return s.next, nil
}

// write stores p at offset at. The span shrinks before bytes are overwritten and grows after, in
// memory and in the header, so that neither ever claims what is not there.
func (s *spill) write(at uint64, p []byte) error {
	end := at + uint64(len(p))
	s.mu.Lock()
	if end > s.cap && s.first < end-s.cap {
		s.first = end - s.cap
	}
	s.mu.Unlock()
	if err := s.header(); err != nil {
		return err
	}
	for off := at; len(p) > 0; {
		pos := off % s.cap
		part := p[:min(uint64(len(p)), s.cap-pos)]
		n, err := unix.Pwrite(s.fd, part, int64(spillHeader+pos))
		if err != nil {
			return errors.New("write spill: " + err.Error())
		}
		off, p = off+uint64(n), p[n:]
	}
	s.mu.Lock()
	s.next = end
	s.mu.Unlock()
	return s.header()
}

func (s *spill) header() error {
	first, next := s.span()
	var b [36]byte
	copy(b[:], spillMagic)
	binary.BigEndian.PutUint32(b[8:], 1)
	binary.BigEndian.PutUint64(b[12:], s.cap)
	binary.BigEndian.PutUint64(b[20:], first)
	binary.BigEndian.PutUint64(b[28:], next)
	if _, err := unix.Pwrite(s.fd, b[:], 0); err != nil {
		return errors.New("write spill header: " + err.Error())
	}
	return nil
}

// forget drops everything: what was written last had been overwritten in the ring meanwhile.
func (s *spill) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = s.next
}

// disable gives the spill up; what it held is no longer served. io is held.
func (s *spill) disable() {
	s.off = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.next = 0, 0
	if s.fd >= 0 {
		_ = unix.Ftruncate(s.fd, 0) // on a full disk, give the space back
	}
}

// read copies bytes from offset on and returns how many are valid: 0 when the range is not held or
// was overwritten meanwhile.
func (s *spill) read(p []byte, from uint64) int {
	s.mu.Lock()
	fd, ok := s.fd, s.fd >= 0 && from >= s.first && from < s.next
	n := min(uint64(len(p)), s.next-from, s.cap-from%s.cap)
	s.mu.Unlock()
	if !ok {
		return 0
	}
	got, err := unix.Pread(fd, p[:n], int64(spillHeader+from%s.cap))
	if err != nil || got <= 0 {
		return 0
	}
	if first, _ := s.span(); from < first {
		return 0
	}
	return got
}
