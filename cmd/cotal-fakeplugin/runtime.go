package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/pty"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// runtime is the pty runtime, honest but for its mode. It can also type and show screens, plainly, so that
// those rules have something to look at.
type runtime struct {
	*pty.Runtime
	mode string

	mu     sync.Mutex
	cfg    sdk.PluginConfig
	spawns map[string]sdk.SpawnRequest // of this process
	again  int
	commit map[string]int
	reaped map[string]bool
	files  []*os.File
}

func newRuntime(mode string) *runtime {
	return &runtime{Runtime: pty.New(), mode: mode, spawns: map[string]sdk.SpawnRequest{}, reaped: map[string]bool{}, commit: map[string]int{}}
}

func (r *runtime) is(mode string) bool { return r.mode == mode }

func (r *runtime) Configure(ctx context.Context, cfg sdk.PluginConfig) error {
	r.cfg = cfg
	return r.Runtime.Configure(ctx, cfg)
}

// noFence is later than every host of the suite but the one that clears up.
const noFence = 1 << 39

// script is what the suite's agent of a seat is to do.
func script(req sdk.SpawnRequest) string { return strings.Join(req.Launch.Env, "\n") }

// through puts a filter between the agent and its terminal.
func through(what string, req *sdk.SpawnRequest) {
	req.Launch.Args = append([]string{filterArg, what, req.Launch.Path}, req.Launch.Args...)
	req.Launch.Path = os.Args[0] // the file; what runs is a copy of it in memory
}

func (r *runtime) Spawn(ctx context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	r.mu.Lock()
	_, known := r.spawns[req.SeatID]
	r.spawns[req.SeatID] = req
	r.mu.Unlock()
	text := script(req)
	switch r.mode {
	case "spawn-takes-nonsense":
		if _, err := os.Stat(req.Cwd); err != nil {
			req.Cwd = "/"
		}
	case "agent-starts-elsewhere":
		req.Cwd = filepath.Dir(req.Cwd)
	case "agent-gets-more-environment":
		req.Launch.Env = append(req.Launch.Env, "MORE=1")
	case "spawn-forgets-the-size":
		req.Rows, req.Cols = 50, 132
	case "output-is-lost":
		if strings.Contains(text, `"ticks"`) {
			through("drop", &req)
		}
	case "burst-needs-a-reader":
		if strings.Contains(text, `"burst"`) && !strings.Contains(text, `"wait"`) {
			through("stall", &req)
		}
	case "slow-reader-stalls-the-agent":
		if strings.Contains(text, `"burst"`) && strings.Contains(text, `"wait"`) {
			through("stall", &req)
		}
	case "seats-leak-descriptors":
		f, err := os.Open(os.DevNull)
		if err != nil {
			return sdk.Handle{}, err
		}
		r.files = append(r.files, f)
	}
	h, err := r.Runtime.Spawn(ctx, req)
	if err != nil {
		return h, err
	}
	switch {
	case r.is("spawn-commits"):
		_, _ = r.Runtime.Adopt(ctx, sdk.AdoptRequest{SeatID: req.SeatID, InstanceID: req.Owner.InstanceID, Fence: req.Fence, Commit: true})
	case r.is("spawn-again-is-another-handle") && known:
		r.again++
		h.State = append(h.State, []byte(strings.Repeat(" ", r.again))...)
	}
	return r.outward(h), nil
}

// outward and inward change handles for the modes about them.
func (r *runtime) outward(h sdk.Handle) sdk.Handle {
	if r.is("handle-has-no-version") {
		h.Version = 0
	}
	return h
}

func (r *runtime) inward(h sdk.Handle) sdk.Handle {
	if r.is("handle-has-no-version") && h.Version == 0 && h.Ref != "" {
		h.Version = 1
	}
	return h
}

func (r *runtime) owner(id string) string {
	in, _ := record.ReadIntent(filepath.Join(r.cfg.SeatRoot, id))
	return in.Owner.InstanceID
}

