package trust

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// childDir makes this test binary a process that makes keys in that workspace, and rotates and revokes when
// they are there.
const childDir = "COTAL_TEST_TRUST_DIR"

// revokedKey is a user key that the child revokes.
const revokedKey = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"

func child(root string) int {
	ctx, cancel := context.WithTimeout(context.Background(), busy.Limit(30*time.Second))
	defer cancel()
	if os.Getenv(childDo) != "" {
		if err := childAct(ctx, root); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
		return 0
	}
	store, err := OpenFileStore(ctx, root)
	if err == nil {
		var k *Keyring
		if k, err = MakeKeyring(ctx, store, space); err == nil && os.Getenv("COTAL_TEST_TRUST_CHANGE") != "" {
			if err = k.Rotate(ctx); err == nil {
				err = k.Revoke(ctx, revokedKey)
			}
		}
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return 0
}

// runChild runs it; crash is a failpoint that kills it, or empty.
func runChild(t *testing.T, root, crash string, change bool) error {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+root)
	if crash != "" {
		cmd.Env = append(cmd.Env, failpoint.EnvVar+"="+crash+"=crash")
	}
	if change {
		cmd.Env = append(cmd.Env, "COTAL_TEST_TRUST_CHANGE=1")
	}
	out, err := cmd.CombinedOutput()
	if len(out) > 0 {
		t.Logf("child: %s", out)
	}
	return err
}

