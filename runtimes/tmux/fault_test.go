//go:build linux

package tmux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		exit   int
		stderr string
		late   bool
		start  error
		want   verdict
	}{
		"an answer": {0, "", false, nil, answered},
		"the deadline counts more than any words":   {-1, "no server running on /x", true, nil, hung},
		"the program is not there":                  {0, "", false, os.ErrNotExist, unavailable},
		"another protocol than the server's":        {1, "protocol version mismatch (client 8, server 7)\n", false, nil, skewed},
		"nobody listens":                            {1, "no server running on /tmp/x\n", false, nil, noServer},
		"no socket":                                 {1, "error connecting to /tmp/x (No such file or directory)\n", false, nil, noServer},
		"a pane that is not there":                  {1, "can't find pane: %9\n", false, nil, noTarget},
		"a server that ended under the command":     {1, "server exited unexpectedly\n", false, nil, lost},
		"a failure without words is no statement":   {1, "", false, nil, failed},
		"words of a success are not looked at":      {0, "no server running", false, nil, answered},
		"the words of a mismatch in another letter": {1, "Protocol Version Mismatch", false, nil, skewed},
	} {
		if got := judge(tc.exit, tc.stderr, tc.late, tc.start); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestWitness(t *testing.T) {
	n := func(v int) *int { return &v }
	code := func(v int, sig string) record.Exit { return record.Exit{Code: n(v), Signal: sig} }
	for name, tc := range map[string]struct {
		x    record.Exit
		p    pane
		want string
	}{
		"they agree on a code":                  {code(7, ""), pane{dead: true, status: n(7)}, ""},
		"they agree on a signal":                {code(137, "SIGKILL"), pane{dead: true, signal: 9}, ""},
		"a pane that lives is no witness":       {code(7, ""), pane{}, ""},
		"a pane that does not tell is none":     {code(7, ""), pane{dead: true}, ""},
		"an unknown code stays unknown":         {record.Exit{}, pane{dead: true, status: n(0)}, ""},
		"another code is told":                  {code(7, ""), pane{dead: true, status: n(0)}, "code 0"},
		"a signal instead of a code is told":    {code(137, ""), pane{dead: true, signal: 9}, "SIGKILL"},
		"a code instead of a signal is told":    {code(137, "SIGKILL"), pane{dead: true, status: n(137)}, "code 137"},
		"another signal than recorded is told":  {code(143, "SIGTERM"), pane{dead: true, signal: 9}, "SIGKILL"},
		"a signal that nobody has a name of is": {code(7, ""), pane{dead: true, signal: 63}, "signal 63"},
	} {
		got := witness(tc.x, tc.p)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestParsePane(t *testing.T) {
	line := func(dead, status, signal string) string {
		return "pane|" + dead + "|" + status + "|" + signal + "|2|32|120|4|5|0|1|0|0|0|1|0|0|0|0|1|0|"
	}
	for text, want := range map[string]int{"9": 9, "KILL": 9, "SIGKILL": 9, "kill": 9, "": 0, "NOSUCH": 0} {
		if p, err := parsePane(line("1", "", text)); err != nil || p.signal != want || p.status != nil {
			t.Errorf("signal %q: %+v, %v", text, p, err)
		}
	}
	if p, _ := parsePane(line("1", "0", "9")); p.status != nil {
		t.Error("a code beside a signal counts")
	}
	if p, _ := parsePane(line("0", "3", "")); p.status != nil || p.attached != 2 {
		t.Errorf("a living pane: %+v", p)
	}
	for _, bad := range []string{"", "pane|1", "no server", strings.Repeat("|", 21)} {
		if _, err := parsePane(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestNewEnough(t *testing.T) {
	for text, want := range map[string]bool{
		"tmux 3.3a\n": true, "tmux 3.2": true, "tmux 3.10": true, "tmux 4.0": true, "tmux next-3.6": true, "tmux master": true, "tmux openbsd-7.4": true,
		"tmux 3.1c": false, "tmux 2.9a": false, "tmux": false, "": false, "screen 4": false, "hello": false,
	} {
		if newEnough(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// fake puts a program named tmux into a directory of its own.
func fake(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tmux")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// configured returns a runtime over the directories of r that uses another tmux.
func (r *rig) configured(tmux string) *Runtime {
	r.t.Helper()
	cfg := r.cfg
	cfg.Config = json.RawMessage(fmt.Sprintf(`{"holder_sha256":%q,"tmux":%q}`, built.holderSHA256, tmux))
	rt := New()
	if err := rt.Configure(context.Background(), cfg); err != nil {
		r.t.Fatal(err)
	}
	return rt
}

// A tmux that leaves a process with its pipes behind, hangs, fails, or is of another version: every call
// ends by its deadline, and a seat that runs is neither lost nor started twice.
func TestFieldB21_B23_TmuxThatHangsOrIsAnotherVersion(t *testing.T) {
	real, err := exec.LookPath("tmux")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		script string
		want   string // of the refusal of a new seat; empty: it is spawned
	}{
		"it leaves a process with its pipes": {"sleep 300 &\nexec " + real + ` "$@"`, ""},
		"it hangs":                           {"case $1 in -V) exec " + real + " -V;; esac\nsleep 300", "no answer in time"},
		"it hangs at once":                   {"sleep 300", "no answer in time"},
		"it is of another version":           {"case $1 in -V) exec " + real + " -V;; esac\necho 'protocol version mismatch (client 8, server 7)' >&2; exit 1", "version skew"},
		"it says nothing and fails":          {"case $1 in -V) exec " + real + " -V;; esac\nexit 1", "tmux failed"},
		"it is too old":                      {"echo tmux 2.9", "too old"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.spec(`[{"append":{"file":"{work}/started","text":"x"}},{"hang":true}]`)
			st := r.start(q)
			eventually(t, "it runs", func() bool { return r.read("started") == "x" })
			r.rt = r.configured(fake(t, tc.script))
			began := time.Now()
			if got := r.adopt(q, true); got.State != sdk.SeatRunning || got.Agent != st.Agent {
				t.Errorf("the running seat: %s (%s)", got.State, got.Reason)
			}
			if took := time.Since(began); took > busy.Limit(callTimeout+2*time.Second) {
				t.Errorf("adopt took %s", took)
			}
			p := r.spec(`[{"hang":true}]`)
			began = time.Now()
			_, err := r.rt.Spawn(t.Context(), p)
			if took := time.Since(began); took > busy.Limit(4*callTimeout+4*time.Second) {
				t.Errorf("spawn took %s", took)
			}
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("spawn: %v", err)
			case tc.want != "" && (!errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("spawn: %v, want %q", err, tc.want)
			}
			r.reap(q, sdk.StopGraceful) // with the server's own program
			if r.read("started") != "x" {
				t.Errorf("started %d times", len(r.read("started")))
			}
			r.rt = r.fresh()
		})
	}
}

// Without tmux nothing can be started, and what is missing is named with the fix; what runs goes on.
func TestWithoutTmux(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	r.start(q)
	t.Setenv("PATH", t.TempDir())
	r.rt = r.fresh() // Configure succeeds
	if _, err := r.rt.Spawn(t.Context(), r.spec("")); !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), "install tmux") {
		t.Errorf("spawn: %v", err)
	}
	if st := r.adopt(q, false); st.State != sdk.SeatRunning || st.Reason != "" {
		t.Errorf("%s (%s)", st.State, st.Reason)
	}
	if rep := r.reap(q, sdk.StopGraceful); rep.Outcome != sdk.ReapStopped {
		t.Errorf("%+v", rep)
	}
}

// A server at our socket that does not carry our tag is refused by name and left alone; one of an
// interrupted spawn of this seat is ours to end.
func TestFieldC7_ForeignServerAtOurSocket(t *testing.T) {
	for name, ours := range map[string]bool{"a foreign one": false, "one of ours": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			q := r.spec(`[{"hang":true}]`)
			if err := os.MkdirAll(r.cfg.SocketDir, 0o700); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(r.cfg.SocketDir, q.SeatID[:16]+".tmux")
			mark := "nobody"
			if ours {
				mark = q.SeatID
			}
			tm := server{program: "tmux", socket: socket}
			if _, err := tm.call(t.Context(), nil, "start-server", ";", "set", "-s", tag, mark, ";", "new-session", "-d", "sleep 600"); err != nil {
				t.Fatal(err)
			}
			before := servers(t, r.cfg.SocketDir)
			_, err := r.rt.Spawn(t.Context(), q)
			if ours {
				if err != nil {
					t.Errorf("spawn: %v", err)
				}
				if live, _ := seat.Check(before[0]); live != seat.Dead {
					t.Error("the old server lives")
				}
				return
			}
			if !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), "tmux -S "+socket) {
				t.Errorf("spawn: %v", err)
			}
			if live, _ := seat.Check(before[0]); live != seat.Alive {
				t.Error("a foreign server was ended")
			}
			for _, id := range before {
				// A client that was ending when they were listed is gone by now.
				if err := seat.SignalExact(id, syscall.SIGKILL); err != nil && !errors.Is(err, seat.ErrProcessGone) {
					t.Fatal(err)
				}
				eventually(t, "it is gone", func() bool { live, _ := seat.Check(id); return live == seat.Dead })
			}
			_ = os.Remove(socket)
		})
	}
}

// Look-alikes beside the seats live on when those are stopped.
func TestFieldC12_LookAlikesLive(t *testing.T) {
	dir := t.TempDir()
	look := exec.Command("sleep", "600")
	look.Args[0] = "cotal-tmux-seat"
	if err := look.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = look.Process.Kill(); _ = look.Wait() }()
	foreign := server{program: "tmux", socket: filepath.Join(dir, "f.tmux")}
	if _, err := foreign.call(t.Context(), nil, "new-session", "-d", "sleep 600"); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = foreign.call(context.Background(), nil, "kill-server") }()
	r := newRig(t)
	for range 3 {
		q := r.spec(`[{"hang":true}]`)
		r.start(q)
		r.reap(q, sdk.StopNow)
	}
	if !alive(look.Process.Pid) {
		t.Error("a process with our name was ended")
	}
	if _, err := foreign.call(t.Context(), nil, "list-sessions"); err != nil {
		t.Errorf("a foreign server was ended: %v", err)
	}
}

