// Package host puts a manager host together: it opens the instance, starts the broker and the plugins,
// takes back every seat, serves the manager endpoint, and stops in order. It holds no logic of its own.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/attach"
	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/plugins/catalog"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	custody "github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Config configures a host. The zero Config serves the working directory, authenticated, on an embedded broker.
type Config struct {
	Root        string // workspace root; default the working directory
	Space       string // default "main"
	Server      string // external NATS URL; empty runs the embedded broker
	TokenFile   string // token for Server, with Open
	Keys        string // workspace that has the keys of the space; default Root. Not with Open
	PluginsPath string // plugins.toml; counts alone; default: by manifest.Resolve
	BundleDir   string // the host's own binaries; default beside the running one
	SeatRoot    string // default $COTAL_SEAT_ROOT, else ~/.cotal/seats
	RuntimeDir  string // parent of all sockets; default $XDG_RUNTIME_DIR/cotal, else <temp>/cotal-<uid>
	Runtime     string // runtime for new seats; default "pty"
	Open        bool   // open mode: no per-principal rights
	FreshAuth   bool   // begin an empty authenticated space in a workspace that was served open
	MaxSeats    int    // 0: config.toml, else config.DefaultMaxSeats
	MaxSessions int    // attach sessions over the mesh; 0: attach.DefaultMaxSessions
	// Cooling is how long the place of a seat that ended by itself stays taken, from its start. nil: config.toml,
	// else config.DefaultCooling; 0: none.
	Cooling    *time.Duration
	SyncAlways bool // the embedded broker syncs every write
	Version    string
	Stdout     io.Writer // "ready" and what to type next
	Stderr     io.Writer // what happened to each seat
	LogLevel   hclog.Level
}

// Host is one running manager host. Use it once.
type Host struct {
	cfg     Config
	started time.Time
	log     hclog.Logger
	logFile io.Closer

	inst    *instance.Instance
	journal *journal.Journal
	broker  *broker.Broker // nil with an external server
	bus     *bus.Bus
	service *bus.Service
	asked   bus.Asked // whether many wait for its answers
	catalog *catalog.Catalog
	auth    *authority  // nil in an open space
	self    wire.Caller // who this host is
	records *bus.Records
	goals   *goal.Store
	lives   *lives // nil in an open space
	seats   *seat.Set
	mesh    inhabitant // as a participant of its space

	url, tokenFile string     // of the broker, for others on this machine
	busConfig      bus.Config // how the mesh is reached; in an authenticated space without who connects
	sessions       *attach.Sessions

	leases       *bus.Leases
	remade       bool                             // the bucket of leases was gone, and was made anew
	lease        *lease.Lease                     // of this instance
	registration atomic.Pointer[bus.Registration] // nil: not registered
	enrolled     atomic.Pointer[bus.Registration] // it is registered, and may not be looked after by registration yet
	registering  *bus.Registration                // what is being tried, by boot and then by keepRegistered
	keeping      sync.WaitGroup                   // of what keepRegistered began
	beside       sync.WaitGroup                   // of what runs beside; see background
	life         context.Context                  // ends when the host closes
	end          context.CancelFunc
	fence        *control.Fence
	classSpawn   atomic.Bool     // spawn and launch are on the rail of the class
	serving      chan struct{}   // closed once the boot is done
	signalled    <-chan struct{} // closed by the first signal to stop
	// keepsRegistration: seats could not be proved gone, so that lease and registration are not given back.
	keepsRegistration atomic.Bool

	now func() time.Time // the clock of credentials; nil: the real one
	// repairing: streams that are gone are made again.
	repairing bool

	envAllow  []string      // extra variables that the operator lets agents see
	retention time.Duration // of the results of goals

	stop stopper
}

