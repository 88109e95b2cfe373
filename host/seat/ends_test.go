package seat

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
)

// A journal has thousands of rows of seats that have ended: a host that starts holds those it tells of.
func TestTheRowsOfManyEndsAreNotHeld(t *testing.T) {
	const many = 3000
	begin := time.Now().Add(-many * time.Millisecond)
	var over ends
	for _, i := range rand.Perm(many) { // a journal is in the order of ids
		over.add(journal.SeatRow{SeatID: fmt.Sprint(i), Principal: "local.a", UID: fmt.Sprint(i), Ended: begin.Add(time.Duration(i) * time.Millisecond)})
		if n := len(over.rows); n > 4*keepEnded {
			t.Fatalf("%d rows are held", n)
		}
	}
	if !over.lives[lived{"local.a", "0"}] || len(over.lives) != many {
		t.Errorf("%d lives are known to be over", len(over.lives))
	}
	s := New(Config{})
	s.rememberEnded(&over)
	if len(s.ended) != keepEnded || s.ended[0].Row.SeatID != fmt.Sprint(many-keepEnded) || s.ended[keepEnded-1].Row.SeatID != fmt.Sprint(many-1) {
		t.Fatalf("%d are told of, from %s on", len(s.ended), s.ended[0].Row.SeatID)
	}
	for i := range keepEnded {
		s.ended = append(s.ended, &Snapshot{Row: journal.SeatRow{SeatID: fmt.Sprint(many + i), Ended: time.Now()}})
	}
	s.pruneEnded()
	for i, snap := range s.ended[:cap(s.ended)] {
		if (snap != nil) != (i < keepEnded) {
			t.Fatalf("of %d slots, %d holds %v", cap(s.ended), i, snap)
		}
	}
}
