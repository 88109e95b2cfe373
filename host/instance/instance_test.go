package instance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/diskfull"
)

const holdVar = "INSTANCE_TEST_HOLD"

// TestMain doubles as a host that takes the workspace and waits for its standard input to end.
func TestMain(m *testing.M) {
	if root := os.Getenv(holdVar); root != "" {
		i, err := Open(context.Background(), root)
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("held", i.ID, i.Epoch)
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type holderProc struct {
	cmd  *exec.Cmd
	line string
}

// hold starts a second process that opens the workspace.
func hold(t *testing.T, root string) *holderProc {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdVar+"="+root)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return &holderProc{cmd: cmd, line: strings.TrimSpace(line)}
}

func open(t *testing.T, root string) *Instance {
	t.Helper()
	i, err := Open(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return i
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// proves: START-24
func TestIdentityIsKeptAndEpochRises(t *testing.T) {
	root := t.TempDir()
	a := open(t, root)
	if !wire.ValidUID(a.ID) || a.Epoch != 1 || a.Port != 0 {
		t.Fatalf("first start: %+v", a)
	}
	if err := a.SetPort(4555); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b := open(t, root)
	if b.ID != a.ID || b.Epoch != 2 || b.Port != 4555 || !b.Created.Equal(a.Created) {
		t.Fatalf("second start: %+v, first %+v", b, a)
	}
	// What is on disk is what this incarnation uses: the fence is durable before it is used.
	rec, err := readRecord(filepath.Join(b.Dir, instanceName))
	if err != nil || rec.Epoch != b.Epoch || rec.Port != 4555 {
		t.Fatalf("on disk %+v, %v", rec, err)
	}
	if err := b.SetPort(70000); err == nil {
		t.Fatal("a port above 65535 was taken")
	}
}

func TestModesOfTheHostDirectory(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	root := t.TempDir()
	i := open(t, root)
	if _, _, err := i.BrokerToken(); err != nil {
		t.Fatal(err)
	}
	if err := i.WriteEndpoint(wire.Endpoint{URL: "nats://127.0.0.1:1", InstanceID: i.ID}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{
		"": 0o700, lockName: 0o600, instanceName: 0o600, tokenName: 0o600, endpointName: 0o600,
	} {
		st, err := os.Lstat(filepath.Join(i.Dir, name))
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%q: mode %v, error %v, want %v", name, st.Mode(), err, want)
		}
	}
	if st, _ := os.Stat(filepath.Join(root, ".cotal")); st.Mode().Perm() != 0o700 {
		t.Errorf(".cotal: mode %v", st.Mode())
	}
}

func TestSecondHostIsRefusedAndTheHolderNamed(t *testing.T) {
	root := t.TempDir()
	p := hold(t, root)
	start := time.Now()
	_, err := Open(context.Background(), root)
	var le *LockedError
	if !errors.Is(err, ErrLocked) || !errors.As(err, &le) {
		t.Fatalf("got %v", err)
	}
	if !le.Holder.Verified || le.Holder.PID != p.cmd.Process.Pid {
		t.Fatalf("holder %+v, want pid %d", le.Holder, p.cmd.Process.Pid)
	}
	for _, want := range []string{fmt.Sprint(p.cmd.Process.Pid), root, "cotal-host stop"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if d := time.Since(start); d > busy.Limit(lockPatience/2) {
		t.Errorf("a holder that is known was waited for: %v", d)
	}
	// The refused one must not have raised the fence under the holder's feet.
	rec, err := readRecord(filepath.Join(DirOf(root), instanceName))
	if err != nil || rec.Epoch != 1 {
		t.Fatalf("epoch %d, %v", rec.Epoch, err)
	}
}

func TestSIGKILLOfTheHolderFreesTheWorkspace(t *testing.T) {
	root := t.TempDir()
	p := hold(t, root)
	inode := ino(t, filepath.Join(DirOf(root), lockName))
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	i := open(t, root)
	if i.Epoch != 2 || !strings.Contains(p.line, i.ID) {
		t.Fatalf("%+v after %q", i, p.line)
	}
	i.Close()
	if got := ino(t, filepath.Join(DirOf(root), lockName)); got != inode {
		t.Fatal("the lock file was replaced; a lock on it proves nothing")
	}
}

func ino(t *testing.T, path string) uint64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(st.Sys().(*syscall.Stat_t).Ino)
}

// A lock on a never-deleted file has one winner, whatever the race after a crash.
func TestFieldL4_OneWinnerPerRound(t *testing.T) {
	root := t.TempDir()
	for round := range 20 {
		var wg sync.WaitGroup
		won := make(chan *Instance, 5)
		for range 5 {
			wg.Go(func() {
				i, err := Open(context.Background(), root)
				if err == nil {
					won <- i
				} else if !errors.Is(err, ErrLocked) {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		close(won)
		n := 0
		for i := range won {
			n++
			if i.Epoch != uint64(round+1) {
				t.Errorf("round %d: epoch %d", round, i.Epoch)
			}
			i.Close()
		}
		if n != 1 {
			t.Fatalf("round %d: %d winners", round, n)
		}
	}
}

func TestFieldC4_ProbeAsksTheLockNotTheFiles(t *testing.T) {
	root := t.TempDir()
	if r, err := Probe(root); err != nil || r.Held {
		t.Fatalf("no host ever: %+v, %v", r, err)
	}
	if _, err := os.Stat(filepath.Join(root, ".cotal")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("Probe created something")
	}
	p := hold(t, root)
	if _, err := os.Stat(EndpointPath(root)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("the test wants a host without endpoint.json")
	}
	r, err := Probe(root)
	if err != nil || !r.Held || !r.Verified || r.PID != p.cmd.Process.Pid || r.StartTicks == 0 {
		t.Fatalf("running host: %+v, %v", r, err)
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	if r, err := Probe(root); err != nil || r.Held {
		t.Fatalf("dead host, stale content in the lock: %+v, %v", r, err)
	}
}

func TestProbesDoNotKeepAHostFromStarting(t *testing.T) {
	root := t.TempDir()
	open(t, root).Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = Probe(root)
				}
			}
		})
	}
	for range 20 {
		i, err := Open(context.Background(), root)
		if err != nil {
			t.Errorf("under probes: %v", err)
			break
		}
		i.Close()
	}
	close(stop)
	wg.Wait()
}

func TestAHolderThatCannotBeIdentifiedIsNotNamed(t *testing.T) {
	root := t.TempDir()
	open(t, root).Close()
	f, err := os.OpenFile(filepath.Join(DirOf(root), lockName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	// The lock is held, but its content names a process that is not the holder: this test's parent
	// pid with a start time of another.
	write(t, f.Name(), fmt.Sprintf(`{"pid":%d,"startTicks":1,"bootId":"x"}`+"\n", os.Getppid()), 0o600)
	_, err = Open(context.Background(), root)
	if !errors.Is(err, ErrLocked) {
		t.Fatalf("got %v", err)
	}
	if strings.Contains(err.Error(), fmt.Sprint(os.Getppid())) {
		t.Errorf("%q names a process that was not verified", err)
	}
	r, err := Probe(root)
	if err != nil || !r.Held || r.Verified {
		t.Fatalf("probe: %+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Open(ctx, root); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

func TestADamagedIdentityIsRefusedAndNeverReplaced(t *testing.T) {
	good := `{"schema":1,"instanceId":"abcdefghijklmnopqrstuvwxyz","epoch":7,"port":0,"created":"2026-01-02T03:04:05Z"}`
	for name, tc := range map[string]struct{ text, want string }{
		"empty after power loss":         {"", "the file is empty"},
		"only zero bytes":                {"\x00\x00\x00\x00", "invalid character"},
		"cut in the middle":              {good[:40], "unexpected end"},
		"not JSON":                       {"hello", "invalid character"},
		"an array":                       {"[]", "cannot unmarshal"},
		"something behind it":            {good + "{}", "after top-level value"},
		"an unknown key":                 {strings.Replace(good, `"port"`, `"prot"`, 1), "prot"},
		"an identity of the wrong shape": {strings.Replace(good, "abcdefghij", "ABC", 1), "instanceId"},
		"epoch zero":                     {strings.Replace(good, `"epoch":7`, `"epoch":0`, 1), "epoch"},
		"a negative epoch":               {strings.Replace(good, `"epoch":7`, `"epoch":-1`, 1), "epoch"},
		"a port out of range":            {strings.Replace(good, `"port":0`, `"port":99999`, 1), "port"},
		"schema zero":                    {strings.Replace(good, `"schema":1`, `"schema":0`, 1), "schema"},
		"a newer schema with new keys":   {`{"schema":2,"who":"x"}`, "newer cotal-host"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			open(t, root).Close()
			path := filepath.Join(DirOf(root), instanceName)
			write(t, path, tc.text, 0o600)
			_, err := Open(context.Background(), root)
			var fe *FileError
			if !errors.As(err, &fe) || fe.Path != path || fe.Fix == "" {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not say %q and the path", err, tc.want)
			}
			if raw, _ := os.ReadFile(path); string(raw) != tc.text {
				t.Error("the damaged file was changed")
			}
			// The refusal let the lock go.
			write(t, path, good, 0o600)
			if i := open(t, root); i.Epoch != 8 {
				t.Errorf("repaired: epoch %d", i.Epoch)
			}
		})
	}
}

func TestFieldO2_DirectoriesOfOthersAndLinksAreRefused(t *testing.T) {
	elsewhere := t.TempDir()
	for name, prepare := range map[string]func(t *testing.T, root string){
		".cotal is a link":    func(t *testing.T, root string) { symlink(t, elsewhere, filepath.Join(root, ".cotal")) },
		"host is a link":      func(t *testing.T, root string) { mkdir(t, root, ".cotal"); symlink(t, elsewhere, DirOf(root)) },
		"host is a file":      func(t *testing.T, root string) { mkdir(t, root, ".cotal"); write(t, DirOf(root), "", 0o600) },
		"host is open to all": func(t *testing.T, root string) { mkdir(t, root, ".cotal/host"); chmod(t, DirOf(root), 0o755) },
		"host.lock is a link": func(t *testing.T, root string) { hostFile(t, root, lockName, elsewhere) },
		"instance is a link":  func(t *testing.T, root string) { hostFile(t, root, instanceName, elsewhere) },
		"instance is readable": func(t *testing.T, root string) {
			open(t, root).Close()
			chmod(t, filepath.Join(DirOf(root), instanceName), 0o644)
		},
		"host.lock is a pipe": func(t *testing.T, root string) {
			mkdir(t, root, ".cotal/host")
			if err := syscall.Mkfifo(filepath.Join(DirOf(root), lockName), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"host belongs to another user": func(t *testing.T, root string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a directory away")
			}
			mkdir(t, root, ".cotal/host")
			if err := os.Chown(DirOf(root), 12345, 12345); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			prepare(t, root)
			i, err := Open(context.Background(), root)
			if err == nil {
				i.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), root) {
				t.Errorf("%q does not name the path", err)
			}
		})
	}
	if left, _ := os.ReadDir(elsewhere); len(left) != 0 {
		t.Errorf("something was written through a link: %v", left)
	}
}

func mkdir(t *testing.T, root, rel string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, rel), 0o700); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func hostFile(t *testing.T, root, name, elsewhere string) {
	t.Helper()
	mkdir(t, root, ".cotal/host")
	symlink(t, filepath.Join(elsewhere, name), filepath.Join(DirOf(root), name))
}

func TestFieldO9_PlantedLinksAreReplacedNotFollowed(t *testing.T) {
	root := t.TempDir()
	i := open(t, root)
	victim := filepath.Join(t.TempDir(), "victim")
	write(t, victim, "untouched", 0o600)
	symlink(t, victim, filepath.Join(i.Dir, endpointName))
	if err := i.WriteEndpoint(wire.Endpoint{Space: "main"}); err != nil {
		t.Fatal(err)
	}
	symlink(t, victim, filepath.Join(i.Dir, tokenName))
	if _, _, err := i.BrokerToken(); err == nil {
		t.Error("a token behind a link was used")
	}
	if raw, _ := os.ReadFile(victim); string(raw) != "untouched" {
		t.Errorf("victim: %q", raw)
	}
}

func TestEndpointIsReplacedWholeAndRemovedTwice(t *testing.T) {
	root := t.TempDir()
	i := open(t, root)
	want := wire.Endpoint{URL: "nats://127.0.0.1:4222", Space: "main", InstanceID: i.ID, PID: 1}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			raw, err := os.ReadFile(EndpointPath(root))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var got wire.Endpoint
			if err != nil || json.Unmarshal(raw, &got) != nil || got.InstanceID != i.ID {
				t.Errorf("a reader saw %q, %v", raw, err)
				return
			}
		}
	})
	for n := range 50 {
		want.PID = n
		if err := i.WriteEndpoint(want); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	for range 2 {
		if err := i.RemoveEndpoint(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBrokerTokenIsMadeOnce(t *testing.T) {
	root := t.TempDir()
	i := open(t, root)
	path, a, err := i.BrokerToken()
	if err != nil || len(a) != 64 || path != filepath.Join(i.Dir, tokenName) {
		t.Fatal(path, a, err)
	}
	i.Close()
	j := open(t, root)
	if _, b, err := j.BrokerToken(); err != nil || b != a {
		t.Fatalf("after a restart %q, %v; was %q", b, err, a)
	}
	for name, breakIt := range map[string]func(){
		"readable by others": func() { chmod(t, path, 0o644) },
		"empty":              func() { write(t, path, "", 0o600) },
		"not hex":            func() { write(t, path, strings.Repeat("z", 64), 0o600) },
	} {
		breakIt()
		_, _, err := j.BrokerToken()
		var fe *FileError
		if !errors.As(err, &fe) || fe.Fix == "" {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), a) {
			t.Errorf("%s: the error shows the token", name)
		}
		write(t, path, a+"\n", 0o600)
	}
}

func TestWhatADyingHostLeftIsSwept(t *testing.T) {
	root := t.TempDir()
	i := open(t, root)
	i.Close()
	left := filepath.Join(i.Dir, "."+instanceName+tempMark+"0011")
	write(t, left, "half", 0o600)
	other := filepath.Join(i.Dir, "notes"+tempMark+"x") // not of our naming
	write(t, other, "mine", 0o600)
	open(t, root)
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the temporary file is still there")
	}
	if _, err := os.Lstat(other); err != nil {
		t.Error("a file of another name was removed")
	}
}

func TestNoSpaceLeavesTheOldIdentity(t *testing.T) {
	if !diskfull.InChild(t) {
		return
	}
	root := t.TempDir()
	i := open(t, root)
	before, _ := os.ReadFile(filepath.Join(i.Dir, instanceName))
	restore := diskfull.Limit(t, 10)
	err := i.SetPort(1234)
	restore()
	if err == nil {
		t.Fatal("no error")
	}
	if after, _ := os.ReadFile(filepath.Join(i.Dir, instanceName)); string(after) != string(before) {
		t.Errorf("instance.json is now %q", after)
	}
	if i.Port != 0 {
		t.Error("the port counts although it was not recorded")
	}
	files, _ := os.ReadDir(i.Dir)
	for _, f := range files {
		if strings.Contains(f.Name(), tempMark) {
			t.Errorf("%s was left", f.Name())
		}
	}
	if err := i.SetPort(1234); err != nil {
		t.Fatalf("after space returned: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"schema":1,"instanceId":"abcdefghijklmnopqrstuvwxyz","epoch":7,"port":0,"created":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"schema":9}`))
	f.Add([]byte(`{"schema":1,"epoch":1e3}`))
	f.Add([]byte(" "))
	f.Fuzz(func(t *testing.T, raw []byte) {
		rec, err := parseRecord(raw)
		if err != nil {
			return
		}
		if !wire.ValidUID(rec.InstanceID) || rec.Epoch == 0 {
			t.Fatalf("accepted %+v", rec)
		}
		again, err := json.Marshal(rec)
		if err != nil {
			return // a year that JSON cannot carry
		}
		if back, err := parseRecord(again); err != nil || back.Epoch != rec.Epoch {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
