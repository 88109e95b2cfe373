package bus

import (
	"context"
	"encoding/json"
	"fmt"
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

	deadline time.Time
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
// sent as it is, anything else as failed-precondition with its text, outcome unknown; unavailable where
// something was not answered in time.
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

// Encoded is a reply that its handler encoded, in compact form, and checked against the contract when it
// last changed. It goes out as it is.
type Encoded json.RawMessage

// AppendJSON appends the reply to dst.
func (e Encoded) AppendJSON(dst []byte) []byte { return append(dst, e...) }

// Appender is a reply that writes itself into the buffer of the envelope: compact JSON that was checked against the
// contract when it last changed.
type Appender interface {
	AppendJSON(dst []byte) []byte
}

// Command is one command of an endpoint.
type Command struct {
	Handler Handler
	// Class defaults to ephemeral.
	Class wire.Class
	// Targeted commands are admitted with the authorization modes of Modes.
	Targeted bool
	Modes    []wire.Authz
	// Capability is the class of commands it is granted with; default the endpoint's name.
	Capability string
	// Summary says what it does, for people (wire.CommandDecl).
	Summary string
	// InstanceOnly commands are not served on the class and scatter rails. They are the host's own
	// affairs (shutdown) and have a limit of their own: a saturated host can still be stopped.
	InstanceOnly bool
	// Ends marks a command that ends something. It has a limit of its own: what holds up all other effects is
	// often the very thing that is to be ended.
	Ends bool
	// Read marks a command that changes nothing. Reads have their own limit, so that they answer
	// while effects (spawns) are saturated; those with a target have another one, since a seat that hangs
	// keeps whoever looks at it waiting.
	Read bool
	// CheckArgs refuses arguments before the handler runs (outcome not-executed); nil checks nothing
	// beyond Input. It comes first, because it names the field.
	CheckArgs func(json.RawMessage) *wire.Error
	// Input and Output are the schemas of arguments and reply; nil for anything. Arguments are checked on
	// every call, replies whenever they are encoded.
	Input, Output *wire.Schema
	// Admit is asked last, when the request has its turn and before the handler. release is called once
	// the handler has returned. nil admits.
	Admit func(ctx context.Context, r *Request) (release func(), refused *wire.Error)

	spec *wire.CommandSpec
}

// EndpointConfig describes an endpoint and the incarnation that serves it.
type EndpointConfig struct {
	Space      string
	Endpoint   string
	InstanceID string
	Epoch      uint64
	Commands   map[string]Command
	// Contract of these commands, if it is made already; else it is made of what follows.
	Contract *Contract
	// Owner of the endpoint; default local. URN and Revision name the contract document; default the
	// manager's.
	Owner    string
	URN      string
	Revision int64
	// MaxInFlight is how many effects run at once; default 32. More wait for their turn until their
	// deadline, up to MaxQueued (default 1024) together with those that run; beyond that they are
	// refused resource-exhausted.
	MaxInFlight int
	// MaxReads is how many reads run at once, with a target and without; default 16 of each.
	MaxReads  int
	MaxQueued int
	// Asked is told of every read that is carried out. May be nil.
	Asked *Asked
	Log   hclog.Logger
}

// Service is an endpoint being served.
type Service struct {
	bus      *Bus
	cfg      EndpointConfig
	contract *Contract

	subMu sync.Mutex
	subs  map[string]*nats.Subscription // by subject

	ctx    context.Context // ends on Close; parent of every handler's context
	cancel context.CancelFunc

	reads, looks, effects, ends, own *gate // one for each sort of command

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
	if cfg.Owner == "" {
		cfg.Owner = wire.OwnerLocal
	}
	if cfg.URN == "" {
		cfg.URN = wire.ManagerURN
	}
	contract, err := cfg.Contract, error(nil)
	if contract == nil {
		if contract, err = NewContract(cfg.Endpoint, cfg.Owner, cfg.URN, cfg.Revision, cfg.Commands); err != nil {
			return nil, err
		}
	}
	commands := make(map[string]Command, len(cfg.Commands)+1)
	for name, c := range cfg.Commands {
		if c.Handler == nil {
			return nil, fmt.Errorf("command %s has no handler", name)
		}
		if c, err = c.withDefaults(cfg.Endpoint, name); err != nil {
			return nil, err
		}
		c.spec = &wire.CommandSpec{
			Class: c.Class, Targeted: c.Targeted, Modes: c.Modes,
			InputDigest: c.Input.Digest(), OutputDigest: c.Output.Digest(),
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
	if commands[wire.CmdDescribe], err = describeCommand(contract); err != nil {
		return nil, err
	}
	s := &Service{
		bus: b, cfg: cfg, contract: contract, subs: map[string]*nats.Subscription{},
		reads:   newGate(cfg.MaxReads, cfg.MaxQueued),
		looks:   newGate(cfg.MaxReads, cfg.MaxQueued),
		effects: newGate(cfg.MaxInFlight, cfg.MaxQueued),
		ends:    newGate(cfg.MaxInFlight, cfg.MaxQueued),
		own:     newGate(ownInFlight, cfg.MaxQueued),
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

// subscribe makes the three rails of every command: never a wildcard over commands, so that the broker
// tells a caller what nobody serves.
func (s *Service) subscribe() error {
	for name := range s.cfg.Commands {
		r, err := s.rails(name)
		if err != nil {
			return err
		}
		if err := s.add(r.Instance, ""); err != nil {
			return err
		}
		if s.cfg.Commands[name].InstanceOnly {
			continue
		}
		if err := s.add(r.All, ""); err != nil {
			return err
		}
		if err := s.add(r.One, r.Queue); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) rails(command string) (wire.Rails, error) {
	return wire.CommandRails(s.cfg.Space, s.cfg.Endpoint, s.cfg.InstanceID, command, false)
}

func (s *Service) add(subject, queue string) error {
	s.subMu.Lock()
	defer s.subMu.Unlock()
	if s.subs[subject] != nil {
		return nil
	}
	var sub *nats.Subscription
	var err error
	if queue == "" {
		sub, err = s.bus.nc.Subscribe(subject, s.receive)
	} else {
		sub, err = s.bus.nc.QueueSubscribe(subject, queue, s.receive)
	}
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	s.subs[subject] = sub
	if err := sub.SetPendingLimits(pendingMsgs, pendingBytes); err != nil {
		return fmt.Errorf("subscribe %s: %w", subject, err)
	}
	return nil
}

// Offer takes a command on or off the rail of the class. Off it, the command is still served on the rails of
// the instance and of a scatter, and described; a caller of the class gets another instance, or is told by
// the broker that nobody is there. What had arrived before is still answered.
func (s *Service) Offer(command string, on bool) error {
	c, known := s.cfg.Commands[command]
	if !known || c.InstanceOnly {
		return fmt.Errorf("offer %s: it is not served on the rail of the class", command)
	}
	r, err := s.rails(command)
	if err != nil {
		return fmt.Errorf("offer %s: %w", command, err)
	}
	if on {
		if s.ctx.Err() != nil {
			return nil // closed
		}
		return s.add(r.One, r.Queue)
	}
	s.subMu.Lock()
	defer s.subMu.Unlock()
	if sub := s.subs[r.One]; sub != nil {
		delete(s.subs, r.One)
		if err := sub.Unsubscribe(); err != nil {
			return fmt.Errorf("offer %s: %w", command, err)
		}
	}
	return nil
}

// Contract is what this endpoint promises.
func (s *Service) Contract() *Contract { return s.contract }

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
	s.subMu.Lock()
	defer s.subMu.Unlock()
	for _, sub := range s.subs {
		_ = sub.Unsubscribe() // fails only when the connection is gone, and the subscription with it
	}
}

func describeCommand(c *Contract) (Command, error) {
	answer, err := c.answer()
	if err != nil {
		return Command{}, err
	}
	return Command{
		Class: wire.ClassEphemeral, Read: true, CheckArgs: NoArgs, Input: anySchema, Output: anySchema,
		Handler: func(context.Context, *Request) (any, *wire.Error) { return answer, nil },
		spec:    &wire.CommandSpec{Class: wire.ClassEphemeral},
	}, nil
}
