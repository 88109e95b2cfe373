//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Every way of stopping follows one policy, and says so before it is done.
func TestFieldC1_EveryWayOfStoppingSparesTheSeats(t *testing.T) {
	for name, stop := range map[string]func(*harness.World, *harness.Host){
		"SIGTERM":      func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGTERM) },
		"SIGINT":       func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGINT) },
		"SIGHUP":       func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGHUP) },
		"SIGINT twice": func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGINT); h.Signal(syscall.SIGINT) },
		"stop command": func(w *harness.World, _ *harness.Host) {
			r := w.Host("stop").OK()
			again := "2 of its seats go on without a host; start it with: cotal-host serve --open --root " + w.Root + "\n"
			for _, r := range []harness.Result{w.CLI("ps").Want(3), w.CLI("goal", "AAAAAAAAAAAAAAAAAAAAAA").Want(3), w.Host("status").Want(3)} {
				if !strings.HasSuffix(r.Stderr, again) {
					t.Errorf("%v\ndoes not say %q", r, again)
				}
			}
			for _, seat := range []string{"left running: one (", "left running: two ("} {
				if !strings.Contains(r.Stdout, seat) {
					t.Errorf("%v\ndoes not say %q", r, seat)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := harness.New(t)
			h := w.Start(harness.HostOptions{})
			one, two := w.Spawn("one", "sleep", "600"), w.Spawn("two", "sleep", "600")
			stop(w, h)
			if e, ok := h.WaitExit(harness.DefaultWait); !ok || e.Code != 0 {
				t.Fatalf("the host ended %v, %v\n%s", ok, e, h.Stderr())
			}
			if !w.Alive(one.PID) || !w.Alive(two.PID) {
				t.Errorf("seats were not spared: %v", w.Procs())
			}
			said := h.Stderr()
			policy := strings.Index(said, "spares its seats")
			for _, seat := range []string{"one", "two"} {
				if at := strings.Index(said, "left running: "+seat); policy < 0 || at < policy {
					t.Errorf("the policy and seat %s are not printed in order:\n%s", seat, said)
				}
			}
		})
	}
}

func TestStop_WithAgentsEndsEverythingAndProvesIt(t *testing.T) {
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	w.Spawn("one", "sleep", "600")
	w.Spawn("two", "sleep", "600")
	r := w.Host("stop", "--with-agents").OK()
	if w.Alive(h.PID) {
		t.Error("stop returned while the host runs")
	}
	if e, ok := h.WaitExit(harness.DefaultWait); !ok || e.Code != 0 {
		t.Errorf("the host ended %v, %v", ok, e)
	}
	for _, text := range []string{"stopped one: the agent ended by SIGTERM, as asked; ended ", "stopped two", " sleep (SIGTERM); proof: no process "} {
		if !strings.Contains(r.Stdout, text) {
			t.Errorf("%v\ndoes not say %q", r, text)
		}
	}
	if strings.Count(r.Stdout, "\n") != 3 { // a line for each seat, and one for the host
		t.Errorf("%v", r)
	}
	w.AssertNothingLeft()
	if r := w.Host("stop", "--with-agents").OK(); !strings.Contains(r.Stdout, "no host runs") {
		t.Errorf("%v", r)
	}
	if r := w.Host("status").Want(3); !strings.Contains(r.Stderr, "not running") {
		t.Errorf("%v", r)
	}
}

func TestStop_WithAgentsVerboseShowsEveryProof(t *testing.T) {
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("one", "sleep", "600")
	r := w.Host("stop", "--with-agents", "-v").OK()
	for _, text := range []string{"stopped one: ", "\n  ended    ", "\n  proof    ", "\n  removed  "} {
		if !strings.Contains(r.Stdout, text) {
			t.Errorf("%v\ndoes not say %q", r, text)
		}
	}
}

// What could not be proved gone is named with its reason, and is no success.
func TestFieldC2_ASeatThatIsNotProvedGoneIsListed(t *testing.T) {
	w := harness.New(t)
	h := w.Start(harness.HostOptions{Failpoints: "pty.reap.begin=error(no proof today)"})
	w.Spawn("stays", "sleep", "600")
	r := w.Host("stop", "--with-agents").Want(5)
	if !strings.Contains(r.Stderr, "left: stays (pid ") || !strings.Contains(r.Stderr, "no proof today") || !strings.Contains(r.Stderr, "1 of its seats could not be proved gone") {
		t.Errorf("%v", r)
	}
	if w.Alive(h.PID) {
		t.Error("stop returned while the host runs")
	}
	w.Start(harness.HostOptions{})
	var res stopResult
	w.Host("stop", "--with-agents", "--json").OK().JSON(&res)
	if !res.Stopped || len(res.Left) != 0 || len(res.Ended) != 1 {
		t.Errorf("the next host did not end it: %+v", res)
	}
}

