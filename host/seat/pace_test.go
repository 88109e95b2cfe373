package seat

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestLaunchesTakeTurns(t *testing.T) {
	t.Parallel()
	const launch = 20 * time.Millisecond
	for name, c := range map[string]struct {
		width, launches int
		takes           time.Duration // of each
		never           bool          // a launch is never over
		busy            bool          // others wait for answers of the host
		last            time.Duration // when the last one begins
	}{
		"one that comes alone begins at once":                      {1, 1, launch, false, false, 0},
		"the next begins when the seat before it is prepared":      {1, 2, launch, false, false, launch},
		"twenty one after the other":                               {1, 20, launch, false, false, 19 * launch},
		"twenty beside others who ask leave them room":             {1, 20, launch, false, true, 19 * (launch + paceRoom)},
		"one that has given way leaves no room twice":              {1, 3, 2 * paceMost, false, true, 2 * paceMost},
		"two at a time on a larger machine":                        {2, 20, launch, false, false, 9 * launch},
		"one that takes long gives way before it is over":          {1, 2, time.Minute, false, false, paceMost},
		"one that is never over gives way":                         {1, 3, 0, true, false, 2 * paceMost},
		"one that is over when it has given way gives no turn too": {1, 4, 2 * paceMost, false, false, 3 * paceMost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := pace{make(chan struct{}, c.width), func() bool { return c.busy }}
				begun := time.Now()
				began := make(chan time.Duration, c.launches)
				for range c.launches {
					go func() {
						done, err := p.take(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						began <- time.Since(begun)
						if !c.never {
							time.Sleep(c.takes)
							done()
							done()
						}
					}()
				}
				var last time.Duration
				for range c.launches {
					last = max(last, <-began)
				}
				if last != c.last {
					t.Errorf("the last launch began after %v, want %v", last, c.last)
				}
				time.Sleep(time.Hour)
				if n := len(p.turns); n != 0 {
					t.Errorf("%d turns were not given back", n)
				}
			})
		})
	}
}

func TestALaunchThatIsCancelledTakesNoTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pace{make(chan struct{}, 1), func() bool { return false }}
		done, err := p.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := p.take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a launch whose time was over got %v", err)
		}
		done()
		time.Sleep(time.Hour)
		if n := len(p.turns); n != 0 {
			t.Errorf("%d turns were not given back", n)
		}
	})
}
