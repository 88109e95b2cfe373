// Package catalog gives the rest of the host live connectors and runtimes by name. What it returns
// always talks to the current process of a plugin: a call that a plugin's death interrupts is tried
// once more where that is safe, and a Spawn of unknown outcome is resolved by asking, never by
// spawning twice.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"

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
	Log       hclog.Logger                     // nil: no log
	Env       func(name string) (string, bool) // host environment; nil: os.LookupEnv
}

// Catalog owns the supervisors of all enabled plugins. Its methods may be called from any goroutine.
type Catalog struct {
	plugins map[key]*supervise.Supervisor // never changed after New
	entries map[key]manifest.Entry
}

type key struct {
	kind sdk.Kind
	name string
}

// New makes a catalog in which nothing runs yet.
func New(cfg Config) *Catalog {
	c := &Catalog{plugins: map[key]*supervise.Supervisor{}, entries: map[key]manifest.Entry{}}
	if cfg.Manifest == nil {
		return c
	}
	for _, e := range cfg.Manifest.Entries {
		if !e.On() {
			continue
		}
		k := key{e.Kind, e.Name}
		c.entries[k] = e
		c.plugins[k] = supervise.New(supervise.Config{
			Entry: e, BundleDir: cfg.BundleDir, RunDir: cfg.RunDir, StateDir: cfg.StateDir,
			SeatRoot: cfg.SeatRoot, SocketDir: cfg.SocketDir, Log: cfg.Log, Env: cfg.Env,
		})
	}
	return c
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
	return &connector{caller{s}}, live.Info, nil
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
	return newRuntime(s, live.Info), live.Info, nil
}

func ready(ctx context.Context, s *supervise.Supervisor) (*supervise.Live, error) {
	s.Start()
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	return s.Ready(ctx)
}

func (c *Catalog) find(kind sdk.Kind, name string) (*supervise.Supervisor, error) {
	if s, ok := c.plugins[key{kind, name}]; ok {
		return s, nil
	}
	var known []string
	for k := range c.plugins {
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
	Info     sdk.Info // what it said of itself when it was ready last; zero before that
}

// Status lists every enabled plugin, by kind and name.
func (c *Catalog) Status() []PluginStatus {
	out := make([]PluginStatus, 0, len(c.plugins))
	for k, s := range c.plugins {
		st := s.Status()
		out = append(out, PluginStatus{
			Name: k.name, Kind: k.kind, Version: c.entries[k].Version,
			State: st.State, PID: st.PID, Restarts: st.Restarts, Reason: st.Reason, Info: s.Info(),
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

// Restart replaces the process of one plugin and ends its backoff or quarantine.
func (c *Catalog) Restart(kind sdk.Kind, name string) error {
	s, err := c.find(kind, name)
	if err != nil {
		return err
	}
	s.Start()
	s.Restart()
	return nil
}

// Stop ends all plugins at the same time; see Supervisor.Stop. Calls in flight get up to 1.5 s.
func (c *Catalog) Stop(ctx context.Context) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, s := range c.plugins {
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
