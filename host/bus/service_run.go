package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// receive runs on the subscription's own goroutine: it validates and hands over, and never waits.
func (s *Service) receive(m *nats.Msg) {
	subject, err := wire.ParseRequestSubject(m.Subject)
	if err != nil {
		// No authenticated sender, so there is nobody to answer.
		s.cfg.Log.Debug("request ignored", "err", err)
		return
	}
	req := &Request{Subject: subject, Arrived: time.Now()}
	env, werr := wire.DecodeRequest(m.Data)
	req.Env = env
	if werr != nil {
		s.refuse(req, werr)
		return
	}
	cmd, known := s.cfg.Commands[subject.Command]
	if known && cmd.InstanceOnly && subject.Mode != wire.ModeInstance {
		known = false
	}
	var spec *wire.CommandSpec
	if known {
		spec = cmd.spec
	}
	if werr := wire.Admit(subject, env, wire.Responder{InstanceID: s.cfg.InstanceID, Epoch: s.cfg.Epoch}, spec); werr != nil {
		s.refuse(req, werr)
		return
	}
	req.deadline = deadlineOf(req, m.Header.Get(wire.HeaderDeadlineAt))
	if !time.Now().Before(req.deadline) {
		s.refuse(req, wire.Refuse(wire.CodeDeadlineExceeded, "the deadline had passed when the request came"))
		return
	}
	if werr := s.checkArgs(req, cmd); werr != nil {
		s.refuse(req, werr)
		return
	}
	if !s.begin() {
		s.refuse(req, wire.Refuse(wire.CodeUnavailable, "this host is stopping"))
		return
	}
	if cmd.Read && s.cfg.Asked != nil {
		s.cfg.Asked.note()
	}
	g := s.gateOf(cmd)
	if !g.enter() {
		s.running.Done()
		s.refuse(req, wire.Refuse(wire.CodeResourceExhausted, "%d requests are waiting; try again later", s.cfg.MaxQueued))
		return
	}
	go func() {
		defer s.running.Done()
		defer g.leave()
		s.run(req, cmd, g)
	}()
}

// ownInFlight is how many of the host's own affairs run at once.
const ownInFlight = 8

// gateOf is the limit that a command is under.
func (s *Service) gateOf(c Command) *gate {
	switch {
	case c.InstanceOnly:
		return s.own
	case c.Ends:
		return s.ends
	case c.Read && c.Targeted:
		return s.looks
	case c.Read:
		return s.reads
	}
	return s.effects
}

// deadlineOf is when a request has to be done (wire.Deadline).
func deadlineOf(req *Request, header string) time.Time {
	budget := castBudget
	if req.Env.DeadlineMs > 0 {
		budget = time.Duration(min(req.Env.DeadlineMs, int64(maxBudget/time.Millisecond))) * time.Millisecond
	}
	return wire.Deadline(req.Arrived, budget, header)
}

// checkArgs runs the host's own check and the schema; one that panics refuses, and has had no effect.
func (s *Service) checkArgs(req *Request, cmd Command) (werr *wire.Error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("check of arguments panicked", "op", req.Subject.Command, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			werr = wire.Refuse(wire.CodeInternal, "the host failed while it checked the arguments of %s; its log says more", req.Subject.Command)
		}
	}()
	if cmd.CheckArgs != nil {
		if werr := cmd.CheckArgs(req.Env.Args); werr != nil {
			return werr
		}
	}
	if err := cmd.Input.Check(req.Env.Args); err != nil {
		return wire.Refuse(wire.CodeBadRequest, "args: %s", err)
	}
	return nil
}

func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.running.Add(1)
	return true
}

func (s *Service) run(req *Request, cmd Command, g *gate) {
	ctx, cancel := context.WithDeadline(s.ctx, req.deadline)
	defer cancel()
	if !g.acquire(ctx) {
		s.refuse(req, s.late("the deadline passed while the request waited its turn"))
		return
	}
	defer g.release()
	release := func() {}
	if cmd.Admit != nil {
		granted, werr := s.admit(ctx, req, cmd)
		if werr != nil {
			s.refuse(req, overtaken(ctx.Err(), werr))
			return
		}
		if granted != nil {
			release = granted
		}
	}
	defer release()
	// The last moment at which nothing has happened yet: a turn and an admission may have come late.
	if !time.Now().Before(req.deadline) || ctx.Err() != nil {
		s.refuse(req, s.late("the deadline passed before the request was begun"))
		return
	}
	data, werr := s.call(ctx, req, cmd.Handler)
	s.answer(req, cmd, data, overtaken(ctx.Err(), werr))
}

// overtaken tells a failure as what it is when the caller's own deadline had passed (ended is the error of the
// request's context): whatever was asked under it then did not answer in time, and that says nothing of whoever was
// asked. The outcome is that of the failure.
func overtaken(ended error, werr *wire.Error) *wire.Error {
	if werr == nil || werr.Code != wire.CodeUnavailable || !errors.Is(ended, context.DeadlineExceeded) {
		return werr
	}
	c := *werr
	c.Code = wire.CodeDeadlineExceeded
	c.Message = "the deadline passed: " + strings.ReplaceAll(strings.ReplaceAll(c.Message, "\n", "; "), ": "+context.DeadlineExceeded.Error(), "")
	return &c
}

func (s *Service) late(why string) *wire.Error {
	if s.ctx.Err() != nil {
		return wire.Refuse(wire.CodeUnavailable, "this host is stopping")
	}
	return wire.Refuse(wire.CodeDeadlineExceeded, "%s", why)
}

