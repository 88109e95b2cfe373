package mesh

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Bounds of a link.
const (
	linkBeat   = time.Second      // between two credits: by them each side knows of the other
	linkStall  = 3 * time.Second  // a host that beats and is not heard for so long gets nothing typed
	linkSilent = 15 * time.Second // nor for so long: attach anew
	creditSize = 128 << 10        // bytes of output after which a credit is given, whatever the window
	linkFrames = 4 * wire.MaxSessionWindow
)

// link is one session on the rails: what was granted once and broke never.
type link struct {
	s     *Session
	nc    *nats.Conn
	grant wire.SessionGrant
	sub   *nats.Subscription

	broken chan struct{}

	wmu sync.Mutex // serialises the data frames sent; before mu

	mu      sync.Mutex
	failed  bool
	reason  string
	recv    *wire.Receiver
	send    *wire.Sender
	sizes   []int // typed bytes of the frames that are not acknowledged, oldest first
	acked   uint64
	moved   chan struct{} // closed and made anew with every credit
	since   int           // bytes shown since the last credit
	heard   time.Time     // when something last came
	beat    int64         // the last beat, of the server's clock; 0: none yet
	serving bool          // it beats
}

func newLink(s *Session, g wire.SessionGrant) *link {
	return &link{
		s: s, nc: s.c.nc, grant: g, broken: make(chan struct{}), moved: make(chan struct{}),
		recv: wire.NewReceiver(g.Window), send: wire.NewSender(g.Window), heard: time.Now(),
	}
}

// open subscribes, has the server confirm that, and says that it is ready.
func (l *link) open(ctx context.Context) error {
	changes := l.nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	sub, err := l.nc.Subscribe(l.grant.Subjects.Out, l.frame)
	if err == nil {
		l.sub = sub
		if err = sub.SetPendingLimits(linkFrames, -1); err == nil { // the window bounds what comes
			err = l.s.c.accepted(ctx, l.grant.Subjects.Out)
		}
	}
	if err == nil {
		data, _ := wire.TerminalFrame{Kind: wire.TerminalReady}.MarshalJSON() // fails for ends only
		err = l.data(data, 0)
	}
	if err != nil {
		l.nc.RemoveStatusListener(changes)
		l.fail(wire.EndClosed)
		return err
	}
	go l.watch(changes)
	return nil
}

// watch says every second that somebody is here, and notices when nobody is there.
func (l *link) watch(changes chan nats.Status) {
	defer l.nc.RemoveStatusListener(changes)
	tick := time.NewTicker(linkBeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.mu.Lock()
			silent := l.serving && time.Since(l.heard) > linkSilent
			l.mu.Unlock()
			if silent {
				l.fail("its host is not heard any more")
				return
			}
			l.credit()
		case <-changes:
			l.fail("the mesh server was lost")
			return
		case <-l.broken:
			return
		}
	}
}

// fail breaks the link, once.
func (l *link) fail(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed {
		return
	}
	l.failed, l.reason = true, reason
	close(l.broken)
	if l.sub != nil {
		_ = l.sub.Unsubscribe() // fails only when the connection is gone
	}
}

// why tells the reason, and how many typed bytes were not acknowledged.
func (l *link) why() (reason string, unsure int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.sizes {
		unsure += n
	}
	return l.reason, unsure
}

// close says goodbye and breaks the link. What was sent before is on its way.
func (l *link) close() {
	_ = l.nc.Publish(l.grant.Subjects.In, wire.Frame{T: wire.FrameClose}.Append(nil)) // a courtesy
	_ = l.nc.FlushTimeout(linkBeat)
	l.fail(wire.EndClosed)
}

// stalled says whether the host is not heard, though it used to be.
func (l *link) stalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.serving && time.Since(l.heard) > linkStall
}

