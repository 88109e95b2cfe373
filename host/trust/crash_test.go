package trust

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// Variables of a child that mints or revokes on the broker of its parent.
const (
	childURL = "COTAL_TEST_TRUST_URL"
	childUID = "COTAL_TEST_TRUST_UID"
	childDo  = "COTAL_TEST_TRUST_DO"
)

// childAct is what such a child does.
func childAct(ctx context.Context, root string) error {
	store, err := OpenFileStore(ctx, root)
	if err != nil {
		return err
	}
	keys, err := OpenKeyring(store, space)
	if err != nil {
		return err
	}
	a, err := NewStatic(StaticConfig{Keys: keys, Instance: inst1, Commands: commands(), Reach: bus.Config{URL: os.Getenv(childURL)}})
	if err != nil {
		return err
	}
	uid := os.Getenv(childUID)
	switch os.Getenv(childDo) {
	case "mint":
		_, err = a.Mint(ctx, Request{Profile: Agent, UID: uid})
	case "renew":
		var s *Standing
		if s, err = a.Stand(ctx, Request{Profile: Agent, UID: uid}); err == nil {
			s.Configure(StandingConfig{Deliver: ToFile(store, CredentialFile(space, "reviewer", uid))})
			err = s.Renew(ctx)
		}
	case "mint-and-wait":
		var last Credential
		for range 5 {
			if last, err = a.Mint(ctx, Request{Profile: Agent, UID: uid}); err != nil {
				return err
			}
		}
		if err = keys.Rotate(ctx); err == nil {
			if _, err = a.Revoke(ctx, Life{UID: uid}); err == nil {
				fmt.Println("minted", last.ID)
				_, err = io.Copy(io.Discard, os.Stdin) // until the parent has seen enough
			}
		}
	case "revoke":
		_, err = a.Revoke(ctx, Life{UID: uid})
	}
	return err
}

// strike runs a child that is killed at a failpoint.
func (r *rig) strike(uid, do, rule string) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+r.root, childURL+"="+r.br.URL(), childUID+"="+uid, childDo+"="+do, failpoint.EnvVar+"="+rule)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		r.t.Fatalf("%s with %s was not killed: %v\n%s", do, rule, err, out)
	}
}

// Killed at each step, a mint has released nothing, and what it wrote is found and ended by the ledger.
func TestAMintThatIsKilledHasReleasedNothing(t *testing.T) {
	r := newRig(t)
	for rule, rows := range map[string]int{
		"host.mint.recorded=crash":        0,
		"host.mint.ledgered=1*off->crash": 1, // the executor's own row is the first
		"host.mint.gated=crash":           1,
	} {
		uid := r.activate()
		r.strike(uid, "mint", rule)
		if n := len(r.ledger(Life{UID: uid})); n != rows {
			t.Errorf("%s: %d rows, want %d", rule, n, rows)
		}
		c := r.mint(Request{Profile: Agent, UID: uid}) // the life is as usable as before
		cl := r.dial(c)
		got, err := r.auth.Revoke(t.Context(), Life{UID: uid})
		if err != nil || got.Credentials != rows+1 {
			t.Errorf("%s: revoked %+v, %v; want %d credentials", rule, got, err, rows+1)
		}
		ends(t, cl, 5*time.Second)
	}
}

// Killed at each step of a renewal, the holder's file is the old credential or the new one.
func TestARenewalThatIsKilledLeavesTheOldFileOrTheNewOne(t *testing.T) {
	r := newRig(t)
	for _, rule := range []string{"host.mint.recorded=1*off->crash", "host.mint.ledgered=3*off->crash", "host.mint.gated=1*off->crash"} {
		uid := r.activate()
		old := r.mint(Request{Profile: Agent, UID: uid})
		file, err := old.File()
		must(t, err)
		must(t, r.store.Write(CredentialFile(space, "reviewer", uid), file))
		r.strike(uid, "renew", rule)
		got, err := r.store.Read(CredentialFile(space, "reviewer", uid))
		if err != nil || string(got) != string(file) {
			t.Errorf("%s: the file changed, though nothing was released: %v", rule, err)
		}
	}
}

// Killed at each step, a revocation is finished by whoever comes next, and nobody is let in meanwhile once the
// servers were told.
func TestARevocationThatIsKilledIsFinishedByTheNext(t *testing.T) {
	r := newRig(t)
	for _, fp := range []string{"host.revoke.rows", "host.trust.keys-revoked", "host.revoke.pushed", "host.revoke.evicted"} {
		uid := r.activate()
		c := r.mint(Request{Profile: Agent, UID: uid})
		cl := r.dial(c)
		r.strike(uid, "revoke", fp+"=crash")
		for id, row := range r.ledger(Life{UID: uid}) {
			if row.State != wire.CredentialRevoked {
				t.Errorf("%s: row %s is %s", fp, id, row.State)
			}
		}
		if fp == "host.revoke.pushed" || fp == "host.revoke.evicted" {
			ends(t, cl, 5*time.Second)
		}
		ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(20*time.Second))
		if _, err := r.auth.Revoke(ctx, Life{UID: uid}); err != nil {
			t.Errorf("%s: %v", fp, err)
		}
		cancel()
		ends(t, cl, 5*time.Second)
		if _, err := dialAs(r.br.URL(), c); err == nil {
			t.Errorf("%s: the credential works", fp)
		}
	}
}
