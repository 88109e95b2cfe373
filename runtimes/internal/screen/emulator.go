package screen

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unsafe"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
)

// This file is the only one that knows the emulator library. What it lacks for a mirror is looked up in
// its unexported fields by name and type, once; a version that has others is refused by newVT (and by a
// test), never read at a guess.

// emulator is a terminal of a fixed size that draws what it is written. It is used by one goroutine at a
// time, may panic, and is then thrown away.
type emulator interface {
	// Write draws p: whole sequences and whole characters, parameters within bounds (see cleaner).
	Write(p []byte)
	// WriteWide draws one character that is two columns wide.
	WriteWide(p []byte)
	Resize(rows, cols int)
	// Cursor is the position, both from 0, and whether the next character wraps first.
	Cursor() (row, col int, wraps bool)
	// Pen is what the next character is drawn with.
	Pen() pen
	// Saved is the cursor that ESC 7 saved on the main (0) or the alternate screen (1).
	Saved(screen int) (row, col int, p pen)
	// Rest is the main screen's cursor while the alternate one is shown.
	Rest() (row, col int, p pen)
	// Margins are the first and the last row of the scroll region, from 0.
	Margins() (top, bottom int)
	Alternate() bool
	// Switch shows the alternate screen, emptied, or the main one. The cursor stays where it is.
	Switch(alternate bool)
	// Fill puts a character one column wide everywhere, without colours.
	Fill(text string)
	// Cell is a cell of the main (0) or the alternate screen (1). Width 0 is the rest of a wide character.
	Cell(screen, row, col int) cell
	// Charsets are the designators of G0 to G3 ('B', '0', 'A') and which of them is in use.
	Charsets() (g [4]byte, gl int)
	// Shape is the parameter of DECSCUSR in force, 0 for the terminal's own.
	Shape() int
	// Color is a default colour as set by the program (10 text, 11 background, 12 cursor), as OSC text.
	Color(which int) string
	Close()
}

// pen is how a character is drawn: the parameters of an SGR sequence behind a 0, and a hyperlink.
type pen struct {
	sgr, url, linkParams string
	over                 bool // a line above, which sgr has too
}

// overMark stands before the parameters of a link where there is a line above, which the library has no place
// for: a link is kept with every cell and with every cursor.
const overMark = "line-above=1:"

// cell is one place of the screen.
type cell struct {
	text  string
	width int
	pen   pen
}

// parserBytes is how much of one string sequence the emulator keeps. Its default is 4 MiB a terminal.
const parserBytes = 8 << 10

type vtEmulator struct {
	e      *vt.Emulator
	reader chan struct{} // closed when nobody reads replies any more
	scrs   *[2]vt.Screen
	bufs   [2]**uv.RenderBuffer
	curs   [2]*vt.Cursor
	saved  [2]*vt.Cursor
	phant  *bool
	sets   *[4]vt.CharSet
	gl     *int
}

// field finds an unexported field and checks its type.
func field[T any](of reflect.Value, name string) (*T, error) {
	f := of.FieldByName(name)
	if !f.IsValid() || f.Type() != reflect.TypeFor[T]() {
		return nil, fmt.Errorf("the terminal emulator has no field %s of type %s", name, reflect.TypeFor[T]())
	}
	return (*T)(unsafe.Pointer(f.UnsafeAddr())), nil
}

// newVT makes an emulator. The error is for a library of another shape only.
func newVT(rows, cols int) (_ emulator, err error) {
	v := &vtEmulator{e: vt.NewEmulator(cols, rows), reader: make(chan struct{})}
	of := reflect.ValueOf(v.e).Elem()
	parser, err := field[*ansi.Parser](of, "parser")
	if err != nil {
		return nil, err
	}
	(*parser).SetDataSize(parserBytes)
	if v.scrs, err = field[[2]vt.Screen](of, "scrs"); err != nil {
		return nil, err
	}
	if v.phant, err = field[bool](of, "atPhantom"); err != nil {
		return nil, err
	}
	if v.sets, err = field[[4]vt.CharSet](of, "charsets"); err != nil {
		return nil, err
	}
	if v.gl, err = field[int](of, "gl"); err != nil {
		return nil, err
	}
	for i := range v.scrs {
		// No scrollback at all: a line that leaves the screen is not copied.
		v.scrs[i].SetScrollback(nil)
		s := reflect.ValueOf(&v.scrs[i]).Elem()
		if v.bufs[i], err = field[*uv.RenderBuffer](s, "buf"); err != nil {
			return nil, err
		}
		if v.curs[i], err = field[vt.Cursor](s, "cur"); err != nil {
			return nil, err
		}
		if v.saved[i], err = field[vt.Cursor](s, "saved"); err != nil {
			return nil, err
		}
	}
	// Its answers go nowhere: ours are made in query.go. Undrained, Write would block for ever.
	go func() {
		defer close(v.reader)
		_, _ = io.Copy(io.Discard, v.e)
	}()
	return v, nil
}

// Write draws p. A wrap that is due is forgotten where the cursor has left the last column: the library
// keeps it through some movements.
func (v *vtEmulator) Write(p []byte) {
	_, _ = v.e.Write(p)
	if *v.phant && v.e.CursorPosition().X != v.e.Width()-1 {
		*v.phant = false
	}
}

