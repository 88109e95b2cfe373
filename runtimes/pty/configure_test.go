//go:build linux

package pty

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

// refused configures a runtime and demands a refusal that names every word.
func refused(t *testing.T, cfg sdk.PluginConfig, words ...string) {
	t.Helper()
	err := New().Configure(context.Background(), cfg)
	if !errors.Is(err, sdk.ErrInvalid) {
		t.Fatalf("configure: %v, want ErrInvalid", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not name %q", err, w)
		}
	}
}

func TestConfigureRefusals(t *testing.T) {
	good := newRig(t).cfg
	with := func(change func(*sdk.PluginConfig)) sdk.PluginConfig {
		c := good
		change(&c)
		return c
	}
	t.Run("a missing digest names the key", func(t *testing.T) {
		refused(t, with(func(c *sdk.PluginConfig) { c.Config = nil }), "seat_sha256")
	})
	t.Run("an unknown key is refused", func(t *testing.T) {
		refused(t, with(func(c *sdk.PluginConfig) { c.Config = json.RawMessage(`{"seat_sha":"x"}`) }), "seat_sha", "seat_sha256")
	})
	t.Run("another digest names path, expected and actual", func(t *testing.T) {
		want := strings.Repeat("0", 64)
		refused(t, with(func(c *sdk.PluginConfig) { c.Config = json.RawMessage(`{"seat_sha256":"` + want + `"}`) }),
			filepath.Join(built.dir, "cotal-seat"), want, built.seatSHA256, "make build")
	})
	t.Run("a bundle without cotal-seat names the path", func(t *testing.T) {
		dir := t.TempDir()
		refused(t, with(func(c *sdk.PluginConfig) { c.BundleDir = dir }), filepath.Join(dir, "cotal-seat"))
	})
	t.Run("a relative seat root is refused", func(t *testing.T) {
		refused(t, with(func(c *sdk.PluginConfig) { c.SeatRoot = "seats" }), "seats", "absolute")
	})
	t.Run("calls before Configure are refused", func(t *testing.T) {
		if _, err := New().Adopt(context.Background(), sdk.AdoptRequest{}); !errors.Is(err, sdk.ErrUnavailable) {
			t.Errorf("adopt: %v", err)
		}
	})
}

// A deep home gives a socket path that cannot be bound: said before anything is made, with the limit
// and the fix.
func TestFieldL11_SocketPathLimitIsSaid(t *testing.T) {
	cfg := newRig(t).cfg
	cfg.SocketDir = "/tmp/" + strings.Repeat("d", 150)
	refused(t, cfg, "99", "XDG_RUNTIME_DIR", cfg.SocketDir)
	if _, err := os.Lstat(cfg.SocketDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
	// The seat root may be as deep as it likes: only the socket has a limit.
	cfg = newRig(t).cfg
	cfg.SeatRoot = filepath.Join(t.TempDir(), strings.Repeat("d", 150), "seats")
	if err := New().Configure(context.Background(), cfg); err != nil {
		t.Errorf("deep seat root: %v", err)
	}
}

// A directory that somebody else may have made or may change is refused by name, with the fix.
func TestFieldO2_DirectoriesOfOthersAreRefused(t *testing.T) {
	for name, set := range map[string]func(*sdk.PluginConfig, string){
		"seat root":        func(c *sdk.PluginConfig, dir string) { c.SeatRoot = dir },
		"socket directory": func(c *sdk.PluginConfig, dir string) { c.SocketDir = dir },
	} {
		fresh := func(t *testing.T) (sdk.PluginConfig, string) {
			cfg := newRig(t).cfg
			base, err := os.MkdirTemp("/tmp", "ct")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(base) })
			dir := filepath.Join(base, "d")
			set(&cfg, dir)
			return cfg, dir
		}
		t.Run(name+" that is a symbolic link", func(t *testing.T) {
			cfg, dir := fresh(t)
			if err := os.Symlink(t.TempDir(), dir); err != nil {
				t.Fatal(err)
			}
			refused(t, cfg, dir, "symbolic link")
		})
		t.Run(name+" that is a file", func(t *testing.T) {
			cfg, dir := fresh(t)
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, cfg, dir, "no directory")
		})
		t.Run(name+" of another user", func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("only root can make another user's directory")
			}
			cfg, dir := fresh(t)
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, 12345)); err != nil {
				t.Fatal(err)
			}
			refused(t, cfg, dir, "12345")
		})
		t.Run(name+" that a group may write", func(t *testing.T) {
			cfg, dir := fresh(t)
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)); err != nil {
				t.Fatal(err)
			}
			refused(t, cfg, dir, "chmod 700 "+dir)
		})
		t.Run(name+" whose parent everybody may write", func(t *testing.T) {
			cfg, dir := fresh(t)
			if err := os.Chmod(filepath.Dir(dir), 0o777); err != nil {
				t.Fatal(err)
			}
			refused(t, cfg, filepath.Dir(dir), "chmod o-w")
		})
		t.Run(name+" that others may only read is closed", func(t *testing.T) {
			cfg, dir := fresh(t)
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			if err := New().Configure(context.Background(), cfg); err != nil {
				t.Fatal(err)
			}
			if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
		})
	}
}

