package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// DefaultDeadline is the budget of a call that names none.
const DefaultDeadline = 15 * time.Second

// replyMargin is how much longer than its own budget a caller waits: a reply sent in the last
// moment, or the refusal that says the deadline passed, is worth more than "no reply".
const replyMargin = 250 * time.Millisecond

// Call is one request.
type Call struct {
	Endpoint string // e.g. wire.EndpointManager
	Command  string
	Instance string // the rail of one instance; empty for any instance of the class
	Authz    wire.Authz
	Target   *wire.Target // who a targeted command acts on; the subject is derived from it
	Bind     *wire.Bind   // refuse unless exactly this incarnation gets it; nil: see Client.Call
	ID       string       // idempotency key; empty for a fresh one
	GoalID   string
	Class    wire.Class    // default ephemeral
	Args     any           // struct, map or json.RawMessage; nil for none
	Deadline time.Duration // budget; default 15 s
}

// Responder is the incarnation that answered, as its reply subject says.
type Responder struct {
	InstanceID string
	Epoch      uint64
}

// RejectedReply is a reply that was received and then not believed. The outcome follows from the
// reply: one that says ok means executed, one that refuses means what it says.
type RejectedReply struct {
	Responder Responder
	Reason    string
	Outcome   wire.Outcome
}

func (e *RejectedReply) Error() string {
	return fmt.Sprintf("%s from instance %s epoch %d: %s", ErrBadReply, e.Responder.InstanceID, e.Responder.Epoch, e.Reason)
}

// Unwrap returns ErrBadReply.
func (e *RejectedReply) Unwrap() error { return ErrBadReply }

// notSent marks an error before anything was published.
type notSent struct{ err error }

func (e *notSent) Error() string { return e.err.Error() }
func (e *notSent) Unwrap() error { return e.err }

// OutcomeOf says whether the effect of a call that returned err happened. nil is executed.
func OutcomeOf(err error) wire.Outcome {
	var refused *wire.Error
	var rejected *RejectedReply
	var ns *notSent
	switch {
	case err == nil:
		return wire.OutcomeExecuted
	case errors.As(err, &ns): // whatever was refused then, it was not the call
		return wire.OutcomeNotExecuted
	case errors.As(err, &refused):
		return refused.OutcomeOrUnknown()
	case errors.As(err, &rejected):
		return rejected.Outcome
	case errors.Is(err, ErrNoResponder):
		return wire.OutcomeOfCall(wire.SeenNoResponder, nil)
	case errors.Is(err, ErrUnreachable), errors.Is(err, ErrUnauthorized), errors.Is(err, ErrTokenFile):
		return wire.OutcomeOfCall(wire.SeenNothingSent, nil)
	}
	return wire.OutcomeOfCall(wire.SeenNoReply, nil)
}

// Call sends a request and decodes the data of its reply into out (a pointer, or nil). Stopping the
// caller through ctx never cancels what the responder has accepted.
//
// What is served is asked for first (Describe), once per incarnation: the request carries the digests of the
// contract, is held to it before anything is sent, and is bound to the incarnation that described it. Where that
// one is no longer there, and Call.Bind does not insist on it, the request goes to the incarnation that is: at most
// wire.MaxReissue times, and only when it is certain that nothing happened.
//
// Errors: *wire.Error (a refusal, of the responder or of the contract before anything was sent),
// ErrNoResponder, ErrNoReply, ErrDenied (the server lets it have no replies), *RejectedReply; an error before the request was sent is none of these.
// OutcomeOf classifies all of them.
func (c *Client) Call(ctx context.Context, call Call, out any) (Responder, error) {
	who, data, err := c.call(ctx, call)
	if err != nil {
		return who, fmt.Errorf("call %s of %s: %w", call.Command, call.Endpoint, err)
	}
	if raw, ok := out.(*json.RawMessage); ok && raw != nil && len(data) > 0 {
		*raw = data // it was read once, to be believed; whoever wants the text need not wait for a second time
	} else if out != nil && len(data) > 0 {
		if err := json.Unmarshal(data, out); err != nil {
			return who, fmt.Errorf("call %s of %s: %w", call.Command, call.Endpoint,
				&RejectedReply{who, "its data cannot be read: " + err.Error(), wire.OutcomeExecuted})
		}
	}
	return who, nil
}

