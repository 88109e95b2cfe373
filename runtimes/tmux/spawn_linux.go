package tmux

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

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
	record.TokenFile, record.SeatFile, record.SeatFile + ".tmp", record.LogFile,
	record.ExitFile, record.ExitFile + ".tmp", record.AgentFile, placeFile,
}

func lookTmux() (string, error) { return exec.LookPath("tmux") }

// Spawn starts a tmux server for a seat, with one pane, and in it the custody process, and returns once
// that is prepared: nothing of the agent has executed. The directory <seat root>/<seat id> may exist with
// what the host put there. A second Spawn of the same seat, at the same time, later, or by another plugin
// process, returns the same handle. When a step fails everything it made is undone first.
//
// Errors: sdk.ErrInvalid, sdk.ErrUnavailable (no tmux: with what to install), sdk.ErrStaleFence.
func (r *Runtime) Spawn(ctx context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	s, err := r.settings()
	if err != nil {
		return sdk.Handle{}, err
	}
	if err := custodied.CheckSpawn(s.sockets, &req); err != nil {
		return sdk.Handle{}, err
	}
	req.Rows, req.Cols = side(req.Rows, defaultRows), side(req.Cols, defaultCols)
	program, err := findTmux(ctx, s.tmux)
	if err != nil {
		return sdk.Handle{}, err
	}
	sockets, err := seatdir.OpenPrivate(s.sockets)
	if err != nil {
		return sdk.Handle{}, custodied.Unavailable("%v", err)
	}
	sockets.Close()
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
	sp := &spawning{s: s, req: req, dir: dir, madeDir: made, path: s.root.Of(req.SeatID)}
	sp.server = server{program: program, socket: s.tmuxPath(req.SeatID)}
	h, done, err := sp.existing(ctx)
	if done || err != nil {
		return h, err
	}
	if h, err = sp.run(ctx); err != nil {
		return sdk.Handle{}, sp.undo(err)
	}
	return h, nil
}

// side is one side of a terminal: 0 is the default, and no program is given more than it can stand.
func side(n, fallback uint16) uint16 {
	if n == 0 {
		return fallback
	}
	return min(n, maxSide)
}

// spawning is one Spawn under way.
type spawning struct {
	s       *settings
	req     sdk.SpawnRequest
	dir     *os.File
	path    string // of it
	madeDir bool   // this Spawn made the directory
	made    bool   // this Spawn made something in it, or a server
	server  server
	place   place
	token   [seat.TokenBytes]byte
}

// existing answers a Spawn whose seat exists already (done), and clears away what an earlier Spawn left
// that was killed before its custody process wrote a record.
func (sp *spawning) existing(ctx context.Context) (h sdk.Handle, done bool, err error) {
	v, err := sp.s.view(sp.req.SeatID, sdk.Handle{}, sp.req.Nonce)
	if err != nil {
		return h, true, err
	}
	h, done, err = v.Existing(ctx, sp.req, func() error { return sp.s.clearSeatFiles(sp.dir, sp.req.SeatID) })
	if done || err != nil {
		return h, done, err
	}
	return h, false, sp.foreign(ctx)
}

// foreign refuses a socket of ours at which a server answers that does not carry our tag, and ends one
// that does: it is left of this very seat.
func (sp *spawning) foreign(ctx context.Context) error {
	if _, err := os.Lstat(sp.server.socket); custodied.Missing(err) {
		return nil
	}
	id, pid, err := sp.server.tagged(ctx)
	switch {
	case err != nil && verdictOf(err) == noServer:
		return os.Remove(sp.server.socket) // a dead name; nobody answers
	case err != nil:
		return custodied.Unavailable("a tmux server is at %s and does not say whose it is: %v", sp.server.socket, err)
	case id != sp.req.SeatID:
		return custodied.Unavailable("a tmux server that is not ours (process %d) has the socket %s; look at it with: tmux -S %s list-panes -a", pid, sp.server.socket, sp.server.socket)
	}
	if sp.server.id, err = seat.IdentityOf(pid); err != nil {
		return custodied.Unavailable("%v", err)
	}
	_, err = sp.server.end(ctx)
	sp.server.id = seat.Identity{}
	return err
}