// What people name reaches no tmux command: neither the alias nor the directory is a format or a target.
//
// proves: O7
func TestFieldO5_O7_NamesReachNoTmux(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "x")
	for _, name := range []string{"#{pid}", "#(touch " + marker + ")", "a.b:c", "=", "@", "-t", "$(touch " + marker + ")", "a;kill-server", "%0", "ü\n"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.work = filepath.Join(t.TempDir(), "#(touch "+filepath.Base(marker)+")")
			if err := os.Mkdir(r.work, 0o700); err != nil {
				t.Fatal(err)
			}
			q := r.spec(`[{"hang":true}]`)
			q.Owner.Alias = name
			q.Launch.Env = append(q.Launch.Env, "NAME="+name)
			if st := r.start(q); st.State != sdk.SeatRunning || st.Owner.Alias != name {
				t.Errorf("%+v", st)
			}
			out, err := r.tmux(q, "list-panes", "-a", "-F", "#{session_name}|#{window_name}|#{pane_title}|#{pane_start_command}|#{pane_start_path}")
			if err != nil || strings.Contains(out, "touch") || name == "a.b:c" && strings.Contains(out, name) {
				t.Errorf("tmux knows %q, %v", out, err)
			}
			r.reap(q, sdk.StopGraceful)
		})
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a name was executed")
	}
}

