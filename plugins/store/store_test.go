//go:build unix

package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/test/failpoints"
)

const childEnv = "COTAL_STORE_CHILD" // store, manifest, source, separated by line ends

// The test binary is also the program that installs and is killed at that.
func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		parts := strings.Split(job, "\n")
		s := at(parts[0])
		if err := install(context.Background(), s, parts[1], parts[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// install is what the command line does, with every question answered.
func install(ctx context.Context, s *Store, path, source string) error {
	st, err := s.Stage(ctx, Source{Path: source})
	if err != nil {
		return err
	}
	defer st.Discard()
	id, err := st.Accept(ctx, st.Digest)
	if err != nil {
		return err
	}
	_, err = s.Enter(ctx, Change{Manifest: path, Kind: id.Kind, Name: id.Name, Staged: st, Decide: put(st, id), Swap: func(context.Context) error { return nil }})
	return err
}

func put(st *Staged, id describe.Identity) func(*manifest.Entry) (*manifest.Edit, error) {
	return func(now *manifest.Entry) (*manifest.Edit, error) {
		e := manifest.Entry{Name: id.Name, Kind: id.Kind, Version: id.Version, Command: st.Command, SHA256: st.Digest}
		return &manifest.Edit{Kind: id.Kind, Name: id.Name, Put: e}, nil
	}
}

// script is the smallest plugin that can be installed.
func script(name, version string) string {
	return fmt.Sprintf("#!/bin/sh\necho '{\"name\": %q, \"kind\": \"connector\", \"version\": %q, \"protocol\": 1}'\n", name, version)
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// world is a store and a manifest.
type world struct {
	*Store
	manifest, dir string
}

func newWorld(t *testing.T) world {
	dir := t.TempDir()
	t.Cleanup(func() { _ = removeAll(dir) })
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	return world{at(manifest.StoreRoot()), filepath.Join(dir, "config", manifest.FileName), dir}
}

func (w world) plugin(t *testing.T, version string) string {
	return write(t, filepath.Join(w.dir, "src-"+version, "cotal-connector-echo"), script("echo", version))
}

// child runs an installation as a process of its own.
func (w world) child(source, points string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+w.root+"\n"+w.manifest+"\n"+source, failpoint.EnvVar+"="+points)
	return cmd
}

// works says which version a host would find, and fails when it is none.
func (w world) works(t *testing.T) string {
	t.Helper()
	m, err := manifest.Load(w.manifest)
	if err != nil {
		t.Fatal(err)
	}
	e, ok := m.Find(describe.Connector, "echo")
	if !ok {
		t.Fatal("the manifest names no echo")
	}
	path, err := w.Verify(e, "/nowhere")
	if err != nil {
		t.Fatalf("version %s: %v", e.Version, err)
	}
	id, err := ask(t.Context(), path, t.TempDir())
	if err != nil || id.Version != e.Version {
		t.Fatalf("what is installed as %s describes itself as %+v, %v", e.Version, id, err)
	}
	return e.Version
}

// clean fails when something is left in the store that an installation made and did not need.
func (w world) clean(t *testing.T, binaries int) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(w.root, ".staging", "*")); len(left) > 0 {
		t.Errorf("left in staging: %v", left)
	}
	if kept, _ := filepath.Glob(filepath.Join(w.root, "sha256", "*")); len(kept) != binaries {
		t.Errorf("%d binaries in the store, want %d: %v", len(kept), binaries, kept)
	}
	if left, _ := filepath.Glob(w.manifest + "*"); len(left) > 1 {
		t.Errorf("beside the manifest: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(w.manifest), ".*")); len(left) > 0 {
		t.Errorf("beside the manifest: %v", left)
	}
}

func TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne(t *testing.T) {
	sites, err := failpoints.Scan("../..")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, site := range sites {
		if site.Process() != "ext" {
			continue
		}
		n++
		t.Run(site.Name, func(t *testing.T) {
			w := newWorld(t)
			for _, v := range []string{"0", "1"} { // version 0 is what the sweep of version 2 removes
				if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, v)); err != nil {
					t.Fatal(err)
				}
			}
			out, err := w.child(w.plugin(t, "2"), site.Name+"=crash").CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("not killed there: %v\n%s", err, out)
			}
			v := w.works(t)
			if v != "1" && v != "2" {
				t.Errorf("version %s", v)
			}
			t.Logf("killed at %s: version %s", site.Name, v)
			was, err := w.Previous(w.manifest, describe.Connector, "echo")
			if want := map[string]string{"1": "0", "2": "1"}[v]; err != nil || was.Version != want {
				t.Errorf("the version before is %+v, %v; want %s", was, err, want)
			} else if _, err := w.Verify(was, "/nowhere"); err != nil {
				t.Errorf("the version before: %v", err)
			}
			if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "3")); err != nil {
				t.Fatal(err)
			}
			if v := w.works(t); v != "3" {
				t.Errorf("after the next installation: version %s", v)
			}
			w.clean(t, 2) // it and the one before
		})
	}
	if n < 9 {
		t.Errorf("%d places found", n)
	}
}

