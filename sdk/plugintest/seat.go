package plugintest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// What the suite's own seats are made with.
const (
	ourFence   = 10
	ourRows    = 24
	ourCols    = 80
	shortGrace = 300 // ms
)

// patience is how long a fact about a seat is waited for. What decides about it is the machine, so it is
// long; rules that are broken take that long to say so.
func (e *Env) patience() time.Duration { return e.limit() / 3 }

// Seat is one seat of a rule. It is ended with the rule.
type Seat struct {
	e      *Env
	req    sdk.SpawnRequest
	handle sdk.Handle
	work   string
	dir    string // made before Spawn; rules may spoil the id in the request, so it is kept
	gone   bool   // reaped by the rule itself
}

// runtime returns the runtime of the plugin.
func (e *Env) runtime(ctx context.Context) (sdk.RuntimeClient, error) {
	r, err := e.Plugin(ctx)
	if err != nil {
		return nil, err
	}
	return r.client.Runtime(), nil
}

// newSeat makes the request of a seat whose agent does these steps; @NAME stands for a file of the seat.
// Nothing is spawned yet, but what a host writes before it asks.
func (e *Env) newSeat(steps ...step) (*Seat, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the scripted agent: %w", err)
	}
	s := &Seat{e: e}
	id := randomHex(16)
	s.work = filepath.Join(e.dir.work, id[:8])
	if err := os.Mkdir(s.work, 0o700); err != nil {
		return nil, fmt.Errorf("make work directory: %w", err)
	}
	for i := range steps {
		for j := range steps[i] {
			if name, ok := strings.CutPrefix(steps[i][j], "@"); ok {
				steps[i][j] = s.file(name)
			}
		}
	}
	s.req = sdk.SpawnRequest{
		SeatID: id, Nonce: randomHex(16), Fence: ourFence,
		Owner: sdk.SeatOwner{
			InstanceID: "verify-" + e.canary[len(e.canary)-8:], Space: "verify", Alias: "verify", Principal: "local.verify",
			LifecycleUID: strings.Repeat("a", 26), RequestID: id, Fingerprint: "verify",
		},
		Launch: sdk.LaunchSpec{Path: self, Args: []string{agentArg}, Env: append(e.baseEnv(), agentVar+"="+script(steps...))},
		Cwd:    s.work, Rows: ourRows, Cols: ourCols, StopGraceMs: shortGrace, Form: []byte(`{"verify":true}`),
	}
	s.dir = filepath.Join(e.dir.seats, id)
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make seat directory: %w", err)
	}
	err = record.WriteIntent(s.dir, record.Intent{
		CustodyID: id, Nonce: s.req.Nonce, Fence: ourFence, Owner: record.Owner(s.req.Owner), Form: s.req.Form,
		Created: time.Now(), Runtime: e.info.Name,
	})
	if err != nil {
		return nil, err
	}
	e.seats = append(e.seats, s)
	return s, nil
}

// spawned is newSeat and Spawn.
func (e *Env) spawned(ctx context.Context, steps ...step) (*Seat, error) {
	s, err := e.newSeat(steps...)
	if err != nil {
		return nil, err
	}
	return s, s.spawn(ctx)
}

