package seat

import "time"

// MirrorGap is how long an agent is expected to wait for an answer: questions that nobody could answer are
// given to a mirror that comes within that time, and are nobody's after it.
const MirrorGap = 3 * time.Second

// Questions decides who answers the agent's terminal queries: a query belongs to the terminal that was the
// answerer when its first byte came, else to the mirror. It is how a seat makes sure that each is answered
// once, whoever comes and goes. The zero value is that of a seat without output.
type Questions struct {
	from     uint64 // the mirror's begin here: those before were answered, or are nobody's
	to       uint64 // and end here, with terminal
	terminal bool
	reacted  uint64 // output when the terminal last sent something
	left     time.Time
}

// Range is Status.AskFrom and Status.AskTo.
func (q *Questions) Range() (from, to uint64) {
	if q.terminal {
		return q.from, q.to
	}
	return q.from, FromLive
}

// Terminal says whether a terminal is the answerer, with next output so far. What one that leaves was
// asked and has not reacted to is the mirror's again.
func (q *Questions) Terminal(is bool, next uint64) {
	switch {
	case is && !q.terminal:
		q.to, q.reacted = next, 0
	case !is && q.terminal:
		q.from = max(q.from, q.reacted)
	}
	q.terminal = is
}

// Reacted says that the terminal sent something, with next output so far.
func (q *Questions) Reacted(next uint64) { q.reacted = next }

// Came says that a connection was admitted in a role. A new mirror is given what is still waited for. A
// terminal that takes over begins as if the one before it had left.
func (q *Questions) Came(role Role, next uint64, now time.Time) {
	if role.Has(RoleMirror) && !q.left.IsZero() && now.Sub(q.left) > MirrorGap {
		q.from = max(q.from, next)
	}
	if role.Has(RoleInput | RoleTerminal | RoleTakeover) {
		q.Terminal(false, next)
	}
}

// Left says that a connection has gone; with RoleMirror nobody has watched since. The start of the agent
// counts as one: a mirror that is on its way sees the first questions.
func (q *Questions) Left(role Role, now time.Time) {
	if role.Has(RoleMirror) {
		q.left = now
	}
}

// Take reports whether the mirror answers the question at an offset, and that it has done so now.
func (q *Questions) Take(at uint64) bool {
	from, to := q.Range()
	if at < from || at >= to {
		return false
	}
	q.from = at + 1
	return true
}
