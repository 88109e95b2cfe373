package pty

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
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
	mirror    *mirror.Mirror
	root      *seatdir.Root
	sockets   string
	socketDir *os.File // it, open: its inode number is not given out again meanwhile
}

// New returns a runtime that waits for Configure.
func New() *Runtime {
	return &Runtime{mirror: mirror.New(func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	})}
}

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

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
	if err := custodied.CheckSocketPath(cfg.SocketDir, "0000000000000000"); err != nil {
		return err
	}
	s := &settings{mirror: r.mirror, sockets: cfg.SocketDir}
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
	if s.root, err = seatdir.OpenRoot(cfg.SeatRoot); err != nil {
		return err
	}
	if s.socketDir, err = seatdir.OpenPrivate(s.sockets); err != nil {
		return err
	}
	s.image, err = sealed.Load(filepath.Join(cfg.BundleDir, "cotal-seat"), digest, "seat_sha256")
	return err
}

func (s *settings) close() {
	s.image.Close()
	s.root.Close()
	if s.socketDir != nil {
		s.socketDir.Close()
	}
}

// settings returns what Configure made. A seat root that was removed or replaced since is made or
// opened again, under the rules of Configure. Errors: sdk.ErrUnavailable.
func (r *Runtime) settings() (*settings, error) {
	return r.renew(func(s *settings) bool { return s.root.Stands() }, func(s *settings) (err error) {
		s.root, err = seatdir.OpenRoot(s.root.Path)
		return err
	})
}

// spawnSettings is settings for a call that makes a socket: without the socket directory a seat that
// runs can still be judged and stopped, but none can be started.
func (r *Runtime) spawnSettings() (*settings, error) {
	if _, err := r.settings(); err != nil {
		return nil, err
	}
	return r.renew(func(s *settings) bool { return seatdir.Stands(s.socketDir) }, func(s *settings) (err error) {
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
		return nil, custodied.Unavailable("a directory of the %s runtime is gone or was replaced: %v", Name, err)
	}
	r.cfg = &fresh
	return &fresh, nil
}
