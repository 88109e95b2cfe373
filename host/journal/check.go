package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// This file reads the format of a bbolt file without bbolt. bbolt trusts its pages: a truncated file
// is a bus error and a page number that points nowhere is a fault or an endless recursion, partly on
// goroutines nobody can recover for. So every page is looked at before bbolt sees the file. It costs
// well under a millisecond for a journal of usual size.

const (
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
	pageHeader   = 16
	elemSize     = 16
	noFreelist   = ^uint64(0)
	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10
	leafBucket   = 0x01
	maxPageSize  = 64 << 10
	maxDepth     = 32
	// maxCheck bounds what is read. A journal is a few hundred kilobytes; one of this size is no
	// journal.
	maxCheck = 1 << 30
)

type boltMeta struct {
	pageSize             uint32
	root, freelist, pgid uint64
	txid                 uint64
}

type checker struct {
	r    io.ReaderAt
	size int64
	meta boltMeta
	seen map[uint64]bool
}

// checkFile returns nil when every page that belongs to the newest state is readable and plausible.
func checkFile(r io.ReaderAt, size int64) error {
	if size > maxCheck {
		return fmt.Errorf("%d bytes is too large for a journal", size)
	}
	m, err := readMeta(r, size)
	if err != nil {
		return err
	}
	c := &checker{r: r, size: size, meta: m, seen: map[uint64]bool{0: true, 1: true}}
	if need := m.pgid * uint64(m.pageSize); m.pgid > maxCheck/uint64(m.pageSize) || need > uint64(size) {
		return fmt.Errorf("the file is truncated: it has %d bytes and needs %d", size, need)
	}
	if err := c.page(m.root, 0); err != nil {
		return err
	}
	return c.freelist()
}

// readMeta returns the newer of the two valid meta pages.
func readMeta(r io.ReaderAt, size int64) (boltMeta, error) {
	// The second meta page lies one page size in, and the page size may stand in it alone.
	var best boltMeta
	var firstErr error
	found := false
	for _, off := range []int64{0, 4096, 1024, 2048, 8192, 16384, 32768, 65536} {
		if off+pageHeader+64 > size {
			continue
		}
		m, err := parseMeta(r, off)
		if err == nil && off != 0 && off != int64(m.pageSize) {
			continue
		}
		if err != nil {
			if firstErr == nil {
				firstErr = err
			}
			continue
		}
		if !found || m.txid > best.txid {
			best, found = m, true
		}
	}
	if found {
		return best, nil
	}
	if firstErr == nil {
		firstErr = fmt.Errorf("the file is truncated: it has %d bytes", size)
	}
	return boltMeta{}, firstErr
}

func parseMeta(r io.ReaderAt, off int64) (boltMeta, error) {
	var b [pageHeader + 64]byte
	if _, err := r.ReadAt(b[:], off); err != nil {
		return boltMeta{}, fmt.Errorf("read meta page: %w", err)
	}
	le, p := binary.LittleEndian, b[pageHeader:]
	if le.Uint32(p) != boltMagic || le.Uint16(b[8:])&flagMeta == 0 {
		return boltMeta{}, errors.New("it is not a journal")
	}
	if v := le.Uint32(p[4:]); v != boltVersion {
		return boltMeta{}, fmt.Errorf("file format %d is not known", v)
	}
	h := fnv.New64a()
	h.Write(p[:56])
	if h.Sum64() != le.Uint64(p[56:]) {
		return boltMeta{}, errors.New("the checksum of a meta page is wrong")
	}
	m := boltMeta{
		pageSize: le.Uint32(p[8:]),
		root:     le.Uint64(p[16:]), freelist: le.Uint64(p[32:]), pgid: le.Uint64(p[40:]), txid: le.Uint64(p[48:]),
	}
	if m.pageSize < 1024 || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return boltMeta{}, fmt.Errorf("a page size of %d is not possible", m.pageSize)
	}
	return m, nil
}

