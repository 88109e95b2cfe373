package manifest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// The TOML library gives no position for what it decoded. lineIndex finds keys again in the text,
// for messages only: what it cannot find is named without a line.
type lineIndex struct {
	entries []int            // line of each [[plugin]] header
	fields  []map[string]int // per entry: line of each key and sub-table
	tops    map[string]int   // lines of keys and tables outside of entries
}

func scanLines(text string) lineIndex {
	idx := lineIndex{tops: map[string]int{}}
	table, inString := "", ""
	for i, line := range strings.Split(text, "\n") {
		if inString != "" {
			if strings.Contains(line, inString) {
				inString = ""
			}
			continue
		}
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#':
		case trimmed[0] == '[':
			table = cleanKey(strings.TrimLeft(trimmed, "["))
			if table == "plugin" && strings.HasPrefix(trimmed, "[[") {
				idx.entries = append(idx.entries, i+1)
				idx.fields = append(idx.fields, map[string]int{})
			} else {
				idx.note(table, i+1)
			}
		default:
			key, value, ok := strings.Cut(trimmed, "=")
			if !ok {
				continue
			}
			key = cleanKey(key)
			if table != "" {
				key = table + "." + key
			}
			idx.note(key, i+1)
			for _, q := range []string{`"""`, `'''`} {
				if strings.Count(value, q) == 1 {
					inString = q
				}
			}
		}
	}
	return idx
}

func (idx *lineIndex) note(key string, line int) {
	into := idx.tops
	if rest, ok := strings.CutPrefix(key, "plugin."); ok && len(idx.fields) > 0 {
		into, key = idx.fields[len(idx.fields)-1], rest
	}
	key, _, _ = strings.Cut(key, ".")
	if _, ok := into[key]; !ok {
		into[key] = line
	}
}

// cleanKey strips what surrounds a key or the name in a table header.
func cleanKey(s string) string {
	s, _, _ = strings.Cut(s, "]")
	parts := strings.Split(s, ".")
	for i, p := range parts {
		parts[i] = strings.Trim(strings.TrimSpace(p), `"'`)
	}
	return strings.Join(parts, ".")
}

// top is the position of a key outside of entries, ready to stand before a message.
func (idx lineIndex) top(key string) string {
	if n, ok := idx.tops[key]; ok {
		return fmt.Sprintf("line %d: ", n)
	}
	return ""
}

// entry names one [[plugin]] table by number and name, and the line of its field or header.
func (idx lineIndex) entry(i int, name, field string) string {
	out := fmt.Sprintf("entry %d", i+1)
	if name != "" {
		out += fmt.Sprintf(" (%s)", strings.Trim(quote(name), `"`))
	}
	if i < len(idx.entries) {
		line := idx.entries[i]
		if n, ok := idx.fields[i][field]; ok {
			line = n
		}
		out = fmt.Sprintf("line %d: %s", line, out)
	}
	return out
}

// decodeError puts the position first and keeps to one line.
func decodeError(err error) error {
	var pe toml.ParseError
	if errors.As(err, &pe) {
		msg := pe.Message
		if msg == "" {
			msg = strings.TrimPrefix(pe.Error(), "toml: ")
		}
		if pe.LastKey != "" && !strings.Contains(msg, pe.LastKey) {
			msg = pe.LastKey + ": " + msg
		}
		return fmt.Errorf("line %d: not valid: %s", pe.Position.Line, oneLine(msg))
	}
	return fmt.Errorf("not valid: %s", oneLine(strings.TrimPrefix(err.Error(), "toml: ")))
}

func oneLine(s string) string {
	return shorten(strings.Join(strings.Fields(s), " "))
}