// admit asks the command's own admission. A refusal of it is before the handler: not-executed, whatever it
// says.
func (s *Service) admit(ctx context.Context, req *Request, cmd Command) (release func(), werr *wire.Error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("admission panicked", "op", req.Subject.Command, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			release, werr = nil, wire.Refuse(wire.CodeInternal, "the host failed while it admitted %s; its log says more", req.Subject.Command)
		}
	}()
	release, werr = cmd.Admit(ctx, req)
	if werr != nil && werr.Outcome != wire.OutcomeNotExecuted {
		c := *werr
		c.Outcome = wire.OutcomeNotExecuted
		werr = &c
	}
	return release, werr
}

// call runs the handler and turns a panic into an answer: one bad request must not end the host.
func (s *Service) call(ctx context.Context, req *Request, h Handler) (data any, werr *wire.Error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("handler panicked", "op", req.Subject.Command, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			data, werr = nil, wire.Fail(wire.CodeInternal, "the host failed while it handled %s; its log says more", req.Subject.Command)
		}
	}()
	return h(ctx, req)
}

func (s *Service) refuse(req *Request, werr *wire.Error) {
	s.reply(req, wire.EndpointReply{Error: werr})
}

func (s *Service) answer(req *Request, cmd Command, data any, werr *wire.Error) {
	if werr != nil {
		if werr.Outcome == "" {
			c := *werr
			c.Outcome = wire.OutcomeUnknown
			werr = &c
		}
		s.reply(req, wire.EndpointReply{Error: werr})
		return
	}
	if a, ok := data.(Appender); ok {
		s.replyWith(req, a)
		return
	}
	raw, code, err := encodeData(data, cmd.Output)
	if err != nil {
		s.unsent(req, code, err)
		return
	}
	s.replyWith(req, Encoded(raw))
}

// unsent answers a request whose handler ran and whose answer cannot go out: what it did is done.
func (s *Service) unsent(req *Request, code string, err error) {
	s.cfg.Log.Error("answer cannot be sent", "op", req.Subject.Command, "err", err)
	s.reply(req, wire.EndpointReply{Error: &wire.Error{Code: code, Message: err.Error(), Outcome: wire.OutcomeExecuted}})
}

// buffers are those of replies: the connection copies what it is given.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept is the largest buffer that is kept for the next reply, in bytes.
const maxKept = 1 << 20

// replyWith answers with data, in one buffer and without reading it once more.
func (s *Service) replyWith(req *Request, data Appender) {
	if !req.Env.ReplyExpected {
		return
	}
	subject, err := req.Subject.Reply(s.cfg.InstanceID, s.cfg.Epoch).Subject()
	if err != nil {
		s.cfg.Log.Warn("reply was not sent", "op", req.Subject.Command, "err", err)
		return
	}
	buf := buffers.Get().(*[]byte)
	p := append((*buf)[:0], `{"v":1,"id":"`...)
	p = append(p, req.Env.ID...) // admitted: it has the grammar of an id, and no character to escape
	p = append(p, `","ok":true,"data":`...)
	p = data.AppendJSON(p)
	p = append(p, '}')
	if most := s.bus.nc.MaxPayload(); int64(len(p)) > most {
		err = fmt.Errorf("the answer is %d bytes, more than the server carries", len(p))
		s.unsent(req, wire.CodeResourceExhausted, err)
	} else if err = s.bus.nc.Publish(subject, p); err != nil {
		s.cfg.Log.Warn("reply was not sent", "op", req.Subject.Command, "err", err)
	}
	if cap(p) <= maxKept {
		*buf = p
		buffers.Put(buf)
	}
}

// encodeData encodes a handler's answer and checks it against the contract. The code goes with the error.
func encodeData(data any, output *wire.Schema) (raw json.RawMessage, code string, err error) {
	if raw, err = json.Marshal(data); err != nil {
		return nil, wire.CodeResourceExhausted, err
	}
	if err := output.Check(raw); err != nil {
		return nil, wire.CodeInternal, fmt.Errorf("the answer breaks the contract: %w", err)
	}
	return raw, "", nil
}

// reply publishes on the subject derived from the authenticated request subject, whatever reply
// address the message named. A cast is never answered.
func (s *Service) reply(req *Request, r wire.EndpointReply) {
	if !req.Env.ReplyExpected {
		if r.Error != nil {
			s.cfg.Log.Debug("cast refused", "op", req.Subject.Command, "err", r.Error)
		}
		return
	}
	r.Error = bounded(r.Error)
	r.ID = req.Env.ID
	if r.ID == "" {
		r.ID = req.Subject.Nonce // the envelope was unreadable; the nonce still tells the caller which call
	}
	subject, err := req.Subject.Reply(s.cfg.InstanceID, s.cfg.Epoch).Subject()
	if err == nil {
		var p []byte
		if p, err = r.Encode(); err == nil {
			err = s.bus.nc.Publish(subject, p)
		}
	}
	if err != nil {
		s.cfg.Log.Warn("reply was not sent", "op", req.Subject.Command, "err", err)
	}
}

// A refusal quotes what it refuses, and must not be too large to be sent for that: escaped, a quote is longer
// than what it quotes.
const (
	maxMessage = 4 << 10  // bytes of the text
	maxDetails = 64 << 10 // bytes of the details, encoded
)

// bounded cuts the text of an error that is too long, and leaves details out that are. Code and outcome stay.
func bounded(e *wire.Error) *wire.Error {
	if e == nil || len(e.Message) <= maxMessage && len(e.Details) == 0 {
		return e
	}
	c := *e
	if len(c.Message) > maxMessage {
		const cut = " … (cut)"
		c.Message = strings.ToValidUTF8(c.Message[:maxMessage-len(cut)], "") + cut
	}
	if raw, err := json.Marshal(c.Details); err != nil || len(raw) > maxDetails {
		c.Details = nil
	}
	return &c
}
