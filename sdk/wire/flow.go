package wire

import "fmt"

// Sender counts the data frames of one direction against the window of a session. A full window means: do
// not send, and do not pile up either.
type Sender struct {
	window, sent, acked uint64
}

// NewSender makes a sender for a window of SessionGrant.Window frames.
func NewSender(window int) *Sender { return &Sender{window: uint64(max(window, 1))} }

// Next takes the sequence number of the next data frame; false when the window is full.
func (s *Sender) Next() (seq uint64, ok bool) {
	if s.sent-s.acked >= s.window || s.sent >= MaxInteger {
		return 0, false
	}
	s.sent++
	return s.sent, true
}

// Ack takes a total that the other side announced, in a credit or beside data, and reports whether it made
// room. An earlier total changes nothing. One beyond what was sent is an error: the rail is broken.
func (s *Sender) Ack(total uint64) (moved bool, err error) {
	switch {
	case total > s.sent:
		return false, fmt.Errorf("take credit: %d frames are acknowledged, %d were sent", total, s.sent)
	case total <= s.acked:
		return false, nil
	}
	s.acked = total
	return true, nil
}

// InFlight is how many data frames were sent and not acknowledged.
func (s *Sender) InFlight() int { return int(s.sent - s.acked) }

// Arrival says what an arriving data frame is.
type Arrival int

// Arrivals.
const (
	FrameNext      Arrival = iota
	FrameDuplicate         // drop it
	FrameGap               // one before it was lost: the rail is broken, attach again
	FrameFlood             // more than the window is under way: the rail is broken
)

// Receiver counts the data frames of the other direction.
type Receiver struct {
	window, arrived, taken, announced uint64
}

// NewReceiver makes a receiver for a window of SessionGrant.Window frames.
func NewReceiver(window int) *Receiver { return &Receiver{window: uint64(max(window, 1))} }

// Arrive judges the sequence number of an arriving frame. FrameNext has to be followed by Taken once the
// frame has been dealt with: a credit says that there is room, not that something came.
func (r *Receiver) Arrive(seq uint64) Arrival {
	switch {
	case seq <= r.arrived:
		return FrameDuplicate
	case seq > r.arrived+1:
		return FrameGap
	case r.arrived-r.taken >= r.window:
		return FrameFlood
	}
	r.arrived++
	return FrameNext
}

// Taken counts one frame that was dealt with, and reports whether a credit is due: after every half
// window. Total is what it says, and what any data frame of one's own may say beside its data.
func (r *Receiver) Taken() (due bool) {
	if r.taken < r.arrived {
		r.taken++
	}
	return r.taken-r.announced >= (r.window+1)/2
}

// Total is the total to announce; it is remembered as announced. It may be announced again at any time.
func (r *Receiver) Total() uint64 {
	r.announced = r.taken
	return r.taken
}
