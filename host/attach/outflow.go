package attach

import "github.com/cotal-ai/cotal-host/sdk/wire"

// flightMax bounds the bytes of output that are under way to one viewer and not acknowledged. It is what a
// viewer that has stopped leaves in the memory of a broker that runs in this process, by a third more on the wire.
const flightMax = 1 << 20

// outflow says how much may be sent to a viewer. Beside the frames of the window it bounds their bytes. One
// frame of the window is kept for the end, so that a full window never hides it.
type outflow struct {
	frames *wire.Sender
	window int
	sizes  []int // of the frames in flight, oldest first
	bytes  int
	acked  uint64
	prompt bool // the viewer gives credit before half a window was taken
}

func newOutflow(window int) *outflow { return &outflow{frames: wire.NewSender(window), window: window} }

// room is how many bytes the next frame may have; 0: wait for a credit. A viewer owes a credit only after half
// a window of frames, so until one is known to be more prompt, the bytes are spread over that many.
func (o *outflow) room() int {
	inFlight := len(o.sizes)
	if inFlight >= o.window-1 {
		return 0
	}
	left := flightMax - o.bytes
	if half := (o.window + 1) / 2; !o.prompt && inFlight < half {
		return min(max(left/(half-inFlight), 1), wire.MaxSessionData)
	}
	return max(min(left, wire.MaxSessionData), 0)
}

// take gives the number of the next frame, with n bytes in it. The end is taken without asking for room.
func (o *outflow) take(n int) (seq uint64, ok bool) {
	if seq, ok = o.frames.Next(); ok {
		o.sizes = append(o.sizes, n)
		o.bytes += n
	}
	return seq, ok
}

// ack takes a total of the viewer, which stood in a credit or beside data. An error breaks the rail.
func (o *outflow) ack(total uint64, credit bool) error {
	moved, err := o.frames.Ack(total)
	if err != nil || !moved {
		return err
	}
	n := int(total - o.acked)
	o.acked = total
	if credit && n < (o.window+1)/2 {
		o.prompt = true
	}
	for _, size := range o.sizes[:n] {
		o.bytes -= size
	}
	o.sizes = append(o.sizes[:0], o.sizes[n:]...)
	return nil
}
