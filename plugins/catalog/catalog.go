// Package catalog gives the rest of the host live connectors and runtimes by name. What it returns
// always talks to the current process of a plugin: a call that a plugin's death interrupts is tried
// once more where that is safe, and a Spawn of unknown outcome is resolved by asking, never by
// spawning twice.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/hashicorp/go-hclog"
)

// Config says which plugins there are and where their things go.
type Config struct {
	Manifest  *manifest.Manifest
	BundleDir string                           // directory of the plugin binaries
	RunDir    string                           // private socket directories of plugins; keep it short
	StateDir  string                           // parent of the plugins' scratch directories; empty: none
	SeatRoot  string                           // one directory per seat
	SocketDir string                           // seat sockets
	CrashDir  string                           // crash reports; empty: none
	Log       hclog.Logger                     // nil: no log
	Env       func(name string) (string, bool) // host environment; nil: os.LookupEnv
}

// Catalog owns the supervisors of all enabled plugins. Its methods may be called from any goroutine.
type Catalog struct {
	cfg  Config
	hide *supervise.Redactor
	life context.Context // ends with Stop
	end  context.CancelFunc

	changing sync.Mutex // one restart or reload at a time; before mu

	mu      sync.RWMutex // held for access to the fields below only, never over I/O
	stopped bool         // nothing is added any more
	plugins map[key]*supervise.Supervisor
	leaving map[key]bool // being removed, and not listed any more
}

type key struct {
	kind sdk.Kind
	name string
}

// New makes a catalog in which nothing runs yet.
func New(cfg Config) *Catalog {
	c := &Catalog{cfg: cfg, hide: &supervise.Redactor{}, plugins: map[key]*supervise.Supervisor{}}
	c.life, c.end = context.WithCancel(context.Background())
	for k, e := range enabled(cfg.Manifest) {
		c.plugins[k] = c.supervisor(e)
	}
	return c
}

// enabled lists what a manifest has run.
func enabled(m *manifest.Manifest) map[key]manifest.Entry {
	out := map[key]manifest.Entry{}
	if m != nil {
		for _, e := range m.Entries {
			if e.On() {
				out[key{e.Kind, e.Name}] = e
			}
		}
	}
	return out
}

func (c *Catalog) supervisor(e manifest.Entry) *supervise.Supervisor {
	return supervise.New(supervise.Config{
		Entry: e, BundleDir: c.cfg.BundleDir, RunDir: c.cfg.RunDir, StateDir: c.cfg.StateDir, CrashDir: c.cfg.CrashDir,
		SeatRoot: c.cfg.SeatRoot, SocketDir: c.cfg.SocketDir, Redact: c.hide, Log: c.cfg.Log, Env: c.cfg.Env,
	})
}

// Hide has values hidden in everything that plugins print; see supervise.Redactor. What passes through
// BuildLaunch, Spawn and Attach is hidden by itself.
func (c *Catalog) Hide(values ...string) { c.hide.Hide(values...) }

// all is a copy of the map.
func (c *Catalog) all() map[key]*supervise.Supervisor {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(c.plugins)
}

// StartRuntime starts one runtime and returns when it is ready, or with the error of its first
// start; it goes on trying in the background. At most supervise.StartTimeout.
func (c *Catalog) StartRuntime(ctx context.Context, name string) error {
	s, err := c.find(sdk.KindRuntime, name)
	if err != nil {
		return err
	}
	s.Start()
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	_, err = s.Ready(ctx)
	return err
}

// StartConnectors starts every connector in the background. A connector that does not start harms
// nothing but its own seats.
func (c *Catalog) StartConnectors() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, s := range c.plugins {
		if k.kind == sdk.KindConnector {
			s.Start()
		}
	}
}

// Connector returns the connector of that name, starting it if need be and waiting until it is
// ready, at most supervise.StartTimeout. Errors: ErrNotFound, naming the ones there are;
// ErrUnavailable (*supervise.NotReadyError) with the reason.
func (c *Catalog) Connector(ctx context.Context, name string) (sdk.Connector, sdk.Info, error) {
	s, err := c.find(sdk.KindConnector, name)
	if err != nil {
		return nil, sdk.Info{}, err
	}
	live, err := ready(ctx, s)
	if err != nil {
		return nil, sdk.Info{}, err
	}
	return &connector{caller{s, c.hide}}, live.Info, nil
}