func openKeys(t testing.TB, root string) *Keyring {
	t.Helper()
	store, err := OpenFileStore(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	k, err := MakeKeyring(t.Context(), store, space)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeysAreMadeOnceAndAreOursAlone(t *testing.T) {
	root := t.TempDir()
	k := openKeys(t, root)
	one, err := k.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	two, err := openKeys(t, root).Bundle()
	if err != nil {
		t.Fatal(err)
	}
	if one.Operator != two.Operator || one.System != two.System || one.Account != two.Account {
		t.Errorf("keys were made anew: %+v, %+v", one, two)
	}
	for _, public := range []string{one.Operator, one.System, one.Account} {
		if !nkeys.IsValidPublicOperatorKey(public) && !nkeys.IsValidPublicAccountKey(public) {
			t.Errorf("%q is no public key", public)
		}
	}
	err = filepath.WalkDir(filepath.Join(root, ".cotal", "auth"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if st.Mode().Perm() != want {
			t.Errorf("%s has mode %04o, want %04o", path, st.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestNoSeedOfAnAccountItselfIsKept(t *testing.T) {
	k := openKeys(t, t.TempDir())
	b, s, err := k.load()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []accountRef{b.System, s.Account} {
		for _, p := range a.Signing {
			if p.Public == a.Public {
				t.Errorf("account %s signs with its own key", a.Public)
			}
		}
	}
}

// Two first starts at once have one identity.
func TestTwoProcessesThatMakeKeysAtOnceEndUpWithTheSame(t *testing.T) {
	root := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := runChild(t, root, "", false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	k := openKeys(t, root)
	b, err := k.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	for account, token := range b.Accounts {
		c, err := jwt.DecodeAccountClaims(token)
		if err != nil || c.Issuer != b.Operator || c.Subject != account {
			t.Errorf("account %s: %v, %+v", account, err, c)
		}
	}
	if names, err := k.store.List(""); err != nil || len(names) != 3 {
		t.Errorf("files: %v, %v", names, err)
	}
}

// A process that is killed at each step of making or changing keys leaves what was there, or what was to be.
func TestKilledAtEachStepKeysAreTheOldOnesOrTheNewOnes(t *testing.T) {
	for _, fp := range []string{"host.trust.broker-keys", "host.trust.space-keys", "host.trust.key-rotated", "host.trust.keys-revoked"} {
		t.Run(fp, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			change := strings.Contains(fp, "rotated") || strings.Contains(fp, "revoked")
			if change {
				openKeys(t, root)
			}
			err := runChild(t, root, fp, change)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child was not killed at %s: %v", fp, err)
			}
			before := readFiles(t, root)
			k := openKeys(t, root) // goes on
			for name, old := range before {
				if now, err := k.store.Read(name); err != nil || !bytes.Equal(now, old) {
					t.Errorf("%s was written again", name)
				}
			}
			s, err := k.readSpace()
			if err != nil {
				t.Fatal(err)
			}
			revoked, err := k.readRevoked()
			if err != nil {
				t.Fatal(err)
			}
			wantKeys, wantRevoked := 1, 0
			if change {
				wantKeys = 2
			}
			if strings.Contains(fp, "revoked") {
				wantRevoked = 1
			}
			if len(s.Account.Signing) != wantKeys || len(revoked.Revoked) != wantRevoked {
				t.Errorf("%d signing keys and %d revoked, want %d and %d", len(s.Account.Signing), len(revoked.Revoked), wantKeys, wantRevoked)
			}
		})
	}
}

func readFiles(t *testing.T, root string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	dir := filepath.Join(root, ".cotal", "auth")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == lockFile || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = raw
	}
	return out
}

func TestAKeyFileThatCannotBeUsedIsNamedAndNeverMadeAnew(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"cut short": func(t *testing.T, path string) { must(t, os.Truncate(path, 20)) },
		"empty":     func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) },
		"readable by others": func(t *testing.T, path string) {
			must(t, os.Chmod(path, 0o644))
		},
		"a link": func(t *testing.T, path string) {
			must(t, os.Rename(path, path+".away"))
			must(t, os.Symlink(path+".away", path))
		},
		"a seed that is not its key's": func(t *testing.T, path string) {
			raw, err := os.ReadFile(path)
			must(t, err)
			var v map[string]any
			must(t, json.Unmarshal(raw, &v))
			other, err := nkeys.CreateAccount()
			must(t, err)
			seed, err := other.Seed()
			must(t, err)
			for _, holder := range []string{"system", "account"} {
				if a, ok := v[holder].(map[string]any); ok {
					a["signing"].([]any)[0].(map[string]any)["seed"] = string(seed)
				}
			}
			raw, err = json.Marshal(v)
			must(t, err)
			must(t, os.WriteFile(path, raw, 0o600))
		},
		"another version": func(t *testing.T, path string) {
			raw, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, bytes.Replace(raw, []byte(`"v": 1`), []byte(`"v": 2`), 1), 0o600))
		},
	} {
		for _, file := range []string{brokerFile, accountFile(space), revokedFile(space)} {
			if file == revokedFile(space) && strings.HasPrefix(name, "a seed") {
				continue
			}
			t.Run(name+" "+file, func(t *testing.T) {
				root := t.TempDir()
				k := openKeys(t, root)
				path := filepath.Join(k.store.(*FileStore).dir, file)
				spoil(t, path)
				before, _ := os.ReadFile(path)
				_, err := MakeKeyring(t.Context(), k.store, space)
				var fe *instance.FileError
				if !errors.As(err, &fe) || !strings.Contains(err.Error(), file) || fe.Fix == "" {
					t.Errorf("%v; want a FileError that names %s and what to do", err, file)
				}
				if err != nil && strings.Contains(err.Error(), "SA") && strings.Contains(string(before), err.Error()) {
					t.Error("the error quotes what is in the file")
				}
				if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
					t.Error("the file was written over")
				}
			})
		}
	}
}

func TestAccountsWithoutTheirOperatorAreNotGivenANewOne(t *testing.T) {
	root := t.TempDir()
	k := openKeys(t, root)
	must(t, os.Remove(filepath.Join(k.store.(*FileStore).dir, brokerFile)))
	_, err := MakeKeyring(t.Context(), k.store, space)
	var fe *instance.FileError
	if !errors.As(err, &fe) || !strings.Contains(err.Error(), brokerFile) {
		t.Errorf("%v; want a FileError that names %s", err, brokerFile)
	}
}

func TestASecondSpaceSharesTheOperatorAndNothingElse(t *testing.T) {
	k := openKeys(t, t.TempDir())
	other, err := MakeKeyring(t.Context(), k.store, "other")
	must(t, err)
	one, err := k.Bundle()
	must(t, err)
	two, err := other.Bundle()
	must(t, err)
	if one.Operator != two.Operator || one.System != two.System || one.Account == two.Account {
		t.Errorf("%+v, %+v", one, two)
	}
}

