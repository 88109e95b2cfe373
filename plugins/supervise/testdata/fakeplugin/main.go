// Command fakeplugin is the plugin that the tests of the plugin host run. What it does wrong is
// chosen by FAKE_MODE before the handshake and by launch options after it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

func main() {
	dir := os.Getenv("FAKE_DIR")
	version := "0.1.0"
	for _, mode := range strings.Split(os.Getenv("FAKE_MODE"), ",") {
		switch mode {
		case "hello-first":
			fmt.Println("hello\x1b[31m there")
		case "slow-once":
			if first(filepath.Join(dir, "slow")) {
				record(filepath.Join(dir, "pids"), fmt.Sprint(os.Getpid()))
				time.Sleep(time.Hour)
			}
		case "die-once":
			if first(filepath.Join(dir, "died")) {
				os.Exit(4)
			}
		case "stubborn":
			// Holds the pipes through a child, and goes neither by lifeline nor by TERM.
			signal.Ignore(syscall.SIGTERM)
			child := exec.Command("sleep", "600")
			child.Stdout, child.Stderr = os.Stdout, os.Stderr
			if err := child.Start(); err != nil {
				panic(err)
			}
			record(filepath.Join(dir, "pids"), fmt.Sprint(child.Process.Pid))
			r, w, err := os.Pipe() // a standard input that never ends
			if err != nil {
				panic(err)
			}
			_ = w
			os.Stdin = r
		case "leaves-group":
			// No signal to the group that it was put into reaches it.
			pgid, err := syscall.Getpgid(os.Getppid())
			if err == nil {
				err = syscall.Setpgid(0, pgid)
			}
			if err != nil {
				panic(err)
			}
		case "escapee":
			// A helper in a session of its own, which no signal to the group reaches.
			child := exec.Command("sleep", "600")
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := child.Start(); err != nil {
				panic(err)
			}
			record(filepath.Join(dir, "escaped"), fmt.Sprint(child.Process.Pid))
		case "newer":
			version = "9.9.9"
		case "protocol-0", "protocol-99":
			fmt.Printf("1|%s|unix|%s/x|grpc|\n", strings.TrimPrefix(mode, "protocol-"), os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
			time.Sleep(time.Hour)
		}
	}
	record(filepath.Join(dir, "starts"), fmt.Sprint(os.Getpid()))
	if os.Getenv("FAKE_KIND") == "runtime" {
		sdk.ServeRuntime(sdk.Info{Name: "fake", Version: version}, &runtime{dir: dir})
	}
	sdk.ServeConnector(sdk.Info{Name: "fake", Version: version}, &connector{dir: dir})
}

// first reports whether this process is the first to come by, over all processes.
func first(path string) bool {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

func record(path, line string) {
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(line + "\n")
		f.Close()
	}
}

type connector struct {
	sdk.ConnectorDefaults
	dir string
	cfg sdk.PluginConfig
}

func (c *connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var table map[string]any
	if len(cfg.Config) > 0 {
		if err := json.Unmarshal(cfg.Config, &table); err != nil {
			return err
		}
	}
	if table["stop"] != nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		select {} // this thread may be the last one to be stopped
	}
	if table["bad"] != nil {
		return sdk.Errorf(sdk.ErrInvalid, "bad: no such setting")
	}
	c.cfg = cfg
	return nil
}

var sentinels = map[string]error{
	"invalid": sdk.ErrInvalid, "unsupported": sdk.ErrUnsupported, "not_found": sdk.ErrNotFound,
	"unavailable": sdk.ErrUnavailable, "gone": sdk.ErrGone, "plain": errors.New("no contract error"),
}

func (c *connector) BuildLaunch(ctx context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	opt := func(name string) string { s, _ := req.LaunchOptions[name].(string); return s }
	num := func(name string) int { f, _ := req.LaunchOptions[name].(float64); return int(f) }
	switch opt("do") {
	case "panic":
		panic("kaboom")
	case "exit":
		os.Exit(7)
	case "exit-once":
		if first(filepath.Join(c.dir, "exited")) {
			os.Exit(7)
		}
	case "wait":
		record(filepath.Join(c.dir, "waiting"), req.Name)
		record(filepath.Join(c.dir, "waiting-pid"), fmt.Sprint(os.Getpid()))
		for {
			if _, err := os.Stat(filepath.Join(c.dir, "go")); err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return sdk.LaunchSpec{}, ctx.Err()
			case <-time.After(2 * time.Millisecond):
			}
		}
		record(filepath.Join(c.dir, "finished"), req.Name)
	case "size":
		return sdk.LaunchSpec{Path: "/" + strings.Repeat("x", num("bytes"))}, nil
	case "error":
		return sdk.LaunchSpec{}, sdk.Errorf(sentinels[opt("code")], "as asked")
	case "say":
		fmt.Fprintln(os.Stderr, opt("text"))
	case "spam": // goes on after the answer
		line := []byte(strings.Repeat("s", max(1, num("bytes"))) + "\n")
		go func() {
			out := bufio.NewWriterSize(os.Stderr, 256<<10)
			for range num("lines") {
				_, _ = out.Write(line)
			}
			out.Flush()
			fmt.Fprintln(os.Stderr, "the end of the spam")
			record(filepath.Join(c.dir, "spammed"), "done")
		}()
	case "flood": // one line without an end
		chunk := []byte(strings.Repeat("f", 64<<10))
		for range num("bytes") / len(chunk) {
			_, _ = os.Stderr.Write(chunk)
		}
	case "log":
		line := strings.Repeat("L", num("bytes"))
		for range max(1, num("lines")) {
			fmt.Fprintln(os.Stderr, line)
		}
		fmt.Fprintln(os.Stderr, `{"@level":"warn","@message":"a record","@module":"x","plugin":"liar","n":3}`)
	case "log-until-done":
		for range 5000 { // longer than the host lives, and its context with it
			if _, err := syscall.Write(2, []byte("still here\n")); err != nil {
				record(filepath.Join(c.dir, "write-error"), err.Error())
				break
			}
			time.Sleep(time.Millisecond)
		}
		record(filepath.Join(c.dir, "finished"), req.Name)
	case "fds":
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return sdk.LaunchSpec{}, err
		}
		var out []string
		for _, e := range entries {
			target, _ := os.Readlink("/proc/self/fd/" + e.Name())
			out = append(out, e.Name()+" "+target)
		}
		return sdk.LaunchSpec{Args: out}, nil
	}
	wd, _ := os.Getwd()
	return sdk.LaunchSpec{Path: wd, Args: []string{fmt.Sprint(os.Getpid()), c.cfg.StateDir}, Env: os.Environ()}, nil
}

