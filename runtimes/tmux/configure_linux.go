package tmux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

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
	holder    *sealed.Image
	tmux      string   // configured program; empty: the tmux in PATH
	root      *os.File // the seat root, open
	rootPath  string
	rootFiles *os.Root // the same directory, for removals that cannot leave it
	sockets   string
}

// New returns a runtime that waits for Configure.
func New() *Runtime { return &Runtime{} }

var (
	sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)
	seatIDText = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

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
	if err := checkSocketPath(cfg.SocketDir, "0000000000000000"); err != nil {
		return err
	}
	s := &settings{rootPath: cfg.SeatRoot, sockets: cfg.SocketDir, tmux: table.Tmux}
	if err := s.open(cfg.BundleDir, table.Holder); err != nil {
		s.close()
		return sdk.Errorf(sdk.ErrInvalid, "configure %s: %v", Name, err)
	}
	r.mu.Lock()
	// The former settings stay open: calls in flight use them, and Configure is called once.
	r.cfg = s
	r.mu.Unlock()
	return nil
}

func (s *settings) open(bundle, digest string) (err error) {
	if err := s.openRoot(); err != nil {
		return err
	}
	s.holder, err = sealed.Load(filepath.Join(bundle, "cotal-tmux-seat"), digest, "holder_sha256")
	return err
}

func (s *settings) openRoot() (err error) {
	if s.root, err = seatdir.OpenPrivate(s.rootPath); err != nil {
		return err
	}
	// Through the descriptor: the path may name something else by now.
	s.rootFiles, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", s.root.Fd()))
	return err
}

func (s *settings) close() {
	s.holder.Close()
	if s.rootFiles != nil {
		s.rootFiles.Close()
	}
	if s.root != nil {
		s.root.Close()
	}
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
	if stands(s.root) {
		return s, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if stands(r.cfg.root) { // another call was first
		return r.cfg, nil
	}
	fresh := *r.cfg
	if err := fresh.openRoot(); err != nil {
		return nil, retryable("the seat root of the %s runtime is gone or was replaced: %v", Name, err)
	}
	r.cfg = &fresh
	return &fresh, nil
}

// stands reports whether the path a directory was opened by still names it.
func stands(dir *os.File) bool {
	defer runtime.KeepAlive(dir)
	var a, b unix.Stat_t
	return unix.Lstat(dir.Name(), &a) == nil && unix.Fstat(int(dir.Fd()), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// socketPath is where the custody process of a seat listens, tmuxPath where its tmux server does, and
// startPath where this process hands over the launch. Sixteen digits keep them short; ids are random, so
// they are still unique, and both prove who they are.
func (s *settings) socketPath(id string) string { return filepath.Join(s.sockets, id[:16]+".sock") }
func (s *settings) tmuxPath(id string) string   { return filepath.Join(s.sockets, id[:16]+".tmux") }
func (s *settings) startPath(id string) string  { return filepath.Join(s.sockets, id[:16]+".run") }

func checkSocketPath(dir, id string) error {
	if !filepath.IsAbs(dir) {
		return sdk.Errorf(sdk.ErrInvalid, "socket directory %q is not absolute", dir)
	}
	if path := filepath.Join(dir, id[:16]+".sock"); len(path) >= maxSocketPath {
		return sdk.Errorf(sdk.ErrInvalid, "socket path %s has %d bytes and the limit is %d; set XDG_RUNTIME_DIR to a shorter directory of yours", path, len(path), maxSocketPath-1)
	}
	return nil
}

func checkSeatID(id string) error {
	if !seatIDText.MatchString(id) {
		return sdk.Errorf(sdk.ErrInvalid, "seat id %q is not 32 lower-case hex digits", id)
	}
	return nil
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