func TestARotatedKeyVerifiesUntilNothingItSignedLives(t *testing.T) {
	k := openKeys(t, t.TempDir())
	c := &clock{}
	k.now = c.now
	signers := func() []string {
		t.Helper()
		b, err := k.Bundle()
		must(t, err)
		ac, err := jwt.DecodeAccountClaims(b.Accounts[b.Account])
		must(t, err)
		keys := ac.SigningKeys.Keys()
		slices.Sort(keys)
		return keys
	}
	rotate := func() {
		t.Helper()
		must(t, k.Rotate(t.Context()))
		must(t, k.Rotate(t.Context())) // one that is pending is the one
		must(t, k.Activate(t.Context(), signers()))
	}
	first := signers()
	must(t, k.Rotate(t.Context()))
	if s, err := k.readSpace(); err != nil || len(s.Account.Signing) != 2 {
		t.Fatal(s, err)
	} else if p, err := s.Account.signer(); err != nil || p.Public != first[0] {
		t.Errorf("a key that no server knows signs: %v", err)
	}
	rotate()
	if got := signers(); len(got) != 2 || !slices.Contains(got, first[0]) {
		t.Fatalf("after one rotation: %v, want two with %v", got, first)
	}
	c.add(MaxLife + revocationSlack + 2*time.Second)
	rotate()
	if got := signers(); len(got) != 2 || slices.Contains(got, first[0]) {
		t.Errorf("after the longest life: %v, want two without %v", got, first)
	}
	must(t, k.Drop(t.Context()))
	if got := signers(); len(got) != 1 {
		t.Errorf("dropped: %v, want one", got)
	}
}

func TestRevokedKeysAreForgottenOnceWhatTheyHeldHasEnded(t *testing.T) {
	k := openKeys(t, t.TempDir())
	c := &clock{}
	k.now = c.now
	must(t, k.Revoke(t.Context(), revokedKey))
	revoked, err := k.readRevoked()
	must(t, err)
	first := revoked.Revoked[revokedKey]
	c.add(time.Hour)
	must(t, k.Revoke(t.Context(), revokedKey))
	if revoked, err = k.readRevoked(); err != nil || revoked.Revoked[revokedKey] != first || first == 0 {
		t.Errorf("a second revocation moved the first: %v, %v", revoked, err)
	}
	c.add(MaxLife + revocationSlack)
	must(t, k.Revoke(t.Context()))
	if revoked, err = k.readRevoked(); err != nil || len(revoked.Revoked) != 0 {
		t.Errorf("revoked: %v, %v; want none", revoked, err)
	}
	// Of a key whose last credential has an end that is known: past that.
	end := c.now().Add(5 * time.Minute)
	must(t, k.RevokeUntil(t.Context(), map[string]time.Time{revokedKey: end}))
	c.add(5*time.Minute + revocationSlack - 2*time.Second)
	must(t, k.Revoke(t.Context()))
	if revoked, err = k.readRevoked(); err != nil || len(revoked.Revoked) != 1 {
		t.Errorf("before the end of its last credential: %v, %v", revoked, err)
	}
	must(t, k.RevokeUntil(t.Context(), map[string]time.Time{revokedKey: end.Add(time.Minute)}))
	c.add(30 * time.Second)
	if b, err := k.Bundle(); err != nil || !accountRefuses(t, b, revokedKey) {
		t.Errorf("before the end of one that was found later: %v", err)
	}
	c.add(time.Minute)
	must(t, k.Revoke(t.Context()))
	if revoked, err = k.readRevoked(); err != nil || len(revoked.Revoked) != 0 {
		t.Errorf("past the end of its last credential: %v, %v", revoked, err)
	}
	must(t, os.Remove(filepath.Join(k.store.(*FileStore).dir, revokedFile(space))))
	if _, err := k.Bundle(); err == nil || !strings.Contains(err.Error(), revokedFile(space)) {
		t.Errorf("without the list of revoked keys: %v", err)
	}
}

