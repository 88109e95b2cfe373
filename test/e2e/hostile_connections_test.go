//go:build linux

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// idlers is how many connections are opened that say nothing.
const idlers = 2000

// open dials until count connections were opened or refused, and closes them with the test.
func open(t *testing.T, network, address string, count int) (opened int) {
	t.Helper()
	for range count {
		c, err := (&net.Dialer{Timeout: time.Second}).Dial(network, address)
		if err != nil {
			continue // refused, which is an answer too
		}
		t.Cleanup(func() { c.Close() })
		opened++
	}
	return opened
}

// TestFieldJ8_IdleConnectionsTakeNobodysPlace: two thousand connections that say nothing, and one that
// sends a byte at a time, to the broker; then the same to the socket of a seat. Everybody else is answered
// in time, what may be open is bounded, and all of it is closed again by the side that was not asked.
func TestFieldJ8_IdleConnectionsTakeNobodysPlace(t *testing.T) {
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	row := w.Spawn("busy", seatview.Working(w, 20)...)
	view := seatview.Watch(t, w, row)
	var typed []string
	everybody := func(when string) {
		t.Helper()
		for range 3 {
			quick(t, w, "ps")
			typed = append(typed, fmt.Sprintf("line %d", len(typed)))
			quick(t, w, "input", "busy", "--text", typed[len(typed)-1])
			view.AwaitReplies(t, typed)
			quick(t, w, "logs", "busy")
		}
		quick(t, w, append([]string{"spawn", "--agent", "command", "--name", "new", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)...)
		quick(t, w, "stop", "new")
		t.Logf("%s: the host has %d descriptors, the seat %d", when, fds(t, h.PID), fds(t, row.SeatPID))
	}
	everybody("before")
	hostBase, seatBase := fds(t, h.PID), fds(t, row.SeatPID)

	broker := strings.TrimPrefix(w.Endpoint().URL, "nats://")
	slow, err := net.Dial("tcp", broker)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { // a request that never ends
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if _, err := slow.Write([]byte("C")); err != nil {
					return
				}
			}
		}
	}()
	t.Logf("%d connections to the broker", open(t, "tcp", broker, idlers))
	everybody("with idle connections to the broker")
	memoryUnder(t, "the host", h.PID, hostMemory)
	harness.Eventually(t, harness.DefaultWait, "the broker has closed what says nothing", func() (bool, string) {
		n := fds(t, h.PID)
		return n <= hostBase+3, fmt.Sprintf("%d descriptors, were %d", n, hostBase)
	})
	close(stop)
	<-done

	rec, err := record.ReadSeat(w.SeatRoot + "/" + row.SeatID)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d connections to the seat", open(t, "unix", rec.Socket, idlers))
	everybody("with idle connections to the seat")
	memoryUnder(t, "the seat", row.SeatPID, seatMemory)
	if n := fds(t, row.SeatPID); n > seatBase+100 {
		t.Errorf("the seat has %d descriptors", n)
	}
	harness.Eventually(t, harness.DefaultWait, "the seat has closed what says nothing", func() (bool, string) {
		n := fds(t, row.SeatPID)
		return n <= seatBase+3, fmt.Sprintf("%d descriptors, were %d", n, seatBase)
	})
	view.AwaitMore(t)
	everybody("after")
}