// New checks a configuration and fills in its defaults. It touches nothing.
func New(cfg Config) (*Host, error) {
	if cfg.Space == "" {
		cfg.Space = "main"
	}
	if !wire.ValidSpace(cfg.Space) {
		return nil, fmt.Errorf("space %q: use 1 to 64 characters of [A-Za-z0-9_-]", cfg.Space)
	}
	switch {
	case cfg.Open && (cfg.FreshAuth || cfg.Keys != ""):
		return nil, errors.New("an open space has no keys: --fresh-auth and --keys are not for --open")
	case !cfg.Open && cfg.TokenFile != "":
		return nil, errors.New("a token is for an open space: pass --open, or leave --token-file out")
	}
	if strings.Contains(cfg.Server, "@") {
		return nil, errors.New("server: the address has a user, a password or a token before its @, which would stand in lists of processes and in the environment of every seat; leave it out and name a file with --token-file")
	}
	var err error
	if cfg.Root == "" {
		cfg.Root = "."
	}
	if cfg.Root, err = filepath.Abs(cfg.Root); err == nil {
		// One name for one workspace: what is recorded must not depend on the link it was reached by.
		cfg.Root, err = filepath.EvalSymlinks(cfg.Root)
	}
	if err != nil {
		return nil, fmt.Errorf("workspace root: %w", err)
	}
	if cfg.Keys != "" {
		if cfg.Keys, err = filepath.Abs(cfg.Keys); err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
	}
	if st, err := os.Stat(cfg.Root); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("workspace root %s is not a directory; create it, or name another with --root", cfg.Root)
	}
	if cfg.BundleDir == "" {
		exe, err := os.Executable()
		if err == nil {
			exe, err = filepath.EvalSymlinks(exe) // an installed host is started through a link
		}
		if err != nil {
			return nil, fmt.Errorf("find own binaries: %w", err)
		}
		cfg.BundleDir = filepath.Dir(exe)
	}
	if cfg.SeatRoot, err = seatRoot(cfg.SeatRoot); err != nil {
		return nil, err
	}
	if cfg.RuntimeDir, err = runtimeDir(cfg.RuntimeDir); err != nil {
		return nil, err
	}
	if cfg.Stdout == nil {
		cfg.Stdout = io.Discard
	}
	if cfg.Stderr == nil {
		cfg.Stderr = io.Discard
	}
	h := &Host{cfg: cfg, started: time.Now(), log: hclog.NewNullLogger(), serving: make(chan struct{}), stop: stopper{done: make(chan struct{})}}
	h.life, h.end = context.WithCancel(context.Background())
	return h, nil
}

// background runs fn beside what calls it. The host waits for it when it closes, behind the end of its context and before
// it gives up the journal.
func (h *Host) background(fn func(ctx context.Context)) { h.beside.Go(func() { fn(h.life) }) }

// Run boots, serves until ctx ends, a signal arrives or a shutdown command is carried out, and stops.
// Seats outlive it unless a shutdown asked for their end. The error of a failed boot or an incomplete
// stop says what to do.
func (h *Host) Run(ctx context.Context) error {
	sig := watchSignals()
	defer sig.close()
	defer h.closeAll()
	h.signalled = sig.caught
	if err := h.boot(ctx); err != nil {
		return err
	}
	close(h.serving)
	select {
	case <-ctx.Done():
	case s := <-sig.first:
		h.log.Info("signal", "signal", s.String())
	case <-h.stop.done:
	}
	reply, err := h.shutdown(false, sig.hasten)
	if n := len(reply.Left); n > 0 && err == nil {
		h.keepsRegistration.Store(true)
		err = fmt.Errorf("%d seats could not be proved gone; their names stay held, and the next host goes on ending them", n)
	}
	h.drainService() // whoever asked for the stop gets its answer
	h.leaveRegistry()
	h.stop.mu.Lock()
	defer h.stop.mu.Unlock()
	return errors.Join(h.stop.lost, err)
}

