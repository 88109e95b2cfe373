package attach

import (
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// viewerModel counts as the contract says: a credit after half a window, or after fewer bytes if it is prompt.
type viewerModel struct {
	recv   *wire.Receiver
	prompt bool
	since  int
}

// take deals with one frame and returns the total to announce, if one is due.
func (v *viewerModel) take(t testing.TB, seq uint64, n int) (uint64, bool) {
	if a := v.recv.Arrive(seq); a != wire.FrameNext {
		t.Fatalf("frame %d arrives as %v", seq, a)
	}
	due := v.recv.Taken()
	v.since += n
	if due || v.prompt && v.since >= 128<<10 {
		v.since = 0
		return v.recv.Total(), true
	}
	return 0, false
}

// run sends total bytes to a viewer that takes them only when the sender has to wait.
func run(t testing.TB, o *outflow, v *viewerModel, total, piece int) (most int) {
	type frame struct {
		seq uint64
		n   int
	}
	var flight []frame
	bytes := 0
	for sent := 0; sent < total; {
		if n := min(o.room(), piece, total-sent); n > 0 {
			seq, ok := o.take(n)
			if !ok {
				t.Fatal("there is room and no number")
			}
			flight = append(flight, frame{seq, n})
			bytes += n
			most = max(most, bytes)
			sent += n
			continue
		}
		moved := false
		for len(flight) > 0 && !moved {
			f := flight[0]
			flight = flight[1:]
			bytes -= f.n
			if ack, due := v.take(t, f.seq, f.n); due {
				if err := o.ack(ack, true); err != nil {
					t.Fatal(err)
				}
				moved = true
			}
		}
		if !moved {
			t.Fatalf("the viewer took everything and owes no credit, with %d of %d bytes sent", sent, total)
		}
	}
	if _, ok := o.take(0); !ok {
		t.Error("there is no room for the end")
	}
	return most
}

// proves: ATTACH-5
func TestOutflow(t *testing.T) {
	for _, c := range []struct {
		name   string
		window int
		prompt bool
		piece  int
	}{
		{"a viewer that credits every half window never waits for one that does not come", wire.SessionWindow, false, 64 << 10},
		{"a prompt viewer is sent full frames", wire.SessionWindow, true, 64 << 10},
		{"small frames are bounded by their number", wire.SessionWindow, false, 1},
		{"a window of two still moves", 2, false, 64 << 10},
		{"the largest window", wire.MaxSessionWindow, false, 64 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			total := 64 << 20
			if c.piece == 1 {
				total = 10_000
			}
			most := run(t, newOutflow(c.window), &viewerModel{recv: wire.NewReceiver(c.window), prompt: c.prompt}, total, c.piece)
			if most > flightMax {
				t.Errorf("%d bytes were under way, more than %d", most, flightMax)
			}
		})
	}
}

func TestACreditForWhatWasNotSentBreaksTheRail(t *testing.T) {
	o := newOutflow(wire.SessionWindow)
	if _, ok := o.take(10); !ok {
		t.Fatal("no room")
	}
	if err := o.ack(2, true); err == nil {
		t.Error("two frames of one are acknowledged")
	}
	for range 2 { // the same total again is no harm
		if err := o.ack(1, true); err != nil || o.bytes != 0 {
			t.Errorf("%v, %d bytes in flight", err, o.bytes)
		}
	}
}

func FuzzOutflow(f *testing.F) {
	f.Add(uint16(64), false, uint16(1000))
	f.Add(uint16(1), true, uint16(65535))
	f.Add(uint16(3), false, uint16(1))
	f.Fuzz(func(t *testing.T, window uint16, prompt bool, piece uint16) {
		w := 2 + int(window)%wire.MaxSessionWindow
		run(t, newOutflow(w), &viewerModel{recv: wire.NewReceiver(w), prompt: prompt}, 300*(1+int(piece)), 1+int(piece))
	})
}
