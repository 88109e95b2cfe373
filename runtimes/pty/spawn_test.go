//go:build linux

package pty

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// A prepared seat has executed nothing; the commit executes it, and commits again say the same.
func TestPreparedExecutesNothing(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"append":{"file":"{work}/started","text":"x"}},{"hang":true}]`)
	h := r.spawn(q)
	if h.Version != 1 || h.Ref != q.SeatID {
		t.Errorf("handle %+v", h)
	}
	st := r.adopt(q, false)
	if st.State != sdk.SeatPrepared || st.Agent.PID != 0 {
		t.Fatalf("state %s, agent %+v", st.State, st.Agent)
	}
	if found, _ := seat.FindByNonce(q.Nonce); len(found) != 1 || found[0].PID != st.Identity.PID {
		t.Errorf("processes of a prepared seat: %+v", found)
	}
	if r.read("started") != "" {
		t.Fatal("the agent has executed before the commit")
	}
	first := r.adopt(q, true)
	second := r.adopt(q, true)
	if first.State != sdk.SeatRunning || second.State != sdk.SeatRunning || first.Agent != second.Agent || first.Agent.PID == 0 {
		t.Errorf("commit twice: %+v, %+v", first, second)
	}
	eventually(t, "the agent runs", func() bool { return r.read("started") != "" })
	if got := r.read("started"); got != "x" {
		t.Errorf("started %q", got)
	}
}

// proves: RT-7. The reference is minted by the host before the launch; spawning it again, at once, later
// or from another plugin process, gives the same handle and one custody process.
func TestSpawnIsIdempotent(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	other := r.fresh() // has locks of its own, like another plugin process
	handles := make([]sdk.Handle, 8)
	var wg sync.WaitGroup
	for i := range handles {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rt := r.rt
			if i%2 == 1 {
				rt = other
			}
			h, err := rt.Spawn(context.Background(), q)
			if err != nil {
				t.Errorf("spawn %d: %v", i, err)
			}
			handles[i] = h
		}()
	}
	wg.Wait()
	for _, h := range handles {
		if string(h.State) != string(handles[0].State) || h.Ref != q.SeatID {
			t.Errorf("handles differ: %s and %s", h.State, handles[0].State)
		}
	}
	r.adopt(q, true)
	if h := r.spawn(q); string(h.State) != string(handles[0].State) {
		t.Errorf("handle after the commit %s", h.State)
	}
	if found, _ := seat.FindByNonce(q.Nonce); len(found) != 2 {
		t.Errorf("processes: %+v, want custody and agent", found)
	}
	again := q
	again.Owner.RequestID = "another"
	if _, err := r.rt.Spawn(context.Background(), again); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("another request for the same id: %v", err)
	}
}

func TestSpawnOfAStaleHostIsRefused(t *testing.T) {
	r := newRig(t)
	r.fence = 5
	q := r.spec(`[]`)
	r.spawn(q)
	q.Fence = 4
	if _, err := r.rt.Spawn(context.Background(), q); !errors.Is(err, sdk.ErrStaleFence) {
		t.Errorf("spawn: %v", err)
	}
}

func TestSpawnRefusesBeforeItMakesAnything(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(*sdk.SpawnRequest){
		"seat id":              func(q *sdk.SpawnRequest) { q.SeatID = "../../etc" },
		"nonce":                func(q *sdk.SpawnRequest) { q.Nonce = "" },
		"launch.path":          func(q *sdk.SpawnRequest) { q.Launch.Path = "agent" },
		"cwd":                  func(q *sdk.SpawnRequest) { q.Cwd = "here" },
		"no such file":         func(q *sdk.SpawnRequest) { q.Cwd = "/no/such/directory" },
		"launch.args[0]":       func(q *sdk.SpawnRequest) { q.Launch.Args = []string{"a\x00b"} },
		"launch.env[1]":        func(q *sdk.SpawnRequest) { q.Launch.Env = []string{"A=1", "B"} },
		"form":                 func(q *sdk.SpawnRequest) { q.Form = json.RawMessage(`{`) },
		"stopGraceMs":          func(q *sdk.SpawnRequest) { q.StopGraceMs = -1 },
		"argv and environment": func(q *sdk.SpawnRequest) { q.Launch.Args = []string{strings.Repeat("a", 3<<20)} },
	} {
		q := r.spec(`[]`)
		r.specs = r.specs[:len(r.specs)-1]
		change(&q)
		_, err := r.rt.Spawn(context.Background(), q)
		if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), name) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.nothingOnDisk()
}

// A failed spawn leaves nothing, at whatever step it failed; what the host had put into the directory
// stays, and the message starts with the first error.
func TestFieldC6_FailedSpawnIsUndone(t *testing.T) {
	for _, point := range []*failpoint.Point{fpSpawnDir, fpSpawnToken, fpSpawnStarted, fpSpawnLaunched, fpSpawnPrepared} {
		name := pointName(t, point)
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, hostMade := range []bool{false, true} {
				q := r.spec(`[{"hang":true}]`)
				if hostMade {
					if err := errors.Join(os.MkdirAll(filepath.Join(r.dir(q), "launch"), 0o700), record.WriteIntent(r.dir(q), intentOf(q))); err != nil {
						t.Fatal(err)
					}
				}
				arm(t, name+"=1*error(disk full)")
				_, err := r.rt.Spawn(context.Background(), q)
				if !errors.Is(err, sdk.ErrUnavailable) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted || !strings.Contains(err.Error(), "disk full") {
					t.Fatalf("spawn: %v", err)
				}
				r.nothingRuns(q)
				entries, _ := os.ReadDir(r.dir(q))
				var names []string
				for _, e := range entries {
					names = append(names, e.Name())
				}
				if want := map[bool]string{false: "", true: "intent.json launch"}[hostMade]; strings.Join(names, " ") != want {
					t.Errorf("left: %q, want %q", names, want)
				}
				if _, err := os.Lstat(filepath.Join(r.cfg.SocketDir, q.SeatID[:16]+".sock")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("socket: %v", err)
				}
				// The same spawn works once the fault is gone.
				r.spawn(q)
			}
		})
	}
	t.Run("undo fails too", func(t *testing.T) {
		r := newRig(t)
		q := r.spec(`[]`)
		arm(t, "pty.spawn.prepared=1*error(first);pty.spawn.undo=1*error(second)")
		_, err := r.rt.Spawn(context.Background(), q)
		var e *sdk.Error
		if !errors.As(err, &e) || !strings.HasPrefix(e.Detail, "failpoint pty.spawn.prepared: first") || !strings.Contains(e.Detail, "second") || e.Outcome != sdk.OutcomeUnknown {
			t.Errorf("spawn: %v", err)
		}
	})
}

func intentOf(q sdk.SpawnRequest) record.Intent {
	return record.Intent{CustodyID: q.SeatID, Nonce: q.Nonce, Fence: q.Fence, Owner: record.Owner(q.Owner), Form: q.Form}
}

// pointName finds the name of a failpoint by arming: a Point does not tell its name.
func pointName(t *testing.T, p *failpoint.Point) string {
	t.Helper()
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "pty.") {
			continue
		}
		if err := failpoint.Arm(name + "=error(x)"); err != nil {
			t.Fatal(err)
		}
		hit := p.Hit() != nil
		failpoint.Disarm()
		if hit {
			return name
		}
	}
	t.Fatal("unknown failpoint")
	return ""
}

func arm(t *testing.T, text string) {
	t.Helper()
	if err := failpoint.Arm(text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(failpoint.Disarm)
}

// Names that somebody guessed and made beforehand are never written through.
func TestFieldO9_SymbolicLinksAreNotFollowed(t *testing.T) {
	r := newRig(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(what string) {
		t.Helper()
		if text, _ := os.ReadFile(victim); string(text) != "untouched" {
			t.Errorf("%s: the victim now holds %q", what, text)
		}
	}
	for _, name := range []string{"token", "seat.log", "seat.json", "exit.json", "ring"} {
		q := r.spec(`[{"print":"output\n"},{"exit":0}]`)
		if err := errors.Join(os.MkdirAll(r.dir(q), 0o700), os.Symlink(victim, filepath.Join(r.dir(q), name))); err != nil {
			t.Fatal(err)
		}
		if _, err := r.rt.Spawn(context.Background(), q); err == nil {
			_, _ = r.rt.Adopt(context.Background(), adoptOf(q, true))
		}
		check(name)
		if _, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow)); errors.Is(err, sdk.ErrUnproven) {
			// It would not judge by a record that is not there; without the link it does.
			if err := os.Remove(filepath.Join(r.dir(q), name)); err != nil {
				t.Fatal(err)
			}
		}
		r.reap(q, sdk.StopNow)
		check(name + " after the stop")
	}
	// The whole directory as a link to somebody else's.
	q := r.spec(`[]`)
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, r.dir(q)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.rt.Spawn(context.Background(), q); err == nil || !strings.Contains(err.Error(), r.dir(q)) {
		t.Errorf("spawn into a linked directory: %v", err)
	}
	if _, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow)); err == nil {
		t.Error("reap of a linked directory succeeded")
	}
	if entries, _ := os.ReadDir(elsewhere); len(entries) != 0 {
		t.Errorf("written: %v", entries)
	}
	if err := os.Remove(r.dir(q)); err != nil {
		t.Fatal(err)
	}
}

// The agent gets the environment of the launch and its nonce, the argv and directory as they are, and
// none of the limits, descriptors or sessions of the plugin.
func TestFieldL12_AgentGetsExactlyTheLaunch(t *testing.T) {
	t.Setenv("COTAL_SECRET_OF_THE_PLUGIN", "x")
	r := newRig(t)
	pwn := filepath.Join(t.TempDir(), "pwn")
	for _, dir := range []string{"a $(touch " + strings.ReplaceAll(pwn, "/", "_") + ") `b` \"c\" ; d\n", "-rf", " "} {
		cwd := filepath.Join(r.work, dir)
		if err := os.MkdirAll(cwd, 0o700); err != nil {
			t.Fatal(err)
		}
		q := r.spec(`[{"dumpArgs":"{work}/args"},{"dumpEnv":"{work}/env"},{"write":{"file":"{work}/cwd","text":"{cwd}"}},{"pidfile":"{work}/pid"},{"hang":true}]`)
		q.Cwd = cwd
		q.Launch.Args = append(q.Launch.Args, "$(touch "+pwn+")", "", "--", "\x1b[0m é")
		q.Launch.Env = []string{"TERM=xterm-256color", "A=b=c", "EMPTY="}
		r.spawn(q)
		st := r.adopt(q, true)
		pid := r.pid("pid")
		if pid != st.Agent.PID {
			t.Errorf("agent is %d, status says %d", pid, st.Agent.PID)
		}
		var args []string
		if err := json.Unmarshal([]byte(r.read("args")), &args); err != nil || strings.Join(args, "|") != strings.Join(append([]string{q.Launch.Path}, q.Launch.Args...), "|") {
			t.Errorf("argv %q, %v", args, err)
		}
		if got := r.read("cwd"); got != cwd {
			t.Errorf("cwd %q, want %q", got, cwd)
		}
		want := map[string]bool{"TERM=xterm-256color": true, "A=b=c": true, "EMPTY=": true, seat.NonceVar + "=" + q.Nonce: true}
		lines := strings.Split(strings.TrimSuffix(r.read("env"), "\n"), "\n")
		for _, kv := range lines {
			if !want[kv] {
				t.Errorf("environment has %q", kv)
			}
		}
		if len(lines) != len(want) {
			t.Errorf("environment %q", lines)
		}
		inherited(t, pid, st)
		r.reap(q, sdk.StopNow)
		for _, f := range []string{"args", "env", "cwd", "pid"} {
			os.Remove(r.file(f))
		}
	}
	if _, err := os.Lstat(pwn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a shell ran: %v", err)
	}
}

// descriptors lists the open files of a process.
func descriptors(t *testing.T, pid int) map[int]string {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	open := map[int]string{}
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		open[fd], _ = os.Readlink(dir + e.Name())
	}
	return open
}

// inherited checks what an agent and its custody process must not have from the plugin.
func inherited(t *testing.T, pid int, st sdk.SeatStatus) {
	t.Helper()
	for _, p := range []int{pid, st.Identity.PID} {
		if sid, err := unix.Getsid(p); err != nil || sid != p {
			t.Errorf("process %d is in session %d, %v", p, sid, err)
		}
	}
	// Custody lets go of its pipes right after it said that it is prepared.
	eventually(t, "custody holds no pipe", func() bool {
		for _, target := range descriptors(t, st.Identity.PID) {
			if strings.HasPrefix(target, "pipe:") {
				return false
			}
		}
		return true
	})
	for fd, target := range descriptors(t, pid) {
		// Those two the Go runtime of the fake agent opens itself.
		if fd > 2 && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
			t.Errorf("the agent inherited descriptor %d: %s", fd, target)
		}
	}
	// The Go runtime raises its own limit of open files, and must lower it again for its children; a
	// shell shows what any child of this process gets.
	out, err := exec.Command("sh", "-c", "ulimit -Sn").Output()
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(out)); strconv.FormatUint(limit.Cur, 10) != want {
		t.Errorf("the agent may open %d files, a shell of ours %s", limit.Cur, want)
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(st.Identity.PID) + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range strings.Split(strings.TrimSuffix(string(env), "\x00"), "\x00") {
		if name, _, _ := strings.Cut(kv, "="); name != seat.NonceVar && name != failpoint.EnvVar {
			t.Errorf("custody has %q in its environment", kv)
		}
	}
}

// One fork: custody is the plugin's own child, and it is waited for, so no zombie is left.
func TestCustodyIsWaitedFor(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"hang":true}]`)
	p, err := seat.ReadProc(st.Identity.PID)
	if err != nil || p.PPID != os.Getpid() {
		t.Errorf("parent of custody is %d, %v", p.PPID, err)
	}
	r.reap(q, sdk.StopNow)
	eventually(t, "no zombie", func() bool {
		_, err := seat.ReadProc(st.Identity.PID)
		return errors.Is(err, seat.ErrProcessGone)
	})
}