// ListModels starts a helper in a group of its own, as one that runs an agent program does, and waits for it.
func (c *connector) ListModels(ctx context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	if !q.Refresh {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "no catalogue")
	}
	child := exec.CommandContext(ctx, "sleep", "600")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		return sdk.ModelCatalog{}, err
	}
	record(filepath.Join(c.dir, "helpers"), fmt.Sprint(child.Process.Pid))
	return sdk.ModelCatalog{}, child.Wait()
}

// runtime keeps one file per seat, whose content is its state: it survives its process, as a real
// one does.
type runtime struct{ dir string }

func (r *runtime) seat(id string) string { return filepath.Join(r.dir, "seat-"+id) }

func (r *runtime) Spawn(_ context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	record(filepath.Join(r.dir, "spawns"), req.SeatID)
	if req.Launch.Path == "/die-before" && first(filepath.Join(r.dir, "died-"+req.SeatID)) {
		os.Exit(7)
	}
	if err := os.WriteFile(r.seat(req.SeatID), []byte("prepared"), 0o600); err != nil {
		return sdk.Handle{}, err
	}
	if req.Launch.Path == "/wait" {
		wait(r.dir, "spawning", req.SeatID)
	}
	if req.Launch.Path == "/die-after" && first(filepath.Join(r.dir, "died-"+req.SeatID)) {
		os.Exit(7)
	}
	if req.Launch.Path == "/die-unknown" && first(filepath.Join(r.dir, "died-"+req.SeatID)) {
		_ = os.WriteFile(r.seat(req.SeatID), []byte("unknown"), 0o600)
		os.Exit(7)
	}
	return sdk.Handle{Version: 1, Ref: req.SeatID}, nil
}

// wait records that it waits, and waits for the file "go".
func wait(dir, name, line string) {
	record(filepath.Join(dir, name), line)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go")); err == nil {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *runtime) Write(_ context.Context, req sdk.WriteRequest) (int, error) {
	if string(req.Data) == "wait" {
		wait(r.dir, "writing", req.SeatID)
	}
	record(filepath.Join(r.dir, "written"), string(req.Data))
	return len(req.Data), nil
}

func (r *runtime) status(id string) sdk.SeatStatus {
	st := sdk.SeatStatus{SeatID: id, Handle: sdk.Handle{Version: 1, Ref: id}, Identity: sdk.Identity{PID: os.Getpid()}}
	b, err := os.ReadFile(r.seat(id))
	if err != nil {
		return sdk.SeatStatus{SeatID: id, State: sdk.SeatNotFound, Reason: "no file"}
	}
	st.State = sdk.SeatState(b)
	if st.State == sdk.SeatExited {
		code := 3
		st.Exit = &sdk.Exit{Code: &code, At: time.Now()}
	}
	return st
}

func (r *runtime) Adopt(_ context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	st := r.status(req.SeatID)
	if req.Commit && st.State == sdk.SeatPrepared {
		st.State = sdk.SeatRunning
		return st, os.WriteFile(r.seat(req.SeatID), []byte("running"), 0o600)
	}
	return st, nil
}

func (r *runtime) Attach(_ context.Context, req sdk.AttachRequest) (sdk.AttachTarget, error) {
	if r.status(req.SeatID).State == sdk.SeatNotFound {
		return sdk.AttachTarget{}, sdk.Errorf(sdk.ErrGone, "no seat")
	}
	return sdk.AttachTarget{Seat: &sdk.SeatEndpoint{Socket: r.seat(req.SeatID), Token: []byte{0, 255}}}, nil
}

func (r *runtime) Reap(_ context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	if os.Remove(r.seat(req.SeatID)) != nil {
		return sdk.ReapReport{Outcome: sdk.ReapAbsent}, nil
	}
	return sdk.ReapReport{Outcome: sdk.ReapStopped, Evidence: []string{"removed"}}, nil
}

func (r *runtime) Watch(ctx context.Context, req sdk.WatchRequest, emit func(sdk.SeatStatus) error) error {
	var last sdk.SeatState
	for {
		st := r.status(req.SeatID)
		if st.State != last {
			if err := emit(st); err != nil {
				return err
			}
			last = st.State
		}
		if st.State == sdk.SeatExited {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *runtime) List(context.Context, sdk.ListRequest) ([]sdk.SeatListing, error) {
	var out []sdk.SeatListing
	form, _ := json.Marshal(strings.Repeat("f", 64<<10))
	for i := range 200 {
		out = append(out, sdk.SeatListing{SeatID: fmt.Sprint(i), Form: form})
	}
	return out, nil
}
