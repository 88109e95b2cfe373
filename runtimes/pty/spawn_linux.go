package pty

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

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
	if err := custodied.CheckSpawn(s.sockets, &req); err != nil {
		return sdk.Handle{}, err
	}
	req.Rows, req.Cols = cmp.Or(req.Rows, defaultRows), cmp.Or(req.Cols, defaultCols)
	_, unlock, err := r.locks.Lock(ctx, req.SeatID, false)
	if err != nil {
		return sdk.Handle{}, custodied.Unavailable("wait for another call on seat %s: %v", req.SeatID, err)
	}
	defer unlock()
	dir, made, err := s.root.Claim(ctx, req.SeatID)
	if err != nil {
		return sdk.Handle{}, custodied.Unavailable("%v", err)
	}
	defer dir.Close()
	v, err := s.look(req.SeatID, sdk.Handle{}, req.Nonce)
	if err != nil {
		return sdk.Handle{}, err
	}
	h, done, err := v.Existing(ctx, req, func() error { return s.clearSeatFiles(dir, req.SeatID) })
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
	return kind.Handle(sp.req.SeatID, custodied.State{
		Socket: sp.s.socketPath(sp.req.SeatID), Seat: identityOf(id), SeatRoot: sp.s.root.Path, GraceMs: sp.req.StopGraceMs,
	}), nil
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
	ctx, cancel := context.WithTimeout(context.Background(), custodied.UndoTimeout)
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
		note(sp.s.root.Unclaim(sp.req.SeatID))
	}
	return custodied.FailedSpawn(first, failed)
}

// clearSeatFiles removes what a spawn makes in the seat's directory, and its socket.
func (s *settings) clearSeatFiles(dir *os.File, id string) error {
	return seatdir.Clear(dir, seatFiles, []string{s.socketPath(id)})
}

// socketPath is where the seat with this id listens.
func (s *settings) socketPath(id string) string { return custodied.SocketPath(s.sockets, id) }
