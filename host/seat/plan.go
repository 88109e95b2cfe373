package seat

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// plan is a launch that passed every check which needs no effect.
type plan struct {
	profile  launch.Profile
	runtime  string
	facts    sdk.ConnectorFacts
	binaries map[string]string
	cwd      string
	env      []string
	form     json.RawMessage
	grace    int // ms
	window   int // ms
	warnings []string
}

// plan makes every check that can refuse a spawn and has no effect, in the order in which a person
// would fix them: persona, connector, programs, features, directory. Errors are *wire.Error.
func (s *Set) plan(ctx context.Context, args wire.SpawnArgs) (*plan, error) {
	if args.Config == "" && args.Identity == args.Name {
		if err := checkName(args.Name); err != nil { // said as what it is, not as a persona that is missing
			return nil, wire.Refuse(wire.CodeBadRequest, "%v", err)
		}
	}
	p, err := s.persona(args)
	if err != nil {
		return nil, launch.PersonaRefusal(err).Wire()
	}
	profile, err := launch.Resolve(args, p, launch.Defaults{Agent: s.cfg.Agent})
	if err != nil {
		return nil, refusal(err)
	}
	// The one step that may wait; everything behind it runs without suspension.
	_, info, err := s.cfg.Plugins.Connector(ctx, profile.Agent)
	if err != nil {
		return nil, connectorRefusal(profile, err)
	}
	if err := profile.Check(info); err != nil {
		return nil, refusal(err)
	}
	path, _ := launch.Getenv(s.cfg.Environ, "PATH")
	bins, missing := launch.ResolveBinaries(info.Connector.Requires, path, launch.BinaryOverrides(info.Connector.Requires, s.cfg.Environ))
	if len(missing) > 0 {
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "connector %s needs %s, not found on this host's PATH%s",
			profile.Agent, strings.Join(missing, ", "), hint(info.Connector.InstallHint))
	}
	cwd, err := launch.ResolveCwd(s.cfg.Root, profile.Cwd)
	if err != nil {
		return nil, refusal(err)
	}
	runtime := cmp.Or(args.Runtime, s.cfg.Runtime)
	if args.Runtime != "" && !slices.Contains(s.cfg.Plugins.Runtimes(), runtime) {
		return nil, wire.Refuse(wire.CodeNotFound, "no runtime %q: there are %s", runtime, strings.Join(s.cfg.Plugins.Runtimes(), ", "))
	}
	form, err := launch.FormOf(profile, runtime, cwd, info.Connector)
	if err != nil {
		return nil, wire.Refuse(wire.CodeBadRequest, "%v", err)
	}
	pl := &plan{
		profile: profile, runtime: runtime, facts: info.Connector, binaries: bins, cwd: cwd, form: form,
		env: launch.BaseEnv(s.cfg.Environ, launch.EnvNames(info.Connector.EnvAllow, s.cfg.EnvAllow)),
	}
	pl.window, pl.grace = launch.Timings(info.Connector)
	if p != nil {
		pl.warnings = p.Warnings
	}
	return pl, nil
}

// persona loads the persona a request names. A request whose name is also its pinned identity, with an
// agent of its own, may do without one: that is how a program is run for which nobody wrote a persona.
func (s *Set) persona(args wire.SpawnArgs) (*persona.Persona, error) {
	if args.Config != "" {
		p, err := persona.LoadFile(s.cfg.Root, args.Config)
		return &p, err
	}
	p, err := persona.Load(s.cfg.Root, args.Name)
	if errors.Is(err, persona.ErrNotFound) && args.Agent != "" && args.Identity == args.Name {
		return nil, nil
	}
	return &p, err
}

func refusal(err error) error {
	var r *launch.Refusal
	if errors.As(err, &r) {
		return r.Wire()
	}
	return wire.Refuse(wire.CodeFailedPrecondition, "%v", err)
}

func connectorRefusal(p launch.Profile, err error) error {
	switch {
	case errors.Is(err, sdk.ErrNotFound) && p.AgentBy == launch.FromBuiltin:
		return wire.Refuse(wire.CodeNotFound, "nobody said which agent program to run, and the default is not there: %v; add agent: to the persona, or pass --agent", err)
	case errors.Is(err, sdk.ErrNotFound):
		return wire.Refuse(wire.CodeNotFound, "%v (the connector comes from the %s)", err, p.AgentBy)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return wire.Refuse(wire.CodeUnavailable, "connector %s is not ready yet: %v", p.Agent, err)
	default:
		return wire.Refuse(wire.CodeUnavailable, "connector %s: %v", p.Agent, err)
	}
}

func hint(text string) string {
	if text == "" {
		return ""
	}
	return "; " + text
}

// ConnectorStatus says whether seats of a connector can be launched now, and why not. info is zero
// while the plugin has not described itself.
func (s *Set) ConnectorStatus(name string, info sdk.Info, reason string) wire.ConnectorStatus {
	st := wire.ConnectorStatus{Agent: name, State: "unavailable", Binaries: map[string]string{}, Reason: reason}
	if info.Name == "" {
		if st.Reason == "" {
			st.Reason = "the plugin is starting"
		}
		return st
	}
	path, _ := launch.Getenv(s.cfg.Environ, "PATH")
	bins, missing := launch.ResolveBinaries(info.Connector.Requires, path, launch.BinaryOverrides(info.Connector.Requires, s.cfg.Environ))
	st.Binaries = bins
	if len(missing) > 0 {
		st.Reason = "not found: " + strings.Join(missing, ", ") + hint(info.Connector.InstallHint)
		return st
	}
	st.State, st.Reason = "available", ""
	return st
}

// minting is what the host made for one launch before anything it names exists.
type minting struct {
	seatID, uid, nonce, actor string
	ports                     []int
	secrets, sessionIDs       []string
}

// mint makes identity, and what the connector's facts ask for.
func mint(f sdk.ConnectorFacts) (*minting, error) {
	if err := f.Mints.Check(); err != nil {
		return nil, err
	}
	kp, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	// Open mode: the key names the principal; nothing is signed with it, so its seed is not kept.
	actor, err := kp.PublicKey()
	kp.Wipe()
	if err != nil {
		return nil, err
	}
	m := &minting{seatID: wire.NewCustodyID(), uid: wire.NewUID(), nonce: wire.NewNonce(), actor: actor}
	if m.ports, err = launch.MintPorts(f.Mints.Ports); err != nil {
		return nil, err
	}
	for range f.Mints.Secrets {
		var b [32]byte
		_, _ = rand.Read(b[:])
		m.secrets = append(m.secrets, hex.EncodeToString(b[:]))
	}
	for range f.Mints.SessionIDs {
		m.sessionIDs = append(m.sessionIDs, wire.NewUID())
	}
	return m, nil
}

// release gives the ports back when the launch they were minted for does not come about.
func (m *minting) release() { launch.ReleasePorts(m.ports) }

// seatEnv is the environment a connector builds on.
func (a *actor) seatEnv(p *plan) []string {
	row := a.snapshot().Row
	return launch.MergeEnv(p.env, launch.SeatEnv(launch.SeatVars{
		Space: a.set.cfg.Space, Name: row.Alias, Role: row.Role, ID: row.Principal, LifecycleUID: row.UID,
		InstanceID: a.set.cfg.InstanceID, AgentFile: row.Persona, Model: row.Model, Variant: row.Variant,
		Subscribe: p.profile.Subscribe, AllowSubscribe: p.profile.AllowSubscribe, AllowPublish: p.profile.AllowPublish,
		Capabilities: p.profile.Capabilities,
	}))
}
