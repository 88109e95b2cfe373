package wire

import (
	"bytes"
	"unicode/utf8"
)

// A payload may be large and is handed on as it is. What follows holds it to the rules of parseJSON and keeps
// nothing of it.

// look reads one value of the outermost object: its kind and its text.
func (d *jsonReader) look() (node, error) {
	var n node
	switch c := d.peek(); c {
	case '{':
		n.kind = kindObject
	case '[':
		n.kind = kindArray
	default:
		return d.value(1)
	}
	start := d.i
	names := make([][]byte, 0, 64)
	if err := d.skip(1, &names); err != nil {
		return node{}, err
	}
	n.raw = d.p[start:d.i]
	return n, nil
}

// skip passes one value. names is a stack: those of the objects around the value, which it leaves as it was.
func (d *jsonReader) skip(depth int, names *[][]byte) error {
	switch c := d.peek(); c {
	case '{', '[':
		if depth > maxDepth {
			break // value says what is wrong
		}
		return d.skipItems(depth, names, c == '{')
	case '"':
		_, err := d.passString()
		return err
	}
	_, err := d.value(depth)
	return err
}

// skipItems passes an object or an array; the current byte opens it.
func (d *jsonReader) skipItems(depth int, names *[][]byte, object bool) error {
	end := byte(']')
	if object {
		end = '}'
	}
	own := len(*names)
	var seen map[string]struct{} // only for large objects
	d.i++
	d.space()
	if d.peek() == end {
		d.i++
		return nil
	}
	for {
		if object {
			var err error
			if seen, err = d.skipName(own, names, seen); err != nil {
				return err
			}
		}
		if err := d.skip(depth+1, names); err != nil {
			return err
		}
		d.space()
		switch d.peek() {
		case ',':
			d.i++
			d.space()
		case end:
			d.i++
			*names = (*names)[:own]
			return nil
		default:
			return d.fail("a comma or " + string(end) + " is expected")
		}
	}
}

// skipName passes the name of a member and the colon, and refuses a name that the object has already.
func (d *jsonReader) skipName(own int, names *[][]byte, seen map[string]struct{}) (map[string]struct{}, error) {
	if d.peek() != '"' {
		return seen, d.fail("a member name is expected")
	}
	name, err := d.passString()
	if err != nil {
		return seen, err
	}
	dup := false
	if seen != nil {
		if _, dup = seen[string(name)]; !dup {
			seen[string(name)] = struct{}{}
		}
	} else {
		for _, other := range (*names)[own:] {
			dup = dup || bytes.Equal(name, other)
		}
		*names = append(*names, name)
		if len(*names)-own == 32 {
			seen = make(map[string]struct{}, 64)
			for _, other := range (*names)[own:] {
				seen[string(other)] = struct{}{}
			}
		}
	}
	if dup {
		return seen, d.fail("member \"" + string(name) + "\" appears twice")
	}
	d.space()
	if d.peek() != ':' {
		return seen, d.fail("a colon is expected")
	}
	d.i++
	d.space()
	return seen, nil
}

// passString passes a string and returns what it says: a piece of the text when nothing in it is escaped.
func (d *jsonReader) passString() ([]byte, error) {
	start := d.i + 1
	for i := start + plainBytes(d.p[start:]); i < len(d.p); i++ {
		switch c := d.p[i]; {
		case c == '"':
			d.i = i + 1
			return d.p[start:i], nil
		case c == '\\' || c >= utf8.RuneSelf || c < 0x20: // rare; string reads it from the beginning
			s, err := d.string()
			return []byte(s), err
		}
	}
	_, err := d.string()
	return nil, err
}
