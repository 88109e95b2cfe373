//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

func TestSpawn_AttachesAndDetachingLeavesTheSeat(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	r := worldRig(t, w)
	// What it asks at once, while no terminal is there yet or when one has come, is answered once: by the
	// mirror, or by this terminal if that is asked. What it asks once a key was pressed is for this terminal.
	log := w.Path("told")
	s := r.run("spawn", "--agent", "command", "--name", "ask", "--", "sh", "-c", `printf 'size '; stty size
stty raw -echo min 0 time 30
printf '\033[2;3H\033[6nasked'; head -c 6 >`+log+`.1; stty time 5; head -c 9 >`+log+`.2
stty min 1 time 0; printf 'press'; head -c 1 >/dev/null; stty sane -echo
printf '\033[cagain '; read x; echo "got $x"; read y; exit $y`)
	answered := s.answering()
	s.see("size 30 100")
	s.see("asked")
	s.see("press")
	s.send("k")
	s.see("\x1b[cagain")
	s.send("one\r")
	s.see("got one")
	times := answered()
	first, _ := os.ReadFile(log + ".1")
	more, _ := os.ReadFile(log + ".2")
	if string(first) != "\x1b[2;3R" || len(more) > 0 {
		t.Errorf("the first question was answered %q, then %q, want one answer; this terminal answered %d", first, more, times)
	}
	s.send("\x1d")
	code, shown := s.wait()
	if code != 0 || !strings.Contains(shown, "detached from ask; it goes on running") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	if row, ok := w.Seat("ask"); !ok || row.Status != "running" {
		t.Fatalf("after detaching the seat is %+v", row)
	}
	again := r.run("attach", "ask")
	again.see("got one")
	if strings.Contains(again.text(), "\x1b[c") {
		t.Error("the question was shown a second time")
	}
	again.send("4\r")
	if code, shown := again.wait(); code != 1 || !strings.Contains(shown, "ask ended with code 4") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	w.AwaitStatus("ask", "exited")
	var row wire.AgentRow
	w.CLI("inspect", "ask", "--json").OK().JSON(&row)
	if row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 4 {
		t.Errorf("inspect says %+v", row.Exit)
	}
}

func TestSpawn_WithoutATerminalSaysWhatToTypeNext(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	r := w.CLI("spawn", "--agent", "command", "--name", "bg", "--", "sleep", "600").OK()
	if !strings.HasPrefix(r.Stdout, "spawned bg (no role), agent command on pty, pid ") || !strings.HasSuffix(r.Stdout, "attach: cotal attach bg\n") {
		t.Errorf("%v", r)
	}
	if !strings.Contains(r.Stderr, "bg: accepted\n") {
		t.Errorf("no progress: %v", r)
	}
	if r := w.CLI("spawn", "--agent", "command", "--name", "bg", "--", "sleep", "600").Want(1); strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, `"bg" is held`) {
		t.Errorf("a name that is taken: %v", r)
	}
	w.CLI("spawn", "nosuch").Want(4)
	w.CLI("spawn", "--agent", "command").Want(2)
	r = w.CLI("spawn", "--agent", "command", "--name", "bad", "--json", "--", "/no/such/program").Want(1)
	var out spawned
	if err := json.Unmarshal([]byte(strings.Join(lastLines(r.Stdout, 1), "")), &out); err != nil || out.State != wire.GoalFailed || out.Became != becameFailed || !strings.Contains(r.Stderr, "/no/such/program") {
		t.Errorf("a program that is missing: %v", r)
	}
}

func TestAttach_DoesNotNoticeThatTheHostWasKilled(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	w.Spawn("echo", "sh", "-c", "stty raw -echo; echo begun; exec cat")
	r := worldRig(t, w)
	s := r.run("attach", "echo")
	s.see("begun")
	s.send("one;")
	s.see("one;")
	// Who comes second is told so behind the picture of the screen, which would wipe it off.
	second := r.run("attach", "echo")
	second.see("one;")
	second.send("\x1d")
	_, shown := second.wait()
	if told := strings.LastIndex(shown, "another terminal has the keyboard"); told < 0 || told < strings.LastIndex(shown, "\x1b[H\x1b[J") {
		t.Errorf("the second is not told that it only watches, or where nobody reads it: %q", tail(shown))
	}
	h.Kill()
	s.send("two;")
	s.see("two;")
	if out := w.CLI("logs", "echo").OK(); !strings.Contains(out.Stdout, "two;") || !strings.Contains(out.Stderr, "no host answers") {
		t.Errorf("logs without a host: %v", out)
	}
	late := r.run("attach", "--read-only", "echo")
	late.see("two;")
	late.send("\x1d")
	if code, shown := late.wait(); code != 0 {
		t.Errorf("attach without a host: exit code %d: %q", code, tail(shown))
	}
	w.CLI("ps").Want(3)
	w.CLI("stop", "echo").Want(3)
	w.Start(harness.HostOptions{})
	s.send("three;")
	s.see("three;")
	if strings.Contains(s.text(), "reconnect") {
		t.Errorf("the attach noticed: %q", tail(s.text()))
	}
	w.CLI("stop", "--now", "echo").OK()
	if code, shown := s.wait(); code != 0 || !strings.Contains(shown, "echo ended by SIGKILL, as asked") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
}

