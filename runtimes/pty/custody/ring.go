//go:build linux

package custody

import (
	"errors"

	"golang.org/x/sys/unix"
)

// reserve is how much the pty reader may take in at once. That much of the ring is given up before
// the read, so that the kernel writes into memory no viewer is copied from.
const reserve = 64 << 10

// ring holds the newest output. Offsets count every byte the agent ever wrote. The memory is mapped,
// not allocated: pages that were never written cost nothing, and the garbage collector does not see it.
type ring struct {
	buf         []byte
	first, next uint64 // readable: first..next-1
}

func newRing(size int) (*ring, error) {
	buf, err := unix.Mmap(-1, 0, size+reserve, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.New("map output ring: " + err.Error())
	}
	_ = unix.Madvise(buf, unix.MADV_NOHUGEPAGE) // a huge page would be resident as a whole
	return &ring{buf: buf}, nil
}

// size returns how many bytes stay readable.
func (r *ring) size() uint64 { return uint64(len(r.buf)) - reserve }

// space gives up the oldest bytes and returns where to read new ones into: up to reserve bytes,
// fewer where the ring wraps.
func (r *ring) space() []byte {
	if r.next-r.first > r.size() {
		r.first = r.next - r.size()
	}
	at := int(r.next % uint64(len(r.buf)))
	return r.buf[at:min(at+reserve, len(r.buf))]
}

// put counts n bytes that were read into space.
func (r *ring) put(n int) { r.next += uint64(n) }

// view returns readable bytes from offset on, fewer where the ring wraps. The caller has checked that
// from is readable.
func (r *ring) view(from uint64, n int) []byte {
	at := int(from % uint64(len(r.buf)))
	n = min(n, int(r.next-from), len(r.buf)-at)
	return r.buf[at : at+n]
}

// copyOut copies readable bytes from offset on into p, over the wrap.
func (r *ring) copyOut(p []byte, from uint64) int {
	n := copy(p, r.view(from, len(p)))
	return n + copy(p[n:], r.view(from+uint64(n), len(p)-n))
}

// tail copies out up to n of the newest bytes.
func (r *ring) tail(n int) []byte {
	p := make([]byte, min(uint64(n), r.next-r.first))
	return p[:r.copyOut(p, r.next-uint64(len(p)))]
}