// accountRefuses reports whether servers that are told this refuse a key.
func accountRefuses(t *testing.T, b Bundle, key string) bool {
	t.Helper()
	c, err := jwt.DecodeAccountClaims(b.Accounts[b.Account])
	must(t, err)
	_, ok := c.Revocations[key]
	return ok
}

// A reader of a secret that is renewed all the time sees whole ones, whatever mode the file had.
func TestFieldG15_ASecretIsReplacedInOneStepAndBecomesPrivate(t *testing.T) {
	k := openKeys(t, t.TempDir())
	store := k.store.(*FileStore)
	name := "creds/space/x.creds"
	a, b := bytes.Repeat([]byte("a"), 5000), bytes.Repeat([]byte("b"), 7000)
	must(t, store.Write(name, a))
	path := filepath.Join(store.dir, name)
	must(t, os.Chmod(path, 0o644))
	must(t, store.Write(name, b))
	st, err := os.Stat(path)
	must(t, err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %04o", st.Mode().Perm())
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			got, err := store.Read(name)
			if err != nil || !bytes.Equal(got, a) && !bytes.Equal(got, b) {
				t.Errorf("read %d bytes, %v", len(got), err)
				return
			}
		}
	})
	for i := range 100 {
		must(t, store.Write(name, [][]byte{a, b}[i%2]))
	}
	close(done)
	wg.Wait()
	if names, err := store.List("creds/space/"); err != nil || !slices.Equal(names, []string{name}) {
		t.Errorf("list: %v, %v", names, err)
	}
	must(t, store.Remove(name))
	must(t, store.Remove(name))
	if _, err := store.Read(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read after remove: %v", err)
	}
}

func TestASecretIsNotWrittenOutsideTheStore(t *testing.T) {
	store := openKeys(t, t.TempDir()).store
	for _, name := range []string{"", "..", "../x", "a/../b", "/etc/x", "a//b", "a/b/c/d", ".hidden", "a/.hidden", "x y", "lock", strings.Repeat("x", 201)} {
		if err := store.Write(name, nil); err == nil {
			t.Errorf("%q was written", name)
		}
		if _, err := store.Read(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q was looked for: %v", name, err)
		}
	}
}

func TestAStoreIsNotOpenedThroughALinkOrInAnOpenDirectory(t *testing.T) {
	for name, spoil := range map[string]func(root string){
		"a link for .cotal": func(root string) { must(t, os.Symlink(t.TempDir(), filepath.Join(root, ".cotal"))) },
		"a link for .cotal/auth": func(root string) {
			must(t, os.Mkdir(filepath.Join(root, ".cotal"), 0o700))
			must(t, os.Symlink(t.TempDir(), filepath.Join(root, ".cotal", "auth")))
		},
		"auth open to others": func(root string) {
			must(t, os.MkdirAll(filepath.Join(root, ".cotal", "auth"), 0o700))
			must(t, os.Chmod(filepath.Join(root, ".cotal", "auth"), 0o755))
		},
		"a file for .cotal/auth": func(root string) {
			must(t, os.Mkdir(filepath.Join(root, ".cotal"), 0o700))
			must(t, os.WriteFile(filepath.Join(root, ".cotal", "auth"), nil, 0o600))
		},
		"no workspace": func(root string) { must(t, os.Remove(root)) },
	} {
		root := filepath.Join(t.TempDir(), "w")
		must(t, os.Mkdir(root, 0o700))
		spoil(root)
		_, err := OpenFileStore(t.Context(), root)
		var fe *instance.FileError
		if !errors.As(err, &fe) || fe.Fix == "" || !strings.Contains(err.Error(), root) {
			t.Errorf("%s: %v; want a FileError that says what to do", name, err)
		}
	}
}

func TestALockedStoreIsWaitedForAndThenTold(t *testing.T) {
	store := openKeys(t, t.TempDir()).store
	unlock, err := store.Lock(t.Context())
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := store.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	again, err := store.Lock(t.Context())
	must(t, err)
	again()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
