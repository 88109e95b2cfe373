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
	"time"

	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// plan is a launch that passed every check which needs no effect.
type plan struct {
	profile  launch.Profile
	owner    string // the new seat's
	runtime  string
	facts    sdk.ConnectorFacts
	binaries map[string]string
	cwd      string
	env      []string
	form     json.RawMessage
	servers  map[string]json.RawMessage // MCP servers of the operator that the seat gets
	grace    int                        // ms
	window   int                        // ms
	warnings []string
	restart  *journal.Restart // nil: it is not started again when it ends by itself
	session  string           // to be reopened, by a process that follows another
	effects  bool             // something was done already that a refusal does not undo
}

// order is what is asked for: a spawn, or the launch of an agent of a run, whose profile is its own authority.
type order struct {
	caller   wire.Caller
	args     wire.SpawnArgs
	resolved *launch.Profile // of a launch; args hold nothing then
}

// plan makes every check that can refuse a spawn and has no effect, in the order of the contract: fence,
// persona, connector and its times, capacity, programs, resume, supervision, directory, profile, role, features,
// events, channels. Name and capacity are decided when they are taken, in one step; here a full host is only told
// early. Errors are *wire.Error, not-executed.
func (s *Set) plan(ctx context.Context, o order) (*plan, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	admin := s.cfg.Policy.Reach(ctx, o.caller) // one reading decides all of it
	args, p := o.args, (*persona.Persona)(nil)
	var agent string
	var by launch.Origin
	if o.resolved != nil {
		agent, by = o.resolved.Agent, o.resolved.AgentBy
	} else {
		if args.Config == "" && args.Identity == args.Name {
			if err := checkName(args.Name); err != nil { // said as what it is, not as a persona that is missing
				return nil, wire.Refuse(wire.CodeBadRequest, "%v", err)
			}
		}
		var err error
		if p, err = s.personaFor(o.caller, args, admin); err != nil {
			return nil, err
		}
		agent, by = launch.ChooseAgent(args, p, launch.Defaults{Agent: s.cfg.Agent})
	}
	// The one step that may wait; everything behind it runs without suspension.
	_, info, err := s.cfg.Plugins.Connector(ctx, agent)
	if err != nil {
		return nil, connectorRefusal(agent, by, err)
	}
	if err := launch.CheckTimings(info); err != nil {
		return nil, refusal(err)
	}
	if err := s.room(); err != nil {
		return nil, err
	}
	bins, err := s.programs(info)
	if err != nil {
		return nil, err
	}
	if err := launch.CheckResume(args, info); err != nil {
		return nil, refusal(err)
	}
	runtime := cmp.Or(args.Runtime, s.cfg.Runtime)
	if args.Runtime != "" && !slices.Contains(s.cfg.Plugins.Runtimes(), runtime) {
		return nil, wire.Refuse(wire.CodeNotFound, "no runtime %q: there are %s", runtime, strings.Join(s.cfg.Plugins.Runtimes(), ", "))
	}
	if err := launch.CheckSupervise(args, runtime, info); err != nil {
		return nil, refusal(err)
	}
	if err := launch.CheckServed(args); err != nil {
		return nil, refusal(err)
	}
	cwd, err := launch.ResolveCwd(s.cfg.Root, s.cwdOf(o, p))
	if err != nil {
		return nil, refusal(err)
	}
	profile, err := s.profile(o, p)
	if err != nil {
		return nil, refusal(err)
	}
	if err := profile.CheckRole(); err != nil {
		return nil, refusal(err)
	}
	if err := profile.CheckFeatures(info); err != nil {
		return nil, refusal(err)
	}
	// Read for every spawn: what the operator changes counts from the next one on.
	settings, err := config.Load(s.cfg.Root)
	if err != nil {
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "the configuration of this host cannot be read, so it is not known what may be launched: %v", err)
	}
	if err := profile.CheckModels(settings.ModelPolicy); err != nil {
		return nil, refusal(err)
	}
	owner, refused := authz.SpawnOwner(s.cfg.Policy.Kind(), o.caller)
	if refused != nil {
		return nil, refused
	}
	on, notice, refused := authz.Events(s.cfg.Policy.Kind(), admin, profile.Events, s.cfg.Policy.EventsRequired, info.Connector.EventChannel)
	if refused != nil {
		return nil, refused
	}
	profile.EventsOn, profile.EventsNotice = on, notice
	if err := profile.CheckChannels(); err != nil {
		return nil, refusal(err)
	}
	servers, err := launch.Share(info, settings.MCPServers[info.Name], profile.ShareTools)
	if err != nil {
		return nil, refusal(err)
	}
	// A process that follows another keeps the form of its seat, whatever bound there was when that was made.
	form, err := launch.FormOf(profile, runtime, cwd, info.Connector)
	if err != nil {
		return nil, wire.Refuse(wire.CodeBadRequest, "%v", err)
	}
	pl := s.planned(profile, p, info, servers, runtime, cwd, bins)
	pl.form, pl.owner = form, owner
	pl.restart = restartPolicy(args.Supervise, info.Connector)
	return pl, nil
}

