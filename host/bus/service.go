package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Defaults of EndpointConfig.
const (
	DefaultMaxEffects = 32
	DefaultMaxReads   = 16
	DefaultMaxQueued  = 1024
)

// maxBudget bounds the time a request may ask for: nothing a host does takes longer, and a caller
// that asks for more gets this much.
const maxBudget = time.Hour

// castBudget is the time of a request that names none, which only a cast may.
const castBudget = time.Minute

// Request is an admitted request. The context of its handler ends at its deadline and when the
// service is closed; it does not end when the caller goes away.
type Request struct {
	Subject wire.RequestSubject // the authority on who asks for what
	Env     wire.EndpointRequest
	Arrived time.Time
}

// Caller is the authenticated caller.
func (r *Request) Caller() wire.Caller { return r.Subject.Caller }

// Target is the seat a targeted request names; zero for an untargeted one and for mode self, where
// it is the caller.
func (r *Request) Target() wire.Target {
	if r.Subject.Authz == wire.AuthzSelf {
		c := r.Subject.Caller
		return wire.Target{Owner: c.Owner, Actor: c.Actor, LifecycleUID: c.UID}
	}
	if r.Env.Target != nil {
		return *r.Env.Target
	}
	return wire.Target{}
}

// Args decodes the arguments into a pointer to a struct (wire.DecodeArgs).
func (r *Request) Args(dst any) *wire.Error { return wire.DecodeArgs(r.Env.Args, dst) }

// Fingerprint identifies what the request asks for.
func (r *Request) Fingerprint() (string, error) { return wire.Fingerprint(r.Subject, r.Env) }

// Handler answers an admitted request: data (marshalled as JSON; json.RawMessage as it is) or an
// error. An error without outcome is sent as unknown. A panic is answered internal, unknown.
type Handler func(ctx context.Context, req *Request) (data any, err *wire.Error)

// HandlerOf makes a Handler of a function that returns plain errors: a *wire.Error in the chain is
// sent as it is, anything else as failed-precondition with its text, outcome unknown.
func HandlerOf(fn func(ctx context.Context, req *Request) (any, error)) Handler {
	return func(ctx context.Context, req *Request) (any, *wire.Error) {
		data, err := fn(ctx, req)
		return data, wire.ErrorFrom(err)
	}
}

// ArgsOf returns a check of arguments for Command.CheckArgs.
func ArgsOf[T any]() func(json.RawMessage) *wire.Error {
	return func(raw json.RawMessage) *wire.Error { return wire.DecodeArgs(raw, new(T)) }
}

// NoArgs refuses any argument.
func NoArgs(raw json.RawMessage) *wire.Error { return wire.DecodeArgs(raw, new(struct{})) }

// Command is one command of an endpoint.
type Command struct {
	Handler Handler
	// Class defaults to ephemeral.
	Class wire.Class
	// Targeted commands are admitted with the authorization modes of Modes.
	Targeted bool
	Modes    []wire.Authz
	// InstanceOnly commands are not served on the class and scatter rails. They are the host's own
	// affairs (shutdown) and so share the limit of reads: a saturated host can still be stopped.
	InstanceOnly bool
	// Read marks a command that changes nothing. Reads have their own limit, so that they answer
	// while effects (spawns) are saturated.
	Read bool
	// CheckArgs refuses arguments before the handler runs (outcome not-executed); nil checks nothing.
	CheckArgs func(json.RawMessage) *wire.Error
	// InputDigest and OutputDigest of the contract; empty until contracts are published.
	InputDigest, OutputDigest string
}

func (c Command) spec() *wire.CommandSpec {
	return &wire.CommandSpec{
		Class: c.Class, Targeted: c.Targeted, Modes: c.Modes,
		InputDigest: c.InputDigest, OutputDigest: c.OutputDigest,
	}
}

// EndpointConfig describes an endpoint and the incarnation that serves it.
type EndpointConfig struct {
	Space      string
	Endpoint   string
	InstanceID string
	Epoch      uint64
	Commands   map[string]Command
	// MaxInFlight is how many effects run at once; default 32. More wait for their turn until their
	// deadline, up to MaxQueued (default 1024) together with those that run; beyond that they are
	// refused resource-exhausted.
	MaxInFlight int
	// MaxReads is how many reads run at once; default 16.
	MaxReads  int
	MaxQueued int
	Log       hclog.Logger
}