// Runtime returns the runtime of that name, like Connector. The value implements sdk.Watcher and
// sdk.Lister when the plugin announced them.
func (c *Catalog) Runtime(ctx context.Context, name string) (sdk.Runtime, sdk.Info, error) {
	s, err := c.find(sdk.KindRuntime, name)
	if err != nil {
		return nil, sdk.Info{}, err
	}
	live, err := ready(ctx, s)
	if err != nil {
		return nil, sdk.Info{}, err
	}
	return newRuntime(caller{s, c.hide}, live.Info), live.Info, nil
}

func ready(ctx context.Context, s *supervise.Supervisor) (*supervise.Live, error) {
	s.Start()
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	return s.Ready(ctx)
}

func (c *Catalog) find(kind sdk.Kind, name string) (*supervise.Supervisor, error) {
	plugins := c.all()
	if s, ok := plugins[key{kind, name}]; ok {
		return s, nil
	}
	var known []string
	for k := range plugins {
		if k.kind == kind {
			known = append(known, k.name)
		}
	}
	if len(known) == 0 {
		return nil, sdk.Errorf(sdk.ErrNotFound, "no %s %q: the plugin manifest enables none", kind, name)
	}
	sort.Strings(known)
	return nil, sdk.Errorf(sdk.ErrNotFound, "no %s %q: there are %s", kind, name, strings.Join(known, ", "))
}

// PluginStatus is one line of a status report.
type PluginStatus struct {
	Name     string
	Kind     sdk.Kind
	Version  string
	State    supervise.State
	PID      int // 0 unless ready
	Restarts int
	Reason   string   // why it is not ready
	Fix      string   // what a person can do about it
	Crash    string   // path of the report on its latest death
	Info     sdk.Info // what it said of itself when it was ready last; zero before that
}

// Status lists every enabled plugin, by kind and name, but for those that a reload is removing.
func (c *Catalog) Status() []PluginStatus {
	plugins := c.all()
	c.mu.RLock()
	for k := range c.leaving {
		delete(plugins, k)
	}
	c.mu.RUnlock()
	out := make([]PluginStatus, 0, len(plugins))
	for k, s := range plugins {
		st := s.Status()
		out = append(out, PluginStatus{
			Name: k.name, Kind: k.kind, Version: s.Entry().Version, State: st.State, PID: st.PID,
			Restarts: st.Restarts, Reason: st.Reason, Fix: st.Fix, Crash: st.Crash, Info: s.Info(),
		})
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Kind != out[j].Kind {
			return out[i].Kind < out[j].Kind
		}
		return out[i].Name < out[j].Name
	})
	return out
}

// Stop ends all plugins at the same time; see Supervisor.Stop. Calls in flight get up to 1.5 s. A restart or
// reload that runs is given up, and waited for as long as ctx and supervise.StopTimeout allow.
func (c *Catalog) Stop(ctx context.Context) error {
	c.end()
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	err := stopAll(ctx, c.all())
	given := make(chan struct{})
	go func() {
		defer close(given)
		c.changing.Lock()
		defer c.changing.Unlock()
	}()
	t := time.NewTimer(supervise.StopTimeout)
	defer t.Stop()
	select {
	case <-given:
		return err
	case <-ctx.Done():
	case <-t.C:
	}
	return errors.Join(err, errors.New("stop plugins: a restart or reload does not end"))
}

// add puts a plugin in place; false after Stop, which knows nothing of it.
func (c *Catalog) add(k key, s *supervise.Supervisor) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.plugins[k] = s
	return true
}

func stopAll(ctx context.Context, plugins map[key]*supervise.Supervisor) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, s := range plugins {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := s.Stop(ctx); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop plugins: %w", err)
	}
	return nil
}