func TestAnErrorAtAnyPlaceLeavesTheOldVersionOrTheNewOne(t *testing.T) {
	sites, err := failpoints.Scan("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, site := range sites {
		if site.Process() != "ext" {
			continue
		}
		t.Run(site.Name, func(t *testing.T) {
			w := newWorld(t)
			for _, v := range []string{"0", "1"} {
				if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, v)); err != nil {
					t.Fatal(err)
				}
			}
			out, err := w.child(w.plugin(t, "2"), site.Name+"=1*error(the disk went away)").CombinedOutput()
			late := site.Name == "ext.enter.swapped" || site.Name == "ext.sweep.removed" // all is done by then
			if v := w.works(t); !late && (v != "1" || err == nil || !strings.Contains(string(out), "the disk went away") || strings.Count(string(out), "\n") != 1) {
				t.Errorf("version %s, %v: %s; want version 1 and one line", v, err, out)
			} else if late && v != "2" {
				t.Errorf("version %s, %v: %s", v, err, out)
			}
			if was, err := w.Previous(w.manifest, describe.Connector, "echo"); err != nil || !late && was.Version != "0" || late && was.Version != "1" {
				t.Errorf("the version before is %+v, %v", was, err)
			}
			if _, err := w.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.clean(t, 2)
		})
	}
}

func TestKilledAtThirtyRandomMomentsLeavesTheOldVersionOrTheNewOne(t *testing.T) {
	w := newWorld(t)
	if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "1")); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if out, err := w.child(w.plugin(t, "0"), "").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	whole := time.Since(begin)
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	killed, was := 0, "0"
	i := 0
	for ; killed < 30 && i < 300; i++ {
		next := fmt.Sprint(i + 2)
		cmd := w.child(w.plugin(t, next), "")
		begin := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(rnd.Int64N(int64(whole))), func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		if err != nil {
			killed++
		} else {
			whole = time.Since(begin)
		}
		v := w.works(t)
		if v != was && v != next || err == nil && v != next {
			t.Fatalf("seed %d, kill %d: version %s, want %s or %s (%v)", seed, i, v, was, next, err)
		}
		was = v
	}
	if killed < 30 {
		t.Errorf("seed %d: only %d of %d were killed", seed, killed, i)
	}
	if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "99")); err != nil {
		t.Fatal(err)
	}
	w.clean(t, 2)
	t.Logf("%d of %d were killed, within %s", killed, i, whole)
}

func TestAPluginThatIsNeededIsNotRemoved(t *testing.T) {
	w := newWorld(t)
	if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "1")); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(w.manifest)
	if err != nil {
		t.Fatal(err)
	}
	remove := func(users Users) error {
		_, err := w.Enter(t.Context(), Change{
			Manifest: w.manifest, Kind: describe.Connector, Name: "echo", Users: users,
			Decide: func(*manifest.Entry) (*manifest.Edit, error) {
				return &manifest.Edit{Kind: describe.Connector, Name: "echo", Remove: true}, nil
			},
		})
		return err
	}
	unknown := errors.New("the seats cannot be listed")
	for _, c := range []struct {
		users Users
		want  error
	}{
		{func(context.Context, describe.Kind, string) ([]string, error) { return []string{"seat one"}, nil }, ErrNeeded},
		{func(context.Context, describe.Kind, string) ([]string, error) { return nil, unknown }, unknown},
	} {
		if err := remove(c.users); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
		if now, err := os.ReadFile(w.manifest); err != nil || string(now) != string(before) {
			t.Errorf("%v: the manifest is another:\n%s", err, now)
		}
	}
	if err := remove(func(context.Context, describe.Kind, string) ([]string, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	w.clean(t, 1) // for the way back
}

func TestNothingIsExecutedBeforeItsDigestIsAccepted(t *testing.T) {
	w := newWorld(t)
	mark := filepath.Join(w.dir, "executed")
	src := write(t, filepath.Join(w.dir, "cotal-connector-echo"), "#!/bin/sh\necho >"+mark+"\n")
	st, err := w.Stage(t.Context(), Source{Path: src})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Discard()
	wrong := strings.Repeat("a", 64)
	_, err = st.Accept(t.Context(), wrong)
	if !errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), st.Digest) {
		t.Errorf("%v, want both digests", err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it was executed")
	}
	if _, err := st.Accept(t.Context(), st.Digest); !errors.Is(err, ErrDescribe) {
		t.Errorf("%v: it says nothing of itself", err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error("it was not executed after all: this test shows nothing")
	}
}

func TestASourceThatIsExchangedChangesNothing(t *testing.T) {
	w := newWorld(t)
	src := w.plugin(t, "1")
	want := sha256.Sum256([]byte(script("echo", "1")))
	st, err := w.Stage(t.Context(), Source{Path: src})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Discard()
	write(t, src, script("other", "9"))
	id, err := st.Accept(t.Context(), hex.EncodeToString(want[:]))
	if err != nil || id.Name != "echo" || id.Version != "1" {
		t.Errorf("%+v, %v", id, err)
	}
}

func TestWhatAManifestNamedIsKeptWhileItsDiskIsAway(t *testing.T) {
	w := newWorld(t)
	if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "1")); err != nil {
		t.Fatal(err)
	}
	away := filepath.Join(w.dir, "away")
	if err := os.Rename(filepath.Dir(w.manifest), away); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(w.dir, "other", manifest.FileName)
	for _, v := range []string{"2", "3", "4"} { // each removes what nobody needs
		if err := install(t.Context(), w.Store, other, w.plugin(t, v)); err != nil {
			t.Fatal(err)
		}
	}
	digest := func(version string) string {
		sum := sha256.Sum256([]byte(script("echo", version)))
		return hex.EncodeToString(sum[:])
	}
	for _, c := range []struct {
		later time.Duration
		want  bool
	}{{missedFor - time.Hour, true}, {missedFor + time.Hour, false}} {
		needed, err := w.needed(time.Now().Add(c.later))
		if err != nil || needed[digest("1")] != c.want || !needed[digest("4")] || !needed[digest("3")] || needed[digest("2")] {
			t.Errorf("after %s: %v, %v", c.later, needed, err)
		}
	}
}

