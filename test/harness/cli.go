package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Result is one finished command.
type Result struct {
	Args   []string
	Code   int // -1: killed
	Stdout string
	Stderr string
	Took   time.Duration

	t testing.TB
}

func (r Result) String() string {
	return fmt.Sprintf("%s: exit code %d after %v\nstdout: %s\nstderr: %s",
		strings.Join(r.Args, " "), r.Code, r.Took.Round(time.Millisecond), r.Stdout, r.Stderr)
}

// OK fails the test unless the command ended with exit code 0.
func (r Result) OK() Result {
	r.t.Helper()
	return r.Want(0)
}

// Want fails the test unless the command ended with the code.
func (r Result) Want(code int) Result {
	r.t.Helper()
	if r.Code != code {
		r.t.Fatalf("want exit code %d: %v", code, r)
	}
	return r
}

// JSON decodes standard output.
func (r Result) JSON(out any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.Stdout), out); err != nil {
		r.t.Fatalf("decode JSON: %v\n%v", err, r)
	}
}

// CLI runs cotal in the workspace and waits for its end, at most two minutes.
func (w *World) CLI(args ...string) Result {
	w.t.Helper()
	return w.Run(context.Background(), filepath.Join(w.Bin, "cotal"), args...)
}

// Host runs a cotal-host command other than serve, over this workspace.
func (w *World) Host(command string, args ...string) Result {
	w.t.Helper()
	return w.Run(context.Background(), filepath.Join(w.Bin, "cotal-host"),
		append([]string{command, "--root", w.Root}, args...)...)
}

// Run runs a program in the workspace with this world's environment and no standard input.
func (w *World) Run(ctx context.Context, path string, args ...string) Result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = w.Root, w.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begun := time.Now()
	err := cmd.Run()
	r := Result{
		Args: append([]string{filepath.Base(path)}, args...), Took: time.Since(begun),
		Stdout: stdout.String(), Stderr: stderr.String(), t: w.t,
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	case err != nil:
		w.t.Fatalf("run %s: %v", strings.Join(r.Args, " "), err)
	}
	return r
}

// Ps returns the rows of cotal ps.
func (w *World) Ps() []wire.AgentRow {
	w.t.Helper()
	r := w.CLI("ps", "--json").OK()
	var rows []wire.AgentRow
	for dec := json.NewDecoder(strings.NewReader(r.Stdout)); ; { // one object a line
		var row wire.AgentRow
		switch err := dec.Decode(&row); {
		case errors.Is(err, io.EOF):
			return rows
		case err != nil:
			w.t.Fatalf("decode JSON: %v\n%v", err, r)
		}
		rows = append(rows, row)
	}
}

// Seat returns the row of one seat; false when ps does not list it.
func (w *World) Seat(name string) (wire.AgentRow, bool) {
	w.t.Helper()
	for _, row := range w.Ps() {
		if row.Name == name {
			return row, true
		}
	}
	return wire.AgentRow{}, false
}

// Inspect returns the row of one seat, freshly verified by the host.
func (w *World) Inspect(name string) wire.AgentRow {
	w.t.Helper()
	var row wire.AgentRow
	w.CLI("inspect", name, "--json").OK().JSON(&row)
	return row
}

// AwaitStatus waits until ps lists a seat with a status.
func (w *World) AwaitStatus(name, status string) wire.AgentRow {
	w.t.Helper()
	var row wire.AgentRow
	Eventually(w.t, DefaultWait, fmt.Sprintf("seat %s is %s", name, status), func() (bool, string) {
		var ok bool
		if row, ok = w.Seat(name); !ok {
			return false, "ps does not list it"
		}
		return row.Status == status, "it is " + row.Status + " " + row.Reason
	})
	return row
}

// Spawn starts a program in a seat through the command connector and returns its row once it runs.
func (w *World) Spawn(name string, argv ...string) wire.AgentRow {
	w.t.Helper()
	var r Result
	_, _ = stretched(DefaultWait, func() (bool, string) {
		r = w.CLI(append([]string{"spawn", "--agent", "command", "--name", name, "--detach", "--"}, argv...)...)
		// Beside fifty others that compute, a plugin was not ready in its ten seconds. The host starts it again, and
		// has started nothing else.
		late := r.Code != 0 && strings.Contains(r.Stderr, "was not ready within")
		return !late, r.String()
	})
	r.OK()
	return w.AwaitStatus(name, "running")
}

// FakeAgent returns the argv of the scripted agent (cmd/cotal-fakeagent explains the script).
func (w *World) FakeAgent(script string) []string {
	return []string{filepath.Join(w.Bin, "cotal-fakeagent"), script}
}

// SpawnFake starts the scripted agent in a seat and returns its row once it runs.
func (w *World) SpawnFake(name, script string) wire.AgentRow {
	w.t.Helper()
	return w.Spawn(name, w.FakeAgent(script)...)
}

// Status returns what cotal-host status says.
func (w *World) Status() wire.StatusReply {
	w.t.Helper()
	var s wire.StatusReply
	w.Host("status", "--json").OK().JSON(&s)
	return s
}

// PluginPID returns the process id of a plugin that is ready.
func (w *World) PluginPID(name string) int {
	w.t.Helper()
	var pid int
	Eventually(w.t, DefaultWait, "plugin "+name+" is ready", func() (bool, string) {
		for _, p := range w.Status().Plugins {
			if p.Name == name {
				pid = p.PID
				return p.State == "ready" && p.PID > 0, "it is " + p.State + " " + p.Reason
			}
		}
		return false, "status does not list it"
	})
	return pid
}

// Endpoint reads .cotal/host/endpoint.json. Its files are named by their whole paths.
func (w *World) Endpoint() wire.Endpoint {
	w.t.Helper()
	var e wire.Endpoint
	text, err := os.ReadFile(w.Path(".cotal", "host", "endpoint.json"))
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		w.t.Fatalf("read endpoint.json: %v", err)
	}
	for _, path := range []*string{&e.TokenFile, &e.CredsFile} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = w.Path(".cotal", "host", *path)
		}
	}
	return e
}
