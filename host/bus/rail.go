package bus

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// RailFrame is one message on the rail of a session.
type RailFrame struct {
	Data  []byte // valid during the call
	Heard int64  // epoch ms of the last beat its sender had heard (wire.HeaderSessionHeard); 0: not said
	// Nobody is set on what the server itself says: nobody listens on the subject that was sent to.
	Nobody bool
}

// Listen calls fn, one call at a time, for what comes on a subject of a session. Flush makes sure that the
// server knows. A rail that is not read loses frames beyond 16 MiB, which its numbers show.
func (b *Bus) Listen(subject string, fn func(RailFrame)) (stop func(), err error) {
	sub, err := b.nc.Subscribe(subject, func(m *nats.Msg) {
		f := RailFrame{Data: m.Data}
		if len(m.Header) > 0 {
			f.Nobody = len(m.Data) == 0 && m.Header.Get("Status") == "503"
			f.Heard, _ = strconv.ParseInt(m.Header.Get(wire.HeaderSessionHeard), 10, 64) // what is no number was not said
		}
		fn(f)
	})
	if err == nil {
		err = sub.SetPendingLimits(railPendingMsgs, railPendingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on session rail: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is gone, and the subscription with it
}

const (
	railPendingMsgs  = 4 * wire.MaxSessionWindow
	railPendingBytes = 16 << 20
)

// Send publishes a frame on a subject of a session. The frame may be reused when it returns.
func (b *Bus) Send(subject string, frame []byte) error {
	if err := b.nc.Publish(subject, frame); err != nil {
		return fmt.Errorf("send on session rail: %w", err)
	}
	return nil
}

// Beat publishes a frame that says at which time (epoch ms) its sender was there. When nobody listens on the
// subject, the server says so on the subject nobody.
func (b *Bus) Beat(subject, nobody string, frame []byte, at int64) error {
	m := nats.NewMsg(subject)
	m.Reply, m.Data = nobody, frame
	m.Header.Set(wire.HeaderSessionBeat, strconv.FormatInt(at, 10))
	if err := b.nc.PublishMsg(m); err != nil {
		return fmt.Errorf("send on session rail: %w", err)
	}
	return nil
}

// Inbox returns a fresh subject for what the server says of a rail.
func (b *Bus) Inbox() string { return b.nc.NewInbox() }