// A teardown that cannot reach the host does nothing by half and does not call it success.
func TestFieldC2_WithAgentsOfAHostThatDoesNotAnswerIsPartial(t *testing.T) {
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	row := w.Spawn("alive", "sleep", "600")
	h.Signal(syscall.SIGSTOP)
	r := w.Host("stop", "--with-agents", "--timeout", "1s").Want(5)
	h.Signal(syscall.SIGCONT)
	if !strings.Contains(r.Stderr, "left: alive (") || !strings.Contains(r.Stderr, "1 seats are left running") {
		t.Errorf("%v", r)
	}
	if !w.Alive(row.PID) || !h.Running() {
		t.Error("something was stopped all the same")
	}
	w.AwaitStatus("alive", "running")
}

// A stop of all seats whose answer is lost is not one that did nothing.
func TestStop_WithAgentsOfAHostThatDiesOnTheWayIsNotKnown(t *testing.T) {
	w := harness.New(t)
	h := w.Start(harness.HostOptions{Failpoints: "host.stop.recorded=crash"})
	w.Spawn("one", "sleep", "600")
	w.Spawn("two", "sleep", "600")
	r := w.Host("stop", "--with-agents").Want(5)
	h.AwaitCrash()
	for _, text := range []string{"not known: one (pid ", "not known: two (pid ", "what became of its 2 seats is not known", "the host is gone"} {
		if !strings.Contains(r.Stderr, text) {
			t.Errorf("%v\ndoes not say %q", r, text)
		}
	}
	for _, text := range []string{"nothing was stopped", "left running", "stopped cotal-host"} {
		if strings.Contains(r.Stderr+r.Stdout, text) {
			t.Errorf("%v\nsays %q", r, text)
		}
	}
}

