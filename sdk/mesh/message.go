package mesh

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Message is one that was received. Who sent it and how is what its subject says, whatever its text claims.
type Message struct {
	wire.Message
	Kind   wire.MessageKind
	Sender wire.Principal
	// Historical: it was there before the channel was joined, or was read from the history.
	Historical bool
	// Seq is its place in the stream that keeps it; 0 for one that came live.
	Seq uint64
}

// Text is the parts of a message that is a text and nothing else.
func Text(text string) []wire.Part { return []wire.Part{{Kind: wire.PartText, Text: text}} }

// SendChannel sends a text to a channel. See Send.
func (c *Client) SendChannel(ctx context.Context, channel, text string) (wire.Message, error) {
	return c.Send(ctx, wire.Message{Channel: channel, Parts: Text(text)})
}

// SendDirect sends a text to one principal (dot form, the id of a card). See Send.
func (c *Client) SendDirect(ctx context.Context, to, text string) (wire.Message, error) {
	return c.Send(ctx, wire.Message{To: to, Parts: Text(text)})
}

// Send sends a message to the one of Channel, To and ToService that is set, and returns it as it was sent, once
// the server keeps it. Space and From are the client's; ID and TS are filled in when they are zero.
//
// After ErrNoReply it is not known whether the message was kept. Sending what Send returned once more is safe:
// within two minutes the server keeps a message of the same ID once.
//
// Errors: *wire.FieldError and *wire.SubjectError (it cannot be sent like that), ErrDenied (this credential may not
// write there; the text names the channel), ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed. With the last four the
// message is returned too.
func (c *Client) Send(ctx context.Context, m wire.Message) (wire.Message, error) {
	m.Space = c.cfg.Space
	m.From.ID = c.caller.Principal()
	m.From.Name = first(m.From.Name, c.cfg.Name, c.caller.Principal())
	m.ID = first(m.ID, wire.NewID())
	if m.TS == 0 {
		m.TS = time.Now().UnixMilli()
	}
	subject, body, err := wire.Seal(m)
	if err != nil {
		return m, fmt.Errorf("send message: %w", &notSent{err})
	}
	msg := nats.NewMsg(subject)
	msg.Data = body
	msg.Header.Set(wire.HeaderMsgID, m.ID)
	if _, err := c.store(ctx, msg); err != nil {
		if m.Channel != "" && errors.Is(err, ErrDenied) {
			err = fmt.Errorf("this caller may not write to that channel: %w", err)
		}
		return m, fmt.Errorf("send message to %s: %w", first(m.Channel, m.To, m.ToService), err)
	}
	return m, nil
}

// open reads a message that came from the server.
func open(subject string, body []byte) (Message, error) {
	s, m, err := wire.Open(subject, body)
	if err != nil {
		return Message{}, err
	}
	// The subject decides; a body that says another channel or recipient is at odds with itself.
	m.Channel, m.To, m.ToService = "", "", ""
	switch s.Kind {
	case wire.MessageChat:
		m.Channel = s.Channel
	case wire.MessageDirect:
		m.To = s.To.String()
	case wire.MessageService:
		m.ToService = s.Role
	}
	return Message{Message: m, Kind: s.Kind, Sender: s.Sender}, nil
}

// rejection is the advisory word for why a message was rejected.
func rejection(err error) string {
	var r *wire.RejectError
	if errors.As(err, &r) {
		return r.Reason
	}
	return ""
}

// seenIDs remembers the ids of the latest messages: live delivery, history and redelivery may bring the same one.
type seenIDs struct {
	set  map[string]struct{}
	ring []string
	next int
}

const seenLimit = 4096

// first reports whether an id is new, and remembers it. A message without one is always new.
func (s *seenIDs) first(id string) bool {
	if id == "" {
		return true
	}
	if _, ok := s.set[id]; ok {
		return false
	}
	if s.set == nil {
		s.set = map[string]struct{}{}
	}
	if len(s.ring) < seenLimit {
		s.ring = append(s.ring, id)
	} else {
		delete(s.set, s.ring[s.next])
		s.ring[s.next] = id
		s.next = (s.next + 1) % seenLimit
	}
	s.set[id] = struct{}{}
	return true
}
