// Package terminal knows as much of terminal escape sequences as holding, leaving and replaying a
// terminal needs: which private modes a program has switched on, how to switch a terminal into and
// out of them, which sequences are questions a terminal answers, and how to show foreign output
// without executing it. It reconstructs no screen.
//
// It is linked into cotal-seat and uses a small part of the standard library only: no fmt, no net.
package terminal

// Modes is a set of terminal modes as left by a stream of output. The low 23 bits are one mode each;
// KittyFlags and KittyDepth are two small numbers packed above them.
type Modes uint32

// Modes a scanner knows. A set bit means "differs from a freshly reset terminal".
const (
	CursorHidden    Modes = 1 << iota // CSI ? 25 l
	AltScreen                         // CSI ? 1049 h, 1047 h, 47 h
	BracketedPaste                    // CSI ? 2004 h
	Mouse1000                         // CSI ? 1000 h, button events
	Mouse1002                         // CSI ? 1002 h, and drags
	Mouse1003                         // CSI ? 1003 h, and every motion
	MouseUTF8                         // CSI ? 1005 h
	MouseSGR                          // CSI ? 1006 h
	MouseURXVT                        // CSI ? 1015 h
	MousePixels                       // CSI ? 1016 h
	FocusEvents                       // CSI ? 1004 h
	AppCursor                         // CSI ? 1 h
	AppKeypad                         // ESC =, CSI ? 66 h
	NoAutowrap                        // CSI ? 7 l
	SyncOutput                        // CSI ? 2026 h
	ReverseVideo                      // CSI ? 5 h
	OriginMode                        // CSI ? 6 h
	InsertMode                        // CSI 4 h
	ScrollRegion                      // CSI t ; b r
	CursorShape                       // CSI n SP q, n > 0
	ModifyOtherKeys                   // CSI > 4 ; n m, n > 0
	ColorReports                      // CSI ? 2031 h
	ResizeReports                     // CSI ? 2048 h
	KittyKeys                         // kitty keyboard flags are on or their stack is not empty

	kittyFlagShift = 24 // five bits
	kittyDepthSh   = 29 // three bits, saturating
)

// KittyFlags returns the active flags of the kitty keyboard protocol, 0..31.
func (m Modes) KittyFlags() int { return int(m>>kittyFlagShift) & 31 }

// KittyDepth returns how many entries the program has pushed on the kitty keyboard stack, at most 7.
func (m Modes) KittyDepth() int { return int(m>>kittyDepthSh) & 7 }

// single is a mode that one sequence switches on and one switches off.
type single struct {
	bit     Modes
	on, off string
}

// singles is in the order of leaving: reports stop first, so that a terminal sends as little as
// possible into whatever reads it next; the alternate screen goes after everything that is drawn.
var singles = [...]single{
	{Mouse1003, "\x1b[?1003h", "\x1b[?1003l"},
	{Mouse1002, "\x1b[?1002h", "\x1b[?1002l"},
	{Mouse1000, "\x1b[?1000h", "\x1b[?1000l"},
	{MouseSGR, "\x1b[?1006h", "\x1b[?1006l"},
	{MouseUTF8, "\x1b[?1005h", "\x1b[?1005l"},
	{MouseURXVT, "\x1b[?1015h", "\x1b[?1015l"},
	{MousePixels, "\x1b[?1016h", "\x1b[?1016l"},
	{FocusEvents, "\x1b[?1004h", "\x1b[?1004l"},
	{ColorReports, "\x1b[?2031h", "\x1b[?2031l"},
	{ResizeReports, "\x1b[?2048h", "\x1b[?2048l"},
	{BracketedPaste, "\x1b[?2004h", "\x1b[?2004l"},
	{ModifyOtherKeys, "\x1b[>4;2m", "\x1b[>4m"},
	{SyncOutput, "\x1b[?2026h", "\x1b[?2026l"},
	{AppCursor, "\x1b[?1h", "\x1b[?1l"},
	{AppKeypad, "\x1b=", "\x1b>"},
	{NoAutowrap, "\x1b[?7l", "\x1b[?7h"},
	{ReverseVideo, "\x1b[?5h", "\x1b[?5l"},
	{OriginMode, "\x1b[?6h", "\x1b[?6l"},
	{InsertMode, "\x1b[4h", "\x1b[4l"},
	// DECSTBM moves the cursor home, hence save and restore around it. The margins of a region
	// are not in Modes, so switching it on is left to the program's next repaint.
	{ScrollRegion, "", "\x1b7\x1b[r\x1b8"},
	{CursorShape, "", "\x1b[0 q"},
}

// Apply returns the sequences that switch a freshly reset terminal into modes m. The alternate
// screen comes first and the cursor last. Scroll margins and cursor shape are not reproduced.
func Apply(m Modes) []byte {
	var out []byte
	if m&AltScreen != 0 {
		out = append(out, "\x1b[?1049h"...)
	}
	for i := len(singles) - 1; i >= 0; i-- {
		if s := &singles[i]; m&s.bit != 0 {
			out = append(out, s.on...)
		}
	}
	if m&KittyKeys != 0 {
		depth := m.KittyDepth()
		for i := 1; i < depth; i++ {
			out = append(out, "\x1b[>0u"...)
		}
		mark := byte('=') // set without a push
		if depth > 0 {
			mark = '>'
		}
		out = append(out, 0x1b, '[', mark)
		out = appendUint(out, uint64(m.KittyFlags()))
		out = append(out, 'u')
	}
	if m&CursorHidden != 0 {
		out = append(out, "\x1b[?25l"...)
	}
	return out
}

// Reset returns the sequences that take a terminal out of modes m. It is safe whatever the terminal
// is: every sequence for a mode that was not known to be set is either left out or without effect.
// It always shows the cursor and ends colours, character sets and a hyperlink.
func Reset(m Modes) []byte {
	out := []byte{esc, '\\'} // ends a sequence or string that was cut in the middle
	for i := range singles {
		if s := &singles[i]; m&s.bit != 0 {
			out = append(out, s.off...)
		}
	}
	out = appendKittyReset(out, m) // the stack of the screen that is current, so before 1049l
	out = append(out, "\x1b]8;;\x1b\\\x1b(B\x0f\x1b[0m"...)
	if m&AltScreen != 0 {
		out = append(out, "\x1b[?1049l"...)
	}
	return append(out, "\x1b[?25h"...)
}

// Reset returns the sequences that take a terminal that was shown exactly what s was written out of
// its modes. It knows more than Reset(s.Modes()): the keyboard stack of the screen that is not shown.
func (s *ModeScanner) Reset() []byte {
	out := Reset(s.Modes())
	if s.modes&AltScreen != 0 {
		out = appendKittyReset(out, s.kitty[0].modes())
	}
	return out
}

func appendKittyReset(out []byte, m Modes) []byte {
	if m&KittyKeys == 0 {
		return out
	}
	if d := m.KittyDepth(); d > 0 {
		out = append(out, "\x1b[<"...)
		out = appendUint(out, uint64(d))
		out = append(out, 'u')
	}
	return append(out, "\x1b[=0u"...) // what was set without a push
}

func appendUint(out []byte, n uint64) []byte {
	if n >= 10 {
		out = appendUint(out, n/10)
	}
	return append(out, byte('0'+n%10))
}
