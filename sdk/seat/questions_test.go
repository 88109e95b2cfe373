package seat

import (
	"testing"
	"time"
)

// takeOver is what a seat does when another terminal takes the keyboard.
func takeOver(q *Questions, next uint64) {
	q.Came(RoleOutput|RoleInput|RoleTerminal|RoleTakeover, next, time.Unix(1000, 0))
	q.Terminal(true, next)
}

func TestQuestionsAreAnsweredOnceByWhoWasThere(t *testing.T) {
	t0 := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		do   func(q *Questions)
		at   uint64
		want bool
	}{
		"a question with nobody attached is the mirror's":       {func(*Questions) {}, 5, true},
		"it is answered once":                                   {func(q *Questions) { q.Take(5) }, 5, false},
		"in order: what comes late is dropped":                  {func(q *Questions) { q.Take(9) }, 5, false},
		"the next one is answered":                              {func(q *Questions) { q.Take(5) }, 6, true},
		"one that came after the terminal is the terminal's":    {func(q *Questions) { q.Terminal(true, 10) }, 10, false},
		"one from just before is still the mirror's":            {func(q *Questions) { q.Terminal(true, 10) }, 9, true},
		"that the terminal is still there changes nothing":      {func(q *Questions) { q.Terminal(true, 10); q.Terminal(true, 20) }, 15, false},
		"what a terminal left unanswered is the mirror's again": {func(q *Questions) { q.Terminal(true, 10); q.Terminal(false, 30) }, 20, true},
		"what it reacted to is not":                             {func(q *Questions) { q.Terminal(true, 10); q.Reacted(25); q.Terminal(false, 30) }, 20, false},
		"what came after its last reaction is":                  {func(q *Questions) { q.Terminal(true, 10); q.Reacted(25); q.Terminal(false, 30) }, 25, true},
		"a reaction to an earlier terminal does not count for the next": {func(q *Questions) {
			q.Terminal(true, 10)
			q.Reacted(25)
			q.Terminal(false, 30)
			q.Terminal(true, 40)
			q.Terminal(false, 50)
		}, 45, true},
		"what was asked before another terminal took over is the mirror's": {func(q *Questions) { q.Terminal(true, 10); takeOver(q, 30) }, 20, true},
		"unless the former one reacted to it":                              {func(q *Questions) { q.Terminal(true, 10); q.Reacted(25); takeOver(q, 30) }, 20, false},
		"and what is asked after that is the new one's":                    {func(q *Questions) { q.Terminal(true, 10); takeOver(q, 30) }, 30, false},
		"a watcher that comes changes nothing":                             {func(q *Questions) { q.Terminal(true, 10); q.Came(RoleOutput, 30, t0) }, 20, false},
		"a new mirror takes up what the last one left":                     {func(q *Questions) { q.Left(RoleMirror|RoleOutput, t0); q.Came(RoleMirror, 50, t0.Add(time.Second)) }, 40, true},
		"after a long time without one, old questions are nobody's":        {func(q *Questions) { q.Left(RoleMirror|RoleOutput, t0); q.Came(RoleMirror, 50, t0.Add(time.Minute)) }, 40, false},
		"and new ones are its own":                                         {func(q *Questions) { q.Left(RoleMirror|RoleOutput, t0); q.Came(RoleMirror, 50, t0.Add(time.Minute)) }, 50, true},
		"a mirror that came back does not answer again": {func(q *Questions) {
			q.Take(5)
			q.Left(RoleMirror|RoleOutput, t0)
			q.Came(RoleMirror, 9, t0.Add(time.Second))
		}, 5, false},
		"the first mirror answers what the agent asked before it had looked": {func(q *Questions) { q.Came(RoleMirror, 50, t0) }, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			var q Questions
			c.do(&q)
			if got := q.Take(c.at); got != c.want {
				t.Errorf("the mirror's: %v", got)
			}
		})
	}
}
