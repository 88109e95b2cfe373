package seat

import (
	"encoding/binary"
	"errors"
)

// dec reads big-endian fields and remembers the first shortage, so that a decoder is a flat list.
type dec struct {
	p   []byte
	bad bool
}

func (d *dec) take(n int) []byte {
	if d.bad || n < 0 || len(d.p) < n {
		d.bad = true
		return nil
	}
	out := d.p[:n:n]
	d.p = d.p[n:]
	return out
}

func (d *dec) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *dec) u16() uint16 {
	if b := d.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (d *dec) u32() uint32 {
	if b := d.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *dec) u64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *dec) bool() bool      { return d.u8() != 0 }
func (d *dec) str8() string    { return string(d.take(int(d.u8()))) }
func (d *dec) str16() string   { return string(d.take(int(d.u16()))) }
func (d *dec) bytes32() []byte { return append([]byte(nil), d.take(int(d.u32()))...) }
func (d *dec) str32() string   { return string(d.take(int(d.u32()))) }

// list32 reads a count and that many strings. Every string costs at least its length word, which
// bounds the count before anything is allocated.
func (d *dec) list32() []string {
	n := int(d.u32())
	if d.bad || n > len(d.p)/4 {
		d.bad = true
		return nil
	}
	if n == 0 {
		return nil
	}
	out := make([]string, 0, n)
	for range n {
		out = append(out, d.str32())
	}
	return out
}

func (d *dec) err(what string) error {
	if d.bad {
		return errors.New("decode " + what + ": too short")
	}
	return nil
}

func put16(b []byte, v uint16) []byte { return binary.BigEndian.AppendUint16(b, v) }
func put32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }
func put64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func putStr8(b []byte, s string) []byte {
	s = cut(s, 255)
	return append(append(b, byte(len(s))), s...)
}

func putStr16(b []byte, s string) []byte {
	s = cut(s, 65535)
	return append(put16(b, uint16(len(s))), s...)
}

func putStr32(b []byte, s string) []byte { return append(put32(b, uint32(len(s))), s...) }

func putList32(b []byte, list []string) []byte {
	b = put32(b, uint32(len(list)))
	for _, s := range list {
		b = putStr32(b, s)
	}
	return b
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