func (r *runtime) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	r.mu.Lock()
	spawn, mine := r.spawns[req.SeatID]
	r.mu.Unlock()
	none := sdk.SeatStatus{SeatID: req.SeatID}
	switch r.mode {
	case "adopt-forgets-with-its-process":
		if _, err := os.Stat(filepath.Join(r.cfg.SeatRoot, req.SeatID)); !mine && err == nil {
			none.State, none.Reason = sdk.SeatNotFound, "never heard of it"
			return none, nil
		}
	case "adopt-needs-a-handle":
		if req.Handle.Ref == "" && !mine && r.owner(req.SeatID) != "" {
			return none, sdk.Errorf(sdk.ErrInvalid, "no handle")
		}
	case "adopt-takes-foreign-seats":
		if owner := r.owner(req.SeatID); owner != "" {
			req.InstanceID = owner
		}
	case "adopt-knows-no-fence":
		req.Fence = noFence
	case "adopt-outlives-its-deadline":
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 2500*time.Millisecond {
			<-time.After(30 * time.Second)
		}
	case "handle-of-another-version-is-gone":
		if req.Handle.Ref != "" && req.Handle.Version != 1 {
			none.State, none.Reason = sdk.SeatNotFound, "cannot read that"
			return none, nil
		}
	}
	req.Handle = r.inward(req.Handle)
	st, err := r.Runtime.Adopt(ctx, req)
	st.Handle = r.outward(st.Handle)
	switch r.mode {
	case "commit-starts-another":
		if err == nil && req.Commit && st.State == sdk.SeatRunning && mine {
			r.mu.Lock()
			r.commit[req.SeatID]++
			again := r.commit[req.SeatID] > 1
			r.mu.Unlock()
			if again {
				return st, appendFile(filepath.Join(spawn.Cwd, "ran"), "1\n")
			}
		}
	case "adopt-unknown-is-an-error":
		if err == nil && st.State == sdk.SeatNotFound {
			return none, sdk.Errorf(sdk.ErrNotFound, "no seat %s", req.SeatID)
		}
	case "exec-failure-is-untyped":
		if errors.Is(err, sdk.ErrExecFailed) {
			return st, fmt.Errorf("it does not work: %s", err.Error())
		}
	case "resize-is-not-told":
		st.Rows, st.Cols = 24, 80
	case "exit-is-always-clean":
		if st.Exit != nil && st.Exit.Signal == "" {
			zero := 0
			st.Exit.Code = &zero
		}
	case "exit-hides-the-signal":
		if st.Exit != nil {
			st.Exit.Signal = ""
		}
	}
	return st, err
}

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

func (r *runtime) Attach(ctx context.Context, req sdk.AttachRequest) (sdk.AttachTarget, error) {
	req.Handle = r.inward(req.Handle)
	t, err := r.Runtime.Attach(ctx, req)
	if errors.Is(err, sdk.ErrGone) && r.is("attach-leads-to-the-dead") {
		return sdk.AttachTarget{Argv: []string{"/bin/sh"}}, nil
	}
	if err == nil && r.is("attach-gives-no-program") {
		return sdk.AttachTarget{Argv: []string{"no-such-program", "attach"}}, nil
	}
	if err == nil && r.is("honest-runtime-of-argv") {
		return sdk.AttachTarget{Argv: []string{"/bin/sh", "-c", "exit 0"}}, nil
	}
	return t, err
}

func (r *runtime) Reap(ctx context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	r.mu.Lock()
	before, spawn := r.reaped[req.SeatID], r.spawns[req.SeatID]
	r.mu.Unlock()
	req.Handle = r.inward(req.Handle)
	switch r.mode {
	case "adopt-knows-no-fence":
		req.Fence = max(req.Fence, noFence)
	case "stop-kills-at-once":
		req.Mode = sdk.StopNow
	case "stop-cuts-the-grace":
		if req.Mode == sdk.StopGraceful && req.GraceMs == 1500 {
			req.GraceMs = 1
		}
	case "stop-now-asks":
		req.Mode = sdk.StopGraceful
	case "reap-claims-what-it-did-not-do":
		if strings.Contains(script(spawn), `"daemon"`) && req.Mode == sdk.StopGraceful {
			return sdk.ReapReport{Outcome: sdk.ReapStopped, Evidence: []string{"trust me"}}, nil
		}
	case "reap-forgets-to-keep":
		req.Keep = false
	case "reap-again-is-an-error":
		if before {
			return sdk.ReapReport{}, sdk.Errorf(sdk.ErrNotFound, "no seat %s", req.SeatID)
		}
	}
	report, err := r.Runtime.Reap(ctx, req)
	if err == nil && !req.Keep && req.Fence < 1<<40 {
		r.mu.Lock()
		r.reaped[req.SeatID] = true
		r.mu.Unlock()
	}
	switch r.mode {
	case "reap-of-absent-has-no-evidence":
		if report.Outcome == sdk.ReapAbsent {
			report.Evidence = nil
		}
	case "reap-leaves-a-socket":
		if err == nil && !req.Keep {
			_ = appendFile(filepath.Join(r.cfg.SocketDir, req.SeatID+".left"), "x")
		}
	}
	return report, err
}

