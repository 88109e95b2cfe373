package supervise

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

func TestFieldA3_FailedStartIsFollowedByANewProcess(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_MODE"] = "die-once"
	s := f.start(f.entry())
	_, err := s.Ready(f.ctx())
	var se *StartError
	if !errors.As(err, &se) || se.Reason != ReasonExited || se.Status != "exit status 4" {
		t.Fatalf("first start: %v", err)
	}
	live := f.ready(s)
	if starts := f.records("starts"); len(starts) != 1 || atoi(t, starts[0]) != live.PID {
		t.Errorf("pid %d, recorded %v", live.PID, starts)
	}
}

func TestFieldA4_OutputBeforeTheHandshakeIsShown(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_MODE"] = "hello-first"
	e := f.startError(f.entry())
	if e.Reason != ReasonPrinted {
		t.Fatalf("reason %s: %v", e.Reason, e)
	}
	text := e.Error()
	for _, want := range []string{"plugin fake", f.bundle + "/fakeplugin", "hello?[31m there", "standard error"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not contain %q", text, want)
		}
	}
	if strings.ContainsAny(text, "\x1b\n") {
		t.Errorf("control characters in %q", text)
	}
}

func TestFieldA11_StartFailuresAreToldApart(t *testing.T) {
	cases := []struct {
		name   string
		entry  func(*fixture) manifest.Entry
		reason Reason
		text   []string
	}{
		{"a file that is missing", func(f *fixture) manifest.Entry {
			e := f.entry()
			e.Command = "missing"
			return e
		}, ReasonNotFound, []string{"no such file", "/missing"}},
		{"a file without execute permission", func(f *fixture) manifest.Entry {
			return f.file("plain", "#!/bin/sh\n", 0o644)
		}, ReasonNotExecutable, []string{"chmod +x"}},
		{"a directory", func(f *fixture) manifest.Entry {
			e := f.entry()
			e.Command = "dir"
			if err := os.Mkdir(filepath.Join(f.bundle, "dir"), 0o755); err != nil {
				f.t.Fatal(err)
			}
			return e
		}, ReasonNotExecutable, []string{"regular file"}},
		{"text that nothing executes", func(f *fixture) manifest.Entry {
			return f.file("garbage", "garbage\n", 0o755)
		}, ReasonFormat, []string{"architecture"}},
		{"a script without its interpreter", func(f *fixture) manifest.Entry {
			return f.file("script", "#!/no/such/interpreter\n", 0o755)
		}, ReasonFormat, []string{"interpreter"}},
		{"one that exits with words", func(f *fixture) manifest.Entry {
			return f.file("boom", "#!/bin/sh\necho boom >&2\nexit 3\n", 0o755)
		}, ReasonExited, []string{"exit status 3", "boom"}},
		{"one that is killed", func(f *fixture) manifest.Entry {
			return f.file("killed", "#!/bin/sh\nkill -9 $$\n", 0o755)
		}, ReasonExited, []string{"signal: killed"}},
		{"another file than the manifest means", func(f *fixture) manifest.Entry {
			e := f.file("other", "#!/bin/sh\nexit 0\n", 0o755)
			e.SHA256 = strings.Repeat("0", 64)
			return e
		}, ReasonDigest, []string{"expected sha256 " + strings.Repeat("0", 64), "actual ", "/other", "plugin fake"}},
		{"another version than the manifest says", func(f *fixture) manifest.Entry {
			f.env["FAKE_MODE"] = "newer"
			return f.entry()
		}, ReasonIdentity, []string{`version "0.1.0"`, `"9.9.9"`}},
		{"another kind than the manifest says", func(f *fixture) manifest.Entry {
			f.env["FAKE_KIND"] = "runtime"
			return f.entry()
		}, ReasonIdentity, []string{`kind "connector"`, `"runtime"`}},
		{"a configuration it refuses", func(f *fixture) manifest.Entry {
			e := f.entry()
			e.Config = map[string]any{"bad": 1}
			return e
		}, ReasonConfigure, []string{"bad: no such setting", "[plugin.config]"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			e := f.startError(c.entry(f))
			if e.Reason != c.reason {
				t.Errorf("reason %s, want %s", e.Reason, c.reason)
			}
			for _, want := range c.text {
				if !strings.Contains(e.Error(), want) {
					t.Errorf("%q does not contain %q", e, want)
				}
			}
		})
	}
}

func TestFieldA11_AStartThatHangsIsTimedOutAndKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the start timeout")
	}
	f := newFixture(t)
	f.env["FAKE_MODE"] = "slow-once"
	s := f.start(f.entry())
	_, err := s.Ready(f.ctx())
	var se *StartError
	if !errors.As(err, &se) || se.Reason != ReasonTimeout {
		t.Fatalf("got %v", err)
	}
	if want := "it has not printed its handshake and is "; !strings.Contains(se.Detail, want) && runtime.GOOS == "linux" {
		t.Errorf("%q does not say what it waited for: %q", se.Detail, want)
	}
	slow := atoi(t, f.records("pids")[0])
	if !gone(slow) {
		t.Error("the process that hung is still there")
	}
	if live := f.ready(s); live.PID == slow {
		t.Error("the second start is the first process")
	}
}

