package screen

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

type queryKind int

// The questions that are answered. All others are left to the silence that an older terminal keeps.
const (
	askDA1 queryKind = iota
	askDA2
	askStatus     // CSI 5 n
	askCursor     // CSI 6 n
	askCursorDEC  // CSI ? 6 n
	askScheme     // CSI ? 996 n: light or dark
	askMode       // DECRQM of an ANSI mode
	askModeDEC    // DECRQM of a private mode
	askPixels     // CSI 14 t
	askCellPixels // CSI 16 t
	askSize       // CSI 18 t, 19 t
	askKitty      // CSI ? u
	askVersion    // XTVERSION
	askColor      // OSC 10, 11, 12
	askPalette    // OSC 4
	askTermcap    // XTGETTCAP
	askSetting    // DECRQSS
)

// What a cell is said to measure, pixels: programs work out the size of pictures from it.
const (
	cellHigh = 20
	cellWide = 10
)

func csiQuery(q csiSeq) (query, bool) {
	p := q.param(0, 0)
	switch {
	case q.final == 'c' && q.inter == 0 && p == 0 && q.prefix == 0:
		return query{kind: askDA1}, true
	case q.final == 'c' && q.inter == 0 && p == 0 && q.prefix == '>':
		return query{kind: askDA2}, true
	case q.final == 'n' && q.inter == 0 && q.prefix == 0 && p == 5:
		return query{kind: askStatus}, true
	case q.final == 'n' && q.inter == 0 && q.prefix == 0 && p == 6:
		return query{kind: askCursor}, true
	case q.final == 'n' && q.inter == 0 && q.prefix == '?' && p == 6:
		return query{kind: askCursorDEC}, true
	case q.final == 'n' && q.inter == 0 && q.prefix == '?' && p == 996:
		return query{kind: askScheme}, true
	case q.final == 'p' && q.inter == '$' && q.prefix == 0:
		return query{kind: askMode, n: p}, true
	case q.final == 'p' && q.inter == '$' && q.prefix == '?':
		return query{kind: askModeDEC, n: p}, true
	case q.final == 't' && q.inter == 0 && q.prefix == 0 && p == 14:
		return query{kind: askPixels}, true
	case q.final == 't' && q.inter == 0 && q.prefix == 0 && p == 16:
		return query{kind: askCellPixels}, true
	case q.final == 't' && q.inter == 0 && q.prefix == 0 && (p == 18 || p == 19):
		return query{kind: askSize, n: p - 10}, true
	case q.final == 'u' && q.inter == 0 && q.prefix == '?':
		return query{kind: askKitty}, true
	case q.final == 'q' && q.inter == 0 && q.prefix == '>' && p == 0:
		return query{kind: askVersion}, true
	}
	return query{}, false
}

// stringQuery reads an OSC or DCS; p is what stands behind its introducer.
func stringQuery(kind byte, p []byte, belled bool) (query, bool) {
	end := "\x1b\\"
	if belled {
		end = "\x07"
	}
	switch {
	case kind == ']':
		num, rest, _ := bytes.Cut(p, []byte{';'})
		n, err := strconv.Atoi(string(num))
		switch {
		case err != nil:
		case n >= 10 && n <= 12 && string(rest) == "?":
			return query{kind: askColor, n: n, text: end}, true
		case n == 4:
			index, what, _ := bytes.Cut(rest, []byte{';'})
			if i, err := strconv.Atoi(string(index)); err == nil && i >= 0 && i < 256 && string(what) == "?" {
				return query{kind: askPalette, n: i, text: end}, true
			}
		}
	case kind == 'P' && bytes.HasPrefix(p, []byte("+q")):
		return query{kind: askTermcap, text: string(p[2:])}, true
	case kind == 'P' && bytes.HasPrefix(p, []byte("$q")):
		return query{kind: askSetting, text: string(p[2:])}, true
	}
	return query{}, false
}

// answer is what the terminal says to q.
func (s *Screen) answer(q query) string {
	switch q.kind {
	case askDA1:
		return "\x1b[?62;22c"
	case askDA2:
		return "\x1b[>1;10;0c"
	case askStatus:
		return "\x1b[0n"
	case askCursor, askCursorDEC:
		row, col, _ := s.em.Cursor()
		if q.modes&terminal.OriginMode != 0 {
			top, _ := s.em.Margins()
			row = max(row-top, 0)
		}
		at := strconv.Itoa(row+1) + ";" + strconv.Itoa(col+1)
		if q.kind == askCursorDEC {
			return "\x1b[?" + at + ";1R"
		}
		return "\x1b[" + at + "R"
	case askScheme:
		return "\x1b[?997;1n"
	case askMode:
		return "\x1b[" + strconv.Itoa(q.n) + ";" + setting(q.modes, q.n, "") + "$y"
	case askModeDEC:
		return "\x1b[?" + strconv.Itoa(q.n) + ";" + setting(q.modes, q.n, "?") + "$y"
	case askPixels:
		return "\x1b[4;" + strconv.Itoa(s.rows*cellHigh) + ";" + strconv.Itoa(s.cols*cellWide) + "t"
	case askCellPixels:
		return "\x1b[6;" + strconv.Itoa(cellHigh) + ";" + strconv.Itoa(cellWide) + "t"
	case askSize:
		return "\x1b[" + strconv.Itoa(q.n) + ";" + strconv.Itoa(s.rows) + ";" + strconv.Itoa(s.cols) + "t"
	case askKitty:
		return "\x1b[?" + strconv.Itoa(q.modes.KittyFlags()) + "u"
	case askVersion:
		return "\x1bP>|cotal(1)\x1b\\"
	case askColor:
		return "\x1b]" + strconv.Itoa(q.n) + ";" + s.em.Color(q.n) + q.text
	case askPalette:
		return "\x1b]4;" + strconv.Itoa(q.n) + ";" + paletteColor(q.n) + q.text
	case askTermcap:
		return termcap(q.text)
	case askSetting:
		return "\x1bP0$r\x1b\\"
	}
	return ""
}

// setting is the DECRQM value of a mode: 0 not known, 1 set, 2 reset.
func setting(now terminal.Modes, n int, mark string) string {
	for _, on := range []bool{true, false} {
		letter := "l"
		if on {
			letter = "h"
		}
		var s terminal.ModeScanner
		s.Write([]byte("\x1b[" + mark + strconv.Itoa(n) + letter))
		switch bit := s.Modes(); {
		case bit == 0:
		case now&bit != 0 == on:
			return "1"
		default:
			return "2"
		}
	}
	return "0"
}

// termcap answers XTGETTCAP: hex names, one reply for all.
func termcap(names string) string {
	known := map[string]string{"TN": "xterm-256color", "Co": "256", "colors": "256", "RGB": "8/8/8"}
	var out strings.Builder
	for name := range strings.SplitSeq(names, ";") {
		raw, err := hex.DecodeString(name)
		value, ok := known[string(raw)]
		switch {
		case err != nil: // nothing of it is typed back into the program
			return "\x1bP0+r\x1b\\"
		case !ok:
			return "\x1bP0+r" + name + "\x1b\\"
		}
		if out.Len() > 0 {
			out.WriteByte(';')
		}
		out.WriteString(name + "=" + strings.ToUpper(hex.EncodeToString([]byte(value))))
	}
	return "\x1bP1+r" + out.String() + "\x1b\\"
}