func TestStop_WithAgentsWhoseAnswerIsLostIsNotKnown(t *testing.T) {
	w := harness.New(t)
	gate := w.Path("gate")
	h := w.Start(harness.HostOptions{Failpoints: "host.stop.recorded=1*pause(" + gate + ")"})
	w.Spawn("slow", "sleep", "600")
	var res stopResult
	r := w.Host("stop", "--with-agents", "--timeout", "1s", "--json").Want(5)
	r.JSON(&res)
	if res.Stopped || len(res.Left) != 1 || res.Left[0].Name != "slow" || res.Left[0].Status != "unknown" || res.Left[0].Reason != "its seat still runs" {
		t.Errorf("%+v", res)
	}
	if !strings.Contains(r.Stderr, "not known: slow (pid ") || !strings.Contains(r.Stderr, "it may be ending them still") || strings.Contains(r.Stderr, "nothing was stopped") {
		t.Errorf("%v", r)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e, ok := h.WaitExit(harness.DefaultWait); !ok || e.Code != 0 {
		t.Errorf("the host ended %v, %v", ok, e)
	}
	w.AssertNothingLeft()
}

// A deleted lock proves nothing: the process that the endpoint file names counts too.
func TestStop_AHostWhoseLockFileWasDeletedIsFoundAndStopped(t *testing.T) {
	for name, spoil := range map[string]func(lock string) error{
		"deleted": os.Remove,
		"replaced": func(lock string) error {
			if err := os.Remove(lock); err != nil {
				return err
			}
			return os.WriteFile(lock, nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := harness.New(t)
			h := w.Start(harness.HostOptions{})
			row := w.Spawn("alive", "sleep", "600")
			if err := spoil(w.Path(".cotal", "host", "host.lock")); err != nil {
				t.Fatal(err)
			}
			gone := fmt.Sprintf("running (pid %d), but its lock file is gone", h.PID)
			r := w.Host("status").OK()
			if !strings.Contains(r.Stderr, gone) || !strings.Contains(r.Stderr, "restart it: cotal-host stop --root ") {
				t.Errorf("%v", r)
			}
			h.Signal(syscall.SIGSTOP)
			if r := w.Host("status", "--timeout", "1s").Want(3); !strings.Contains(r.Stderr, gone) || strings.Contains(r.Stderr, "not running") {
				t.Errorf("%v", r)
			}
			if r := w.Host("stop", "--with-agents", "--timeout", "1s").Want(5); !strings.Contains(r.Stderr, "does not answer") || strings.Contains(r.Stderr, "no host runs") {
				t.Errorf("%v", r)
			}
			h.Signal(syscall.SIGCONT)
			r = w.Host("stop").OK()
			for _, text := range []string{"left running: alive (", fmt.Sprintf("stopped cotal-host, pid %d\n", h.PID)} {
				if !strings.Contains(r.Stdout, text) {
					t.Errorf("%v\ndoes not say %q", r, text)
				}
			}
			if e, ok := h.WaitExit(time.Second); !ok || e.Code != 0 {
				t.Errorf("the host ended %v, %v", ok, e)
			}
			if !w.Alive(row.PID) {
				t.Error("the seat was not spared")
			}
			if r := w.Host("status").Want(3); !strings.Contains(r.Stderr, "not running") {
				t.Errorf("%v", r)
			}
		})
	}
}

func TestServeHelp_SaysThatManifestsAreLaidOverEachOther(t *testing.T) {
	cmd, _, err := newRoot().Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	usage := cmd.Flag("plugins").Usage
	for _, text := range []string{"alone", "the workspace's over the user's over the one beside this program", "replaces the same one below it"} {
		if !strings.Contains(usage, text) {
			t.Errorf("%q does not say %q", usage, text)
		}
	}
}

// Whether a host runs is asked of its lock. A file that was deleted changes nothing.
func TestFieldC4_AHostWithoutItsFileIsFoundAndStopped(t *testing.T) {
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	row := w.Spawn("alive", "sleep", "600")
	if err := os.Remove(w.Path(".cotal", "host", "endpoint.json")); err != nil {
		t.Fatal(err)
	}
	r := w.Host("status").Want(3)
	if !strings.Contains(r.Stderr, "running (pid ") || strings.Contains(r.Stderr, "not running") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("ps").Want(3); !strings.Contains(r.Stderr, "known by its lock") {
		t.Errorf("%v", r)
	}
	r = w.Host("stop").OK()
	if !strings.Contains(r.Stdout, "left running: alive (") {
		t.Errorf("%v", r)
	}
	if e, ok := h.WaitExit(time.Second); !ok || e.Code != 0 {
		t.Errorf("the host ended %v, %v", ok, e)
	}
	if !w.Alive(row.PID) {
		t.Error("the seat was not spared")
	}
}

func TestServe_RefusesWhatItCannotDo(t *testing.T) {
	w := harness.New(t)
	for _, args := range [][]string{{"--token-file", "x"}, {"--open", "--keys", "x"}, {"--open", "--fresh-auth"}, {"--open", "--log-level", "loud"}, {"--open", "--token-file", "x"}, {"--open", "--space", "a b"}, {"--open", "--nope"}, {"--open", "--server", "foo://127.0.0.1:4222"}, {"--open", "stray"}} {
		r := w.Host("serve", args...).Want(2)
		if r.Stdout != "" || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%v", r)
		}
	}
}

// Who serves in a directory below the workspace after a stop got another workspace, without a word and without seats.
func TestServeBelowAWorkspaceAsksWhichIsMeant(t *testing.T) {
	t.Setenv("COTAL_SEAT_ROOT", t.TempDir())
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".cotal/host", "below/deep", "own/.cotal/agents"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		dir     string
		refused bool
	}{
		"the workspace itself is served":       {".", false},
		"a directory of it is not":             {"below/deep", true},
		"one that was made a workspace is one": {"own", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(filepath.Join(root, c.dir))
			err := below()
			if (err != nil) != c.refused {
				t.Fatalf("%v", err)
			}
			if err != nil && (cli.CodeOf(err) != cli.Usage || !strings.Contains(err.Error(), "is in the workspace "+root+"; to serve that: cotal-host serve --root "+root+"; to make a workspace of its own here: cotal-host serve --root .")) {
				t.Errorf("%v", err)
			}
		})
	}
	if text := belowText("/w/a b", "/w", false, []wire.AgentRow{{Name: "a", InstanceID: "i", Space: "team"}}); !strings.Contains(text, "/w (1 of its seats goes on without a host); to serve that: cotal-host serve --root /w --space team;") {
		t.Error(text)
	}
	if text := belowText("/w/a", "/w", true, nil); !strings.Contains(text, "/w, whose host runs: cotal finds it from here;") {
		t.Error(text)
	}
}