func (c *Client) call(ctx context.Context, call Call) (Responder, json.RawMessage, error) {
	c.defaults(&call)
	end := endOf(ctx, call.Deadline)
	if call.Command == wire.CmdDescribe {
		return c.ask(ctx, call, wire.ModeOne, end, nil)
	}
	pinned := call.Bind != nil
	if pinned && call.Instance == "" {
		call.Instance = call.Bind.InstanceID // nobody else may carry it out
	}
	for attempt := 1; ; attempt++ {
		contract, fresh, err := c.contract(ctx, call.Endpoint, call.Instance, end)
		if err != nil {
			return Responder{}, nil, err
		}
		send := call
		if !pinned {
			send.Bind = &wire.Bind{InstanceID: contract.Responder.InstanceID, Epoch: contract.Responder.Epoch}
		}
		who, data, err := c.ask(ctx, send, wire.ModeOne, end, contract)
		var refused *wire.Error
		switch {
		case err == nil || !errors.As(err, &refused):
			return who, data, err
		case wire.MayReissue(err, pinned, attempt):
			// Another incarnation got it, and says which: that one serves the class as well.
			if who.InstanceID == contract.Responder.InstanceID {
				c.forgetContract(call.Endpoint, contract.Responder)
			}
			if call.Instance == "" {
				call.Instance = who.InstanceID
			}
		case !fresh && attempt <= wire.MaxReissue && outdated(refused):
			c.forgetContract(call.Endpoint, contract.Responder)
		default:
			return who, data, err
		}
	}
}

// outdated reports whether a refusal may be due to a contract that was described earlier.
func outdated(e *wire.Error) bool {
	return e.OutcomeOrUnknown() == wire.OutcomeNotExecuted && (e.Code == wire.CodeContractMismatch || e.Code == wire.CodeUnimplemented)
}

// endOf is when a caller stops waiting.
func endOf(ctx context.Context, budget time.Duration) time.Time {
	end := time.Now().Add(budget)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	return end
}

// ask exchanges one request for one reply.
func (c *Client) ask(ctx context.Context, call Call, mode wire.Mode, end time.Time, contract *Contract) (who Responder, data json.RawMessage, err error) {
	err = c.exchange(ctx, call, mode, end, contract, func(r Responder, reply wire.EndpointReply) (bool, error) {
		who = r
		if reply.Error != nil {
			return true, reply.Error
		}
		data = reply.Data
		return true, nil
	})
	return who, data, err
}

// Cast sends a request that is not answered. It returns once the server has it; whether it was carried out is
// not known then. Errors: as of Call before the request is sent, *wire.Error permission-denied when the server does
// not let this caller publish it, and that of a flush that failed (OutcomeOf: unknown).
func (c *Client) Cast(ctx context.Context, call Call) error {
	if err := c.cast(ctx, call); err != nil {
		return fmt.Errorf("cast %s of %s: %w", call.Command, call.Endpoint, err)
	}
	return nil
}

func (c *Client) cast(ctx context.Context, call Call) error {
	c.defaults(&call)
	end := endOf(ctx, call.Deadline)
	contract, _, err := c.contract(ctx, call.Endpoint, call.Instance, end)
	if err != nil {
		return err
	}
	r, err := c.build(call, wire.ModeOne, false, end, contract)
	if err != nil {
		return err
	}
	if err := c.nc.PublishMsg(r.msg); err != nil {
		return c.notPublished(err)
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	// The server answers in order: a refusal came before the answer to the flush.
	if subject, ok := refusedSubject(c.nc.LastError()); ok && subject == r.msg.Subject {
		return notPermitted(subject)
	}
	return nil
}

func (c *Client) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultConnectTimeout)
	defer cancel()
	return c.nc.FlushWithContext(ctx)
}

// defaults fills in what a call leaves out.
func (c *Client) defaults(call *Call) {
	if call.ID == "" {
		call.ID = wire.NewID()
	}
	if call.Class == "" {
		call.Class = wire.ClassEphemeral
	}
	if call.Deadline <= 0 {
		call.Deadline = DefaultDeadline
	}
}

// outgoing is a request that is ready to be published.
type outgoing struct {
	subject  wire.RequestSubject
	sentinel string
	msg      *nats.Msg
}

