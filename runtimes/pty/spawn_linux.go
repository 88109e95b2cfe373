package pty

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// handleState is Handle.State. It is enough to find the seat, and to prove its end, when its directory
// is gone or the host now uses another seat root.
type handleState struct {
	Socket   string       `json:"socket"`
	Seat     sdk.Identity `json:"seat"`
	SeatRoot string       `json:"seatRoot"`
	GraceMs  int          `json:"graceMs"`
}

// seatFiles are what this runtime and custody make in a seat's directory, also when they are killed in
// the middle of it. The rest (intent.json, launch, secret) is the host's.
var seatFiles = []string{
	record.TokenFile, record.SeatFile, record.SeatFile + ".tmp", record.RingFile,
	record.LogFile, record.LogFile + ".1", record.ExitFile, record.ExitFile + ".tmp",
	record.AgentFile,
}

// Spawn starts the custody process of a seat and returns once it is prepared: directory, terminal and
// socket exist, nothing of the agent has executed. The directory <seat root>/<seat id> may exist with
// what the host put there. A second Spawn of the same seat, at the same time, later, or by another
// plugin process, returns the same handle. When a step fails everything it made is undone first.
//
// Errors: sdk.ErrInvalid, sdk.ErrUnavailable, sdk.ErrStaleFence.
func (r *Runtime) Spawn(ctx context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	s, err := r.spawnSettings()
	if err != nil {
		return sdk.Handle{}, err
	}
	if err := s.checkSpawn(&req); err != nil {
		return sdk.Handle{}, err
	}
	_, unlock, err := r.locks.Lock(ctx, req.SeatID, false)
	if err != nil {
		return sdk.Handle{}, unavailable("wait for another call on seat %s: %v", req.SeatID, err)
	}
	defer unlock()
	dir, made, err := s.claimDir(ctx, req.SeatID)
	if err != nil {
		return sdk.Handle{}, unavailable("%v", err)
	}
	defer dir.Close()
	if err := s.checkRuntime(req.SeatID); err != nil {
		return sdk.Handle{}, err
	}
	h, done, err := s.existing(ctx, dir, req)
	if done || err != nil {
		return h, err
	}
	sp := &spawning{s: s, req: req, dir: dir, madeDir: made}
	if h, err = sp.run(ctx); err != nil {
		return sdk.Handle{}, sp.undo(err)
	}
	// Before the agent runs: its first questions come within milliseconds.
	r.mirror.Add(req.SeatID, s.socketPath(req.SeatID), sp.token[:])
	return h, nil
}

// checkSpawn refuses what can be refused before anything is made, and fills in defaults.
func (s *settings) checkSpawn(req *sdk.SpawnRequest) error {
	if err := checkSeatID(req.SeatID); err != nil {
		return err
	}
	if err := checkSocketPath(s.sockets, req.SeatID); err != nil {
		return err
	}
	size := len(req.Launch.Path)
	for i, a := range req.Launch.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return sdk.Errorf(sdk.ErrInvalid, "launch.args[%d] holds a zero byte", i)
		}
		size += len(a) + 9
	}
	for i, kv := range req.Launch.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.IndexByte(kv, 0) >= 0 {
			return sdk.Errorf(sdk.ErrInvalid, "launch.env[%d] is not NAME=value", i)
		}
		size += len(kv) + 9
	}
	switch {
	case req.Nonce == "" || strings.ContainsAny(req.Nonce, "\x00\n"):
		return sdk.Errorf(sdk.ErrInvalid, "nonce is empty or not printable")
	case !filepath.IsAbs(req.Launch.Path) || strings.IndexByte(req.Launch.Path, 0) >= 0:
		return sdk.Errorf(sdk.ErrInvalid, "launch.path %q is not an absolute path", req.Launch.Path)
	case !filepath.IsAbs(req.Cwd) || strings.IndexByte(req.Cwd, 0) >= 0:
		return sdk.Errorf(sdk.ErrInvalid, "cwd %q is not an absolute path", req.Cwd)
	case size > maxEnvAndArgs:
		return sdk.Errorf(sdk.ErrInvalid, "argv and environment have %d bytes and the limit is %d", size, maxEnvAndArgs)
	case req.StopGraceMs < 0 || req.StopGraceMs > int(maxGrace/time.Millisecond):
		return sdk.Errorf(sdk.ErrInvalid, "stopGraceMs %d is not in 0..%d", req.StopGraceMs, maxGrace/time.Millisecond)
	case len(req.Form) > 0 && !json.Valid(req.Form):
		return sdk.Errorf(sdk.ErrInvalid, "form is not JSON")
	}
	if st, err := os.Stat(req.Cwd); err != nil {
		return sdk.Errorf(sdk.ErrInvalid, "cwd: %v", err)
	} else if !st.IsDir() {
		return sdk.Errorf(sdk.ErrInvalid, "cwd %s is no directory", req.Cwd)
	}
	if req.Rows == 0 {
		req.Rows = defaultRows
	}
	if req.Cols == 0 {
		req.Cols = defaultCols
	}
	return nil
}