func (sp *spawning) run(ctx context.Context) (sdk.Handle, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := fpSpawnDir.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	rec, err := record.Embed{Owner: record.Owner(sp.req.Owner), Form: sp.req.Form, StopGraceMs: sp.req.StopGraceMs}.Encode()
	if err != nil {
		return sdk.Handle{}, err
	}
	_, _ = rand.Read(sp.token[:]) // never fails
	sp.made = true
	if err := record.WriteToken(sp.path, sp.token[:]); err != nil {
		return sdk.Handle{}, err
	}
	if err := fpSpawnToken.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	start := sp.s.startPath(sp.req.SeatID)
	if err := os.Remove(start); err != nil && !custodied.Missing(err) {
		return sdk.Handle{}, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: start, Net: "unix"})
	if err != nil {
		return sdk.Handle{}, fmt.Errorf("listen for the custody process: %w", err)
	}
	defer l.Close() // removes the socket
	if err := sp.startServer(ctx, []string{sp.s.holder.Path, sp.req.SeatID, start}); err != nil {
		return sdk.Handle{}, fmt.Errorf("start tmux: %w", err)
	}
	sp.server.id = seatIdentity(sp.place.Server)
	if err := fpSpawnServer.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	if err := sp.place.write(sp.path); err != nil {
		return sdk.Handle{}, err
	}
	if err := fpSpawnPlaced.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	id, err := sp.handOver(ctx, l, seat.EncodeLaunch(seat.Launch{
		Dir: sp.path, Socket: sp.s.socketPath(sp.req.SeatID), Nonce: sp.req.Nonce, Token: sp.token[:],
		Path: sp.req.Launch.Path, Args: sp.req.Launch.Args, Env: sp.req.Launch.Env, Cwd: sp.req.Cwd,
		Rows: sp.req.Rows, Cols: sp.req.Cols, Fence: sp.req.Fence, Record: rec,
	}))
	if err != nil {
		return sdk.Handle{}, fmt.Errorf("prepare seat: %w", err)
	}
	if err := fpSpawnPrepared.Hit(); err != nil {
		return sdk.Handle{}, err
	}
	return kind.Handle(sp.req.SeatID, custodied.State{
		Socket: sp.s.socketPath(sp.req.SeatID), Seat: identityOf(id), Place: sp.place.text(),
		SeatRoot: sp.s.root.Path, GraceMs: sp.req.StopGraceMs,
	}), nil
}

// startServer starts the seat's tmux server. One that ended while it started is started once more when
// nobody answers at its socket: about one in fifty did so right behind the end of an earlier server of the
// same seat (tmux 3.3a). Nothing was executed by then, since the pane's process waits for what it is to do.
func (sp *spawning) startServer(ctx context.Context, argv []string) (err error) {
	for range 2 {
		if sp.place, err = sp.server.start(ctx, sp.req.SeatID, sp.req.Rows, sp.req.Cols, argv); verdictOf(err) != lost {
			return err
		}
		if _, _, terr := sp.server.tagged(ctx); verdictOf(terr) != noServer {
			return err
		}
	}
	return err
}

