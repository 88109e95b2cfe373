package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of any JSON this package reads.
const maxDepth = 128

type kind uint8

const (
	kindNull kind = iota
	kindFalse
	kindTrue
	kindNumber
	kindString
	kindArray
	kindObject
)

func (k kind) String() string {
	return [...]string{"null", "a boolean", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// node is a parsed JSON value. raw is the slice of the input it was read from.
type node struct {
	kind    kind
	raw     []byte
	str     string // kindString
	num     float64
	members []member // kindObject, in input order
	items   []node   // kindArray
}

type member struct {
	name  string
	value node
}

func (n *node) get(name string) *node {
	for i := range n.members {
		if n.members[i].name == name {
			return &n.members[i].value
		}
	}
	return nil
}

// parseJSON reads one I-JSON text (RFC 7493): valid UTF-8, no lone surrogate, no duplicate member
// name, every number within the range of a double. encoding/json accepts all of those silently
// (and matches member names without regard to case), which would give two readers of one
// request two meanings.
func parseJSON(p []byte) (node, error) { return parseEnvelope(p, "") }

// parseEnvelope is parseJSON, but the value of the member carried of the outermost object is looked at only: it has
// kind and raw, no members and no items. The same texts are refused. It is for a payload that is handed on as
// text, of which a tree would cost more than everything else about the message.
func parseEnvelope(p []byte, carried string) (node, error) {
	d := &jsonReader{p: p, carried: carried}
	d.space()
	n, err := d.value(0)
	if err != nil {
		return node{}, err
	}
	d.space()
	if d.i != len(p) {
		return node{}, d.fail("more text behind the value")
	}
	return n, nil
}

type jsonReader struct {
	p       []byte
	i       int
	carried string // member of the outermost object that is looked at only; "" for none
}

func (d *jsonReader) fail(why string) error {
	return fmt.Errorf("invalid JSON at byte %d: %s", d.i, why)
}

func (d *jsonReader) space() {
	for d.i < len(d.p) {
		switch d.p[d.i] {
		case ' ', '\t', '\r', '\n':
			d.i++
		default:
			return
		}
	}
}

func (d *jsonReader) peek() byte {
	if d.i < len(d.p) {
		return d.p[d.i]
	}
	return 0
}

func (d *jsonReader) value(depth int) (node, error) {
	if depth > maxDepth {
		return node{}, d.fail(fmt.Sprintf("nested deeper than %d", maxDepth))
	}
	start := d.i
	var n node
	var err error
	switch c := d.peek(); {
	case c == '{':
		n, err = d.object(depth)
	case c == '[':
		n, err = d.array(depth)
	case c == '"':
		n.kind = kindString
		n.str, err = d.string()
	case c == '-' || isDigit(c):
		n.kind = kindNumber
		n.num, err = d.number()
	case d.word("true"):
		n.kind = kindTrue
	case d.word("false"):
		n.kind = kindFalse
	case d.word("null"):
		n.kind = kindNull
	case d.i >= len(d.p):
		err = d.fail("the text ends early")
	default:
		err = d.fail(fmt.Sprintf("unexpected %q", c))
	}
	if err != nil {
		return node{}, err
	}
	n.raw = d.p[start:d.i]
	return n, nil
}

func (d *jsonReader) word(w string) bool {
	if len(d.p)-d.i >= len(w) && string(d.p[d.i:d.i+len(w)]) == w {
		d.i += len(w)
		return true
	}
	return false
}

func (d *jsonReader) object(depth int) (node, error) {
	n := node{kind: kindObject}
	d.i++
	d.space()
	if d.peek() == '}' {
		d.i++
		return n, nil
	}
	var seen map[string]struct{} // only for large objects; a scan is faster for small ones
	for {
		if d.peek() != '"' {
			return n, d.fail("a member name is expected")
		}
		name, err := d.string()
		if err != nil {
			return n, err
		}
		dup := false
		if seen != nil {
			_, dup = seen[name]
		} else {
			dup = n.get(name) != nil
		}
		if dup {
			return n, d.fail(fmt.Sprintf("member %q appears twice", name))
		}
		d.space()
		if d.peek() != ':' {
			return n, d.fail("a colon is expected")
		}
		d.i++
		d.space()
		var v node
		if depth == 0 && d.carried != "" && name == d.carried {
			v, err = d.look()
		} else {
			v, err = d.value(depth + 1)
		}
		if err != nil {
			return n, err
		}
		n.members = append(n.members, member{name, v})
		if seen != nil {
			seen[name] = struct{}{}
		} else if len(n.members) == 32 {
			seen = make(map[string]struct{}, 64)
			for i := range n.members {
				seen[n.members[i].name] = struct{}{}
			}
		}
		d.space()
		switch d.peek() {
		case ',':
			d.i++
			d.space()
		case '}':
			d.i++
			return n, nil
		default:
			return n, d.fail("a comma or } is expected")
		}
	}
}

func (d *jsonReader) array(depth int) (node, error) {
	n := node{kind: kindArray}
	d.i++
	d.space()
	if d.peek() == ']' {
		d.i++
		return n, nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return n, err
		}
		n.items = append(n.items, v)
		d.space()
		switch d.peek() {
		case ',':
			d.i++
			d.space()
		case ']':
			d.i++
			return n, nil
		default:
			return n, d.fail("a comma or ] is expected")
		}
	}
}

func (d *jsonReader) number() (float64, error) {
	start := d.i
	if d.peek() == '-' {
		d.i++
	}
	digits := func() int {
		n := 0
		for isDigit(d.peek()) {
			d.i++
			n++
		}
		return n
	}
	first := d.peek()
	whole := digits()
	if whole == 0 || whole > 1 && first == '0' {
		return 0, d.fail("malformed number")
	}
	if c := d.peek(); whole < 16 && c != '.' && c != 'e' && c != 'E' { // exact, and by far the most
		var n int64
		for _, c := range d.p[d.i-whole : d.i] {
			n = n*10 + int64(c-'0')
		}
		if d.p[start] == '-' {
			return -float64(n), nil
		}
		return float64(n), nil
	}
	if d.peek() == '.' {
		d.i++
		if digits() == 0 {
			return 0, d.fail("malformed number")
		}
	}
	if c := d.peek(); c == 'e' || c == 'E' {
		d.i++
		if c := d.peek(); c == '+' || c == '-' {
			d.i++
		}
		if digits() == 0 {
			return 0, d.fail("malformed number")
		}
	}
	f, err := strconv.ParseFloat(string(d.p[start:d.i]), 64)
	if err != nil || math.IsInf(f, 0) {
		return 0, d.fail("number out of range")
	}
	return f, nil
}

// string reads a string; the current byte is its opening quote.
func (d *jsonReader) string() (string, error) {
	d.i++
	start := d.i
	d.i += plainBytes(d.p[start:])
	for d.i < len(d.p) { // fast path: no escape, ASCII
		switch c := d.p[d.i]; {
		case c == '"':
			s := string(d.p[start:d.i])
			d.i++
			return s, nil
		case c == '\\' || c >= utf8.RuneSelf:
			return d.slowString(start)
		case c < 0x20:
			return "", d.fail("control character in a string")
		}
		d.i++
	}
	return "", d.fail("unterminated string")
}

// plainBytes counts bytes at the start of p that stand for themselves in a string, by eights: texts are up to 64 KiB
// long.
func plainBytes(p []byte) (n int) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; len(p)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(p[n:])
		quote, escape := w^ones*'"', w^ones*'\\'
		if (w|(w-ones*0x20)|(quote-ones)|(escape-ones))&highs != 0 {
			return n
		}
	}
	return n
}

