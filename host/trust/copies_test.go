package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
)

// Two machines have a copy of the keys each, and each revokes by its own. What one has revoked stays so when the other one
// tells the servers, and is known to it from then on.
func TestWhatOneCopyOfTheKeysHasRevokedTheOtherDoesNotLetInAgain(t *testing.T) {
	r := newRig(t)
	here, there := r.activate(), r.activate()
	mine, theirs := r.mint(Request{Profile: Agent, UID: here}), r.mint(Request{Profile: Agent, UID: there})
	copied := t.TempDir()
	must(t, os.CopyFS(copied, os.DirFS(r.root)))
	must(t, filepath.WalkDir(copied, func(path string, d fs.DirEntry, err error) error {
		mode := fs.FileMode(0o600)
		if err == nil && d.IsDir() {
			mode = 0o700
		}
		return errors.Join(err, os.Chmod(path, mode))
	}))
	other, err := NewStatic(StaticConfig{Keys: openKeys(t, copied), Instance: inst1, Commands: commands(), Reach: bus.Config{InProcess: r.br.InProcess()}, Now: r.clock.now})
	must(t, err)

	if _, err := r.auth.Revoke(t.Context(), Life{UID: here}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Revoke(t.Context(), Life{UID: there}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.auth.PushAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Credential{"by this one": mine, "by the other one": theirs} {
		if nc, err := dialAs(r.br.URL(), c); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
			t.Errorf("revoked %s: %v", name, err)
			if err == nil {
				nc.Close()
			}
		}
	}
	for name, k := range map[string]*Keyring{"this copy": r.keys, "the other copy": other.cfg.Keys} {
		revoked, err := k.readRevoked()
		must(t, err)
		if _, ok := revoked.Revoked[mine.Public]; !ok {
			t.Errorf("%s does not know what this one has revoked", name)
		}
	}
}

// A key that was revoked is refused until its last credential would have ended: also with one that somebody who was frozen
// meanwhile, and still has the keys, mints for it anew.
func TestARevokedKeyIsRefusedWithANewCredentialAsWell(t *testing.T) {
	r := newRig(t)
	key, err := r.auth.NewKey()
	must(t, err)
	s := r.mint(Request{Profile: Supervisor, Key: key, Scope: Scope{Epoch: 1}})
	next := r.static(bus.Config{InProcess: r.br.InProcess()})
	must(t, r.register(t.Context(), next, 2))
	again := r.mint(Request{Profile: Supervisor, Key: key, Life: time.Hour, Scope: Scope{Epoch: 1}})
	if again.ID == s.ID {
		t.Fatal("it is the same credential: this test shows nothing")
	}
	if nc, err := dialAs(r.br.URL(), again); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
		t.Errorf("a new credential of a revoked key: %v", err)
		if err == nil {
			nc.Close()
		}
	}
}