// boot runs the start order. Whatever it opened is closed by closeAll.
func (h *Host) boot(ctx context.Context) error {
	h.background(func(context.Context) { control.Prepare() }) // while the plugins start
	if err := h.openWorkspace(ctx); err != nil {
		return err
	}
	settings, err := config.Load(h.cfg.Root)
	if err != nil {
		return err
	}
	h.envAllow, h.retention = settings.SpawnEnv, settings.ResultRetention
	if h.cfg.MaxSeats == 0 {
		h.cfg.MaxSeats = settings.MaxSeats
	}
	if h.cfg.Cooling == nil {
		h.cfg.Cooling = &settings.Cooling
	}
	found, err := manifest.Resolve(h.cfg.PluginsPath, h.cfg.Root, h.cfg.BundleDir)
	if err != nil {
		return err
	}
	runDir := filepath.Join(h.cfg.RuntimeDir, h.inst.ID[:8])
	for _, dir := range []string{h.cfg.RuntimeDir, runDir, h.cfg.SeatRoot} {
		if err := privateDir(dir); err != nil {
			return err
		}
	}
	h.catalog = catalog.New(catalog.Config{
		Manifest: found, BundleDir: h.cfg.BundleDir, RunDir: runDir, StateDir: filepath.Join(h.inst.Dir, "plugins"),
		SeatRoot: h.cfg.SeatRoot, SocketDir: filepath.Join(h.cfg.RuntimeDir, "seats"), CrashDir: filepath.Join(h.inst.Dir, "log"),
		Log: h.log.Named("plugins"),
	})
	live := plugins{h.catalog}
	if names := live.Runtimes(); h.cfg.Runtime != "" && h.cfg.Runtime != "pty" && !slices.Contains(names, h.cfg.Runtime) {
		return fmt.Errorf("no runtime %q: the plugin manifest has %s", h.cfg.Runtime, strings.Join(names, ", "))
	}
	// The runtime plugins and the broker start side by side: the one for new seats and the broker are
	// needed before anything is served, and neither needs the other. Seats of any other runtime are taken
	// back as well, and wait for theirs.
	runtime := make(chan error, 1)
	go func() { runtime <- h.catalog.StartRuntime(ctx, h.runtimeName()) }()
	for _, name := range live.Runtimes() {
		if name != h.runtimeName() {
			h.background(func(ctx context.Context) { h.startOther(ctx, name) })
		}
	}
	if err = h.startBroker(ctx); err == nil {
		err = h.join(ctx)
	}
	rerr := <-runtime
	if err != nil {
		return err
	}
	lives, err := h.openLives()
	if err != nil {
		return err
	}
	h.seats = seat.New(seat.Config{
		InstanceID: h.inst.ID, Space: h.cfg.Space, Epoch: h.inst.Epoch, Root: h.cfg.Root, SeatRoot: h.cfg.SeatRoot,
		EndedDir: filepath.Join(h.inst.Dir, "ended"), Runtime: h.runtimeName(), Servers: h.url, MaxSeats: h.cfg.MaxSeats, Cooling: cmp.Or(*h.cfg.Cooling, -1), Journal: h.journal, Goals: h.goals,
		Plugins: live, Busy: h.asked.Much, Lease: permit{h.lease, func() bool { return h.registration.Load() != nil }}, Roster: meshView{h.mesh.roster}, Lives: lives, Material: material(h.url, h.tokenFile), Log: h.log.Named("seat"), EnvAllow: settings.SpawnEnv, Policy: authz.Policy{EventsRequired: settings.EventsRequired}, Agent: settings.DefaultAgent,
	})
	if rerr != nil {
		// Seats that live need an owner more than new ones need a runtime: serve what can be served.
		h.log.Error("runtime does not start; its seats are unknown until it does", "plugin", h.runtimeName(), "err", rerr)
	}
	verdicts, err := h.seats.Recover(ctx)
	if err != nil {
		return err
	}
	h.printVerdicts(verdicts)
	if err := h.lease.Check(); errors.Is(err, lease.ErrHeld) {
		return err // it was taken meanwhile
	}
	return h.serve(ctx, rerr)
}