// Service is an endpoint being served.
type Service struct {
	bus  *Bus
	cfg  EndpointConfig
	subs []*nats.Subscription

	ctx    context.Context // ends on Close; parent of every handler's context
	cancel context.CancelFunc

	reads, effects *gate

	mu       sync.Mutex
	draining bool
	running  sync.WaitGroup // under mu: Add only while not draining
}

// Serve subscribes the endpoint's rails and returns once the server has confirmed that. The context
// bounds the start only. On a lost server the subscriptions are made again by themselves.
func (b *Bus) Serve(ctx context.Context, cfg EndpointConfig) (*Service, error) {
	s, err := newService(b, cfg)
	if err != nil {
		return nil, fmt.Errorf("serve endpoint: %w", err)
	}
	if err := s.subscribe(); err != nil {
		s.Close()
		return nil, fmt.Errorf("serve endpoint %s: %w", cfg.Endpoint, err)
	}
	if err := b.Flush(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("serve endpoint %s: %w", cfg.Endpoint, err)
	}
	return s, nil
}

func newService(b *Bus, cfg EndpointConfig) (*Service, error) {
	switch {
	case !wire.ValidSpace(cfg.Space):
		return nil, fmt.Errorf("space %q is not 1..64 characters of [A-Za-z0-9_-]", cfg.Space)
	case !wire.ValidEndpoint(cfg.Endpoint):
		return nil, fmt.Errorf("%q is not an endpoint name", cfg.Endpoint)
	case !wire.ValidUID(cfg.InstanceID):
		return nil, fmt.Errorf("instance id %q is not 26..32 characters of [a-z0-9]", cfg.InstanceID)
	case cfg.Epoch > wire.MaxInteger:
		return nil, fmt.Errorf("epoch %d is more than 2^53-1", cfg.Epoch)
	}
	commands := make(map[string]Command, len(cfg.Commands)+1)
	for name, c := range cfg.Commands {
		switch {
		case !wire.ValidCommand(name):
			return nil, fmt.Errorf("%q is not a command name", name)
		case name == wire.CmdDescribe:
			return nil, errors.New("describe is reserved")
		case c.Handler == nil:
			return nil, fmt.Errorf("command %s has no handler", name)
		case c.Targeted != (len(c.Modes) > 0):
			return nil, fmt.Errorf("command %s: authorization modes and Targeted disagree", name)
		}
		if c.Class == "" {
			c.Class = wire.ClassEphemeral
		}
		commands[name] = c
	}
	cfg.Commands = commands
	cfg.MaxInFlight = orDefault(cfg.MaxInFlight, DefaultMaxEffects)
	cfg.MaxReads = orDefault(cfg.MaxReads, DefaultMaxReads)
	cfg.MaxQueued = orDefault(cfg.MaxQueued, DefaultMaxQueued)
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	commands[wire.CmdDescribe] = describeCommand(cfg)
	s := &Service{
		bus: b, cfg: cfg,
		reads:   newGate(cfg.MaxReads, cfg.MaxQueued),
		effects: newGate(cfg.MaxInFlight, cfg.MaxQueued),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

func orDefault(v, def int) int {
	if v <= 0 {
		return def
	}
	return v
}

func (s *Service) subscribe() error {
	group := wire.EndpointToken(s.cfg.Endpoint)
	for name, c := range s.cfg.Commands {
		if c.InstanceOnly {
			continue
		}
		sub, err := s.bus.nc.QueueSubscribe(wire.ServeOne(s.cfg.Space, s.cfg.Endpoint, name), group, s.receive)
		if err := s.keep(sub, err); err != nil {
			return err
		}
	}
	for _, subject := range []string{
		wire.ServeInstance(s.cfg.Space, s.cfg.Endpoint, s.cfg.InstanceID),
		wire.ServeAll(s.cfg.Space, s.cfg.Endpoint),
	} {
		sub, err := s.bus.nc.Subscribe(subject, s.receive)
		if err := s.keep(sub, err); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) keep(sub *nats.Subscription, err error) error {
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	s.subs = append(s.subs, sub)
	if err := sub.SetPendingLimits(pendingMsgs, pendingBytes); err != nil {
		return fmt.Errorf("subscribe %s: %w", sub.Subject, err)
	}
	return nil
}

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
		spec = cmd.spec()
	}
	if werr := wire.Admit(subject, env, wire.Responder{InstanceID: s.cfg.InstanceID, Epoch: s.cfg.Epoch}, spec); werr != nil {
		s.refuse(req, werr)
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
	g := s.effects
	if cmd.Read || cmd.InstanceOnly {
		g = s.reads
	}
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

// checkArgs runs the host's own check; one that panics refuses, and has had no effect.
func (s *Service) checkArgs(req *Request, cmd Command) (werr *wire.Error) {
	if cmd.CheckArgs == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("check of arguments panicked", "op", req.Subject.Command, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			werr = wire.Refuse(wire.CodeInternal, "the host failed while it checked the arguments of %s; its log says more", req.Subject.Command)
		}
	}()
	return cmd.CheckArgs(req.Env.Args)
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
	budget := castBudget
	if req.Env.DeadlineMs > 0 {
		budget = min(time.Duration(min(req.Env.DeadlineMs, int64(maxBudget/time.Millisecond)))*time.Millisecond, maxBudget)
	}
	ctx, cancel := context.WithDeadline(s.ctx, req.Arrived.Add(budget))
	defer cancel()
	if !g.acquire(ctx) {
		if s.ctx.Err() != nil {
			s.refuse(req, wire.Refuse(wire.CodeUnavailable, "this host is stopping"))
		} else {
			s.refuse(req, wire.Refuse(wire.CodeDeadlineExceeded, "the deadline passed while the request waited its turn"))
		}
		return
	}
	defer g.release()
	data, werr := s.call(ctx, req, cmd.Handler)
	s.answer(req, data, werr)
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

func (s *Service) answer(req *Request, data any, werr *wire.Error) {
	if werr != nil {
		if werr.Outcome == "" {
			c := *werr
			c.Outcome = wire.OutcomeUnknown
			werr = &c
		}
		s.reply(req, wire.EndpointReply{Error: werr})
		return
	}
	raw, err := json.Marshal(data)
	if err == nil && int64(len(raw)) > s.bus.nc.MaxPayload()-4096 {
		err = fmt.Errorf("the answer is %d bytes, more than the server carries", len(raw))
	}
	if err != nil {
		s.cfg.Log.Error("answer cannot be sent", "op", req.Subject.Command, "err", err)
		s.reply(req, wire.EndpointReply{Error: &wire.Error{
			Code: wire.CodeResourceExhausted, Message: err.Error(), Outcome: wire.OutcomeExecuted,
		}})
		return
	}
	s.reply(req, wire.EndpointReply{OK: true, Data: raw})
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

// Drain refuses new requests (unavailable, not-executed) and waits for those that run. It returns
// the context's error when they have not ended by then.
func (s *Service) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return s.bus.Flush(ctx)
	case <-ctx.Done():
		return fmt.Errorf("drain endpoint %s: %w", s.cfg.Endpoint, ctx.Err())
	}
}

// Close stops serving at once and ends the context of every handler that still runs.
func (s *Service) Close() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.cancel()
	for _, sub := range s.subs {
		_ = sub.Unsubscribe() // fails only when the connection is gone, and the subscription with it
	}
}

// describeDoc answers describe. Contract digests follow once contracts are published.
type describeDoc struct {
	Endpoint string               `json:"endpoint"`
	Protocol describeProtocol     `json:"protocol"`
	Public   bool                 `json:"public"` // the answer is the same for every caller
	Commands []describeCommandDoc `json:"commands"`
}

type describeProtocol struct {
	V int `json:"v"`
}

type describeCommandDoc struct {
	Name         string       `json:"name"`
	Class        wire.Class   `json:"class"`
	Targeted     bool         `json:"targeted"`
	Modes        []wire.Authz `json:"modes,omitempty"`
	InputDigest  string       `json:"inputDigest,omitempty"`
	OutputDigest string       `json:"outputDigest,omitempty"`
}

func describeCommand(cfg EndpointConfig) Command {
	doc := describeDoc{Endpoint: cfg.Endpoint, Protocol: describeProtocol{V: 1}, Public: true}
	for name, c := range cfg.Commands {
		doc.Commands = append(doc.Commands, describeCommandDoc{
			Name: name, Class: c.Class, Targeted: c.Targeted, Modes: c.Modes,
			InputDigest: c.InputDigest, OutputDigest: c.OutputDigest,
		})
	}
	slices.SortFunc(doc.Commands, func(a, b describeCommandDoc) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return Command{
		Class: wire.ClassEphemeral, Read: true, CheckArgs: NoArgs,
		Handler: func(context.Context, *Request) (any, *wire.Error) { return doc, nil },
	}
}