// A host that is stopped takes connections and says nothing. Every command says so within two seconds; the best
// of three counts, since the machine may be busy with something else.
func TestAStoppedHostIsToldOfWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	w.Spawn("seat", "sh", "-c", "echo begun; exec sleep 600")
	h.Signal(syscall.SIGSTOP)
	defer h.Signal(syscall.SIGCONT)
	var all sync.WaitGroup
	for _, args := range [][]string{
		{"ps"},
		{"inspect", "seat"},
		{"stop", "seat"},
		{"input", "seat", "--text", "x"},
		{"logs", "seat"},
		{"ext", "list"},
		{"spawn", "--agent", "command", "--name", "x", "--detach", "--", "true"},
	} {
		all.Go(func() {
			best := time.Hour
			for i := 0; i < 3 && best >= busy.Limit(2*time.Second); i++ {
				r := w.CLI(args...)
				if best = min(best, r.Took); r.Code != 3 && args[0] != "logs" || !strings.Contains(r.Stderr, "unreachable") && !strings.Contains(r.Stderr, "no host answers") {
					t.Errorf("%v", r)
				}
			}
			if best >= busy.Limit(2*time.Second) {
				t.Errorf("cotal %s took %v", strings.Join(args, " "), best)
			}
		})
	}
	all.Wait()
}

// An agent that needs two seconds to end is not an error: the stop waits, and says what it found.
func TestFieldC5_StopWaitsForASlowEnd(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.SpawnFake("slow", `[{"onSignal": {"signal": "TERM", "waitMs": 2000, "exit": 0}}, {"print": "ready"}, {"hang": true}]`)
	harness.Eventually(t, harness.DefaultWait, "the agent is ready", func() (bool, string) {
		out := w.CLI("logs", "slow").Stdout
		return strings.Contains(out, "ready"), out
	})
	r := w.CLI("stop", "slow").OK()
	if r.Took < 1900*time.Millisecond || r.Took > busy.Limit(9*time.Second) {
		t.Errorf("took %v, want about 2 s: %v", r.Took, r)
	}
	if !strings.Contains(r.Stdout, "stopped slow: the agent ended with code 0, as asked") || !strings.Contains(r.Stdout, "; proof: ") || strings.Count(r.Stdout, "\n") != 1 {
		t.Errorf("%v", r)
	}
}

// proves: DOWN-16
func TestStop_SeveralSeatsOfWhichOneIsUnknown(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	a := w.Spawn("a", "sleep", "600")
	b := w.Spawn("b", "sleep", "600")
	r := w.CLI("stop", "a", "nobody", b.SeatID[:10]).Want(5)
	if !strings.Contains(r.Stdout, "stopped a") || !strings.Contains(r.Stdout, "stopped b") || !strings.Contains(r.Stderr, "nobody") {
		t.Errorf("%v", r)
	}
	w.AwaitGone(a.PID)
	w.AwaitGone(b.PID)
	if r := w.CLI("stop", "-v", "a").OK(); !strings.Contains(r.Stdout, "a had ended already, by SIGTERM, as asked") {
		t.Errorf("a seat that was stopped before: %v", r)
	}
	w.CLI("stop", "nobody").Want(4)
	w.CLI("stop").Want(2)
	c := w.Spawn("c", "sleep", "600")
	r = w.CLI("stop", "--json", "--now", c.LifecycleUID).OK()
	var got stopped
	r.JSON(&got)
	if got.Name != "c" || !got.OK || got.Report == nil || len(got.Report.Killed) == 0 || len(got.Report.Evidence) == 0 {
		t.Errorf("%v", r)
	}
}

