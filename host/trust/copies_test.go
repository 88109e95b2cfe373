package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// copied is an authority by a copy of the keys, as a host on another machine has it.
func (r *rig) copied() *Static {
	r.t.Helper()
	dir := r.t.TempDir()
	must(r.t, os.CopyFS(dir, os.DirFS(r.root)))
	must(r.t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		mode := fs.FileMode(0o600)
		if err == nil && d.IsDir() {
			mode = 0o700
		}
		return errors.Join(err, os.Chmod(path, mode))
	}))
	a, err := NewStatic(StaticConfig{Keys: openKeys(r.t, dir), Instance: inst1, Commands: commands(), Reach: bus.Config{InProcess: r.br.InProcess()}, Now: r.clock.now})
	must(r.t, err)
	return a
}

// Two machines have a copy of the keys each, and each revokes by its own. What one has revoked stays so when the other one
// tells the servers, and is known to it from then on.
func TestWhatOneCopyOfTheKeysHasRevokedTheOtherDoesNotLetInAgain(t *testing.T) {
	r := newRig(t)
	here, there := r.activate(), r.activate()
	mine, theirs := r.mint(Request{Profile: Agent, UID: here}), r.mint(Request{Profile: Agent, UID: there})
	other := r.copied()

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

// A host that was held up while it told the servers of the account tells them what was so before: it lets in again whom
// another one has refused meanwhile, by a copy of the keys. That one finds out before its revocation is done, or else
// the next time that it looks.
func TestARevocationIsNotUndoneByAHostThatKnowsNothingOfIt(t *testing.T) {
	defer failpoint.Disarm()
	for name, during := range map[string]bool{"while it is proved": true, "once it was proved": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			uid := r.activate()
			c := r.mint(Request{Profile: Agent, UID: uid})
			other := r.copied()
			held, proof := filepath.Join(t.TempDir(), "held"), filepath.Join(t.TempDir(), "proof")
			must(t, failpoint.Arm("host.revoke.learned=1*pause("+held+")"))
			late := make(chan error, 1)
			go func() {
				_, err := other.PushAccount(t.Context())
				late <- err
			}()
			waitFor(t, held+".reached")
			revoked := make(chan error, 1)
			if during {
				must(t, failpoint.Arm("host.revoke.pushed=1*pause("+proof+")"))
			}
			go func() {
				_, err := r.auth.Revoke(t.Context(), Life{UID: uid})
				revoked <- err
			}()
			if during {
				waitFor(t, proof+".reached")
			} else {
				must(t, <-revoked)
			}
			touch(t, held)
			must(t, <-late)
			nc, err := dialAs(r.br.URL(), c)
			if err != nil {
				t.Fatalf("nothing was undone, so that this test shows nothing: %v", err)
			}
			t.Cleanup(func() { nc.Close(); <-nc.closed })
			if during {
				touch(t, proof)
				must(t, <-revoked)
			} else {
				must(t, r.auth.remindOnce(t.Context()))
			}
			ends(t, nc, 5*time.Second)
			if again, err := dialAs(r.br.URL(), c); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
				t.Errorf("the revoked credential works: %v", err)
				if err == nil {
					again.Close()
				}
			}
			// Who has told the servers what was so before knows better by now.
			if _, err := other.PushAccount(t.Context()); err != nil {
				t.Fatal(err)
			}
			if again, err := dialAs(r.br.URL(), c); err == nil {
				again.Close()
				t.Error("the next push lets the revoked credential in again")
			}
		})
	}
}

// Whether the servers have what they were told is looked at, and whether that still is what there is to tell.
func TestServersThatHaveSomethingElseThanTheyWereToldAreToldAgain(t *testing.T) {
	op, err := nkeys.CreateOperator()
	must(t, err)
	acc, err := nkeys.CreateAccount()
	must(t, err)
	account, err := acc.PublicKey()
	must(t, err)
	key := func(prefix string) string {
		kp, err := nkeys.CreateUser()
		if prefix == "account" {
			kp, err = nkeys.CreateAccount()
		}
		must(t, err)
		p, err := kp.PublicKey()
		must(t, err)
		return p
	}
	one, two, signing, another := key("user"), key("user"), key("account"), key("account")
	token := func(by string, refused map[string]int64) string {
		c := jwt.NewAccountClaims(account)
		c.SigningKeys.Add(by)
		for k, end := range refused {
			c.RevokeAt(k, time.Unix(end, 0))
		}
		s, err := c.Encode(op)
		must(t, err)
		return s
	}
	ours := token(signing, map[string]int64{one: 100})
	for name, c := range map[string]struct {
		pushed, want string
		have         []string
		told         bool
	}{
		"every server has what it was told":                {ours, ours, []string{ours, ours}, true},
		"a server refuses more":                            {ours, ours, []string{token(signing, map[string]int64{one: 100, two: 100})}, true},
		"a server refuses a key for longer":                {ours, ours, []string{token(signing, map[string]int64{one: 200})}, true},
		"a server refuses nobody":                          {ours, ours, []string{ours, token(signing, nil)}, false},
		"a server refuses somebody else":                   {ours, ours, []string{token(signing, map[string]int64{two: 100})}, false},
		"a server refuses a key for less":                  {ours, ours, []string{token(signing, map[string]int64{one: 50})}, false},
		"a server has nothing":                             {ours, ours, []string{""}, false},
		"one more was revoked meanwhile":                   {ours, token(signing, map[string]int64{one: 100, two: 100}), []string{ours}, false},
		"there is another signing key meanwhile":           {ours, token(another, map[string]int64{one: 100}), []string{ours}, false},
		"what was revoked has ended by itself meanwhile":   {ours, token(signing, nil), []string{ours}, true},
		"a host with a copy of the keys has other signers": {ours, ours, []string{token(another, map[string]int64{one: 100})}, true},
	} {
		if why, _, err := untold(c.pushed, c.want, c.have); (why == "") != c.told || err != nil {
			t.Errorf("%s: %q, %v", name, why, err)
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