func TestAManifestThatComesBackHasItsPlugins(t *testing.T) {
	w := newWorld(t)
	if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "1")); err != nil {
		t.Fatal(err)
	}
	away := filepath.Join(w.dir, "away")
	if err := os.Rename(filepath.Dir(w.manifest), away); err != nil {
		t.Fatal(err)
	}
	if err := install(t.Context(), w.Store, filepath.Join(w.dir, "other", manifest.FileName), w.plugin(t, "2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, filepath.Dir(w.manifest)); err != nil {
		t.Fatal(err)
	}
	if v := w.works(t); v != "1" {
		t.Errorf("version %s", v)
	}
	p, err := w.pastOf(w.manifest)
	if err != nil || p.Missed.IsZero() {
		t.Fatalf("%+v, %v: this test shows nothing", p, err)
	}
	if _, err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, err = w.pastOf(w.manifest); err != nil || !p.Missed.IsZero() {
		t.Errorf("it counts as missing since %s, %v", p.Missed, err)
	}
}

func TestWhatAManifestNamedBeforeItWasInstalledIsKept(t *testing.T) {
	w := newWorld(t)
	text := script("echo", "1")
	digest := sha256.Sum256([]byte(text))
	e := manifest.Entry{Name: "echo", Kind: describe.Connector, Version: "1", Command: "cotal-connector-echo", SHA256: hex.EncodeToString(digest[:])}
	named, err := manifest.Format([]manifest.Entry{e})
	if err != nil {
		t.Fatal(err)
	}
	write(t, w.manifest, string(named))
	src := w.plugin(t, "1")
	st, err := w.Stage(t.Context(), Source{Path: src})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Discard()
	if _, err := st.Accept(t.Context(), st.Digest); err != nil {
		t.Fatal(err)
	}
	nothing := func(*manifest.Entry) (*manifest.Edit, error) { return nil, nil }
	got, err := w.Enter(t.Context(), Change{Manifest: w.manifest, Kind: e.Kind, Name: e.Name, Staged: st, Decide: nothing})
	if err != nil || got.Changed || len(got.Swept) > 0 || got.SweepErr != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if v := w.works(t); v != "1" {
		t.Errorf("version %s", v)
	}
}

func TestAStoreThatIsLockedIsWaitedForAsLongAsWasSaid(t *testing.T) {
	w := newWorld(t)
	parent, err := w.Store.dir(".staging")
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := manifest.LockDir(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Stage(ctx, Source{Path: w.plugin(t, "1")}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), parent) {
		t.Errorf("%v, want that of the context and the directory", err)
	}
	w.clean(t, 0)
}

func TestTwoNamesOfOneProgramAreKeptSideBySide(t *testing.T) {
	w := newWorld(t)
	src := w.plugin(t, "1")
	if err := install(t.Context(), w.Store, w.manifest, src); err != nil {
		t.Fatal(err)
	}
	st, err := w.Stage(t.Context(), Source{Path: src, Command: "another-name"})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Discard()
	id, err := st.Accept(t.Context(), st.Digest)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(w.dir, "other", manifest.FileName)
	if _, err := w.Enter(t.Context(), Change{Manifest: other, Kind: id.Kind, Name: id.Name, Staged: st, Decide: put(st, id)}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{w.manifest, other} {
		w.manifest = path
		if v := w.works(t); v != "1" {
			t.Errorf("%s: version %s", path, v)
		}
	}
}
