package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Kinds of message parts. Any other kind is an extension and has a reverse-DNS name.
const (
	PartText     = "text"
	PartData     = "data"
	PartArtifact = "artifact"
)

// Part is one piece of a message. Which members count follows from Kind.
type Part struct {
	Kind string
	Text string          // PartText
	Data json.RawMessage // PartData: any JSON
	// PartArtifact: a reference to bytes elsewhere. All of it is a claim: verify the bytes against
	// Digest, and allocate nothing by Size.
	Name      string
	MediaType string
	Digest    string
	Size      int64
	// Extension is the whole part of an extension kind, as it came.
	Extension json.RawMessage
}

// MarshalJSON writes the members that belong to the kind, and no others.
func (p Part) MarshalJSON() ([]byte, error) {
	switch p.Kind {
	case PartText:
		return json.Marshal(struct {
			Kind string `json:"kind"`
			Text string `json:"text"`
		}{p.Kind, p.Text})
	case PartData:
		data := p.Data
		if len(data) == 0 {
			data = json.RawMessage("null")
		}
		return json.Marshal(struct {
			Kind string          `json:"kind"`
			Data json.RawMessage `json:"data"`
		}{p.Kind, data})
	case PartArtifact:
		return json.Marshal(struct {
			Kind      string `json:"kind"`
			Name      string `json:"name"`
			MediaType string `json:"mediaType"`
			Digest    string `json:"digest"`
			Size      int64  `json:"size"`
		}{p.Kind, p.Name, p.MediaType, p.Digest, p.Size})
	}
	if len(p.Extension) > 0 {
		return p.Extension, nil
	}
	return json.Marshal(struct {
		Kind string `json:"kind"`
	}{p.Kind})
}

// Message is a message on the mesh. Exactly one of Channel, To and ToService is set, and agrees with the
// kind of its subject.
type Message struct {
	ID        string      `json:"id"` // also its HeaderMsgID; may be empty, and then is no key for anything
	TS        int64       `json:"ts"` // epoch milliseconds
	Space     string      `json:"space"`
	From      EndpointRef `json:"from"`
	Channel   string      `json:"channel,omitempty"`
	To        string      `json:"to,omitempty"`        // dot form
	ToService string      `json:"toService,omitempty"` // role
	Parts     []Part      `json:"parts"`
	Mentions  []string    `json:"mentions,omitempty"` // lower-case names
	ReplyTo   string      `json:"replyTo,omitempty"`
	ContextID string      `json:"contextId,omitempty"`
}

// Why a message is rejected, for good: it is terminated and never delivered again.
const (
	RejectSubject = "malformed-subject"
	RejectSender  = "sender-mismatch"
	RejectJSON    = "malformed-json"
)

// RejectError is a message that is not delivered.
type RejectError struct {
	Reason string // one of Reject*
	Err    error
}

func (e *RejectError) Error() string { return "message rejected, " + e.Reason + ": " + e.Err.Error() }

// Unwrap returns what was wrong.
func (e *RejectError) Unwrap() error { return e.Err }

// Text joins the text parts with line feeds.
func (m Message) Text() string {
	var t []string
	for _, p := range m.Parts {
		if p.Kind == PartText {
			t = append(t, p.Text)
		}
	}
	return strings.Join(t, "\n")
}