// build makes a request, and holds it to the contract as the responder will. Every error is from before the
// publish.
func (c *Client) build(call Call, mode wire.Mode, reply bool, end time.Time, contract *Contract) (outgoing, error) {
	if mode == wire.ModeOne && call.Instance != "" {
		mode = wire.ModeInstance
	}
	s := wire.RequestSubject{
		Space: c.cfg.Space, Mode: mode, Endpoint: call.Endpoint, Command: call.Command,
		Authz: call.Authz, Caller: c.caller, Nonce: wire.NewNonce(),
	}
	if mode == wire.ModeInstance {
		s.InstanceID = call.Instance
	}
	body := call.Target
	if t := call.Target; t != nil {
		switch call.Authz {
		case wire.AuthzSelf:
			body = nil
		case wire.AuthzHandle, wire.AuthzExact:
			s.TargetOwner, s.TargetActor, s.TargetUID = t.Owner, t.Actor, t.LifecycleUID
		case wire.AuthzNone:
		default:
			s.TargetOwner = t.Owner
		}
	}
	subject, err := s.Subject()
	if err != nil {
		return outgoing{}, &notSent{err}
	}
	left := time.Until(end)
	if left <= 0 {
		return outgoing{}, &notSent{fmt.Errorf("%w: the deadline passed before the request was sent", context.DeadlineExceeded)}
	}
	req := wire.EndpointRequest{
		V: wire.Version, ID: call.ID, Op: wire.Op{Endpoint: call.Endpoint, Command: call.Command},
		Class: call.Class, ReplyExpected: reply, GoalID: call.GoalID, Target: body, Bind: call.Bind,
		From:       wire.EndpointRef{ID: c.caller.Principal(), Name: c.cfg.Name},
		DeadlineMs: max(left.Milliseconds(), 1),
	}
	if call.Args != nil {
		if req.Args, err = json.Marshal(call.Args); err != nil {
			return outgoing{}, &notSent{fmt.Errorf("encode args: %w", err)}
		}
	}
	if contract != nil {
		if err := contract.hold(s, &req, call.Args); err != nil {
			return outgoing{}, &notSent{err}
		}
	}
	p, err := req.Encode()
	if err != nil {
		return outgoing{}, &notSent{err}
	}
	if limit := c.nc.MaxPayload(); limit > 0 && int64(len(p)) > limit {
		return outgoing{}, &notSent{fmt.Errorf("request is %d bytes, the server carries %d", len(p), limit)}
	}
	sentinel, err := s.NoRespondersSubject()
	if err != nil {
		return outgoing{}, &notSent{err}
	}
	return outgoing{s, sentinel, &nats.Msg{
		Subject: subject, Reply: sentinel, Data: p,
		Header: nats.Header{wire.HeaderDeadlineAt: []string{wire.FormatDeadlineAt(end)}},
	}}, nil
}

// exchange publishes a request and hands its replies to take until that says that it has enough or an error.
func (c *Client) exchange(ctx context.Context, call Call, mode wire.Mode, end time.Time, contract *Contract, take func(Responder, wire.EndpointReply) (bool, error)) error {
	if err := ctx.Err(); err != nil {
		return &notSent{err}
	}
	r, err := c.build(call, mode, true, end, contract)
	if err != nil {
		return err
	}
	came, err := c.expect(r.subject.Nonce)
	if err != nil {
		return &notSent{err}
	}
	defer c.replies.forget(r.subject.Nonce)
	if err := c.nc.PublishMsg(r.msg); err != nil {
		return c.notPublished(err)
	}
	// Only describe is sent again while its reply is awaited: the same request, with the same nonce, so that the
	// first reply counts. Nothing else may happen twice.
	var again <-chan time.Time
	tries := 1
	if call.Command == wire.CmdDescribe {
		again = time.After(wire.RetryDelay(tries))
	}
	limit := time.NewTimer(time.Until(end) + replyMargin)
	defer limit.Stop()
	for {
		select {
		case m := <-came:
			done, err := c.reply(r.subject, call, m, r.sentinel, take)
			if done || err != nil {
				return err
			}
		case <-again:
			if tries++; time.Now().Before(end) {
				_ = c.nc.PublishMsg(repeated(r)) // the next one may get through
				again = time.After(wire.RetryDelay(tries))
			}
		case <-limit.C:
			return fmt.Errorf("%w within %s: whether it was executed is unknown", ErrNoReply, call.Deadline)
		case <-ctx.Done():
			return fmt.Errorf("%w before the caller stopped waiting: whether it was executed is unknown: %w", ErrNoReply, ctx.Err())
		case <-c.closed:
			return fmt.Errorf("%w before the connection was lost: whether it was executed is unknown", ErrNoReply)
		}
	}
}

// repeated is a describe that is asked again. Of any instance it goes to every one: the server gives a question to any
// to one of them, and may give it to the same that hangs again and again.
func repeated(r outgoing) *nats.Msg {
	s := r.subject
	if s.Mode != wire.ModeOne {
		return r.msg
	}
	s.Mode = wire.ModeAll
	subject, err := s.Subject()
	if err != nil { // it is what was built before, but for the mode
		return r.msg
	}
	return &nats.Msg{Subject: subject, Reply: r.msg.Reply, Data: r.msg.Data, Header: r.msg.Header}
}