// load reads one page with its overflow and claims the page numbers, so that nothing is reached twice.
func (c *checker) load(id uint64, want uint16) ([]byte, error) {
	if id < 2 || id >= c.meta.pgid {
		return nil, fmt.Errorf("page %d does not exist", id)
	}
	var h [pageHeader]byte
	if _, err := c.r.ReadAt(h[:], int64(id)*int64(c.meta.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	le := binary.LittleEndian
	if got := le.Uint64(h[:]); got != id {
		return nil, fmt.Errorf("page %d says it is page %d", id, got)
	}
	if flags := le.Uint16(h[8:]); flags&want == 0 || flags&(flags-1) != 0 {
		return nil, fmt.Errorf("page %d has the wrong type %#x", id, flags)
	}
	over := uint64(le.Uint32(h[12:]))
	if id+over >= c.meta.pgid {
		return nil, fmt.Errorf("page %d runs over the end", id)
	}
	for n := id; n <= id+over; n++ {
		if c.seen[n] {
			return nil, fmt.Errorf("page %d is used twice", n)
		}
		c.seen[n] = true
	}
	p := make([]byte, (over+1)*uint64(c.meta.pageSize))
	if _, err := c.r.ReadAt(p, int64(id)*int64(c.meta.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return p, nil
}

func (c *checker) page(id uint64, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d lies too deep", id)
	}
	p, err := c.load(id, flagBranch|flagLeaf)
	if err != nil {
		return err
	}
	if err := c.content(p, depth); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// content checks the elements of a branch or leaf page, or of a bucket stored inside a value.
func (c *checker) content(p []byte, depth int) error {
	le := binary.LittleEndian
	flags, count := le.Uint16(p[8:]), int(le.Uint16(p[10:]))
	if pageHeader+count*elemSize > len(p) {
		return errors.New("has more elements than room")
	}
	if flags&flagBranch != 0 && count == 0 {
		return errors.New("is an empty branch")
	}
	prev := ""
	for i := range count {
		at := pageHeader + i*elemSize
		e := p[at:]
		var pos, ksize, vsize uint64
		if flags&flagBranch != 0 {
			pos, ksize = uint64(le.Uint32(e)), uint64(le.Uint32(e[4:]))
		} else {
			pos, ksize, vsize = uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		}
		start := uint64(at) + pos
		if start+ksize+vsize > uint64(len(p)) {
			return fmt.Errorf("element %d lies outside", i)
		}
		key := string(p[start : start+ksize])
		if i > 0 && key <= prev {
			return fmt.Errorf("element %d is out of order", i)
		}
		prev = key
		if flags&flagBranch != 0 {
			if err := c.page(le.Uint64(e[8:]), depth+1); err != nil {
				return err
			}
			continue
		}
		if le.Uint32(e)&leafBucket != 0 {
			if err := c.bucket(p[start+ksize:start+ksize+vsize], depth+1); err != nil {
				return fmt.Errorf("bucket %q: %w", key, err)
			}
		}
	}
	return nil
}

func (c *checker) bucket(v []byte, depth int) error {
	if len(v) < 16 {
		return errors.New("has no header")
	}
	if root := binary.LittleEndian.Uint64(v); root != 0 {
		return c.page(root, depth)
	}
	inline := v[16:]
	if depth > maxDepth || len(inline) < pageHeader || binary.LittleEndian.Uint16(inline[8:]) != flagLeaf {
		return errors.New("has no content")
	}
	return c.content(inline, depth)
}

// freelist checks that no page counts as free that is in use: writing would overwrite it.
func (c *checker) freelist() error {
	if c.meta.freelist == noFreelist {
		return nil
	}
	p, err := c.load(c.meta.freelist, flagFreelist)
	if err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	le := binary.LittleEndian
	count, at := uint64(le.Uint16(p[10:])), uint64(pageHeader)
	if count == 0xFFFF {
		count, at = le.Uint64(p[at:]), at+8
	}
	if count > (uint64(len(p))-at)/8 {
		return errors.New("free list: has more entries than room")
	}
	for i := range count {
		id := le.Uint64(p[at+8*i:])
		if id < 2 || id >= c.meta.pgid {
			return fmt.Errorf("free list: page %d does not exist", id)
		}
		if c.seen[id] {
			return fmt.Errorf("free list: page %d is in use", id)
		}
		c.seen[id] = true
	}
	return nil
}
