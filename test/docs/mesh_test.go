package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// A program written from the page alone joins by hand and in a seat, is seen, answers and leaves.
func TestJoiningAMesh(t *testing.T) {
	dir, _ := module(t, "joining-a-mesh.md", "main.go")
	run(t, dir, "go", "vet", "./...")
	run(t, dir, "go", "build", "-o", "greeter", ".")
	greeter := filepath.Join(dir, "greeter")
	w := harness.New(t)
	w.UsePresence(0)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	ctx, cancel := context.WithTimeout(t.Context(), harness.DefaultWait)
	defer cancel()
	roster, err := c.WatchPresence(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer roster.Close()
	lobby, err := c.JoinChannel(ctx, "lobby", mesh.ChannelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lobby.Leave()
	inbox, err := c.DirectMessages(ctx, mesh.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer inbox.Close()
	// talk sees somebody of a name come, greet and answer.
	talk := func(name string) wire.Presence {
		t.Helper()
		p, err := roster.Await(ctx, func(p wire.Presence) bool { return p.Card.Name == name && p.Status != wire.StatusOffline })
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if m, err := lobby.Next(ctx); err != nil || m.Text() != "hello, I am "+name || m.From.ID != p.Card.ID {
			t.Errorf("%s in the lobby: %+v, %v", name, m, err)
		}
		if _, err := c.SendDirect(ctx, p.Card.ID, "coming"); err != nil {
			t.Fatal(err)
		}
		d, err := inbox.Next(ctx)
		if err != nil || d.Text() != "thank you for: coming" || d.From.ID != p.Card.ID {
			t.Errorf("%s answers: %+v, %v", name, d, err)
		}
		if err := d.Ack(ctx); err != nil {
			t.Error(err)
		}
		return p
	}
	gone := func(p wire.Presence) {
		t.Helper()
		if _, err := roster.Await(ctx, func(q wire.Presence) bool { return q.Card.ID == p.Card.ID && q.Status == wire.StatusOffline }); err != nil {
			t.Errorf("%s: %v", p.Card.Name, err)
		}
	}

	cmd := exec.Command(greeter)
	cmd.Dir = w.Root
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "COTAL_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := talk("greeter")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the program ended with %v and said %q", err, said.String())
	}
	gone(p)

	l, err := harness.Launch(ctx, c, wire.SpawnArgs{
		Name: "hostess", Identity: "hostess", Agent: harness.PresenceAgent, LaunchOptions: map[string]any{"argv": []string{greeter}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if p = talk("hostess"); p.Card.ID != l.Result.ID || p.LifecycleUID != l.Result.LifecycleUID {
		t.Errorf("the seat is %s, on the mesh is %+v", l.Result.ID, p)
	}
	w.CLI("stop", "hostess").OK()
	gone(p)
}

// In a space with credentials the same program is the seat that its persona describes, may say what that allows, and has an
// inbox. Beside the seats it is told that it has none.
func TestJoiningAnAuthenticatedMesh(t *testing.T) {
	dir, files := module(t, "joining-a-mesh.md", "main.go", "greeter.md")
	run(t, dir, "go", "build", "-o", "greeter", ".")
	greeter := filepath.Join(dir, "greeter")
	w := harness.NewAuthenticated(t)
	w.Persona("greeter", strings.ReplaceAll(files["greeter.md"], "~/greeter/greeter", greeter))
	w.Start(harness.HostOptions{})
	w.CLI("spawn", "greeter", "--detach").OK()
	sees := func(what string, args ...string) {
		t.Helper()
		harness.Eventually(t, harness.DefaultWait, strings.Join(args, " ")+" shows "+what, func() (bool, string) {
			r := w.CLI(args...)
			return r.Code == 0 && strings.Contains(r.Stdout, what), r.String()
		})
	}
	sees("greeter", "roster")
	sees("hello, I am greeter", "history", "lobby")
	w.CLI("send", "@greeter", "are you there").OK()
	sees("are you there", "logs", "greeter")

	cmd := exec.CommandContext(t.Context(), greeter)
	cmd.Dir = w.Root
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "COTAL_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "greeter: ") {
		t.Errorf("beside the seats it ended with %v and said %q", err, out)
	}
	w.CLI("stop", "greeter").OK()
}
