package wire

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
)

// Base64 of terminal bytes, which is the dearest part of a frame: twice as fast as the standard library for long
// runs, and the same to the byte. What does not fit the fast path is the library's.

const base64Alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// base64Pairs are the two characters of 12 bits, the first one in the low byte.
var base64Pairs = func() (t [4096]uint16) {
	for i := range t {
		t[i] = uint16(base64Alphabet[i>>6]) | uint16(base64Alphabet[i&63])<<8
	}
	return t
}()

// base64Bad marks a character that is not of the alphabet.
const base64Bad = 1 << 31

// base64Bits are the bits of a character at each of the four places of a group.
var base64Bits = func() (t [4][256]uint32) {
	for place := range t {
		for c := range t[place] {
			t[place][c] = base64Bad
		}
		for bits, c := range []byte(base64Alphabet) {
			t[place][c] = uint32(bits) << (18 - 6*place)
		}
	}
	return t
}()

// appendBase64 appends the standard base64 of p.
func appendBase64(dst, p []byte) []byte {
	n := base64.StdEncoding.EncodedLen(len(p))
	start := len(dst)
	dst = slices.Grow(dst, n)[:start+n]
	out := dst[start:]
	for len(p) >= 8 && len(out) >= 8 {
		v := binary.BigEndian.Uint64(p) // of which six bytes are taken
		binary.LittleEndian.PutUint64(out, uint64(base64Pairs[v>>52])|uint64(base64Pairs[v>>40&0xfff])<<16|
			uint64(base64Pairs[v>>28&0xfff])<<32|uint64(base64Pairs[v>>16&0xfff])<<48)
		p, out = p[6:], out[8:]
	}
	base64.StdEncoding.Encode(out, p)
	return dst
}

// appendUnbase64 appends what text is the standard base64 of, strictly, as the library does: the last group too has
// to be as it is written. Line breaks, which the library skips, are the caller's to refuse.
func appendUnbase64(dst, text []byte) ([]byte, error) {
	start := len(dst)
	n := base64.StdEncoding.DecodedLen(len(text)) + 8 // eight bytes are written for six
	dst = slices.Grow(dst, n)
	out := dst[start : start+n]
	done := 0
	for len(text) > 8 { // the end, with its padding, is the library's
		a := base64Bits[0][text[0]] | base64Bits[1][text[1]] | base64Bits[2][text[2]] | base64Bits[3][text[3]]
		b := base64Bits[0][text[4]] | base64Bits[1][text[5]] | base64Bits[2][text[6]] | base64Bits[3][text[7]]
		if (a|b)&base64Bad != 0 {
			break
		}
		binary.BigEndian.PutUint64(out[done:], uint64(a)<<40|uint64(b)<<16)
		text, done = text[8:], done+6
	}
	return base64.StdEncoding.Strict().AppendDecode(dst[:start+done], text)
}