func TestSpawn_ByAnAgentFileAnywhereAndItsWarnings(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Write("else/where.md", "---\nname: elsewhere\nagent: command\nmodle: x\nlaunchOptions:\n  argv: [sleep, \"600\"]\n---\n")
	r := w.CLI("spawn", "--config", "else/where.md").OK()
	if !strings.HasPrefix(r.Stdout, "spawned elsewhere ") || !strings.Contains(r.Stderr, "note: ") || !strings.Contains(r.Stderr, "did you mean model?") {
		t.Errorf("%v", r)
	}
	w.CLI("spawn", "--config", "no/such.md").Want(4)
	w.CLI("spawn", "--agent", "command", "--name", "x").Want(2)
}

func TestInspect_ShowsTheProgramThatRuns(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("odd", "sh", "-c", `echo up; while :; do sleep 1; done`, "a b", "\x1b[31mred\u202e")
	r := w.CLI("inspect", "odd").OK()
	if !strings.Contains(r.Stdout, "program ") || !strings.Contains(r.Stdout, `sh -c 'echo up; while :; do sleep 1; done' 'a b' '\x1b[31mred\u202e'`+"\n") {
		t.Errorf("%v", r)
	}
	var got inspected
	w.CLI("inspect", "odd", "--json").OK().JSON(&got)
	if got.Name != "odd" || len(got.Program) != 5 || got.Program[3] != "a b" {
		t.Errorf("%+v", got)
	}
	long := programWords([]string{strings.Repeat("x", 5000)})
	if len(long) > programShown+3 || !strings.HasSuffix(long, "...") {
		t.Errorf("%d bytes of a long command line are shown", len(long))
	}
	w.CLI("stop", "--now", "odd").OK()
	if r := w.CLI("inspect", "odd").OK(); strings.Contains(r.Stdout, "program ") {
		t.Errorf("a seat that has ended runs no program: %v", r)
	}
}