// planned is what the checks add up to, but for the form that is recorded.
func (s *Set) planned(profile launch.Profile, p *persona.Persona, info sdk.Info, servers map[string]json.RawMessage, runtime, cwd string, bins map[string]string) *plan {
	pl := &plan{
		profile: profile, runtime: runtime, facts: info.Connector, binaries: bins, cwd: cwd,
		env:     launch.BaseEnv(s.cfg.Environ, launch.EnvNames(info.Connector.EnvAllow, s.cfg.EnvAllow, launch.VariablesOf(servers))),
		servers: servers,
	}
	pl.window, pl.grace = launch.Timings(info.Connector)
	if p != nil {
		pl.warnings = p.Warnings
	}
	if profile.EventsNotice != "" {
		pl.warnings = append(pl.warnings[:len(pl.warnings):len(pl.warnings)], profile.EventsNotice)
	}
	return pl
}

// profile adds an order up.
func (s *Set) profile(o order, p *persona.Persona) (launch.Profile, error) {
	if o.resolved != nil {
		return *o.resolved, nil
	}
	return launch.Resolve(o.args, p, launch.Defaults{Agent: s.cfg.Agent})
}

// cwdOf is where a seat is to run, as it was said.
func (s *Set) cwdOf(o order, p *persona.Persona) string {
	switch {
	case o.resolved != nil:
		return o.resolved.Cwd
	case p != nil:
		return cmp.Or(o.args.Cwd, p.Cwd)
	}
	return o.args.Cwd
}

// open refuses while no seats are started. It is asked again when one is reserved.
func (s *Set) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing != "":
		return wire.Refuse(wire.CodeUnavailable, "no new seats: %s", s.closing)
	case s.unlisted != "":
		// A seat that only its directory knows may hold the name, or be this very request.
		return wire.Refuse(wire.CodeUnavailable, "no new seats until it is known which ones run: %s", s.unlisted)
	}
	return nil
}

// room refuses a host that is full now.
func (s *Set) room() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cap.reserve(time.Now(), s.holders); err != nil {
		return wire.Refuse(wire.CodeResourceExhausted, "%v", err)
	}
	s.cap.release()
	return nil
}

// programs finds what a connector requires.
func (s *Set) programs(info sdk.Info) (map[string]string, error) {
	path, _ := launch.Getenv(s.cfg.Environ, "PATH")
	bins, missing := launch.ResolveBinaries(info.Connector.Requires, path, launch.BinaryOverrides(info.Connector.Requires, s.cfg.Environ))
	if len(missing) > 0 {
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "connector %s needs %s, not found on this host's PATH (%s)%s; or say where it is in %s of the host",
			info.Name, strings.Join(missing, ", "), launch.ShortPath(path), hint(info.Connector.InstallHint), launch.BinaryVar(firstWord(missing[0])))
	}
	return bins, nil
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

func connectorRefusal(agent string, by launch.Origin, err error) error {
	switch {
	case errors.Is(err, sdk.ErrNotFound) && by == launch.FromBuiltin:
		return wire.Refuse(wire.CodeNotFound, "nobody said which agent program to run, and the default is not there: %v; add agent: to the persona, or pass --agent", err)
	case errors.Is(err, sdk.ErrNotFound):
		hint := ""
		if agent != "" && strings.Trim(agent, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" { // what a plugin may be called
			hint = "; to install one: cotal ext install " + agent
		}
		return wire.Refuse(wire.CodeNotFound, "%v (the connector comes from the %s)%s", err, by, hint)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return wire.Refuse(wire.CodeUnavailable, "connector %s is not ready yet: %v", agent, err)
	default:
		return wire.Refuse(wire.CodeUnavailable, "connector %s: %v", agent, err)
	}
}

// firstWord is the program of a text about a missing one.
func firstWord(missing string) string {
	name, _, _ := strings.Cut(missing, " ")
	return name
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
	key                       trust.Key // of the principal, where lives have credentials
}

// mint makes identity, and what the connector's facts ask for.
func mint(f sdk.ConnectorFacts, lives Lives) (*minting, error) {
	if err := f.Mints.Check(); err != nil {
		return nil, err
	}
	key, err := identity(lives)
	if err != nil {
		return nil, err
	}
	m := &minting{seatID: wire.NewCustodyID(), uid: wire.NewUID(), nonce: wire.NewNonce(), actor: key.Public, key: key}
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

// identity mints the key that names the principal of a life.
func identity(lives Lives) (trust.Key, error) {
	if lives != nil {
		return lives.NewKey()
	}
	kp, err := nkeys.CreateUser()
	if err != nil {
		return trust.Key{}, err
	}
	// Open mode: the key names the principal; nothing is signed with it, so its seed is not kept.
	defer kp.Wipe()
	public, err := kp.PublicKey()
	return trust.Key{Public: public}, err
}

// release gives the ports back when the launch they were minted for does not come about.
func (m *minting) release() { launch.ReleasePorts(m.ports) }

// seatEnv is the environment a connector builds on.
func (a *actor) seatEnv(p *plan) []string {
	row := a.snapshot().Row
	publish := p.profile.AllowPublish
	if p.profile.EventsOn { // its own event channel, which has a name from now on
		publish = append(publish[:len(publish):len(publish)], "events."+row.Principal)
	}
	return launch.MergeEnv(p.env, launch.SeatEnv(launch.SeatVars{
		Space: a.set.cfg.Space, Name: row.Alias, Role: row.Role, ID: row.Principal, LifecycleUID: row.UID,
		InstanceID: a.set.cfg.InstanceID, AgentFile: row.Persona, Model: row.Model, Variant: row.Variant,
		Subscribe: p.profile.Subscribe, AllowSubscribe: a.set.mayRead(p.profile.AllowSubscribe), AllowPublish: publish,
		Capabilities: p.profile.Capabilities, Events: p.profile.EventsOn, WorkspaceRoot: a.set.cfg.Root,
	}))
}