// DecodeMessage decodes the JSON of a message. Members it does not know are ignored, as are extension
// parts nobody here understands: they stay in Parts. A part whose kind is neither known nor
// reverse-DNS is refused.
func DecodeMessage(p []byte) (Message, error) {
	return decode("message", p, func(f *fields, m *Message) {
		f.str("id", true, nil, "", &m.ID)
		f.whole("ts", true, &m.TS)
		f.str("space", true, nil, "", &m.Space)
		if s := f.object("from", true); s != nil {
			s.str("id", true, nil, "", &m.From.ID)
			s.str("name", true, nil, "", &m.From.Name)
			s.str("role", false, nil, "", &m.From.Role)
			f.done(s)
		}
		set := 0
		for _, way := range []struct {
			name string
			dst  *string
		}{{"channel", &m.Channel}, {"to", &m.To}, {"toService", &m.ToService}} {
			if f.err == nil && f.n.get(way.name) != nil {
				set++
				f.str(way.name, true, isSet, "", way.dst)
			}
		}
		if f.err == nil && set != 1 {
			f.fail("channel", fmt.Sprintf("has to be the one of channel, to and toService; %d of them are there", set))
		}
		f.objects("parts", true, func(s *fields) {
			var part Part
			s.part(&part)
			m.Parts = append(m.Parts, part)
		})
		if m.Parts == nil {
			m.Parts = []Part{}
		}
		f.strings("mentions", false, nil, "", &m.Mentions)
		f.str("replyTo", false, nil, "", &m.ReplyTo)
		f.str("contextId", false, nil, "", &m.ContextID)
	})
}

func (f *fields) part(p *Part) {
	f.str("kind", true, func(k string) bool {
		return slices.Contains([]string{PartText, PartData, PartArtifact}, k) || ValidPartKind(k)
	}, "is neither a known kind nor a reverse-DNS name", &p.Kind)
	switch p.Kind {
	case PartText:
		f.str("text", true, nil, "", &p.Text)
	case PartData:
		if f.err == nil && f.n.get("data") == nil {
			f.fail("data", "is missing")
		}
		p.Data = f.raw("data")
	case PartArtifact:
		f.str("name", true, nil, "", &p.Name)
		f.str("mediaType", true, nil, "", &p.MediaType)
		f.str("digest", true, ValidDigest, whyDigest, &p.Digest)
		f.millis("size", true, 0, &p.Size)
	default:
		p.Extension = json.RawMessage(f.n.raw)
	}
}

// whole reads a time that others may write with a fraction: what stands behind the point is dropped.
func (f *fields) whole(name string, required bool, dst *int64) {
	v := f.lookup(name, required, kindNumber)
	if v == nil {
		return
	}
	if v.num < 0 || v.num > MaxInteger {
		f.fail(name, "is not from 0 to 2^53-1")
		return
	}
	*dst = int64(v.num)
}

// Encode returns the message as JSON, after it was read back.
func (m Message) Encode() ([]byte, error) {
	if m.Parts == nil {
		m.Parts = []Part{}
	}
	return encode("message", m, DecodeMessage)
}

// Open reads a message that came on a subject. The subject says who sent it and how; a payload that
// contradicts it is rejected. The error is a *RejectError.
func Open(subject string, p []byte) (MessageSubject, Message, error) {
	s, err := ParseMessageSubject(subject)
	if err != nil {
		return s, Message{}, &RejectError{RejectSubject, err}
	}
	m, err := DecodeMessage(p)
	if err != nil {
		return s, m, &RejectError{RejectJSON, err}
	}
	if m.From.ID != s.Sender.String() {
		return s, m, &RejectError{RejectSender, fmt.Errorf("from.id is %q, the subject says %s", clip(m.From.ID), s.Sender)}
	}
	return s, m, nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// Seal builds the subject and the body of a message: one call for what has to agree.
func Seal(m Message) (subject string, body []byte, err error) {
	sender, err := PrincipalOf(m.From.ID)
	if err != nil {
		return "", nil, fmt.Errorf("seal message: from.id: %w", err)
	}
	s := MessageSubject{Space: m.Space, Sender: sender}
	switch {
	case m.Channel != "":
		s.Kind, s.Channel = MessageChat, m.Channel
	case m.To != "":
		s.Kind = MessageDirect
		if s.To, err = PrincipalOf(m.To); err != nil {
			return "", nil, fmt.Errorf("seal message: to: %w", err)
		}
	default:
		s.Kind, s.Role = MessageService, Sanitize(m.ToService)
	}
	if body, err = m.Encode(); err != nil {
		return "", nil, err
	}
	if subject, err = s.Subject(); err != nil {
		return "", nil, fmt.Errorf("seal message: %w", err)
	}
	return subject, body, nil
}