func TestLogs_OfASeatThatEndedByItself(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	w.CLI("spawn", "--agent", "command", "--name", "short", "--", "sh", "-c", `printf 'one\033[1m\ntwo\n'; sleep 0.5; exit 3`).OK()
	id := w.AwaitStatus("short", "exited").SeatID
	var r harness.Result
	harness.Eventually(t, harness.DefaultWait, "its output is read from what the host kept", func() (bool, string) {
		r = w.CLI("logs", "short")
		return strings.Contains(r.Stderr, "as the host kept it"), r.String()
	})
	if r.OK(); r.Stdout != "one\ntwo\n" || !strings.Contains(r.Stderr, "short has ended, with code 3") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("input", "short", "--text", "x").Want(4); !strings.Contains(r.Stderr, "short has ended, with code 3; nothing was typed. What it printed: cotal logs short") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("logs", "-f", "--raw", "short").OK(); r.Stdout != "one\x1b[1m\r\ntwo\r\n" || !strings.Contains(r.Stderr, "nothing more will come") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("logs", "--bytes", "5", "short").OK(); r.Stdout != "two\n" {
		t.Errorf("%v", r)
	}
	h.Signal(syscall.SIGTERM)
	h.WaitExit(harness.DefaultWait)
	if r := w.CLI("logs", id[:12]).OK(); r.Stdout != "one\ntwo\n" || !strings.Contains(r.Stderr, id+" has ended; ") {
		t.Errorf("without a host, by custody id: %v", r)
	}
	w.CLI("logs", "short").Want(3)
	if err := os.Remove(w.Path(".cotal", "host", "ended", id+".log")); err != nil {
		t.Fatal(err)
	}
	w.CLI("logs", id[:12]).Want(3)
	w.Start(harness.HostOptions{})
	if r := w.CLI("logs", "short").Want(1); !strings.Contains(r.Stderr, "its output is no longer kept") {
		t.Errorf("%v", r)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Persona("reviewer", "---\nname: reviewer\n---\n")
	w.Write(".cotal/agents/notes.txt", "")
	complete := func(args ...string) string {
		t.Helper()
		r := w.CLI(append([]string{"__complete"}, args...)...).OK()
		if strings.Contains(r.Stderr, "cotal:") || r.Took > busy.Limit(5*time.Second) {
			t.Errorf("%v", r)
		}
		return r.Stdout
	}
	if got := complete("attach", ""); got != ":4\n" {
		t.Errorf("without a host: %q", got)
	}
	h := w.Start(harness.HostOptions{})
	w.Spawn("alive", "sleep", "600")
	w.Spawn("other", "sleep", "600")
	w.CLI("stop", "--now", "other").OK()
	_, shipped := bundled(t)
	names := func(kind sdk.Kind) (lines []string) {
		for _, p := range shipped {
			if p.Kind == kind {
				lines = append(lines, p.Name+"\t")
			}
		}
		return lines
	}
	agents := names(sdk.KindConnector)
	agents[slices.Index(agents, "command\t")] += "available"
	for _, c := range []struct {
		args, want []string // want: beginnings of lines
	}{
		{[]string{"attach", ""}, []string{"alive\t"}},
		{[]string{"input", ""}, []string{"alive\t"}},
		{[]string{"stop", ""}, []string{"alive\t"}},
		{[]string{"logs", ""}, []string{"alive\t", "other\t"}},
		{[]string{"inspect", ""}, []string{"alive\t", "other\t"}},
		{[]string{"stop", "alive", ""}, nil},
		{[]string{"attach", "alive", ""}, nil},
		{[]string{"spawn", ""}, []string{"reviewer"}},
		{[]string{"spawn", "reviewer", ""}, nil},
		{[]string{"spawn", "--agent", ""}, agents},
		{[]string{"ext", "restart", ""}, append(names(sdk.KindConnector), names(sdk.KindRuntime)...)},
		{[]string{"ext", "remove", ""}, append(names(sdk.KindConnector), names(sdk.KindRuntime)...)},
		{[]string{"ext", "rollback", "pty", ""}, nil},
		{[]string{"ext", "install", "--kind", ""}, []string{"connector", "runtime"}},
	} {
		// What a person waits for at a prompt has little time, and completes to nothing when that is over.
		if ok, lines := harness.Poll(harness.DefaultWait, func() (bool, string) {
			lines := strings.Split(complete(c.args...), "\n")
			ok := len(lines) == len(c.want)+2 && lines[len(c.want)] == ":4"
			for i := range c.want {
				ok = ok && strings.HasPrefix(lines[i], c.want[i])
			}
			return ok, fmt.Sprintf("%q", lines)
		}); !ok {
			t.Errorf("%q completes to %s, want %q", c.args, lines, c.want)
		}
	}
	if got := complete("spawn", "--agent", "command", "--name", "x", "--", ""); got != ":0\n" {
		t.Errorf("the program after -- is the shell's to complete: %q", got)
	}
	h.Signal(syscall.SIGSTOP)
	if r := w.CLI("__complete", "attach", ""); r.Stdout != ":4\n" || r.Took > busy.Limit(3*time.Second) {
		t.Errorf("a host that does not answer: %v", r)
	}
	h.Signal(syscall.SIGCONT)
}

func TestInput_ReachesTheProgram(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("lines", "sh", "-c", `while read -r x; do echo "<$x>"; done`)
	if r := w.CLI("input", "lines", "--text", "-n $HOME ; Enter").OK(); r.Stdout != "sent 17 bytes to lines\n" {
		t.Errorf("%v", r)
	}
	harness.Eventually(t, harness.DefaultWait, "the program read it as it is", func() (bool, string) {
		out := w.CLI("logs", "lines").Stdout
		return strings.Contains(out, "<-n $HOME ; Enter>"), out
	})
	w.CLI("input", "lines").Want(2)
	w.CLI("input", "lines", "--text", "").Want(2)
	w.CLI("input", "nobody", "--text", "x").Want(4)
}

// The host dies after it accepted a spawn and before it could say so. The request is sent again with
// its id, the next host knows it, and one seat runs.
func TestSpawn_AsksAgainWithTheSameIdAndStartsOnce(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{Failpoints: "host.spawn.accepted=crash"})
	r := worldRig(t, w)
	began := w.Path("began")
	s := r.run("spawn", "--agent", "command", "--name", "once", "--detach", "--", "sh", "-c", "echo x >>"+began+"; exec sleep 600")
	h.AwaitCrash()
	w.Start(harness.HostOptions{})
	code, shown := s.wait()
	// A host that finds an accepted spawn it cannot go on with settles it as failed; either way the
	// request is answered and nothing runs twice.
	if code != 0 && code != 1 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	if !strings.Contains(shown, "same request id") {
		t.Errorf("it did not ask again: %q", tail(shown))
	}
	text, _ := os.ReadFile(began)
	if n := strings.Count(string(text), "x"); n > 1 || code == 0 && n != 1 {
		t.Errorf("exit code %d and the program was started %d times", code, n)
	}
}

func TestSpawn_InterruptedWhileItWaitsGoesOn(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{Failpoints: "host.spawn.spawned=sleep(3000)"})
	r := worldRig(t, w)
	s := r.run("spawn", "--agent", "command", "--name", "late", "--detach", "--", "sleep", "600")
	s.see("late: ")
	s.cmd.Process.Signal(os.Interrupt)
	code, shown := s.wait()
	if code != 130 || !strings.Contains(shown, "the spawn of late goes on") || !strings.Contains(shown, "cotal stop late") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	w.AwaitStatus("late", "running")
}
