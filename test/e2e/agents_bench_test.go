package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// BenchmarkAgentBoot compares each program alone on a terminal, started as a user would start it, with a seat of it. Both
// are measured from their start, or the request to spawn, until their model is asked the first prompt; what host and
// bridge add is the difference of the two runs of each pair. joined is from the same request until the spawn says that
// the seat is on the mesh, and running of that until its process runs.
func BenchmarkAgentBoot(b *testing.B) {
	for _, boot := range []struct {
		p realProgram
		// alone says how the program is started with a prompt; home is an empty directory.
		alone func(b *testing.B, w *harness.World, binary, home, prompt string) (argv, env []string)
	}{
		{claudeProgram(), claudeAlone},
		{codexProgram(), codexAlone},
		{opencodeProgram(), func(_ *testing.B, _ *harness.World, binary, _, prompt string) (argv, env []string) {
			return []string{binary, "--prompt=" + prompt}, nil
		}},
		{piProgram(), func(_ *testing.B, _ *harness.World, binary, _, prompt string) (argv, env []string) {
			return []string{binary, prompt}, nil
		}},
		{qwenProgram(), func(_ *testing.B, _ *harness.World, binary, _, prompt string) (argv, env []string) { // its command is a process in front of it
			return []string{"/usr/bin/env", "node", "--expose-gc", filepath.Join(filepath.Dir(binary), "cli.js"), "--prompt-interactive=" + prompt}, nil
		}},
	} {
		b.Run(boot.p.agent.Name, func(b *testing.B) {
			binary := agents.Need(b, boot.p.agent)
			stub, err := stubmodel.Start(stubmodel.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer stub.Close()
			w := harness.New(b)
			w.Setenv("COTAL_"+strings.ToUpper(boot.p.agent.Name)+"_BIN", binary)
			boot.p.setUp(b, w, stub)
			w.Start(harness.HostOptions{})
			c := w.Mesh()
			asked := func(begin time.Time, prompt string) time.Duration {
				b.Helper()
				ctx, cancel := context.WithTimeout(b.Context(), agentWait)
				defer cancel()
				r, err := stub.Wait(ctx, func(r stubmodel.Request) bool { return !r.Side && strings.Contains(r.Turn.LastUser(), prompt) })
				if err != nil {
					b.Fatal(err)
				}
				return r.At.Sub(begin)
			}
			var alone, seat, added, joined, running []time.Duration
			n := 0
			pair := func() {
				n++
				prompt := fmt.Sprintf("boot %d alone.", n)
				home, err := os.MkdirTemp(w.Dir, "alone")
				if err != nil {
					b.Fatal(err)
				}
				argv, env := boot.alone(b, w, binary, home, prompt)
				begin := time.Now()
				end := onTerminal(b, w, argv, env)
				byItself := asked(begin, prompt)
				end()

				prompt = fmt.Sprintf("boot %d in a seat.", n)
				begin = time.Now()
				l, err := harness.Launch(b.Context(), c, wire.SpawnArgs{Name: "boot", Identity: "boot", Agent: boot.p.connector, Prompt: &prompt})
				if err != nil {
					b.Fatal(err)
				}
				inSeat := asked(begin, prompt)
				if err := harness.Despawn(context.Background(), c, l.Acceptance); err != nil {
					b.Fatal(err)
				}
				alone, seat, added = append(alone, byItself), append(seat, inSeat), append(added, inSeat-byItself)
				joined, running = append(joined, l.Settled), append(running, l.Running)
			}
			pair() // finds nothing in any cache
			alone, seat, added, joined, running = nil, nil, nil, nil, nil
			for b.Loop() {
				for range 5 {
					pair()
				}
			}
			b.ReportMetric(0, "ns/op") // of five pairs: it says nothing
			for what, of := range map[string][]time.Duration{"alone": alone, "seat": seat, "added": added, "joined": joined, "running": running} {
				slices.Sort(of)
				b.ReportMetric(float64(of[len(of)/2])/1e6, what+"-p50-ms")
				b.ReportMetric(float64(of[len(of)-1])/1e6, what+"-max-ms")
			}
		})
	}
}

// onTerminal starts a program on a terminal, in the workspace, and returns what ends it.
func onTerminal(b *testing.B, w *harness.World, argv, env []string) (end func()) {
	b.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = w.Root, w.Environ(env...)
	ptm, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 32, Cols: 120})
	if err != nil {
		b.Fatal(err)
	}
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(io.Discard, ptm) }()
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // killed, it would leave its socket
		stubborn := time.AfterFunc(agentWait, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait()
		stubborn.Stop()
		_ = ptm.Close()
		<-read
	}
}

// claudeAlone has a configuration in which the questions of a first start are answered.
func claudeAlone(b *testing.B, w *harness.World, binary, home, prompt string) (argv, env []string) {
	b.Helper()
	config, err := json.Marshal(map[string]any{"hasCompletedOnboarding": true, "projects": map[string]any{w.Root: map[string]bool{"hasTrustDialogAccepted": true}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(home, ".claude.json"), config, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
	return []string{binary, "--permission-mode", "default", prompt}, []string{"CLAUDE_CONFIG_DIR=" + home, "DISABLE_AUTOUPDATER=1"}
}

// codexAlone has the user's configuration, and trusts the workspace.
func codexAlone(b *testing.B, w *harness.World, binary, home, prompt string) (argv, env []string) {
	b.Helper()
	config, err := os.ReadFile(filepath.Join(w.Home, ".codex", "config.toml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(home, "config.toml"), fmt.Appendf(config, "\n[projects.%q]\ntrust_level = \"trusted\"\n", w.Root), 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
	return []string{binary, "--no-daemon", "-a", "on-request", "-s", "workspace-write", prompt}, []string{"CODEX_HOME=" + home}
}
