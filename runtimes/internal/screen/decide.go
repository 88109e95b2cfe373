package screen

import "time"

// What drawing may cost, and how far it may fall behind.
const (
	chunkBytes = 4 << 10 // drawn at a time; the watchdog and the flood rule look between two

	tailBytes = 16 << 10 // what is drawn of a flood at a time
	tailFar   = 64 << 10 // the same, where lines are so long that there is no newline in it
	tailEvery = 250 * time.Millisecond
	// tailShare bounds what a flood of the dearest sequences costs: a tail is drawn when this many times
	// the CPU time of the one before has passed, or tailMost.
	tailShare = 10
	tailMost  = 2 * time.Second

	backlogMax = 1 << 20 // kept while it can still be drawn: a whole ring
	floodKeep  = 2 * tailFar

	// behindMax is how old the oldest byte that was not drawn may be before the screen counts as dirty.
	behindMax = 300 * time.Millisecond

	// credit is the CPU time that may be spent on drawing everything. It is enough for a whole ring of a
	// full-screen program, and comes back at 1/creditShare of the time that passes.
	credit      = 600 * time.Millisecond
	creditShare = 20

	// calmAfter is when a flood counts as over once all that came was drawn. A program whose picture is
	// not certain then is made to repaint, and repaintWait is what it is given for that.
	calmAfter   = 100 * time.Millisecond
	repaintWait = 300 * time.Millisecond
)

// load is what the decision about the next step is made from.
type load struct {
	backlog    int           // bytes read and not drawn
	lost       bool          // bytes before the backlog were dropped undrawn
	age        time.Duration // since the oldest of them was read
	sinceDrawn time.Duration // since something was last drawn
	credit     time.Duration // CPU time left
	tailCost   time.Duration // CPU time of the last tail
	flood      bool          // the last decision was to skip, and nothing has ended it
}

type step int

const (
	rest     step = iota // nothing to do until more is read
	pause                // look again after a while
	drawSome             // draw the next chunk
	drawTail             // skip to the tail and draw that
)

// decide says what to do next, and with pause for how long to wait; drawSome in a flood ends it.
func decide(l load) (step, time.Duration) {
	every := min(max(tailEvery, tailShare*l.tailCost), tailMost)
	behind := l.lost || l.credit <= 0 || l.age > behindMax && l.backlog > tailFar
	switch {
	case l.backlog == 0 && !l.lost:
		if l.flood && l.sinceDrawn < calmAfter {
			return pause, calmAfter - l.sinceDrawn
		}
		return rest, 0
	case !l.flood && !behind:
		return drawSome, 0
	case l.sinceDrawn < every:
		return pause, every - l.sinceDrawn
	case !l.lost && l.backlog <= tailBytes:
		return drawSome, 0
	}
	return drawTail, 0
}