// A socket that somebody removed is made again by its server.
func TestSocketRemoved(t *testing.T) {
	r := newRig(t)
	q := r.raw(2, "")
	if err := os.Remove(r.place(q).Socket); err != nil {
		t.Fatal(err)
	}
	r.write(q, "ok", false)
	eventually(t, "it arrived", func() bool { return r.read("got") == "ok" })
}

// settle judges a seat after a crash the way a booting host does, holds the invariants, and stops it.
func (r *rig) settle(t *testing.T, q sdk.SpawnRequest) sdk.SeatState {
	t.Helper()
	st := r.adopt(q, false)
	found, err := seat.FindByNonce(q.Nonce)
	if err != nil {
		t.Fatal(err)
	}
	switch st.State {
	case sdk.SeatPrepared:
		if len(found) != 1 || found[0].PID != st.Identity.PID {
			t.Errorf("prepared, and its processes are %+v", found)
		}
	case sdk.SeatRunning:
		if live, why := seat.Check(seatIdentity(st.Agent)); live != seat.Alive {
			// A polite signal may be under way: then it is not listed as running for long.
			t.Logf("listed running, and the agent is %s: %s", live, why)
			eventually(t, "a dead agent is not listed as running", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
		}
	case sdk.SeatExited:
		for _, p := range found {
			if p.PID != st.Identity.PID { // custody may still be ending
				t.Errorf("exited, and process %d (%s) lives", p.PID, p.Comm)
			}
		}
	case sdk.SeatNotFound:
		if len(found) != 0 {
			t.Errorf("not found, and processes are %+v", found)
		}
	default:
		t.Errorf("state %s (%s)", st.State, st.Reason)
	}
	if n := len(r.read("started")); n > 1 {
		t.Errorf("the agent was started %d times", n)
	}
	r.reap(q, sdk.StopNow)
	return st.State
}

const crashScript = `[{"append":{"file":"{work}/started","text":"x"}},{"fork":{"steps":[{"ignore":["HUP","TERM"]},{"pidfile":"{work}/child"},{"hang":true}]}},{"print":"up\n"},{"hang":true}]`

// proves: RT-7. SIGKILL of the runtime, or of custody, at every one of its failpoints: another runtime
// finds the seat by its id alone, in a state that is true, never starts it twice, and leaves nothing after
// the stop.
func TestFieldB5_B9_KilledAtEveryStep(t *testing.T) {
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "tmux.") && !strings.HasPrefix(name, "tmuxseat.") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			arm := name + "=crash"
			if name == "tmux.spawn.undo" {
				arm = "tmux.spawn.placed=error(full);" + arm
			}
			m := r.remote(arm)
			q := r.spec(crashScript)
			crashed := false
			step := func(err error) bool {
				crashed = crashed || errors.Is(err, errRemoteDied)
				return err == nil && !crashed
			}
			func() {
				if !step(m.spawn(q)) {
					return
				}
				if st, err := m.adopt(q, true); !step(err) || st.State != sdk.SeatRunning {
					return
				}
				r.pid("child")
				if name == "tmux.write.begin" {
					_, err := m.call(remoteRequest{Write: &sdk.WriteRequest{SeatID: q.SeatID, InstanceID: r.instance, Fence: 1, Data: []byte("x")}})
					step(err)
					return
				}
				if strings.HasPrefix(name, "tmux.adopt.") {
					r.killCustody(q)
					_, err := m.adopt(q, false)
					step(err)
					return
				}
				mode := sdk.StopGraceful
				if name == "tmux.reap.kill" {
					mode = sdk.StopNow
				}
				_, err := m.reap(q, mode)
				step(err)
			}()
			if strings.HasPrefix(name, "tmux.") && !crashed {
				t.Fatal("the runtime was not killed")
			}
			m.kill()
			r.settle(t, q)
		})
	}
}

// A spawn that fails at any step says that nothing was executed, leaves nothing, and can be made again.
func TestErrorsAtEveryStepOfASpawnLeaveNothing(t *testing.T) {
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "tmux.spawn.") || name == "tmux.spawn.undo" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if err := failpoint.Arm(name + "=error(disk full)"); err != nil {
				t.Fatal(err)
			}
			defer failpoint.Disarm()
			q := r.spec(crashScript)
			var e *sdk.Error
			_, err := r.rt.Spawn(t.Context(), q)
			if !errors.As(err, &e) || e.Outcome != sdk.OutcomeNotExecuted || !strings.Contains(e.Detail, "disk full") {
				t.Fatalf("%v", err)
			}
			r.gone(q)
			r.nothingServes()
			failpoint.Disarm()
			r.start(q) // the same seat, once there is room
			r.reap(q, sdk.StopNow)
		})
	}
}
