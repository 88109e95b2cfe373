package wire

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Version is the envelope version.
const Version = 1

// Class is the delivery class of a command.
type Class string

// Classes.
const (
	ClassEphemeral Class = "ephemeral"
	ClassJournal   Class = "journal"
)

// Op names what is called. Both digests are those of the command's contract; they are optional for
// now (docs/wire-decisions.md) and never sent with describe.
type Op struct {
	Endpoint     string `json:"endpoint"`
	Command      string `json:"command"`
	InputDigest  string `json:"inputDigest,omitempty"`
	OutputDigest string `json:"outputDigest,omitempty"`
}

// EndpointRef says who sends. ID is the principal, owner.actor; the rest is a label.
type EndpointRef struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	Role string `json:"role,omitempty"`
}

// Bind pins a request to one incarnation of one instance.
type Bind struct {
	InstanceID string `json:"instanceId"`
	Epoch      uint64 `json:"epoch"`
}

// Correlation carries W3C trace context.
type Correlation struct {
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
	Baggage     string `json:"baggage,omitempty"`
}

// EndpointRequest is the body of a request.
type EndpointRequest struct {
	V             int             `json:"v"`
	ID            string          `json:"id"` // idempotency key
	Op            Op              `json:"op"`
	Class         Class           `json:"class"`
	ReplyExpected bool            `json:"replyExpected"` // true: call, false: cast
	GoalID        string          `json:"goalId,omitempty"`
	Target        *Target         `json:"target,omitempty"`
	Bind          *Bind           `json:"bind,omitempty"`
	Args          json.RawMessage `json:"args,omitempty"` // an object
	From          EndpointRef     `json:"from"`
	DeadlineMs    int64           `json:"deadlineMs,omitempty"` // budget from arrival, milliseconds; 0 = absent
	Correlation   *Correlation    `json:"correlation,omitempty"`
	Auth          string          `json:"auth,omitempty"` // opaque, kept as carried
}

// EndpointReply is the body of a reply. Exactly one of Data (with OK) and Error (without) counts.
type EndpointReply struct {
	V       int             `json:"v"`
	ID      string          `json:"id"` // of the request
	OK      bool            `json:"ok"`
	Data    json.RawMessage `json:"data,omitempty"`
	Error   *Error          `json:"error,omitempty"`
	Receipt string          `json:"receipt,omitempty"`
}

// DecodeRequest decodes and validates a request. The error is always a *Error that refuses with
// outcome not-executed: unsupported-version when v is an integer other than 1, or for the body of
// version 0 ({op: text, args}), else bad-request naming the field. The returned request holds what could be read (ID above all) even then, so
// that the refusal can be addressed.
func DecodeRequest(p []byte) (EndpointRequest, *Error) {
	var r EndpointRequest
	r.ReplyExpected = true // until the envelope says otherwise: a refusal nobody waits for harms nobody
	f, err := readFields(p)
	if err != nil {
		return r, Refuse(CodeBadRequest, "request: %s", err)
	}
	if id := f.n.get("id"); id != nil && id.kind == kindString && ValidID(id.str) {
		r.ID = id.str
	}
	if re := f.n.get("replyExpected"); re != nil && re.kind == kindFalse {
		r.ReplyExpected = false
	}
	if v := f.n.get("v"); v != nil && v.kind == kindNumber && v.num != Version {
		return r, Refuse(CodeUnsupportedVersion, "request: v is %s; this endpoint speaks %d", v.raw, Version)
	}
	if op := f.n.get("op"); op != nil && op.kind == kindString && f.n.get("v") == nil {
		return r, Refuse(CodeUnsupportedVersion, "request: this is the body of version 0; this endpoint speaks %d", Version)
	}
	f.integer("v", true, Version, Version, func(n int64) { r.V = int(n) })
	f.str("id", true, ValidID, whyID, &r.ID)
	if s := f.object("op", true); s != nil {
		s.str("endpoint", true, ValidEndpoint, whyEndpoint, &r.Op.Endpoint)
		s.str("command", true, ValidCommand, whyCommand, &r.Op.Command)
		s.str("inputDigest", false, ValidDigest, whyDigest, &r.Op.InputDigest)
		s.str("outputDigest", false, ValidDigest, whyDigest, &r.Op.OutputDigest)
		f.done(s)
	}
	f.str("class", true, func(s string) bool { return s == string(ClassEphemeral) || s == string(ClassJournal) },
		"is not ephemeral or journal", (*string)(&r.Class))
	f.boolean("replyExpected", true, &r.ReplyExpected)
	f.str("goalId", false, ValidID, whyID, &r.GoalID)
	r.Target = f.target(false)
	if s := f.object("bind", false); s != nil {
		var b Bind
		s.str("instanceId", true, ValidUID, whyUID, &b.InstanceID)
		s.integer("epoch", true, 0, MaxInteger, func(n int64) { b.Epoch = uint64(n) })
		f.done(s)
		r.Bind = &b
	}
	if v := f.lookup("args", false, kindObject); v != nil {
		r.Args = json.RawMessage(v.raw)
	}
	if s := f.object("from", true); s != nil {
		s.str("id", true, func(v string) bool { _, _, err := ParsePrincipal(v); return err == nil }, whyPrincipal, &r.From.ID)
		s.str("name", false, nil, "", &r.From.Name)
		s.str("role", false, nil, "", &r.From.Role)
		f.done(s)
	}
	f.integer("deadlineMs", false, 1, MaxInteger, func(n int64) { r.DeadlineMs = n })
	r.Correlation = f.correlation()
	f.str("auth", false, nil, "", &r.Auth)
	if f.err != nil {
		return r, Refuse(CodeBadRequest, "request: %s", f.err)
	}
	return r, nil
}