// data sends one data frame, which holds typed bytes of that number, and waits for the window.
func (l *link) data(data []byte, typed int) error {
	for {
		l.wmu.Lock()
		l.mu.Lock()
		failed, moved := l.failed, l.moved
		var seq uint64
		ok := false
		if !failed {
			if seq, ok = l.send.Next(); ok {
				l.sizes = append(l.sizes, typed)
			}
		}
		l.mu.Unlock()
		if ok {
			err := l.publish(wire.Frame{T: wire.FrameData, Seq: seq, Data: data}.Append(nil))
			l.wmu.Unlock()
			if err != nil {
				l.fail("the mesh server was lost")
				return ErrNotAttached
			}
			return nil
		}
		l.wmu.Unlock()
		if failed {
			return ErrNotAttached
		}
		select {
		case <-moved:
		case <-l.broken:
			return ErrNotAttached
		}
	}
}

// publish sends a frame. Nobody on the other side is said by the server, on the subject of the output.
func (l *link) publish(p []byte) error {
	m := nats.NewMsg(l.grant.Subjects.In)
	m.Reply, m.Data = l.grant.Subjects.Out, p
	l.mu.Lock()
	if l.beat > 0 {
		m.Header.Set(wire.HeaderSessionHeard, strconv.FormatInt(l.beat, 10))
	}
	l.mu.Unlock()
	return l.nc.PublishMsg(m)
}

// credit says how much was taken, and so that somebody is here.
func (l *link) credit() {
	l.mu.Lock()
	total := l.recv.Total()
	l.since = 0
	l.mu.Unlock()
	_ = l.publish(wire.Frame{T: wire.FrameCredit, Ack: &total}.Append(nil)) // the next one says it again
}

// taken counts one frame as shown.
func (l *link) taken(n int) {
	l.mu.Lock()
	due := l.recv.Taken()
	l.since += n
	due = due || l.since >= creditSize
	l.mu.Unlock()
	if due {
		l.credit()
	}
}

// frame takes what comes on the rail.
func (l *link) frame(m *nats.Msg) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		l.fail("its host does not serve it any more")
		return
	}
	f, t, err := wire.DecodeTerminal(m.Data, l.s.buffer(len(m.Data)))
	if err != nil {
		l.fail(fmt.Sprintf("what came is no frame: %v", err))
		return
	}
	l.mu.Lock()
	l.heard = time.Now()
	if len(m.Header) > 0 {
		if at, err := strconv.ParseInt(m.Header.Get(wire.HeaderSessionBeat), 10, 64); err == nil {
			l.beat, l.serving = at, true
		}
	}
	if f.Ack != nil {
		err = l.ack(*f.Ack)
	}
	arrival := wire.FrameDuplicate
	if f.T == wire.FrameData {
		arrival = l.recv.Arrive(f.Seq)
	}
	l.mu.Unlock()
	switch {
	case err != nil:
		l.fail(err.Error())
	case f.T == wire.FrameClose:
		l.fail(wire.EndClosed)
	case arrival == wire.FrameGap, arrival == wire.FrameFlood:
		// The last word of a later incarnation is outside of the count.
		if t.Kind == wire.TerminalEnd {
			l.fail(t.Reason)
			return
		}
		l.fail("output was lost on the way")
	case arrival == wire.FrameNext:
		l.take(t)
	case f.T == wire.FrameData && t.Kind == wire.TerminalEnd:
		l.fail(t.Reason)
	}
}

func (l *link) take(t *wire.TerminalFrame) {
	switch t.Kind {
	case wire.TerminalData:
		l.s.push(chunk{from: l, p: t.Bytes, frame: true})
	case wire.TerminalDrop:
		l.s.push(chunk{from: l, news: &SessionNews{Kind: SessionDrop, Dropped: t.Dropped}, frame: true})
	case wire.TerminalEnd:
		l.fail(t.Reason)
	default:
		l.taken(0)
	}
}

// ack takes a total of the host. The caller holds mu.
func (l *link) ack(total uint64) error {
	moved, err := l.send.Ack(total)
	if err != nil || !moved {
		return err
	}
	l.sizes = append(l.sizes[:0], l.sizes[total-l.acked:]...)
	l.acked = total
	close(l.moved)
	l.moved = make(chan struct{})
	return nil
}