// checkRuntime refuses a seat that was made for another runtime.
func (s *settings) checkRuntime(id string) error {
	v, err := s.look(id, sdk.Handle{}, "")
	if err != nil {
		return err
	}
	return v.ofAnother()
}

// claimDir opens the seat's directory, making it when it is missing, and takes its lock.
func (s *settings) claimDir(ctx context.Context, id string) (dir *os.File, made bool, err error) {
	rfd, path := int(s.root.Fd()), filepath.Join(s.rootPath, id)
	for {
		err := unix.Mkdirat(rfd, id, 0o700)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, false, &fs.PathError{Op: "mkdir", Path: path, Err: err}
		}
		made = err == nil
		if dir, err = seatdir.OpenOwnAt(rfd, id, path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue // a Reap took it away in between
			}
			return nil, false, err
		}
		if err := seatdir.Lock(ctx, dir); err != nil {
			dir.Close()
			return nil, false, err
		}
		if seatdir.Same(rfd, id, dir) {
			return dir, made, nil
		}
		dir.Close()
	}
}

// existing answers a Spawn whose seat exists already (done), and clears away what an earlier Spawn
// left that was killed before its custody process wrote a record.
func (s *settings) existing(ctx context.Context, dir *os.File, req sdk.SpawnRequest) (h sdk.Handle, done bool, err error) {
	path := filepath.Join(s.rootPath, req.SeatID)
	bound, cancel := context.WithTimeout(ctx, startingWait)
	defer cancel()
	for {
		rec, err := record.ReadSeat(path)
		if err == nil {
			h, err := s.sameSeat(rec, path, req)
			return h, true, err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return h, true, &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeUnknown, Detail: err.Error()}
		}
		if _, err := os.Lstat(filepath.Join(path, "token")); errors.Is(err, fs.ErrNotExist) {
			return h, false, nil // the token comes first: nothing was started here
		}
		// A Spawn was interrupted. Its custody process may be about to write the record.
		found, err := seat.FindByNonce(req.Nonce)
		if err != nil {
			return h, true, unavailable("look for an interrupted spawn of seat %s: %v", req.SeatID, err)
		}
		if len(found) > 0 && proctree.Pause(bound, pollEvery) == nil {
			continue
		}
		if len(found) == 0 {
			// It may have written its record and ended between our two looks.
			if _, err := record.ReadSeat(path); err == nil {
				continue
			}
		}
		sw, err := proctree.Hunt(ctx, proctree.Quarry{Nonce: req.Nonce})
		if err != nil || len(sw.Left) > 0 {
			return h, true, unavailable("an interrupted spawn of seat %s left processes: %v %s", req.SeatID, err, strings.Join(sw.Left, "; "))
		}
		return h, false, s.clearSeatFiles(dir, req.SeatID)
	}
}

// sameSeat returns the handle of an existing seat after checking that this request is the one that
// made it.
func (s *settings) sameSeat(rec record.Seat, path string, req sdk.SpawnRequest) (sdk.Handle, error) {
	if rec.CustodyID != req.SeatID || rec.Nonce != req.Nonce || sdk.SeatOwner(rec.Record.Owner) != req.Owner {
		return sdk.Handle{}, sdk.Errorf(sdk.ErrInvalid, "seat %s exists and belongs to another request (%s of instance %s)", req.SeatID, rec.Record.Owner.Alias, rec.Record.Owner.InstanceID)
	}
	if rec.Fence > req.Fence {
		return sdk.Handle{}, sdk.Errorf(sdk.ErrStaleFence, "seat %s was made by host epoch %d, this is epoch %d", req.SeatID, rec.Fence, req.Fence)
	}
	if _, err := record.ReadExit(path); errors.Is(err, fs.ErrNotExist) {
		if live, why := seat.Check(rec.Identity()); live != seat.Alive {
			return sdk.Handle{}, &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeUnknown, Detail: fmt.Sprintf("seat %s exists and its custody process does not live (%s); adopt it to learn its end", req.SeatID, why)}
		}
	}
	return handleOf(handleState{Socket: rec.Socket, Seat: identityOf(rec.Identity()), SeatRoot: s.rootPath, GraceMs: rec.Record.StopGraceMs}, req.SeatID), nil
}

// spawning is one Spawn under way: what it made so far.
type spawning struct {
	s       *settings
	req     sdk.SpawnRequest
	dir     *os.File
	madeDir bool
	token   [seat.TokenBytes]byte
	made    bool // the token is ours: so is every other seat file
	child   *child
}