// target reads the member target. closed refuses members that do not belong to it.
func (f *fields) target(closed bool) *Target {
	s := f.object("target", false)
	if s == nil {
		return nil
	}
	var t Target
	if closed {
		s.closed("owner", "actor", "lifecycleUid", "mappingRevision")
	}
	s.str("owner", true, ValidOwner, whyOwner, &t.Owner)
	s.str("actor", true, ValidActor, whyActor, &t.Actor)
	s.str("lifecycleUid", true, ValidUID, whyUID, &t.LifecycleUID)
	s.integer("mappingRevision", false, 0, MaxInteger, func(n int64) { u := uint64(n); t.MappingRevision = &u })
	f.done(s)
	return &t
}

// largeArgs is from where on arguments are worth a way of their own: those of input, up to 64 KiB.
const largeArgs = 4 << 10

// Encode returns the request as JSON. It validates by decoding what it wrote, so that a caller cannot
// send what a responder would refuse as malformed.
func (r EndpointRequest) Encode() ([]byte, error) {
	args := r.Args
	if n, err := parseJSON(args); len(args) > largeArgs && err == nil && n.kind == kindObject {
		r.Args = nil // json.Marshal would check and copy it once more, slowly
	}
	p, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	if r.Args == nil && len(args) > largeArgs {
		p = slices.Concat(p[:len(p)-1], []byte(`,"args":`), args, []byte("}"))
	}
	if _, werr := DecodeRequest(p); werr != nil {
		return nil, fmt.Errorf("encode request: %s", werr.Message)
	}
	return p, nil
}

// DecodeReply decodes and validates a reply. An error code outside the list is kept as it is.
func DecodeReply(p []byte) (EndpointReply, error) {
	var r EndpointReply
	f, err := readFieldsBut(p, "data")
	if err != nil {
		return r, fmt.Errorf("decode reply: %w", err)
	}
	f.integer("v", true, Version, Version, func(n int64) { r.V = int(n) })
	f.str("id", true, ValidID, whyID, &r.ID)
	f.boolean("ok", true, &r.OK)
	if f.err == nil {
		switch e := f.n.get("error"); {
		case r.OK && e != nil && e.kind != kindNull:
			f.fail("error", "is present although ok is true")
		case r.OK:
			r.Data = f.raw("data")
		case f.n.get("data") != nil:
			f.fail("data", "is present although ok is false")
		default:
			r.Error = f.replyError()
		}
	}
	f.str("receipt", false, nil, "", &r.Receipt)
	if f.err != nil {
		return EndpointReply{}, fmt.Errorf("decode reply: %w", f.err)
	}
	return r, nil
}

func (f *fields) replyError() *Error {
	s := f.object("error", true)
	if s == nil {
		return nil
	}
	var e Error
	s.str("code", true, func(v string) bool { return v != "" && len(v) <= MaxErrCode }, "is longer than 64 bytes", &e.Code)
	s.str("message", true, nil, "", &e.Message)
	s.str("outcome", false, nil, "", (*string)(&e.Outcome))
	if v := s.lookup("details", false, kindArray); v != nil {
		for i := range v.items {
			var d Detail
			item := &v.items[i]
			if item.kind != kindObject {
				s.fail(fmt.Sprintf("details.%d", i), "is "+item.kind.String()+", not an object")
				break
			}
			if k := item.get("kind"); k == nil || k.kind != kindString || k.str == "" {
				s.fail(fmt.Sprintf("details.%d.kind", i), "is missing")
				break
			}
			if err := json.Unmarshal(item.raw, &d); err != nil {
				s.fail(fmt.Sprintf("details.%d", i), err.Error())
				break
			}
			e.Details = append(e.Details, d)
		}
	}
	e.Outcome = e.OutcomeOrUnknown()
	f.done(s)
	return &e
}

// Encode returns the reply as JSON.
func (r EndpointReply) Encode() ([]byte, error) {
	r.V = Version
	p, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode reply: %w", err)
	}
	return p, nil
}