// What runs is what was hashed, also when the file is overwritten in place afterwards.
func TestImageIsSealed(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(built.dir, "cotal-seat"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "cotal-seat")
	if err := os.WriteFile(path, text, 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.cfg.BundleDir = dir
	r.rt = r.fresh()
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	q := r.spec(`[{"hang":true}]`)
	r.spawn(q)
	if st := r.adopt(q, true); st.State != sdk.SeatRunning {
		t.Errorf("state %s (%s)", st.State, st.Reason)
	}
	if f, err := os.OpenFile(r.rt.cfg.image.Path, os.O_WRONLY, 0); err == nil {
		f.Close()
		t.Error("the image can be opened for writing")
	}
}

// A directory that somebody removed or replaced under a running runtime is made or opened again, under
// the rules of Configure: the next spawn works without a restart.
func TestDirectoriesRemovedUnderTheRuntime(t *testing.T) {
	for name, of := range map[string]func(*rig) string{
		"seat root":        func(r *rig) string { return r.cfg.SeatRoot },
		"socket directory": func(r *rig) string { return r.cfg.SocketDir },
	} {
		works := func(t *testing.T, r *rig) {
			t.Helper()
			q := r.spec(`[{"hang":true}]`)
			h := r.spawn(q)
			if st := r.adopt(q, true); st.State != sdk.SeatRunning {
				t.Errorf("state %s (%s)", st.State, st.Reason)
			}
			req := stopOf(q, sdk.StopNow)
			req.Handle = h
			if _, err := r.rt.Reap(context.Background(), req); err != nil {
				t.Errorf("stop: %v", err)
			}
			r.gone(q)
			if info, err := os.Stat(of(r)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		}
		t.Run(name+" removed", func(t *testing.T) {
			r := newRig(t)
			if err := os.RemoveAll(of(r)); err != nil {
				t.Fatal(err)
			}
			works(t, r)
		})
		t.Run(name+" replaced", func(t *testing.T) {
			r := newRig(t)
			if err := errors.Join(os.Rename(of(r), of(r)+".old"), os.Mkdir(of(r), 0o700)); err != nil {
				t.Fatal(err)
			}
			works(t, r)
			os.Remove(of(r) + ".old")
		})
		t.Run(name+" replaced by a link", func(t *testing.T) {
			r := newRig(t)
			elsewhere := t.TempDir()
			if err := errors.Join(os.RemoveAll(of(r)), os.Symlink(elsewhere, of(r))); err != nil {
				t.Fatal(err)
			}
			if _, err := r.rt.Spawn(context.Background(), r.spec(`[]`)); !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), of(r)) {
				t.Errorf("spawn: %v", err)
			}
			if left, err := os.ReadDir(elsewhere); err != nil || len(left) != 0 {
				t.Errorf("made %v, %v", left, err)
			}
			if err := os.Remove(of(r)); err != nil {
				t.Fatal(err)
			}
			works(t, r)
		})
		t.Run(name+" with a seat removed", func(t *testing.T) {
			r := newRig(t)
			q := r.spec(`[{"hang":true}]`)
			h := r.spawn(q)
			st := r.adopt(q, true)
			if err := os.RemoveAll(of(r)); err != nil {
				t.Fatal(err)
			}
			req := stopOf(q, sdk.StopNow)
			req.Handle = h
			if rep, err := r.rt.Reap(context.Background(), req); err != nil || rep.Outcome != sdk.ReapStopped {
				t.Errorf("stop: %+v, %v", rep, err)
			}
			if alive(st.Agent.PID) || alive(st.Identity.PID) {
				t.Error("something lives")
			}
			works(t, r)
		})
	}
}
