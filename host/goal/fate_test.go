package goal

import (
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestFateOfATerminal(t *testing.T) {
	const retention = 2 * time.Hour
	whole, err := wire.NewGoalResult("g1", digestA, wire.GoalSucceeded, map[string]any{"n": 1}, wire.Committer{InstanceID: mine, Epoch: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	nobodys := whole
	nobodys.Committer = nil
	for name, c := range map[string]struct {
		fact wire.GoalResultFact
		mine string
		age  time.Duration
		want fate
	}{
		"a young one stays whole":                       {whole, mine, retention - 1, fateStay},
		"one of the retention's age loses its data":     {whole, mine, retention, fateEvict},
		"what is left of it stays for the horizon":      {whole.Evict(), mine, wire.IdempotencyHorizon - 1, fateStay},
		"then it goes":                                  {whole.Evict(), mine, wire.IdempotencyHorizon, fateDrop},
		"another host's is its own affair":              {whole, theirs, 1000 * time.Hour, fateStay},
		"also what is left of it":                       {whole.Evict(), theirs, 1000 * time.Hour, fateStay},
		"one of nobody stays, nobody knows whose it is": {nobodys, mine, 1000 * time.Hour, fateStay},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fateOf(c.fact, c.mine, c.age, retention); got != c.want {
				t.Errorf("%s; want %s", got, c.want)
			}
		})
	}
}
