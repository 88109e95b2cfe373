package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// BenchmarkBootClaude compares the program alone on a terminal with a seat of it, host, mesh and bridge included: until
// its model is asked the first prompt, and until the spawn says that the seat is on the mesh.
func BenchmarkBootClaude(b *testing.B) {
	binary := agents.Need(b, agents.Claude)
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer stub.Close()
	w := harness.New(b)
	w.Setenv("COTAL_CLAUDE_BIN", binary)
	claudeSetUp(nil, w, stub)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	asked := func(prompt string) {
		b.Helper()
		ctx, cancel := context.WithTimeout(b.Context(), agentWait)
		defer cancel()
		if _, err := stub.Wait(ctx, func(r stubmodel.Request) bool { return strings.Contains(r.Turn.LastUser(), prompt) }); err != nil {
			b.Fatal(err)
		}
	}
	n := 0
	prompt := func() string { n++; return fmt.Sprintf("boot %d.", n) }
	b.Run("first turn/alone", func(b *testing.B) {
		for b.Loop() {
			text := prompt()
			end := claudeAlone(b, w, binary, text)
			asked(text)
			b.StopTimer()
			end()
			b.StartTimer()
		}
	})
	b.Run("first turn/seat", func(b *testing.B) {
		for b.Loop() {
			text := prompt()
			l := claudeSeat(b, c, text)
			asked(text)
			b.StopTimer()
			if err := harness.Despawn(context.Background(), c, l.Acceptance); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("on the mesh/seat", func(b *testing.B) {
		for b.Loop() {
			l := claudeSeat(b, c, "")
			b.StopTimer()
			if err := harness.Despawn(context.Background(), c, l.Acceptance); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

// claudeSeat starts a seat and waits until it is on the mesh.
func claudeSeat(b *testing.B, c *mesh.Client, prompt string) harness.Launched {
	b.Helper()
	args := wire.SpawnArgs{Name: "boot", Identity: "boot", Agent: "claude"}
	if prompt != "" {
		args.Prompt = &prompt
	}
	l, err := harness.Launch(b.Context(), c, args)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// claudeAlone starts the program on a terminal, with a configuration in which the questions of a first start are
// answered, and returns what ends it.
func claudeAlone(b *testing.B, w *harness.World, binary, prompt string) func() {
	b.Helper()
	home, err := os.MkdirTemp(w.Dir, "alone")
	if err != nil {
		b.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"hasCompletedOnboarding": true, "projects": map[string]any{w.Root: map[string]bool{"hasTrustDialogAccepted": true}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(home, ".claude.json"), config, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(binary, "--permission-mode", "default", prompt)
	cmd.Dir, cmd.Env = w.Root, w.Environ("CLAUDE_CONFIG_DIR="+home, "DISABLE_AUTOUPDATER=1")
	ptm, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 32, Cols: 120})
	if err != nil {
		b.Fatal(err)
	}
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(io.Discard, ptm) }()
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // killed, it would leave its socket
		_ = cmd.Wait()
		_ = ptm.Close()
		<-read
	}
}
