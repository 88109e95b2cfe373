package bus

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestReadsAreManyOrFew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reads int
		every time.Duration
		since time.Duration // between the last read and the question
		much  bool
	}{
		"nobody asks":                                    {},
		"a list that is watched":                         {50, 100 * time.Millisecond, 0, false},
		"twenty spawns that each ask once":               {20, 10 * time.Millisecond, 0, false},
		"five who ask again with each answer":            {200, time.Millisecond, 0, true},
		"who asked a moment ago may ask again":           {200, time.Millisecond, 40 * time.Millisecond, true},
		"many who asked and are gone leave nothing over": {200, time.Millisecond, 150 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var a Asked
				for range c.reads {
					time.Sleep(c.every)
					a.note()
				}
				time.Sleep(c.since)
				if a.Much() != c.much {
					t.Errorf("much is %v", !c.much)
				}
			})
		})
	}
}