// Twenty seats at once all run, each with a process of its own.
func TestTwentySeatsInParallel(t *testing.T) {
	r := newRig(t)
	const n = 20
	specs := make([]sdk.SpawnRequest, n)
	for i := range specs {
		specs[i] = r.spec(`[{"print":"ready\n"},{"hang":true}]`)
	}
	states := make([]sdk.SeatStatus, n)
	var wg sync.WaitGroup
	for i, q := range specs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := r.rt.Spawn(context.Background(), q); err != nil {
				t.Errorf("spawn %d: %v", i, err)
				return
			}
			st, err := r.rt.Adopt(context.Background(), adoptOf(q, true))
			if err != nil {
				t.Errorf("adopt %d: %v", i, err)
			}
			states[i] = st
		}()
	}
	wg.Wait()
	pids := map[int]bool{}
	for i, st := range states {
		if st.State != sdk.SeatRunning {
			t.Errorf("seat %d is %s (%s)", i, st.State, st.Reason)
		}
		pids[st.Agent.PID] = true
	}
	if len(pids) != n {
		t.Errorf("%d agents", len(pids))
	}
	for _, q := range specs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow)); err != nil {
				t.Errorf("reap: %v", err)
			}
		}()
	}
	wg.Wait()
	r.nothingOnDisk()
}

// A program that cannot be executed is said with its path and the reason; nothing has executed and the
// seat is still prepared.
func TestExecFailureIsTyped(t *testing.T) {
	r := newRig(t)
	plain := r.file("plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{"/no/such/program": "no such file", plain: "permission denied"} {
		q := r.spec(`[]`)
		q.Launch.Path = path
		r.spawn(q)
		for range 2 {
			_, err := r.rt.Adopt(context.Background(), adoptOf(q, true))
			if !errors.Is(err, sdk.ErrExecFailed) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), text) {
				t.Fatalf("commit: %v", err)
			}
		}
		if st := r.adopt(q, false); st.State != sdk.SeatPrepared {
			t.Errorf("state %s", st.State)
		}
		r.reap(q, sdk.StopGraceful)
	}
}
