package main

import (
	"bytes"
	"context"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// resyncMax bounds how much output is skipped to find a place where a stream that begins anywhere can
// be shown from: a newline or the start of an escape sequence.
const resyncMax = 4096

// usable says whether a screen can be painted on a terminal of that size and output of the seat follows it.
func usable(s *wire.TerminalSnapshot, st seat.Status, rows, cols uint16) bool {
	return s != nil && s.Dirty == "" && s.Rows > 0 && s.Rows <= rows && s.Cols <= cols && s.Offset >= st.First && s.Offset <= st.Next
}

// ownFrom is the offset from which on a connection shows its terminal what makes a terminal answer. Every
// question is answered once: those before a terminal came are the mirror's, or nobody's (Status.AskTo), and
// those before it took the keyboard over are the former one's.
func ownFrom(welcome seat.Status) uint64 {
	if welcome.AskTo == seat.FromLive { // it watches, and so does no other terminal: what it says is dropped
		return welcome.Next
	}
	return max(welcome.AskTo, welcome.Next)
}

// paintScreen is what shows a screen. What the user's own terminal showed goes up into its scrollback, if
// the program has not a screen of its own. Nothing in it makes a terminal answer.
func paintScreen(s *wire.TerminalSnapshot, rows uint16) []byte {
	var out []byte
	if terminal.Modes(s.Modes)&terminal.AltScreen != 0 {
		out = terminal.Apply(terminal.AltScreen) // before anything moves the cursor: leaving puts it back
	} else {
		out = cleared(rows)
	}
	var f terminal.QueryFilter
	var clip clipboardFilter
	return clip.Filter(out, f.Filter(nil, s.Data))
}

// cleared makes a screen empty, with the cursor in its corner, as a new seat's is. What it showed goes up
// into the scrollback.
func cleared(rows uint16) []byte {
	out := append([]byte{'\r'}, bytes.Repeat([]byte{'\n'}, int(rows))...)
	return append(out, "\x1b[H\x1b[J"...)
}

// output takes output of the seat, which begins at offset seq.
func (a *attachment) output(ctx context.Context, l *link, seq uint64, p []byte) error {
	a.next = seq + uint64(len(p))
	if !l.replay {
		return a.show(l, seq, p)
	}
	if a.next <= l.welcome.Next {
		a.gather(l, p)
		if a.next == l.welcome.Next {
			return a.endReplay(ctx, l)
		}
		return nil
	}
	cut := len(p) - int(a.next-l.welcome.Next)
	a.gather(l, p[:max(cut, 0)])
	if err := a.endReplay(ctx, l); err != nil {
		return err
	}
	return a.show(l, l.welcome.Next, p[max(cut, 0):])
}

// gather collects replayed output, without what a real terminal would answer.
func (a *attachment) gather(l *link, p []byte) {
	a.unread = a.unclipped(a.unread, l.filter.Filter(nil, l.skip(p)))
}

// unclipped appends output, without what acts on the clipboard.
func (a *attachment) unclipped(dst, p []byte) []byte {
	if a.opt.Clipboard {
		return append(dst, p...)
	}
	return a.clip.Filter(dst, p)
}

// show writes live output, which begins at offset seq, without the questions before l.own.
func (a *attachment) show(l *link, seq uint64, p []byte) error {
	next := seq + uint64(len(p))
	p = l.skip(p)
	foreign := 0 // bytes at the front of p that are before l.own
	if start := next - uint64(len(p)); start < l.own {
		foreign = int(min(l.own-start, uint64(len(p))))
	}
	// A sequence that began there is still the filter's.
	for len(p) > 0 && (foreign > 0 || !l.filter.Ground()) {
		n := max(foreign, 1)
		if _, err := a.con.Write(a.unclipped(nil, l.filter.Filter(nil, p[:n]))); err != nil {
			return err
		}
		p, foreign = p[n:], 0
	}
	if !a.opt.Clipboard {
		a.shown = a.clip.Filter(a.shown[:0], p)
		p = a.shown
	}
	if len(p) == 0 {
		return nil
	}
	_, err := a.con.Write(p)
	return err
}

// skip drops output up to the first place it can be shown from.
func (l *link) skip(p []byte) []byte {
	if l.resync == 0 || len(p) == 0 {
		return p
	}
	window := p[:min(len(p), l.resync)]
	at := bytes.IndexAny(window, "\n\x1b")
	switch {
	case at < 0 && len(window) < l.resync:
		l.resync -= len(window)
		return nil
	case at < 0:
		at = len(window)
	case window[at] == '\n':
		at++
	}
	l.resync = 0
	return p[at:]
}

// endReplay shows what was gathered, puts the terminal into the modes the seat says are in force, and
// goes live.
func (a *attachment) endReplay(ctx context.Context, l *link) error {
	text := a.unread
	a.unread, l.replay = nil, false
	want := terminal.Modes(l.welcome.Modes)
	var after terminal.ModeScanner
	after.Write(text)
	// A full-screen program that entered its screen before the replay begins: nothing of it may land
	// on the user's own screen.
	if missing := want & terminal.AltScreen &^ after.Modes(); missing != 0 {
		text = append(terminal.Apply(missing), text...)
	}
	if rows, _, err := a.con.size(); err == nil && a.opt.Fresh && want&terminal.AltScreen == 0 && uint64(len(text)) != l.welcome.Next {
		text = append(cleared(rows), text...) // it asked where its cursor is, and was told of a screen of its own
	}
	a.goLive(l) // before the text is shown: who sees it may type at once
	if _, err := a.con.Write(text); err != nil {
		return err
	}
	a.con.apply(func(have terminal.Modes) terminal.Modes { return terminal.Missing(want, have) })
	if a.watching != "" && (a.paint || want&terminal.AltScreen != 0) { // what was said before is painted over, or on another screen
		a.con.notice("%s", a.watching)
	}
	if l.nudge {
		a.goSafe(func() { a.doNudge(ctx, l) })
	}
	return nil
}

// gap states that output is missing. What follows may begin in the middle of a sequence, and modes may
// have changed unseen.
func (a *attachment) gap(ctx context.Context, l *link, from, to uint64) error {
	a.next = to
	a.clip, l.filter = clipboardFilter{}, terminal.QueryFilter{}
	if l.replay {
		l.resync = resyncMax
		if a.paint { // the screen is not what the output goes on from
			a.paint, a.unread, l.nudge = false, nil, !a.opt.NoNudge && !a.readOnly.Load()
		}
		if to >= l.welcome.Next {
			return a.endReplay(ctx, l)
		}
		return nil
	}
	a.con.notice("%d bytes of output were skipped: this terminal was too slow", to-from)
	l.resync = resyncMax
	a.goSafe(func() {
		st, err := l.Get(ctx)
		if err != nil {
			return // a lost connection shows elsewhere
		}
		a.con.apply(func(have terminal.Modes) terminal.Modes { return terminal.Missing(terminal.Modes(st.Modes), have) })
		if st.Attached <= 1 && !a.opt.NoNudge {
			a.doNudge(ctx, l)
		}
	})
	return nil
}
