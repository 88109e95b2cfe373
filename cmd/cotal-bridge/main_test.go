package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The test binary is the program under test: with this variable set it runs main.
const asBridge = "COTAL_BRIDGE_TEST_RUN"

const (
	token = "test-token-0123456789"
	space = "main"
	// patience is for facts that come by themselves, on a machine that has much else to do.
	patience = time.Minute
)

func TestMain(m *testing.M) {
	if os.Getenv(asBridge) != "" {
		main()
	}
	os.Exit(m.Run())
}

// place is a mesh, and a seat in it.
type place struct {
	t        *testing.T
	client   *mesh.Client
	roster   *mesh.Roster
	id, uid  string
	material string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	b, err := broker.Start(t.Context(), broker.Config{StoreDir: t.TempDir(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	c, err := bus.Connect(t.Context(), bus.Config{URL: b.URL(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetUpMessaging(t.Context(), space, func(string) bool { return false }, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	who, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cb") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &place{t: t, id: who.Principal(), uid: who.UID, material: filepath.Join(dir, "material.json")}
	body, err := wire.LaunchMaterial{Servers: b.URL(), Token: token, Seat: &wire.LaunchSeat{
		Space: space, Name: "rev", ID: p.id, LifecycleUID: p.uid,
	}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.material, body, 0o600); err != nil {
		t.Fatal(err)
	}
	if p.client, err = mesh.Connect(t.Context(), mesh.Config{URL: b.URL(), Token: token, Space: space, Name: "watcher", Reconnect: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.client.Close)
	if p.roster, err = p.client.WatchPresence(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.roster.Close)
	return p
}

// sees waits until the seat is there as said.
func (p *place) sees(what string, match func(wire.Presence) bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	if _, err := p.roster.Await(ctx, func(r wire.Presence) bool { return r.Card.ID == p.id && match(r) }); err != nil {
		p.t.Fatalf("%s: %v; there are %+v", what, err, p.roster.View().Rows)
	}
}

func is(status string) func(wire.Presence) bool {
	return func(p wire.Presence) bool { return p.Status == status }
}

// bridge is the program, with no environment but the name of the material.
func (p *place) bridge(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{asBridge + "=1", "PATH=" + os.Getenv("PATH"), wire.LaunchMaterialEnv + "=" + p.material}
	cmd.Stderr = os.Stderr
	return cmd
}

// gone waits for the end of a process.
func (p *place) gone(cmd *exec.Cmd, what string) error {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		p.t.Fatalf("it goes on after %s", what)
		return nil
	}
}

// However its program ends, the bridge ends with it and says goodbye.
func TestTheBridgeEndsWithItsProgram(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd, io.Closer){
		"the end of its input": func(_ *exec.Cmd, in io.Closer) { in.Close() },
		"a termination":        func(cmd *exec.Cmd, _ io.Closer) { _ = cmd.Process.Signal(syscall.SIGTERM) },
		"a hangup":             func(cmd *exec.Cmd, _ io.Closer) { _ = cmd.Process.Signal(syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			cmd := p.bridge("mcp")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			p.sees("it joins", func(r wire.Presence) bool { return r.Status == wire.StatusIdle && r.LifecycleUID == p.uid })
			end(cmd, in)
			if err := p.gone(cmd, name); err != nil {
				t.Errorf("%v", err)
			}
			p.sees("it says goodbye", is(wire.StatusOffline))
			if _, err := os.Stat(filepath.Join(filepath.Dir(p.material), "bridge.sock")); !os.IsNotExist(err) {
				t.Errorf("its socket is left: %v", err)
			}
		})
	}
}

// A program that dies while a child of its own holds the pipe open leaves no bridge behind.
func TestABridgeWhoseParentIsGoneEnds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	cmd := p.bridge("mcp")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()               // it stays open: the end of the input never comes
	held, holds, err := os.Pipe() // what the processes hold open ends with the last of them
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	shell := exec.Command("/bin/sh", "-c", `"$0" mcp <&3 >/dev/null & read x`, os.Args[0])
	shell.Env, shell.ExtraFiles = cmd.Env, []*os.File{r, holds}
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	holds.Close()
	p.sees("it joins", is(wire.StatusIdle))
	_ = shell.Process.Kill()
	_ = shell.Wait()
	in.Close()
	p.sees("it says goodbye", is(wire.StatusOffline))
	if err := held.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("its process is left: %v", err)
	}
}

// The program speaks MCP over its pipes, and its hooks reach the bridge from the same material.
func TestHooksOfAProgramReachItsBridge(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	client := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: p.bridge("mcp")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p.sees("it joins", is(wire.StatusIdle))
	hook := func(stdin string, args ...string) string {
		t.Helper()
		cmd := p.bridge(append([]string{"hook"}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("hook %q: %v", args, err)
		}
		return string(out)
	}
	hook(`{"tool_name":"Bash"}`, "PermissionRequest")
	p.sees("it waits for a person", is(wire.StatusWaiting))
	if out := hook("", "agent-turn-complete", `{"type":"agent-turn-complete"}`); out != "" {
		t.Errorf("a hook with nothing to say prints %s", out)
	}
	p.sees("its turn ends", is(wire.StatusIdle))
	if _, err := p.client.SendDirect(t.Context(), p.id, "wake up"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		if out := hook(`{}`, "--deliver", "Stop"); strings.Contains(out, `"decision":"block"`) && strings.Contains(out, "wake up") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no hook brings the message")
		}
	}
	// What can begin a turn in the program takes messages over, and a pipe that is never closed holds no hook up.
	if _, err := p.client.SendDirect(t.Context(), p.id, "and again"); err != nil {
		t.Fatal(err)
	}
	hook(`{}`, "Stop")
	out, err := p.bridge("next", "--wait", "1m").Output()
	if err != nil || !strings.Contains(string(out), "and again") || !strings.Contains(string(out), `"count":1`) {
		t.Errorf("next: %s, %v", out, err)
	}
	open := p.bridge("hook", "UserPromptSubmit")
	in, err := open.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := open.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, `{"prompt":"x"}`); err != nil {
		t.Fatal(err)
	}
	p.sees("the hook is heard", is(wire.StatusWorking))
	if err := p.gone(open, "its input"); err != nil {
		t.Errorf("a hook whose input is not closed: %v", err)
	}
	in.Close()
	_ = s.Close()
	p.sees("it says goodbye", is(wire.StatusOffline))
	if out := hook(strings.Repeat("x", 5<<20), "Stop"); out != "" {
		t.Errorf("a hook without a bridge prints %s", out)
	}
	if out := hook("", "--no-such-flag"); out != "" {
		t.Errorf("a hook that is installed wrongly prints %s", out)
	}
}

// A program that knows nothing of the mesh is there as long as it runs; what is said to it is a line of its input.
func TestAnyProgramRunsOnTheMesh(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "messages")
	cmd := p.bridge("run", "--messages", "stdin", "--file", file, "--text", "--", "/bin/sh", "-c", `read x; echo "got $x"; exit 7`)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.sees("it joins", func(r wire.Presence) bool { return r.Status == wire.StatusWorking && r.Activity == "sh" })
	if _, err := p.client.SendDirect(t.Context(), p.id, "one\ntwo"); err != nil {
		t.Fatal(err)
	}
	err := p.gone(cmd, "its program")
	if cmd.ProcessState.ExitCode() != 7 || out.String() != "got watcher: one two\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	p.sees("it says goodbye", is(wire.StatusOffline))
	if text, err := os.ReadFile(file); err != nil || string(text) != "watcher: one two\n" {
		t.Errorf("file %q, %v", text, err)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	lost := p.bridge("hook", "Stop", "--material", "/no/such/file")
	lost.Stderr = nil
	if out, err := lost.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("a hook that cannot know its bridge: %v, %s", err, out) // its program must not notice
	}
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"servers":"x","seat":{"space":"main","name":"n","id":"nobody","lifecycleUid":"u"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"a file that is not there", []string{"mcp", "--material", broken + ".none"}, "broken.json.none"},
		{"a field that is wrong", []string{"mcp", "--material", broken}, "seat.id"},
		{"a way to wake that there is none of", []string{"mcp", "--wake", "bell"}, `"bell" is not none, host or file`},
		{"a file to wake by that has no name", []string{"mcp", "--wake", "file"}, "--wake-file"},
		{"nobody to take messages from", []string{"next"}, "bridge.sock"},
		{"messages to nowhere", []string{"run", "--messages", "mars", "--", "true"}, `"mars" is not none, file or stdin`},
		{"a program that is not there", []string{"run", "--", "/no/such/program"}, "/no/such/program"},
	} {
		cmd := p.bridge(c.args...)
		var errw bytes.Buffer
		cmd.Stderr = &errw
		if err := cmd.Run(); err == nil || !strings.Contains(errw.String(), c.says) {
			t.Errorf("%s: %v, %s", c.name, err, errw.String())
		}
	}
}

// A program that writes its state into a file of its process is believed where its hooks are silent.
func TestTheStatusFileOfTheProgramIsRead(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := t.TempDir()
	client := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil)
	cmd := p.bridge("mcp", "--status-file", filepath.Join(dir, "{parent}.json"))
	s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p.sees("it joins", is(wire.StatusIdle))
	if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())+".json"), []byte(`{"status":"busy"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.sees("it works", func(r wire.Presence) bool {
		return r.Status == wire.StatusWorking && r.Card.MetaString(wire.MetaStateBy) == "file"
	})
}
