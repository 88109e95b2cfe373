//go:build linux

package main

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// appOf is a command line that means the host of a world.
func appOf(w *harness.World) *app {
	return &app{target: cli.Target{Name: "cotal", Root: w.Root}, out: cli.NewOutput(io.Discard), errw: io.Discard}
}

// What waits for one life of a seat types into that life or not at all, though another one has its alias by then.
func TestInputNeverReachesAnotherLifeOfTheAlias(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	runtimes := []string{"pty"}
	if _, err := exec.LookPath("tmux"); err == nil {
		runtimes = append(runtimes, "tmux")
	}
	yes := true
	for _, runtime := range runtimes {
		name := "wt" + runtime
		spawn := func(script string) wire.AgentRow {
			w.CLI("spawn", "--agent", "command", "--name", name, "--runtime", runtime, "-d", "--", "sh", "-c", script).OK()
			return w.Inspect(name)
		}
		old := spawn("echo begun; exec cat")
		waits := make(chan harness.Result, 1)
		go func() {
			waits <- w.CLI("input", name, "--wait-text", "LATER", "--wait", "60s", "--text", "GHOST")
		}()
		w.CLI("stop", "--now", name).OK()
		spawn("echo LATER; exec cat")
		if r := <-waits; r.Code == 0 || !strings.Contains(r.Stderr, "nothing was typed") && !strings.Contains(r.Stderr, "no seat") {
			// The command may have begun after the stop and meant the new life from its beginning.
			if r.Code != 0 {
				t.Errorf("%s: %v", runtime, r)
			}
			t.Logf("%s: the command began late", runtime)
		}
		err := typeInto(t.Context(), appOf(w), old, wire.InputArgs{Text: "GHOST2", Enter: &yes}, false)
		if cli.CodeOf(err) != cli.NotFound {
			t.Errorf("%s: typing into the old life: %v", runtime, err)
		}
		if out := w.CLI("logs", name).Stdout; strings.Contains(out, "GHOST2") {
			t.Errorf("%s: the new life shows %q", runtime, out)
		}
		w.CLI("stop", "--now", name).OK()
	}
}
