//go:build linux

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// byPresence is the command line that starts a scripted agent whose readiness is presence.
func byPresence(w *harness.World, name, script string, flags ...string) []string {
	args := append([]string{"spawn", "--agent", harness.PresenceAgent, "--name", name, "--detach"}, flags...)
	return append(append(args, "--"), w.FakeAgent(script)...)
}

// TestFieldE1_AnAgentThatDiesAtOnceIsNoSuccess, with its last words, be they about the session that it was to go on
// with. Nothing is asked of anybody: there is no terminal and no repository here.
//
// proves: F2, E11
func TestFieldE1_AnAgentThatDiesAtOnceIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(0)
	w.Start(harness.HostOptions{})
	if r := w.Run(t.Context(), "/usr/bin/env", "git", "rev-parse"); r.Code == 0 {
		t.Fatalf("%s is in a repository", w.Root)
	}
	for _, c := range []struct {
		name, words string
		code        int
	}{
		{"short", "boom", 3},
		{"lost", "No conversation found with session ID: 0199a213", 1},
	} {
		r := w.CLI(byPresence(w, c.name, fmt.Sprintf(`[{"print": "one\n%s\n"}, {"exit": %d}]`, c.words, c.code))...)
		if r.Code != 1 || !strings.Contains(r.Stderr, c.words) || !strings.Contains(r.Stderr, fmt.Sprintf("code %d", c.code)) || strings.Contains(r.Stdout, "spawned") {
			t.Errorf("%v; want exit code 1 with its code and last words", r)
		}
		if r.Took > busy.Limit(2*time.Second) {
			t.Errorf("it took %v to be told", r.Took)
		}
		if row, ok := w.Seat(c.name); ok && (row.Status != "exited" || row.PID != 0) {
			t.Errorf("it is listed as %+v", row)
		}
		w.CLI(byPresence(w, c.name, `[{"join": {}}, {"hang": true}]`)...).OK() // its name is free
		w.CLI("stop", c.name).OK()
	}
}

// TestFieldE2_ACallerWaitsAsLongAsTheConnectorSays and not as long as he waits for an answer.
func TestFieldE2_ACallerWaitsAsLongAsTheConnectorSays(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(time.Minute)
	w.Start(harness.HostOptions{})
	const patience = time.Second
	r := w.CLI(byPresence(w, "slow", `[{"waitMs": 2000}, {"join": {}}, {"hang": true}]`, "--timeout", patience.String())...).OK()
	if !strings.Contains(r.Stdout, "joined") || r.Took < 2*patience {
		t.Errorf("%v; want it joined, after two seconds", r)
	}
	w.CLI("stop", "slow").OK()
}

// TestFieldE3_ASlowStartIsUncertainAndGetsReadyByItself, once somebody has answered what it asks: the caller is told
// where to look and not to end it.
//
// proves: E5
func TestFieldE3_ASlowStartIsUncertainAndGetsReadyByItself(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(time.Second)
	w.Start(harness.HostOptions{})
	r := w.CLI(byPresence(w, "asks", `[{"print": "Do you trust this folder? 1. Yes 2. No\n> "}, {"lines": {"count": 1, "reply": "you said {line}\n"}}, {"join": {}}, {"hang": true}]`)...)
	r.Want(75)
	for _, part := range []string{"did not join the mesh within 1s", "cotal attach asks", "do not stop it only because the wait is over"} {
		if !strings.Contains(r.Stderr, part) {
			t.Errorf("%q lacks %q", r.Stderr, part)
		}
	}
	row := w.AwaitStatus("asks", "running")
	if row.Mesh != "absent" {
		t.Errorf("before anybody answers it is %q on the mesh", row.Mesh)
	}
	if out := w.CLI("logs", "asks").OK().Stdout; !strings.Contains(out, "Do you trust this folder?") {
		t.Errorf("what it asks cannot be seen: %q", out)
	}
	w.CLI("input", "asks", "--text", "1").OK()
	await(t, harness.DefaultWait, "it is there", func() (bool, string) {
		now, _ := w.Seat("asks")
		return now.Mesh == wire.StatusIdle && now.PID == row.PID && now.Status == "running", fmt.Sprintf("%+v", now)
	})
	w.CLI("stop", "asks").OK()
}

// TestFieldE8_AHostWithoutItsServerIsNotWell: whoever asks is told which one is missing, and all is well again when it
// is back.
func TestFieldE8_AHostWithoutItsServerIsNotWell(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	b := w.StartBroker()
	w.Start(harness.HostOptions{})
	w.Host("status").OK()
	b.Kill()
	for what, r := range map[string]harness.Result{"cotal-host status": w.Host("status"), "cotal ps": w.CLI("ps")} {
		if r.Code != 3 || !strings.Contains(r.Stderr, strings.TrimPrefix(b.URL, "nats://")) {
			t.Errorf("%s without the server: %v; want exit code 3 and its address", what, r)
		}
	}
	b.Restart()
	await(t, harness.DefaultWait, "the host is well again", func() (bool, string) {
		r := w.Host("status")
		return r.Code == 0, r.String()
	})
}

// TestFieldE13_ASilentAgentIsLeftAlone by those who come to look at it and go.
func TestFieldE13_ASilentAgentIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.CLI(append([]string{"spawn", "--agent", "command", "--name", "silent", "--restarts", "3", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)...).OK()
	row := w.AwaitStatus("silent", "running")
	for range 5 {
		seatview.Attach(t, w, "silent", 24, 80).Detach()
		await(t, harness.DefaultWait, "the viewer is gone", func() (bool, string) {
			n := w.Inspect("silent").Attached
			return n == 0, fmt.Sprint(n)
		})
	}
	if now := w.Inspect("silent"); now.PID != row.PID || now.SeatID != row.SeatID || now.Status != "running" || now.Reason != "" {
		t.Errorf("it is %+v, was %+v", now, row)
	}
	w.CLI("stop", "silent").OK()
}

// TestFieldL9_AFlagWinsOverTheFileAndTheFileOverWhatIsBuiltIn, whoever came first; a start writes no file that would
// win for ever.
func TestFieldL9_AFlagWinsOverTheFileAndTheFileOverWhatIsBuiltIn(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	file := w.Path(".cotal", "config.toml")
	most := func(args ...string) int {
		t.Helper()
		h := w.Start(harness.HostOptions{Args: args})
		defer h.Stop()
		return w.Status().Occupancy.Max
	}
	if n := most(); n != 50 {
		t.Errorf("nobody says anything: %d seats", n)
	}
	if n := most("--max-seats", "2"); n != 2 {
		t.Errorf("a flag behind a start without one: %d seats", n)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a start wrote %s: %v", file, err)
	}
	w.Write(".cotal/config.toml", "maxSeats = 3\n")
	if n := most(); n != 3 {
		t.Errorf("the file: %d seats", n)
	}
	if n := most("--max-seats", "2"); n != 2 {
		t.Errorf("a flag over the file: %d seats", n)
	}
	if text := read(t, file); text != "maxSeats = 3\n" {
		t.Errorf("the file is now %q", text)
	}
}
