package pty

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/mirror"
	"github.com/cotal-ai/cotal-host/runtimes/internal/sealed"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
)

// Runtime implements sdk.Runtime, sdk.Watcher, sdk.Lister and sdk.Configurer for seats on a pseudo
// terminal. The zero value is not usable; see New. Its methods may be called concurrently.
type Runtime struct {
	mirror *mirror.Mirror // the screens of the seats this process knows of

	locks seatdir.Locks

	mu  sync.RWMutex
	cfg *settings // nil until Configure succeeded
}

// settings are the facts of one successful Configure. They never change: when a directory was removed
// or replaced behind them, others take their place.
type settings struct {
	image     *sealed.Image
	root      *os.File // the seat root, open
	rootPath  string
	rootFiles *os.Root // the same directory, for removals that cannot leave it
	sockets   string
	socketDir *os.File // it, open: its inode number is not given out again meanwhile
}

// New returns a runtime that waits for Configure.
func New() *Runtime {
	return &Runtime{mirror: mirror.New(func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	})}
}

var (
	sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)
	seatIDText = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// Configure takes seat_sha256 (hex SHA-256 of cotal-seat in BundleDir) from the plugin's table, loads
// that program, and opens SeatRoot and SocketDir. It may be called again; the last success counts.
// Errors: sdk.ErrInvalid, naming the key, the path and the fix.
func (r *Runtime) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var table struct {
		SeatSHA256 string `json:"seat_sha256"`
	}
	if len(cfg.Config) > 0 {
		dec := json.NewDecoder(bytes.NewReader(cfg.Config))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&table); err != nil {
			return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of %s: %v; the only key is seat_sha256", Name, err)
		}
	}
	if !sha256Text.MatchString(table.SeatSHA256) {
		return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of %s: seat_sha256 is %q, want the 64 hex digits that sha256sum prints for cotal-seat (make build writes them)", Name, table.SeatSHA256)
	}
	if err := checkSocketPath(cfg.SocketDir, "0000000000000000"); err != nil {
		return err
	}
	s := &settings{rootPath: cfg.SeatRoot, sockets: cfg.SocketDir}
	if err := s.open(cfg, table.SeatSHA256); err != nil {
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
	if err := s.openRoot(); err != nil {
		return err
	}
	if s.socketDir, err = seatdir.OpenPrivate(s.sockets); err != nil {
		return err
	}
	s.image, err = sealed.Load(filepath.Join(cfg.BundleDir, "cotal-seat"), digest, "seat_sha256")
	return err
}

func (s *settings) openRoot() (err error) {
	if s.root, err = seatdir.OpenPrivate(s.rootPath); err != nil {
		return err
	}
	// Through the descriptor: the path may name something else by now.
	s.rootFiles, err = os.OpenRoot(fdPath(s.root))
	return err
}

func (s *settings) close() {
	s.image.Close()
	if s.rootFiles != nil {
		s.rootFiles.Close()
	}
	if s.root != nil {
		s.root.Close()
	}
	if s.socketDir != nil {
		s.socketDir.Close()
	}
}

// settings returns what Configure made. A seat root that was removed or replaced since is made or
// opened again, under the rules of Configure. Errors: sdk.ErrUnavailable.
func (r *Runtime) settings() (*settings, error) {
	return r.renew(func(s *settings) bool { return stands(s.root) }, func(s *settings) error {
		s.root, s.rootFiles = nil, nil
		return s.openRoot()
	})
}

// spawnSettings is settings for a call that makes a socket: without the socket directory a seat that
// runs can still be judged and stopped, but none can be started.
func (r *Runtime) spawnSettings() (*settings, error) {
	if _, err := r.settings(); err != nil {
		return nil, err
	}
	return r.renew(func(s *settings) bool { return stands(s.socketDir) }, func(s *settings) (err error) {
		s.socketDir, err = seatdir.OpenPrivate(s.sockets)
		return err
	})
}

// renew returns the settings, after mend has put right a copy of those that do not stand any more.
// Calls in flight keep the former ones, whose descriptors are closed once nobody uses them.
func (r *Runtime) renew(stand func(*settings) bool, mend func(*settings) error) (*settings, error) {
	r.mu.RLock()
	s := r.cfg
	r.mu.RUnlock()
	if s == nil {
		return nil, sdk.Errorf(sdk.ErrUnavailable, "the %s runtime has not been configured", Name)
	}
	if stand(s) {
		return s, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if stand(r.cfg) { // another call was first
		return r.cfg, nil
	}
	fresh := *r.cfg
	if err := mend(&fresh); err != nil {
		return nil, unavailable("a directory of the %s runtime is gone or was replaced: %v", Name, err)
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

// socketPath is where the seat with this id listens. Sixteen digits keep it short; ids are random, so
// they are still unique, and the seat answers with its identity.
func (s *settings) socketPath(id string) string {
	return filepath.Join(s.sockets, id[:16]+".sock")
}

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