// reply judges one message on the reply subject.
func (c *Client) reply(s wire.RequestSubject, call Call, m *nats.Msg, sentinel string, take func(Responder, wire.EndpointReply) (bool, error)) (bool, error) {
	if m.Subject == refusedByServer {
		subject, _ := s.Subject() // it was built before
		return true, notPermitted(subject)
	}
	if m.Subject == deafByServer {
		return true, fmt.Errorf("%w: this caller may not have replies on %s; whether the request was executed is unknown", ErrDenied, m.Header.Get(deafByServer))
	}
	if m.Subject == sentinel {
		// Only the broker's own status on the reserved subject proves that nobody was there.
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return true, ErrNoResponder
		}
		return false, nil
	}
	rs, err := wire.ParseReplySubject(m.Subject)
	if err != nil || rs.Nonce != s.Nonce || rs.Caller != s.Caller {
		return false, nil // nothing that a responder of ours could have sent
	}
	who := Responder{InstanceID: rs.InstanceID, Epoch: rs.Epoch}
	r, err := wire.DecodeReply(m.Data)
	if err != nil {
		return true, &RejectedReply{who, err.Error(), wire.OutcomeOfCall(wire.SeenBadReply, nil)}
	}
	outcome := wire.OutcomeOfCall(wire.SeenBadReply, &r)
	switch {
	case r.ID != call.ID && r.ID != s.Nonce:
		return true, &RejectedReply{who, fmt.Sprintf("it answers request %s, not %s", r.ID, call.ID), outcome}
	case s.Mode == wire.ModeInstance && rs.InstanceID != s.InstanceID:
		return true, &RejectedReply{who, "another instance was asked", outcome}
	case c.stale(call.Endpoint, who):
		return s.Mode != wire.ModeAll, c.staleError(s.Mode, who, outcome)
	case call.Bind != nil:
		refused := false
		if r.Error != nil {
			_, refused = r.Error.Detail(wire.DetailBindRefused)
		}
		bound := call.Bind.InstanceID == who.InstanceID && call.Bind.Epoch == who.Epoch
		switch {
		case bound && refused:
			return true, &RejectedReply{who, "it refuses the bind to itself", outcome}
		case !bound && !refused:
			return true, &RejectedReply{who, fmt.Sprintf("the request was bound to instance %s epoch %d", call.Bind.InstanceID, call.Bind.Epoch), outcome}
		}
	}
	return take(who, r)
}

func (c *Client) staleError(mode wire.Mode, who Responder, outcome wire.Outcome) error {
	if mode == wire.ModeAll {
		return nil // one stale answer does not spoil a scatter; it is left out
	}
	return &RejectedReply{who, "its epoch has been superseded", outcome}
}

// stale remembers the highest epoch of every instance and reports whether who is below it.
func (c *Client) stale(endpoint string, who Responder) bool {
	key := endpoint + " " + who.InstanceID
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.epochs[key]
	if ok && who.Epoch < known {
		return true
	}
	c.epochs[key] = who.Epoch
	return false
}

// superseded reports whether a later incarnation than who is known.
func (c *Client) superseded(endpoint string, who Responder) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return who.Epoch < c.epochs[endpoint+" "+who.InstanceID]
}

// SawEpoch tells the client of an incarnation it learned of elsewhere, such as from endpoint.json:
// replies of earlier ones are then rejected.
func (c *Client) SawEpoch(endpoint string, who Responder) { c.stale(endpoint, who) }

// WatchGoal calls fn, one call at a time, for each progress event of a goal this client's caller
// submitted. instance may be empty for any. Errors: ErrDenied, and those of a server that is not there. It returns once the server has confirmed the watch, so
// that nothing published later is missed; a goal submitted before may have made progress unseen, and
// any event may be lost: ask goal-result before believing silence. The watch lasts until the returned
// function is called, which waits for a running fn (and so must not be called by it).
func (c *Client) WatchGoal(ctx context.Context, endpoint, instance, goalID string, fn func(wire.GoalProgress)) (unsubscribe func(), err error) {
	if !wire.ValidEndpoint(endpoint) || !wire.ValidID(goalID) || instance != "" && !wire.ValidUID(instance) {
		return nil, fmt.Errorf("watch goal %q of %q: malformed id", goalID, endpoint)
	}
	var mu sync.Mutex
	stopped := false
	filter := wire.GoalProgressFilter(c.cfg.Space, endpoint, instance, c.caller, goalID)
	sub, err := c.nc.Subscribe(filter, func(m *nats.Msg) {
		e, err := wire.DecodeEvent(m.Data)
		if err != nil {
			return
		}
		var p wire.GoalProgress
		if err := json.Unmarshal(e.Data, &p); err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			fn(p)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("watch goal %s: %w", goalID, err)
	}
	if err := c.accepted(ctx, filter); err != nil {
		_ = sub.Unsubscribe()
		return nil, fmt.Errorf("watch goal %s: %w", goalID, err)
	}
	return func() {
		_ = sub.Unsubscribe() // fails only when the connection is gone
		mu.Lock()
		stopped = true
		mu.Unlock()
	}, nil
}
