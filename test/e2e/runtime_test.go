//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// runtimes are those that ship, and how a host is told to use one for new seats.
var runtimes = []struct {
	name   string
	args   []string
	detach string // what a person presses to leave
}{
	{name: "pty", detach: "\x1d"},
	{name: "tmux", args: []string{"--runtime", "tmux"}, detach: "\x02d"},
}

// TestASeatIsTheSameInEveryRuntime: one life of seats, told by a flag alone where they run. The hosts that
// take them back are started without the flag: it is for new seats.
//
// proves: RT-1, RT-2, RT-3, RT-7
func TestASeatIsTheSameInEveryRuntime(t *testing.T) {
	for _, r := range runtimes {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			h := w.Start(harness.HostOptions{Args: r.args})
			gate := filepath.Join(w.Dir, "go")
			agent := func(script string) []string {
				return append([]string{"sh", "-c", `stty -echo && exec "$0" "$1"`}, w.FakeAgent(script)...)
			}
			rows := map[string]wire.AgentRow{
				"worker": w.Spawn("worker", agent(`[{"print": "awake\n"}, {"lines": {"count": 0, "reply": "got {line}\n"}}]`)...),
				"seven":  w.Spawn("seven", agent(fmt.Sprintf(`[{"print": "last words\n"}, {"waitFile": %q}, {"exit": 7}]`, gate))...),
				"struck": w.Spawn("struck", agent(fmt.Sprintf(`[{"waitFile": %q}, {"die": "KILL"}]`, gate))...),
				"tree":   w.Spawn("tree", agent(`[{"ignore": ["TERM", "HUP"]}, {"daemon": {"count": 2, "steps": [{"hang": true}]}}, {"print": "planted\n"}, {"hang": true}]`)...),
			}
			shows := func(seat, text string) {
				t.Helper()
				await(t, harness.DefaultWait, fmt.Sprintf("%s shows %q", seat, text), func() (bool, string) {
					out := w.CLI("logs", seat).OK().Stdout
					return strings.Contains(out, text), out
				})
			}
			same := func(when string) {
				t.Helper()
				for name, was := range rows {
					got := w.AwaitStatus(name, "running")
					if got.PID != was.PID || got.SeatID != was.SeatID || got.LifecycleUID != was.LifecycleUID || got.Mode != r.name || !w.Alive(got.PID) {
						t.Errorf("%s: %+v, was %+v, in runtime %s", when, got, was, r.name)
					}
				}
				w.CLI("input", "worker", "--text", "typed "+when).OK()
				shows("worker", "got typed "+when)
			}
			shows("worker", "awake")
			shows("tree", "planted")
			same("first")

			term := seatview.Start(t, w, 30, 100, "attach", "worker")
			term.See("got typed first")
			term.Type("at a terminal\r")
			term.See("got at a terminal")
			if code := term.Leave(r.detach); code != 0 {
				t.Errorf("leaving ends with code %d; shown %q", code, term.Text())
			}
			same("behind an attach")

			h.Kill()
			w.Start(harness.HostOptions{})
			same("under the next host")

			before := w.PluginPID(r.name)
			w.KillPID(before)
			await(t, harness.DefaultWait, "the runtime plugin is another process", func() (bool, string) {
				return w.PluginPID(r.name) != before, "it is the one that was killed"
			})
			same("behind the death of the plugin")

			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if x := w.AwaitStatus("seven", "exited").Exit; x == nil || x.Code == nil || *x.Code != 7 || x.Signal != "" {
				t.Errorf("exit %+v; want code 7", x)
			}
			if x := w.AwaitStatus("struck", "exited").Exit; x == nil || x.Signal != "SIGKILL" || x.Asked {
				t.Errorf("exit %+v; want SIGKILL that nobody asked for", x)
			}
			for _, name := range []string{"tree", "worker"} {
				w.CLI("stop", name, "--timeout", "20s").OK()
			}
			if left := w.ProcsLike("cotal-fakeagent"); len(left) > 0 {
				t.Errorf("left alive: %v", left)
			}
			if row, ok := w.Seat("worker"); ok && (row.Status != "exited" || row.Exit == nil || !row.Exit.Asked) {
				t.Errorf("a stopped seat is listed as %+v", row)
			}
			w.Host("stop", "--with-agents").OK()
			w.AssertNothingLeft()
		})
	}
}

// TestARealAgentInTmux: the real program, its full screen, typed into by message, taken back after the death
// of host and runtime plugin, and stopped with proof; in a pane of tmux, by the flag alone.
func TestARealAgentInTmux(t *testing.T) {
	w, stub := opencodeWorld(t)
	h := w.Start(harness.HostOptions{})
	w.CLI("spawn", "coder", "--runtime", "tmux", "--detach", "--timeout", "2m").OK()
	row := w.AwaitStatus("coder", "running")
	if row.Mode != "tmux" {
		t.Fatalf("it runs on %s", row.Mode)
	}
	ask := func(word string) {
		t.Helper()
		await(t, agentWait, "the text is typed", func() (bool, string) {
			r := w.CLI("input", "coder", "--text", "say "+word)
			return r.Code == 0, r.String()
		})
		ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(agentWait))
		defer cancel()
		if _, err := stub.Wait(ctx, stubmodel.Asked("say "+word)); err != nil {
			t.Fatalf("the model was not asked for %s: %v; the screen:\n%s", word, err, w.CLI("logs", "coder").Stdout)
		}
		await(t, agentWait, "the answer is on the screen", func() (bool, string) {
			out := w.CLI("logs", "coder").OK().Stdout
			return strings.Contains(out, "say "+word+">>"), out
		})
	}
	ask("alpha")
	plugin := w.PluginPID("tmux")
	h.Kill()
	w.KillRest(plugin) // it ends with its host
	w.Start(harness.HostOptions{})
	if got := w.AwaitStatus("coder", "running"); got.PID != row.PID || got.LifecycleUID != row.LifecycleUID {
		t.Fatalf("behind kill -9 of both it is %+v, was %+v", got, row)
	}
	ask("beta")
	term := seatview.Start(t, w, 30, 100, "attach", "coder")
	term.See("beta>>")
	if code := term.Leave("\x02d"); code != 0 {
		t.Errorf("leaving ends with code %d", code)
	}
	w.CLI("stop", "coder").OK()
	if left := w.ProcsLike("opencode.exe"); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}