func TestFieldA14_VersionSkewNamesTheOldSide(t *testing.T) {
	for _, c := range []struct{ name, mode, want string }{
		{"an old plugin is to be upgraded", "protocol-0", "upgrade the plugin"},
		{"an old host is to be upgraded", "protocol-99", "upgrade cotal-host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			other := f.ready(f.start(f.entry()))
			f.env["FAKE_MODE"] = c.mode
			e := f.startError(f.entry())
			if e.Reason != ReasonProtocol || !strings.HasSuffix(e.Error(), c.want) || !strings.Contains(e.Error(), "plugin fake") {
				t.Errorf("%s: %v", e.Reason, e)
			}
			if _, err := do(other, f.ctx(), nil); err != nil {
				t.Errorf("the other plugin: %v", err)
			}
		})
	}
}

// What is to be done about another digest depends on which of the two files is old: a reload helps only where
// the manifest names the file by now. It was advised always, and did nothing.
func TestTheAdviceForAnotherDigestIsWhatHelps(t *testing.T) {
	f := newFixture(t)
	e := f.file("rebuilt", "#!/bin/sh\nexit 0\n", 0o755)
	e.Source = filepath.Join(f.bundle, "plugins.toml")
	if err := manifest.Write(e.Source, []manifest.Entry{e}); err != nil {
		t.Fatal(err)
	}
	newer := f.file("rebuilt", "#!/bin/sh\nexit 1\n", 0o755) // the host goes by the digest it read before
	se := f.startError(e)
	if se.Reason != ReasonDigest || !strings.HasPrefix(se.Fix, "if you trust this file, put its digest into "+e.Source) || !strings.Contains(se.Detail, e.SHA256) || !strings.Contains(se.Detail, newer.SHA256) {
		t.Errorf("of a file that nobody names: %v", se)
	}
	if err := manifest.Write(e.Source, []manifest.Entry{newer}); err != nil {
		t.Fatal(err)
	}
	se = f.startError(e)
	if want := e.Source + " names this file by now, have the host read it again: cotal ext reload"; se.Fix != want || fix("fake", StateQuarantined, se) != want {
		t.Errorf("of a file that the manifest names by now: %q, then %q", se.Fix, fix("fake", StateQuarantined, se))
	}
}

func TestAMissingBinaryNamesBothPlacesItIsLookedForIn(t *testing.T) {
	f := newFixture(t)
	e := f.entry()
	e.Command, e.Source = "missing", filepath.Join(f.dir, "plugins.toml")
	se := f.startError(e)
	if se.Reason != ReasonNotFound || !strings.Contains(se.Error(), filepath.Join(f.bundle, "missing")) || !strings.Contains(se.Error(), filepath.Join(f.dir, "plugins", "missing")) {
		t.Errorf("got %v", se)
	}
}

func TestAPluginThatNeverServedWasNeverRestartedAndItsReasonIsSaidOnce(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.bundle, "fakeplugin")
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	s := f.start(f.entry())
	eventually(t, 5*time.Second, "three starts have failed", func() bool { return starts(s) >= 3 && s.State() == StateBackoff })
	st := s.Status()
	if st.Restarts != 0 {
		t.Errorf("%d restarts of what never served", st.Restarts)
	}
	if st.Fix != "put it in place, or correct command in the manifest; then: cotal ext reload" || strings.Contains(st.Reason, "put it in place") || !strings.Contains(st.Reason, "there is no such file") {
		t.Errorf("reason %q, to do %q", st.Reason, st.Fix)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	live, err := s.Later(f.ctx(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.Status().Restarts; n != 0 {
		t.Errorf("%d restarts after the first process that serves", n)
	}
	if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Later(f.ctx(), live.Attempt); err != nil || s.Status().Restarts != 1 {
		t.Errorf("%v, %d restarts after the second one", err, s.Status().Restarts)
	}
}

// A reload that was refused once left "crash log" below a plugin that was well.
func TestARefusedReplacementOfAHealthyPluginIsNoCrash(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	wrong := f.entry()
	wrong.Version = "9.9.9"
	var se *StartError
	if _, err := s.Replace(f.ctx(), wrong); !errors.As(err, &se) || se.Reason != ReasonIdentity {
		t.Fatalf("got %v", err)
	}
	if st := s.Status(); st.Crash != "" || st.Reason != "" || st.PID != live.PID {
		t.Errorf("status %+v", st)
	}
}

// The connection of a plugin is for its host alone.
func TestFieldO12_NobodyElseTalksToAPluginsSocket(t *testing.T) {
	f := newFixture(t)
	live := f.ready(f.start(f.entry()))
	dir := live.proc.dir
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Fatalf("%v, %v, want mode 0700", st, err)
	}
	sockets, err := filepath.Glob(filepath.Join(dir, "plugin[0-9]*"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets %v, %v", sockets, err)
	}
	for _, c := range []struct {
		name  string
		creds credentials.TransportCredentials
	}{
		{"without TLS", insecure.NewCredentials()},
		{"with TLS and no certificate", credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})},
		{"with a certificate of its own", credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{selfSigned(t)}})},
	} {
		conn, err := grpc.NewClient("unix:"+sockets[0], grpc.WithTransportCredentials(c.creds))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(f.ctx(), 5*time.Second)
		if info, err := sdk.NewClient(conn).Describe(ctx); err == nil {
			t.Errorf("%s: answered %+v", c.name, info)
		}
		cancel()
		conn.Close()
	}
	if os.Getuid() == 0 {
		ls := exec.Command("/bin/ls", dir)
		ls.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := ls.CombinedOutput(); err == nil {
			t.Errorf("another user sees the sockets: %s", out)
		}
	}
	if _, err := do(live, f.ctx(), nil); err != nil {
		t.Errorf("its own host: %v", err)
	}
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