func (sp *spawning) run(ctx context.Context) (sdk.Handle, error) {
	if err := fpSpawnDir.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	if err := sp.writeToken(); err != nil {
		return sdk.Handle{}, err
	}
	if err := fpSpawnToken.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	// The directory's own name must be as durable as what custody writes in it; meanwhile custody starts.
	synced := make(chan error, 1)
	go func() { synced <- sp.s.root.Sync() }()
	id, err := sp.start(ctx)
	if serr := <-synced; err == nil && serr != nil {
		err = fmt.Errorf("sync seat root: %w", serr)
	}
	if err != nil {
		return sdk.Handle{}, err
	}
	if err := fpSpawnPrepared.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	return handleOf(handleState{
		Socket: sp.s.socketPath(sp.req.SeatID), Seat: identityOf(id), SeatRoot: sp.s.rootPath,
		GraceMs: sp.req.StopGraceMs,
	}, sp.req.SeatID), nil
}

// writeToken makes the seat's secret. It is the first file of a seat: whoever makes it makes the seat.
func (sp *spawning) writeToken() error {
	if _, err := rand.Read(sp.token[:]); err != nil {
		return fmt.Errorf("make token: %w", err)
	}
	path := filepath.Join(sp.dir.Name(), "token")
	fd, err := unix.Openat(int(sp.dir.Fd()), "token", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	sp.made = true
	f := os.NewFile(uintptr(fd), path)
	_, err = f.WriteString(hex.EncodeToString(sp.token[:]) + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write token: %w", err)
	}
	return nil
}

func (sp *spawning) start(ctx context.Context) (seat.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	rec, err := record.Embed{Owner: record.Owner(sp.req.Owner), Form: sp.req.Form, StopGraceMs: sp.req.StopGraceMs}.Encode()
	if err != nil {
		return seat.Identity{}, err
	}
	// Custody gets no environment but what it needs; the agent's stands in the launch record.
	env := []string{seat.NonceVar + "=" + sp.req.Nonce}
	if fp, ok := os.LookupEnv(failpoint.EnvVar); ok {
		env = append(env, failpoint.EnvVar+"="+fp)
	}
	c, err := startChild(sp.s.image, []string{"cotal-seat", sp.req.SeatID}, env, sp.dir)
	if err != nil {
		return seat.Identity{}, fmt.Errorf("start cotal-seat: %w", err)
	}
	sp.child = c
	if err := fpSpawnStarted.Hit(); err != nil {
		return seat.Identity{}, err
	}
	id, err := c.prepare(ctx, seat.EncodeLaunch(seat.Launch{
		Dir: sp.dir.Name(), Socket: sp.s.socketPath(sp.req.SeatID), Nonce: sp.req.Nonce, Token: sp.token[:],
		Path: sp.req.Launch.Path, Args: sp.req.Launch.Args, Env: sp.req.Launch.Env, Cwd: sp.req.Cwd,
		Rows: sp.req.Rows, Cols: sp.req.Cols, Fence: sp.req.Fence, Record: rec,
	}))
	if err != nil {
		return seat.Identity{}, fmt.Errorf("prepare seat: %w%s", err, logTail(sp.dir))
	}
	return id, nil
}

// undo removes what this Spawn made and returns first as the headline, followed by what could not be
// undone. It works on its own time: the caller's may be over.
func (sp *spawning) undo(first error) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	var failed []string
	note := func(err error) {
		if err != nil {
			failed = append(failed, err.Error())
		}
	}
	note(fpSpawnUndo.Hit())
	if sp.child != nil {
		note(sp.child.kill(ctx))
		sw, err := proctree.Hunt(ctx, proctree.Quarry{Nonce: sp.req.Nonce})
		note(err)
		for _, left := range sw.Left {
			failed = append(failed, "process "+left)
		}
	}
	// With a process left the files stay: they are how it is found again.
	if len(failed) == 0 && sp.made {
		note(sp.s.clearSeatFiles(sp.dir, sp.req.SeatID))
	}
	if len(failed) == 0 && sp.madeDir {
		note(unix.Unlinkat(int(sp.s.root.Fd()), sp.req.SeatID, unix.AT_REMOVEDIR))
	}
	e := &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeNotExecuted, Retryable: true, Detail: first.Error()}
	if len(failed) > 0 {
		e.Outcome, e.Retryable = sdk.OutcomeUnknown, false
		e.Detail += "; undoing it failed too: " + strings.Join(failed, "; ")
	}
	return e
}

// clearSeatFiles removes what a spawn makes in the seat's directory, and its socket.
func (s *settings) clearSeatFiles(dir *os.File, id string) error {
	var errs []error
	if err := os.Remove(s.socketPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, name := range seatFiles {
		if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, &fs.PathError{Op: "remove", Path: filepath.Join(dir.Name(), name), Err: err})
		}
	}
	return errors.Join(errs...)
}

func handleOf(state handleState, id string) sdk.Handle {
	text, _ := json.Marshal(state) // strings and numbers: cannot fail
	return sdk.Handle{Version: handleVersion, Ref: id, State: text}
}

func unavailable(format string, args ...any) error {
	e := sdk.Errorf(sdk.ErrUnavailable, format, args...).(*sdk.Error)
	e.Retryable = true
	return e
}