// openWorkspace makes this process the host of the workspace: nobody else is then, and how it was served before is how it
// is served.
func (h *Host) openWorkspace(ctx context.Context) (err error) {
	h.inst, err = instance.OpenWith(ctx, h.cfg.Root, func(dir string) (string, uint64, error) {
		if h.journal, err = journal.Open(filepath.Join(dir, journalName)); err != nil {
			return "", 0, err
		}
		return h.journal.Identity()
	})
	if err != nil {
		return err
	}
	if err := h.openLog(); err != nil {
		return err
	}
	if err := h.journal.Bind(ctx, h.inst.ID, h.inst.Epoch); err != nil {
		return err
	}
	if other, names, err := h.journal.SetSpace(ctx, h.cfg.Space); err != nil {
		return err
	} else if len(names) > 0 {
		return fmt.Errorf("space %s: seats of this workspace live in space %s (%s), where a host of another space cannot reach them; "+
			"serve with --space %s, or end them there first: cotal-host stop --with-agents", h.cfg.Space, other, strings.Join(names, ", "), other)
	}
	if err := h.checkMode(); err != nil {
		return err
	}
	return h.openKeys(ctx)
}

// plugins is the catalog as host/seat wants it.
type plugins struct{ *catalog.Catalog }

// Runtimes returns the names of the manifest's runtimes.
func (p plugins) Runtimes() []string {
	var names []string
	for _, st := range p.Status() {
		if st.Kind == sdk.KindRuntime {
			names = append(names, st.Name)
		}
	}
	return names
}

// startOther starts a runtime that only some seats are on.
func (h *Host) startOther(ctx context.Context, name string) {
	if err := h.catalog.StartRuntime(ctx, name); err != nil && ctx.Err() == nil {
		h.log.Error("runtime does not start; its seats are unknown until it does, all others go on", "plugin", name, "err", err)
	}
}

func (h *Host) runtimeName() string {
	if h.cfg.Runtime == "" {
		return "pty"
	}
	return h.cfg.Runtime
}

func (h *Host) onBus(connected bool, reason string) {
	if connected {
		h.log.Info("broker is back")
		h.auth.retry()
		return
	}
	h.log.Warn("broker lost; seats go on, commands wait for it", "reason", reason)
}

// publish tells followers of a goal about its progress.
func (h *Host) publish(c wire.Caller, goalID string, p wire.GoalProgress) {
	if err := h.bus.PublishProgress(h.cfg.Space, wire.EndpointManager, h.inst.ID, h.inst.Epoch, c, goalID, p); err != nil {
		h.log.Debug("progress event lost", "op", goalID, "err", err)
	}
}

// serve answers from here on, and says so.
func (h *Host) serve(ctx context.Context, runtimeErr error) error {
	h.openSessions(h.busConfig)
	commands, err := control.Commands(h.deps())
	if err != nil {
		return err
	}
	contract, err := control.Contract(wire.OwnerLocal)
	if err != nil {
		return err
	}
	h.openGoals(h.fenced)
	h.service, err = h.bus.Serve(ctx, bus.EndpointConfig{
		Space: h.cfg.Space, Endpoint: wire.EndpointManager, InstanceID: h.inst.ID, Epoch: h.inst.Epoch,
		Contract: contract, Commands: commands, Asked: &h.asked, Log: h.log.Named("control"),
	})
	if err != nil {
		return err
	}
	h.classSpawn.Store(true)
	self, err := custody.SelfIdentity()
	if err != nil {
		return err
	}
	err = h.inst.WriteEndpoint(wire.Endpoint{
		URL: h.url, TokenFile: h.tokenFile, CredsFile: h.credsFile(), Space: h.cfg.Space, InstanceID: h.inst.ID, PID: self.PID,
		StartTicks: self.StartTicks, BootID: self.BootID, Version: h.cfg.Version, Root: h.cfg.Root, SeatRoot: h.cfg.SeatRoot,
	})
	if err != nil {
		return err
	}
	h.printReady(h.url, runtimeErr)
	h.background(h.recoverSessions)
	h.appear()
	h.catalog.StartConnectors() // behind ready: a spawn waits for its connector, nobody else does
	h.keepRegistered()
	h.background(h.pruneLoop)
	h.background(h.sweep)
	return nil
}

// Retention of ended seats and settled goals in the journal.
const (
	pruneEvery = 10 * time.Minute
	keepRows   = 64
	keepSeats  = time.Hour      // as long as an ended seat is told of
	keepGoals  = 24 * time.Hour // a retried request finds its goal for at least this long
)

