package tmux

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/runtimes/internal/sealed"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
)

// Runtime implements sdk.Runtime and its optional abilities but none that needs output offsets, for seats
// in tmux. The zero value is not usable; see New. Its methods may be called concurrently.
type Runtime struct {
	locks seatdir.Locks

	mu  sync.RWMutex
	cfg *settings // nil until Configure succeeded
}

// settings are the facts of one successful Configure. They never change: when a directory was removed
// or replaced behind them, others take their place.
type settings struct {
	holder  *sealed.Image
	tmux    string // configured program; empty: the tmux in PATH
	root    *seatdir.Root
	sockets string
}

// New returns a runtime that waits for Configure.
func New() *Runtime { return &Runtime{} }

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Configure takes holder_sha256 (hex SHA-256 of cotal-tmux-seat in BundleDir) and, optionally, tmux (the
// absolute path of the tmux to use; without it the one in PATH) from the plugin's table, loads the
// holder, and opens SeatRoot. It succeeds without tmux: seats that run can be judged and stopped all the
// same, and Spawn says what to install. Errors: sdk.ErrInvalid, naming the key, the path and the fix.
func (r *Runtime) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var table struct {
		Holder string `json:"holder_sha256"`
		Tmux   string `json:"tmux"`
	}
	if len(cfg.Config) > 0 {
		dec := json.NewDecoder(bytes.NewReader(cfg.Config))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&table); err != nil {
			return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of %s: %v; the keys are holder_sha256 and tmux", Name, err)
		}
	}
	if !sha256Text.MatchString(table.Holder) {
		return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of %s: holder_sha256 is %q, want the 64 hex digits that sha256sum prints for cotal-tmux-seat (make build writes them)", Name, table.Holder)
	}
	if table.Tmux != "" && !filepath.IsAbs(table.Tmux) {
		return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of %s: tmux is %q, want an absolute path", Name, table.Tmux)
	}
	if err := custodied.CheckSocketPath(cfg.SocketDir, "0000000000000000"); err != nil {
		return err
	}
	s := &settings{sockets: cfg.SocketDir, tmux: table.Tmux}
	if err := s.open(cfg, table.Holder); err != nil {
		s.close()
		return sdk.Errorf(sdk.ErrInvalid, "configure %s: %v", Name, err)
	}
	r.mu.Lock()
	// The former settings stay open: calls in flight use them, and Configure is called once.
	r.cfg = s
	r.mu.Unlock()
	return nil
}

func (s *settings) open(cfg sdk.PluginConfig, digest string) (err error) {
	if s.root, err = seatdir.OpenRoot(cfg.SeatRoot); err != nil {
		return err
	}
	s.holder, err = sealed.Load(filepath.Join(cfg.BundleDir, "cotal-tmux-seat"), digest, "holder_sha256")
	return err
}

func (s *settings) close() {
	s.holder.Close()
	s.root.Close()
}

// settings returns what Configure made. A seat root that was removed or replaced since is made or opened
// again, under the rules of Configure. Errors: sdk.ErrUnavailable.
func (r *Runtime) settings() (*settings, error) {
	r.mu.RLock()
	s := r.cfg
	r.mu.RUnlock()
	if s == nil {
		return nil, sdk.Errorf(sdk.ErrUnavailable, "the %s runtime has not been configured", Name)
	}
	if s.root.Stands() {
		return s, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cfg.root.Stands() { // another call was first
		return r.cfg, nil
	}
	fresh := *r.cfg
	root, err := seatdir.OpenRoot(r.cfg.root.Path)
	if err != nil {
		return nil, custodied.Unavailable("the seat root of the %s runtime is gone or was replaced: %v", Name, err)
	}
	fresh.root = root
	r.cfg = &fresh
	return &fresh, nil
}

// socketPath is where the custody process of a seat listens, tmuxPath where its tmux server does, and
// startPath where this process hands over the launch. Sixteen digits keep them short; ids are random, so
// they are still unique, and both prove who they are.
func (s *settings) socketPath(id string) string { return custodied.SocketPath(s.sockets, id) }
func (s *settings) tmuxPath(id string) string   { return filepath.Join(s.sockets, id[:16]+".tmux") }
func (s *settings) startPath(id string) string  { return filepath.Join(s.sockets, id[:16]+".run") }
