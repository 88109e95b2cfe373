package mirror

import (
	"sync/atomic"
	"unsafe"
)

// The shared page says, for each of its slots, which bytes are being drawn. It is written with plain
// stores and read after the death of the writer, whatever it died of.
const (
	pageSlots = 128
	pageSize  = pageSlots * 16
)

type page []byte

func (p page) word(slot, i int) *uint64 {
	return (*uint64)(unsafe.Pointer(&p[(slot%pageSlots)*16+i*8]))
}

func (p page) set(slot int, from, to uint64) {
	if p == nil {
		return
	}
	atomic.StoreUint64(p.word(slot, 0), from)
	atomic.StoreUint64(p.word(slot, 1), to)
}

func (p page) get(slot int) (from, to uint64) {
	if p == nil {
		return 0, 0
	}
	return atomic.LoadUint64(p.word(slot, 0)), atomic.LoadUint64(p.word(slot, 1))
}

// pageFD is the descriptor at which the worker finds the page.
const pageFD = 3