func (h *Host) pruneLoop(life context.Context) {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(life, time.Minute)
		err := h.journal.Update(ctx, func(tx *journal.Tx) error {
			_, _, err := tx.Prune(time.Now(), keepRows, keepSeats, keepGoals)
			return err
		})
		cancel()
		if err != nil && life.Err() == nil {
			h.log.Warn("prune journal", "err", err)
		}
		select {
		case <-tick.C:
		case <-life.Done():
			return
		}
	}
}

// Status answers the status command.
func (h *Host) Status() wire.StatusReply {
	occ := h.seats.Occupancy()
	reply := wire.StatusReply{
		InstanceID: h.inst.ID, Runtime: h.runtimeName(), Custody: "custodied", AgentCount: occ.Live,
		UptimeMs: time.Since(h.started).Milliseconds(), ClassSpawn: h.classSpawn.Load(), Connectors: []wire.ConnectorStatus{},
		Version: h.cfg.Version, Space: h.cfg.Space, PID: os.Getpid(), Epoch: h.inst.Epoch,
		Foreign: h.seats.Foreign(), Occupancy: &occ, Lease: h.leaseStatus(),
		StaticReconciliation: h.reconciliation(), Credentials: h.auth.credentials(),
	}
	for _, p := range h.catalog.Status() {
		reply.Plugins = append(reply.Plugins, wire.PluginStatus{
			Name: p.Name, Kind: string(p.Kind), Version: p.Version, State: string(p.State), PID: p.PID, Restarts: p.Restarts,
			Reason: p.Reason, Fix: p.Fix, Crash: p.Crash,
		})
		if p.Kind == sdk.KindConnector {
			reply.Connectors = append(reply.Connectors, h.seats.ConnectorStatus(p.Name, p.Info, p.Reason))
		}
	}
	return reply
}

// closeAll releases what boot opened, in reverse. Seats are not touched.
func (h *Host) closeAll() {
	h.stop.once.Do(func() { close(h.stop.done) })
	h.end()
	if h.sessions != nil {
		h.sessions.Close()
	}
	if h.service != nil {
		h.service.Close()
	}
	h.lives.closeSweeper()
	if h.seats != nil {
		h.seats.Close()
	}
	h.lives.closeRetirement()
	if h.goals != nil {
		h.goals.Close()
	}
	if h.records != nil {
		h.records.Close()
	}
	h.disappear()
	h.auth.rest()
	h.releaseLease() // behind everything that this host still wrote
	if h.catalog != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pluginStop)
		if err := h.catalog.Stop(ctx); err != nil {
			h.log.Warn("stop plugins", "err", err)
		}
		cancel()
		_ = os.Remove(filepath.Join(h.cfg.RuntimeDir, h.inst.ID[:8])) // unless a plugin that did not end is in it
	}
	if h.auth != nil {
		h.auth.close()
	} else if h.bus != nil {
		h.bus.Close()
	}
	if h.broker != nil {
		h.broker.Shutdown()
	}
	h.beside.Wait()
	if h.journal != nil {
		if err := h.journal.Close(); err != nil {
			h.log.Error("close journal", "err", err)
		}
	}
	if h.inst != nil {
		// The endpoint file goes while the lock is still held: after it, a successor may have written its own.
		if h.service != nil {
			if err := h.inst.RemoveEndpoint(); err != nil {
				h.log.Warn("remove endpoint file", "err", err)
			}
		}
		if err := h.inst.Close(); err != nil {
			h.log.Warn("release instance", "err", err)
		}
	}
	if h.logFile != nil {
		h.logFile.Close()
	}
}

// stopper makes every way of stopping one stop.
type stopper struct {
	once sync.Once
	done chan struct{} // closed when the verdicts of a stop are in, or the host closes

	mu      sync.Mutex
	running bool
	with    bool
	lost    error // why this host had to stop: another one has its instance
	reply   wire.ShutdownReply
	err     error
	settled chan struct{}
}