// handOver waits for the pane's process, proves that it is that one, and gives it what it is to do.
func (sp *spawning) handOver(ctx context.Context, l *net.UnixListener, launch []byte) (seat.Identity, error) {
	conn, err := sp.accept(ctx, l)
	if err != nil {
		return seat.Identity{}, err
	}
	defer conn.Close()
	if at, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(at)
	}
	// The environment first and alone: it executes itself with it before it takes the rest.
	env := seat.NonceVar + "=" + sp.req.Nonce
	if fp, ok := os.LookupEnv(failpoint.EnvVar); ok {
		env += "\x00" + failpoint.EnvVar + "=" + fp
	}
	if _, err := conn.Write([]byte(env + "\n")); err != nil {
		return seat.Identity{}, err
	}
	if _, err := conn.Write(launch); err != nil {
		return seat.Identity{}, err
	}
	if err := fpSpawnLaunched.Hit(); err != nil {
		return seat.Identity{}, err
	}
	line, err := readLine(conn)
	f := strings.Fields(line)
	switch {
	case ctx.Err() != nil:
		return seat.Identity{}, fmt.Errorf("cotal-tmux-seat said nothing in time: %w", ctx.Err())
	case len(f) == 0:
		return seat.Identity{}, fmt.Errorf("cotal-tmux-seat ended without a word: %v%s", err, sp.screen(ctx))
	case f[0] == "error":
		return seat.Identity{}, errors.New("cotal-tmux-seat: " + strings.TrimPrefix(line, "error "))
	case len(f) != 4 || f[0] != "prepared":
		return seat.Identity{}, fmt.Errorf("cotal-tmux-seat said %.100q instead of prepared", line)
	}
	pid, err1 := strconv.Atoi(f[1])
	ticks, err2 := strconv.ParseUint(f[2], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return seat.Identity{}, fmt.Errorf("cotal-tmux-seat said %.100q: %w", line, err)
	}
	if pid != sp.place.PanePID {
		return seat.Identity{}, fmt.Errorf("cotal-tmux-seat calls itself process %d and the pane runs %d", pid, sp.place.PanePID)
	}
	return seat.Identity{PID: pid, StartTicks: ticks, BootID: f[3]}, nil
}

// accept waits for a connection of the pane's process, as long as that lives.
func (sp *spawning) accept(ctx context.Context, l *net.UnixListener) (*net.UnixConn, error) {
	holder, err := seat.IdentityOf(sp.place.PanePID)
	for err == nil {
		_ = l.SetDeadline(time.Now().Add(50 * time.Millisecond))
		conn, aerr := l.AcceptUnix()
		switch {
		case aerr == nil && peerPID(conn) == sp.place.PanePID:
			return conn, nil
		case aerr == nil:
			conn.Close() // not the pane's process: it is told nothing
		case !errors.Is(aerr, os.ErrDeadlineExceeded):
			return nil, aerr
		}
		if live, _ := seat.Check(holder); live == seat.Dead {
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("cotal-tmux-seat did not come in time: %w", ctx.Err())
		}
	}
	return nil, fmt.Errorf("cotal-tmux-seat ended at once%s", sp.screen(ctx))
}

// screen is what a failed custody process left in its pane, for an error text.
func (sp *spawning) screen(ctx context.Context) string {
	out, err := sp.server.call(ctx, nil, "capture-pane", "-p", "-t", sp.place.Pane)
	if text := strings.Join(strings.Fields(out), " "); err == nil && text != "" {
		return fmt.Sprintf(" (the pane shows: %.300q)", text)
	}
	return ""
}

func peerPID(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && int(cred.Uid) == os.Geteuid() {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// readLine reads up to a newline or 4 KiB.
func readLine(conn net.Conn) (string, error) {
	buf := make([]byte, 4<<10)
	n := 0
	for n < len(buf) {
		m, err := conn.Read(buf[n:])
		n += m
		if line, _, ok := strings.Cut(string(buf[:n]), "\n"); ok {
			return strings.TrimSpace(line), nil
		}
		if err != nil {
			return strings.TrimSpace(string(buf[:n])), err
		}
	}
	return "", errors.New("a line over 4 KiB")
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
	if sp.made {
		v, err := sp.s.view(sp.req.SeatID, sdk.Handle{}, sp.req.Nonce)
		note(err)
		if err == nil {
			if sp.place.known() {
				v.setPlace(sp.place)
			}
			_, err := v.End(ctx)
			note(err)
		}
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

// clearSeatFiles removes what a spawn makes in the seat's directory, and its sockets.
func (s *settings) clearSeatFiles(dir *os.File, id string) error {
	return seatdir.Clear(dir, seatFiles, []string{s.socketPath(id), s.tmuxPath(id), s.startPath(id)})
}