// Resize keeps every cursor on the screen. The library does so with the one in use alone, and indexes with
// the others once they are restored.
func (v *vtEmulator) Resize(rows, cols int) {
	v.e.Resize(cols, rows)
	for _, c := range []*vt.Cursor{v.curs[0], v.curs[1], v.saved[0], v.saved[1]} {
		c.X, c.Y = min(c.X, cols-1), min(c.Y, rows-1)
	}
}

func (v *vtEmulator) Close() {
	// Not v.e.Close alone: it sets a flag that the reader looks at without a lock.
	if c, ok := v.e.InputPipe().(io.Closer); ok {
		_ = c.Close()
	}
	<-v.reader
	_ = v.e.Close()
}

func (v *vtEmulator) screen() int {
	if v.e.IsAltScreen() {
		return 1
	}
	return 0
}

func (v *vtEmulator) Alternate() bool { return v.e.IsAltScreen() }

func (v *vtEmulator) Fill(text string) {
	for _, line := range (*v.bufs[v.screen()]).Lines {
		for i := range line {
			line[i] = uv.Cell{Content: text, Width: 1}
		}
	}
}

// Switch puts the cursor back: the library homes it on the alternate screen, and has one for each.
func (v *vtEmulator) Switch(alternate bool) {
	if v.Alternate() == alternate {
		return
	}
	cur, wraps := *v.curs[v.screen()], *v.phant
	how := "\x1b[?1047l"
	if alternate {
		how = "\x1b[?1047h"
	}
	v.Write([]byte(how))
	*v.curs[v.screen()], *v.phant = cur, wraps
}

func (v *vtEmulator) Cursor() (row, col int, wraps bool) {
	p := v.e.CursorPosition()
	return p.Y, p.X, *v.phant
}

func (v *vtEmulator) Pen() pen { return penOf(v.scrs[v.screen()].Cursor()) }

func (v *vtEmulator) Saved(screen int) (row, col int, p pen) {
	c := *v.saved[screen]
	return c.Y, c.X, penOf(c)
}

func (v *vtEmulator) Rest() (row, col int, p pen) {
	c := v.scrs[0].Cursor()
	return c.Y, c.X, penOf(c)
}

func (v *vtEmulator) Margins() (top, bottom int) {
	r := v.scrs[v.screen()].ScrollRegion()
	return r.Min.Y, r.Max.Y - 1
}

func (v *vtEmulator) Charsets() (g [4]byte, gl int) {
	for i, set := range v.sets {
		switch {
		case set == nil:
			g[i] = 'B'
		case set['q'] != "":
			g[i] = '0'
		default:
			g[i] = 'A'
		}
	}
	return g, *v.gl
}

func (v *vtEmulator) Shape() int {
	style, blink := v.e.CursorStyle()
	n := 2*int(style) + 1
	if !blink {
		n++
	}
	if n <= 1 {
		return 0
	}
	return n
}

func (v *vtEmulator) Color(which int) string {
	c := v.e.ForegroundColor()
	switch which {
	case 11:
		c = v.e.BackgroundColor()
	case 12:
		c = v.e.CursorColor()
	}
	if c == nil {
		return ""
	}
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("rgb:%04x/%04x/%04x", r, g, b)
}

func (v *vtEmulator) Cell(screen, row, col int) cell {
	c := (*v.bufs[screen]).CellAt(col, row)
	if c == nil {
		return cell{text: " ", width: 1}
	}
	if c.Content == "" && c.Width != 0 || c.IsZero() && (col == 0 || !covered(v, screen, row, col)) {
		return cell{text: " ", width: 1, pen: penOfCell(c)}
	}
	return cell{text: c.Content, width: c.Width, pen: penOfCell(c)}
}

// covered reports whether an empty cell is the rest of a wide character to its left. One that lost it is
// blank.
func covered(v *vtEmulator, screen, row, col int) bool {
	left := (*v.bufs[screen]).CellAt(col-1, row)
	return left != nil && left.Width > 1
}

func penOf(c vt.Cursor) pen { return newPen(&c.Pen, &c.Link) }

func penOfCell(c *uv.Cell) pen { return newPen(&c.Style, &c.Link) }

func newPen(s *uv.Style, l *uv.Link) pen {
	p := pen{sgr: sgrOf(s), url: l.URL}
	if p.linkParams, p.over = strings.CutPrefix(l.Params, overMark); p.over {
		p.sgr = strings.TrimPrefix(p.sgr+";53", ";")
	}
	return p
}

// sgrOf is the text between CSI and m that gives a style to a pen that has none.
func sgrOf(s *uv.Style) string {
	if s.IsZero() {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(s.String(), "\x1b["), "m")
}

// WriteWide draws one character of two columns. The library neither wraps one that meets the last column
// nor remembers that one that ends there makes the next character wrap.
func (v *vtEmulator) WriteWide(p []byte) {
	_, col, wraps := v.Cursor()
	last := v.e.Width() - 1
	if last > 0 && col == last && !wraps {
		v.Write([]byte{' '})
		_, col, wraps = v.Cursor()
	}
	v.Write(p)
	if !wraps && col == last-1 {
		*v.phant = true
	}
}

// firstCluster splits the first character, with all that combines with it, off p, and says how many
// columns it takes.
func firstCluster(p []byte) (n, width int) {
	c, w := ansi.FirstGraphemeCluster(p, ansi.GraphemeWidth)
	return len(c), w
}

// paletteColor is the default of one of the 256 colours, as OSC text.
func paletteColor(i int) string {
	r, g, b, _ := ansi.IndexedColor(uint8(i)).RGBA()
	return fmt.Sprintf("rgb:%04x/%04x/%04x", r, g, b)
}