// started is newSeat, Spawn and the commit.
func (e *Env) started(ctx context.Context, steps ...step) (*Seat, error) {
	s, err := e.spawned(ctx, steps...)
	if err != nil {
		return nil, err
	}
	st, err := s.adopt(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	if st.State != sdk.SeatRunning && st.State != sdk.SeatExited {
		return nil, fmt.Errorf("after the commit the seat is %s (%s)", st.State, st.Reason)
	}
	return s, nil
}

func (s *Seat) spawn(ctx context.Context) error {
	r, err := s.e.runtime(ctx)
	if err != nil {
		return err
	}
	if s.handle, err = r.Spawn(ctx, s.req); err != nil {
		return found("Spawn: %w", err)
	}
	return nil
}

func (s *Seat) question(commit bool) sdk.AdoptRequest {
	return sdk.AdoptRequest{
		SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle, Nonce: s.req.Nonce, Fence: s.req.Fence, Commit: commit,
	}
}

func (s *Seat) adopt(ctx context.Context, commit bool) (sdk.SeatStatus, error) {
	r, err := s.e.runtime(ctx)
	if err != nil {
		return sdk.SeatStatus{}, err
	}
	return r.Adopt(ctx, s.question(commit))
}

func (s *Seat) stop(mode sdk.StopMode) sdk.StopRequest {
	return sdk.StopRequest{
		SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle, Nonce: s.req.Nonce, Fence: s.req.Fence, Mode: mode, GraceMs: shortGrace,
	}
}

func (s *Seat) reap(ctx context.Context, mode sdk.StopMode) (sdk.ReapReport, error) {
	r, err := s.e.runtime(ctx)
	if err != nil {
		return sdk.ReapReport{}, err
	}
	report, err := r.Reap(ctx, s.stop(mode))
	if err == nil {
		s.gone = true
	}
	return report, err
}

func (s *Seat) target(ctx context.Context) (sdk.AttachTarget, error) {
	r, err := s.e.runtime(ctx)
	if err != nil {
		return sdk.AttachTarget{}, err
	}
	return r.Attach(ctx, sdk.AttachRequest{SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle})
}

// dial connects to the seat's socket, or skips the rule where the runtime gives an argv.
func (s *Seat) dial(ctx context.Context, role seat.Role) (*seat.Conn, error) {
	t, err := s.target(ctx)
	if err != nil {
		return nil, found("Attach: %w", err)
	}
	if t.Seat == nil {
		return nil, skip("Attach answers with an argv, so there is no seat socket to look at")
	}
	cfg := seat.DialConfig{Socket: t.Seat.Socket, Token: t.Seat.Token, Role: role}
	if role.Has(seat.RoleControl) {
		cfg.Fence = s.req.Fence
	}
	conn, err := seat.Dial(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("dial the seat socket that Attach gave: %w", err)
	}
	return conn, nil
}

func (s *Seat) file(name string) string { return filepath.Join(s.work, name) }

func (s *Seat) read(name string) string {
	data, _ := os.ReadFile(s.file(name))
	return string(data)
}

// holds waits until a file of the seat holds a text.
func (s *Seat) holds(ctx context.Context, name, text string) error {
	if !eventually(ctx, s.e.patience(), func() bool { return strings.Contains(s.read(name), text) }) {
		return fmt.Errorf("after %s the agent's file %q holds %q, want %q%s", s.e.patience(), name, short(s.read(name)), text, s.state(ctx))
	}
	return nil
}

// state adds what the runtime says of the seat to a message.
func (s *Seat) state(ctx context.Context) string {
	st, err := s.adopt(ctx, false)
	if err != nil {
		return fmt.Sprintf("; Adopt: %v", err)
	}
	return "; Adopt says " + asText(st)
}

// pid is what the agent wrote of itself with "append @pid {pid}".
func (s *Seat) pid(ctx context.Context, name string) (int, error) {
	var pid int
	if !eventually(ctx, s.e.patience(), func() bool {
		text := s.read(name)
		n, err := fmt.Sscanf(text, "%d\n", &pid)
		return err == nil && n == 1 && strings.HasSuffix(text, "\n")
	}) {
		return 0, fmt.Errorf("after %s the agent has not said its pid%s", s.e.patience(), s.state(ctx))
	}
	return pid, nil
}

// exited waits for the recorded end.
func (s *Seat) exited(ctx context.Context) (*sdk.Exit, error) {
	var st sdk.SeatStatus
	var err error
	if !eventually(ctx, s.e.patience(), func() bool {
		st, err = s.adopt(ctx, false)
		return err != nil || st.State == sdk.SeatExited
	}) {
		return nil, fmt.Errorf("after %s the seat is %s (%s), want exited", s.e.patience(), st.State, st.Reason)
	}
	if err != nil {
		return nil, found("Adopt: %w", err)
	}
	if st.Exit == nil {
		return nil, errors.New("the seat is exited and its status has no exit")
	}
	return st.Exit, nil
}

// endSeats ends what the rule left, so that the next one begins with nothing.
func (e *Env) endSeats() (err error) {
	seats := e.seats
	e.seats = nil
	for _, s := range seats {
		ctx, cancel := context.WithTimeout(context.Background(), stretched(killTime+e.patience()))
		if !s.gone && record.ValidID(s.req.SeatID) {
			req := s.stop(sdk.StopNow)
			req.Handle, req.Fence = sdk.Handle{}, 1<<40
			if r, rerr := e.runtime(ctx); rerr != nil {
				err = errors.Join(err, rerr)
			} else if _, rerr := r.Reap(ctx, req); rerr != nil {
				err = errors.Join(err, fmt.Errorf("end seat %s: %w", s.req.SeatID, rerr))
			}
		}
		cancel()
		killNonce(s.req.Nonce)
		killMentioning(s.work) // what the agent detached carries its script, and so this directory
		_ = os.RemoveAll(s.dir)
	}
	return err
}
