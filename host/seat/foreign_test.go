package seat_test

import (
	"context"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

// neighbours is a runtime on whose machine other hosts have seats.
type neighbours struct {
	sdk.Runtime
	seats int
}

func (n *neighbours) List(context.Context, sdk.ListRequest) ([]sdk.SeatListing, error) {
	return make([]sdk.SeatListing, n.seats), nil
}

func TestSeatsOfOtherHostsThatCameAfterTheBootAreCounted(t *testing.T) {
	w := newWorld(t)
	w.plugins.mu.Lock()
	w.plugins.runtime = &neighbours{Runtime: w.plugins.runtime, seats: 3}
	w.plugins.mu.Unlock()
	w.eventually("they are counted", func() (bool, string) {
		n := w.set.Foreign()
		return n == 3, string(rune('0' + n))
	})
}