func (r *runtime) Watch(ctx context.Context, req sdk.WatchRequest, emit func(sdk.SeatStatus) error) error {
	req.Handle = r.inward(req.Handle)
	if r.is("adopt-knows-no-fence") {
		req.Fence = noFence
	}
	err := r.Runtime.Watch(ctx, req, emit)
	switch {
	case err == nil && r.is("watch-does-not-return"):
		<-ctx.Done()
	case ctx.Err() != nil && r.is("watch-outlives-its-caller"):
		if conn, err := r.dial(context.WithoutCancel(ctx), req.SeatID, req.InstanceID, seat.RoleOutput); err == nil {
			defer conn.Close()
		}
		<-time.After(10 * time.Minute)
	}
	return err
}

func (r *runtime) List(ctx context.Context, req sdk.ListRequest) ([]sdk.SeatListing, error) {
	list, err := r.Runtime.List(ctx, req)
	if r.is("list-forgets") && len(list) > 0 {
		list = list[1:]
	}
	return list, err
}

// dial connects to a running seat. Errors: sdk.ErrGone.
func (r *runtime) dial(ctx context.Context, id, instance string, role seat.Role) (*seat.Conn, error) {
	t, err := r.Runtime.Attach(ctx, sdk.AttachRequest{SeatID: id, InstanceID: instance})
	if err != nil {
		return nil, err
	}
	conn, err := seat.Dial(ctx, seat.DialConfig{Socket: t.Seat.Socket, Token: t.Seat.Token, Role: role})
	if err != nil {
		return nil, sdk.Errorf(sdk.ErrUnavailable, "dial seat %s: %v", id, err)
	}
	if state := conn.Welcome().State; state != seat.StateRunning {
		_ = conn.Close()
		return nil, sdk.Errorf(sdk.ErrGone, "seat %s is %s", id, state)
	}
	return conn, nil
}

// Write types through the seat's own socket.
func (r *runtime) Write(ctx context.Context, req sdk.WriteRequest) (int, error) {
	conn, err := r.dial(ctx, req.SeatID, req.InstanceID, seat.RoleInput)
	if err != nil {
		if r.is("write-to-ended-is-swallowed") && errors.Is(err, sdk.ErrGone) {
			return len(req.Data), nil
		}
		return 0, err
	}
	defer conn.Close()
	data := req.Data
	if r.is("write-changes-bytes") {
		data = []byte(strings.ReplaceAll(string(data), "\r", "\n"))
	}
	n, err := conn.Input(ctx, data)
	if err != nil {
		err = sdk.Errorf(sdk.ErrUnavailable, "type into seat %s: %v", req.SeatID, err)
	}
	return n, err
}

// Snapshot replays what the agent printed, which paints the screen of a program that only prints.
func (r *runtime) Snapshot(ctx context.Context, req sdk.SnapshotRequest) (sdk.Snapshot, error) {
	conn, err := r.dial(ctx, req.SeatID, req.InstanceID, seat.RoleOutput)
	if err != nil {
		return sdk.Snapshot{}, err
	}
	defer conn.Close()
	st := conn.Welcome()
	snap := sdk.Snapshot{Rows: st.Rows, Cols: st.Cols, Offset: st.Next, Dirty: "a replay"}
	enough := errors.New("enough")
	if snap.Offset > 0 {
		err = conn.Run(ctx, seat.Handler{Output: func(seq uint64, p []byte) error {
			snap.Data = append(snap.Data, p...)
			if seq+uint64(len(p)) >= snap.Offset {
				return enough
			}
			return nil
		}})
		if !errors.Is(err, enough) {
			return sdk.Snapshot{}, sdk.Errorf(sdk.ErrUnavailable, "read output: %v", err)
		}
	}
	if r.is("snapshot-is-blank") {
		snap.Data = nil
	}
	return snap, nil
}