func (d *jsonReader) slowString(start int) (string, error) {
	buf := append([]byte(nil), d.p[start:d.i]...)
	for d.i < len(d.p) {
		c := d.p[d.i]
		switch {
		case c == '"':
			d.i++
			return string(buf), nil
		case c < 0x20:
			return "", d.fail("control character in a string")
		case c == '\\':
			r, err := d.escape()
			if err != nil {
				return "", err
			}
			buf = utf8.AppendRune(buf, r)
		case c < utf8.RuneSelf:
			n := max(1, plainBytes(d.p[d.i:]))
			buf = append(buf, d.p[d.i:d.i+n]...)
			d.i += n
		default:
			r, size := utf8.DecodeRune(d.p[d.i:])
			if r == utf8.RuneError && size == 1 {
				return "", d.fail("invalid UTF-8")
			}
			buf = append(buf, d.p[d.i:d.i+size]...)
			d.i += size
		}
	}
	return "", d.fail("unterminated string")
}

func (d *jsonReader) escape() (rune, error) {
	d.i++
	c := d.peek()
	d.i++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
	default:
		return 0, d.fail("malformed escape")
	}
	r, ok := d.hex4()
	if !ok {
		return 0, d.fail("malformed escape")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if d.word(`\u`) {
		if low, ok := d.hex4(); ok {
			if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
				return full, nil
			}
		}
	}
	return 0, d.fail("lone surrogate")
}

func (d *jsonReader) hex4() (rune, bool) {
	if len(d.p)-d.i < 4 {
		return 0, false
	}
	var r rune
	for _, c := range d.p[d.i : d.i+4] {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	d.i += 4
	return r, true
}

var errNotObject = errors.New("is not a JSON object")
