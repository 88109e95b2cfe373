package manifest

import (
	"bytes"
	"fmt"
)

// What a TOML file may look like before it is decoded: the decoder takes time and memory by the square of
// the depth of a key, and its stack grows with nested values. A manifest that people write has 5 levels, and
// lines of a hundred bytes.
const (
	maxLine  = 16 << 10 // bytes
	maxDepth = 16       // of tables, arrays and parts of a key within each other
)

// CheckShape refuses a TOML text that costs more to decode than its size says. It says nothing about whether
// the text is valid: up to the first thing that is not, it reads as the decoder does.
func CheckShape(text []byte) error {
	n := 0
	for l := range bytes.Lines(text) {
		if n++; len(l) > maxLine {
			return fmt.Errorf("line %d: longer than %d bytes", n, maxLine)
		}
	}
	line := 1
	var outer []int    // depth around each open bracket
	base, dots := 0, 0 // depth around the innermost one, and of the key since
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			line, dots = line+1, 0
		case '\r':
			if i+1 < len(text) && text[i+1] != '\n' {
				return fmt.Errorf("line %d: a carriage return inside of a line: remove it", line)
			}
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' && text[i+1] != '\r' {
				i++
			}
		case '"', '\'':
			var lines int
			i, lines = skipString(text, i)
			line += lines
		case '[', '{':
			outer = append(outer, base)
			base, dots = base+dots+1, 0
		case ']', '}':
			if n := len(outer); n > 0 {
				base, dots = outer[n-1], 0
				outer = outer[:n-1]
			}
		case ',':
			dots = 0
		case '.':
			dots++
		}
		if base+dots > maxDepth {
			return fmt.Errorf("line %d: more than %d tables, arrays or parts of a key within each other", line, maxDepth)
		}
	}
	return nil
}

// skipString finds the last byte of the string that begins at i, and how many ends of lines are in it. One
// that has no end on its line ends before the end of the line, where the decoder refuses it.
func skipString(text []byte, i int) (end, lines int) {
	quote := text[i]
	run := func(at int) int {
		n := 0
		for at+n < len(text) && text[at+n] == quote {
			n++
		}
		return n
	}
	if run(i) < 3 {
		for i++; i < len(text); i++ {
			switch {
			case text[i] == '\n':
				return i - 1, 0
			case text[i] == '\\' && quote == '"' && i+1 < len(text) && text[i+1] != '\n':
				i++
			case text[i] == quote:
				return i, 0
			}
		}
		return len(text) - 1, 0
	}
	for i += 3; i < len(text); i++ {
		switch {
		case text[i] == '\n':
			lines++
		case text[i] == '\\' && quote == '"' && i+1 < len(text) && text[i+1] != '\n':
			i++
		case text[i] == quote:
			if n := min(run(i), 5); n >= 3 { // two may stand before the three that end it
				return i + n - 1, lines
			} else {
				i += n - 1
			}
		}
	}
	return len(text) - 1, lines
}
