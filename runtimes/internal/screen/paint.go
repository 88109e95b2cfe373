package screen

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// Snapshot is the picture at one place of the stream.
type Snapshot struct {
	Offset     uint64 // output from here on follows it
	Rows, Cols int
	Modes      terminal.Modes
	Data       []byte // paints a cleared terminal of that size
	Dirty      string // why it may be wrong
}

// catchUpMax bounds the work on output that was read already and is not yet drawn, for a snapshot.
const catchUpMax = 150 * time.Millisecond

// rewindMax is how far back a snapshot may send its reader for the beginning of the sequence under way: the
// seat's ring holds four times as much.
const rewindMax = 256 << 10

// Snapshot paints the picture as it is now. What was read and can be drawn at once is drawn first.
func (s *Screen) Snapshot() Snapshot {
	for began := s.cfg.CPU(); s.cfg.CPU()-began < catchUpMax; {
		if what, _ := decide(s.load(s.cfg.Now())); what != drawSome {
			break
		}
		s.Step()
	}
	out := Snapshot{Rows: s.rows, Cols: s.cols, Dirty: s.Dirty()}
	s.guard(func() { s.paint(&out) })
	return out
}

func (s *Screen) paint(out *Snapshot) {
	switch under := s.clean.under(); {
	case under > rewindMax:
		out.Offset, out.Dirty = s.drawn, "the output is inside a sequence that is too long"
	case under > 0 && s.clean.ran:
		out.Offset, out.Dirty = s.drawn-under, "the output is inside a sequence with controls in it"
	default:
		out.Offset = s.drawn - under
	}
	out.Modes = s.shown.Modes()
	for _, colors := range []bool{true, false} {
		p := painter{em: s.em, rows: s.rows, cols: s.cols, colors: colors}
		if out.Data = p.all(out.Modes, s.clean.insert); len(out.Data) <= SnapshotMax {
			return
		}
		if out.Dirty == "" {
			out.Dirty = "the screen is too large to be sent with its colours"
		}
	}
	out.Data, out.Dirty = nil, "the screen is too large to be sent"
}

// painter writes what draws a screen again.
type painter struct {
	em         emulator
	rows, cols int
	colors     bool
	out        []byte
	pen        pen
}

func (p *painter) add(format string, args ...any) { p.out = fmt.Appendf(p.out, format, args...) }

func (p *painter) use(to pen) {
	if !p.colors {
		to = pen{}
	}
	if to.sgr != p.pen.sgr {
		switch to.sgr {
		case "":
			p.out = append(p.out, "\x1b[m"...)
		default:
			p.out = append(append(append(p.out, "\x1b[0;"...), to.sgr...), 'm')
		}
	}
	if to.url != p.pen.url || to.linkParams != p.pen.linkParams {
		p.out = append(append(append(append(append(p.out, "\x1b]8;"...), to.linkParams...), ';'), to.url...), "\x1b\\"...)
	}
	p.pen = to
}

func (p *painter) move(row, col int) {
	p.out = append(p.out, esc, '[')
	p.out = strconv.AppendInt(p.out, int64(row+1), 10)
	p.out = append(p.out, ';')
	p.out = strconv.AppendInt(p.out, int64(col+1), 10)
	p.out = append(p.out, 'H')
}

// cells draws one screen.
func (p *painter) cells(screen int) {
	line := make([]cell, p.cols)
	for row := range p.rows {
		end := 0
		for col := range p.cols {
			line[col] = p.em.Cell(screen, row, col)
			if c := &line[col]; c.text != " " || c.pen != (pen{}) {
				end = col + 1
			}
		}
		if end == 0 {
			continue
		}
		p.move(row, 0)
		before := ""
		for col := 0; col < end; {
			blank := 0
			for col+blank < end && line[col+blank].text == " " && line[col+blank].pen == (pen{}) {
				blank++
			}
			if blank > 8 {
				p.add("\x1b[%dC", blank)
				col += blank
				before = ""
				continue
			}
			c := &line[col]
			col++
			if c.width == 0 && c.text == "" {
				continue
			}
			if c.text != "" && c.text[0] >= 0x80 && before != "" {
				// Two characters that came apart and would be joined: a movement keeps them apart.
				if n, _ := firstCluster([]byte(before + c.text)); n > len(before) {
					p.move(row, col-1)
				}
			}
			before = c.text
			p.use(c.pen)
			p.out = append(p.out, c.text...)
		}
	}
}

// all paints everything, for modes m. insert: the program left insert mode on.
func (p *painter) all(m terminal.Modes, insert bool) []byte {
	screen := 0
	if p.em.Alternate() {
		screen = 1
		p.cells(0)
		row, col, pen := p.em.Saved(0)
		p.move(row, col)
		p.use(pen)
		p.out = append(p.out, "\x1b7"...)
		row, col, pen = p.em.Rest()
		p.move(row, col)
		p.use(pen)
		// 1047 and not 1049, which would save the cursor over what the program saved.
		p.out = append(p.out, "\x1b[?1047h\x1b[H\x1b[m\x1b[2J"...)
		p.pen.sgr = ""
	}
	p.cells(screen)
	row, col, saved := p.em.Saved(screen)
	p.move(row, col)
	p.use(saved)
	p.out = append(p.out, "\x1b7"...)

	top, bottom := p.em.Margins()
	if top != 0 || bottom != p.rows-1 {
		p.add("\x1b[%d;%dr", top+1, bottom+1)
	} else {
		top = 0
	}
	row, col, wraps := p.em.Cursor()
	if m&terminal.OriginMode != 0 { // moves the cursor, and counts its rows from the region
		p.out = append(p.out, "\x1b[?6h"...)
		row = max(row-top, 0)
	}
	if wraps { // what stands in the last column is written again, so that the next character wraps
		at := col
		y, _, _ := p.em.Cursor()
		for at > 0 && p.em.Cell(screen, y, at).width == 0 {
			at--
		}
		c := p.em.Cell(screen, y, at)
		p.move(row, at)
		p.use(c.pen)
		p.out = append(p.out, c.text...)
	} else {
		p.move(row, col)
	}
	p.use(p.em.Pen())
	g, gl := p.em.Charsets()
	for i, set := range g {
		if set != 'B' {
			p.out = append(p.out, esc, "()*+"[i], set)
		}
	}
	switch gl {
	case 1:
		p.out = append(p.out, 0x0e)
	case 2:
		p.out = append(p.out, "\x1bn"...)
	case 3:
		p.out = append(p.out, "\x1bo"...)
	}
	if n := p.em.Shape(); n != 0 {
		p.add("\x1b[%d q", n)
	}
	rest := m &^ (terminal.AltScreen | terminal.SyncOutput | terminal.ScrollRegion | terminal.CursorShape | terminal.InsertMode | terminal.OriginMode)
	p.out = append(p.out, terminal.Apply(rest)...)
	if insert {
		p.out = append(p.out, "\x1b[4h"...)
	}
	return p.out
}
