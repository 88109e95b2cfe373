package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// dialWait bounds one dial of a seat: it is on this machine and answers at once, or is stopped.
const dialWait = 2 * time.Second

// local is a seat of this machine, reached through its own directory and socket.
type local struct {
	Alias     string
	CustodyID string
	Dir       string
	Socket    string
	token     []byte
	identity  seat.Identity
	root      string         // workspace of its host, or empty
	exit      *wire.SeatExit // it has ended
}

// locateAlone finds a seat by the seat directories, so that seats can be reached without any host. err is why
// the host, which decides what an alias means, did not say.
func locateAlone(ctx context.Context, app *app, ref string, ep wire.Endpoint, err error) (*local, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if errors.Is(err, cli.ErrNotUnique) { // that this machine has one of them settles nothing
		return nil, err
	}
	root, rerr := cli.SeatRoot(ep)
	if rerr != nil {
		return nil, rerr
	}
	s, ferr := find(root, ref, ep.InstanceID)
	if ferr == nil {
		s.root = app.workspace()
	}
	switch {
	case ferr == nil && cli.CodeOf(err) == cli.Unreachable:
		fmt.Fprintf(app.errw, "note: no host answers; using the seat directory %s\n", s.Dir)
		return s, nil
	case ferr == nil: // the host does not know it: another host's seat, named by its id or alias
		fmt.Fprintf(app.errw, "note: %s is not a seat of this host; using the seat directory %s\n", ref, s.Dir)
		return s, nil
	case nameHeld(err): // it says by what, and where
		return nil, err
	case cli.CodeOf(err) == cli.NotFound, cli.CodeOf(err) == cli.Unreachable && cli.CodeOf(ferr) != cli.NotFound:
		return nil, ferr
	case cli.CodeOf(err) == cli.Unreachable:
		return nil, cli.Fail(cli.Unreachable, "%w; and %w", err, ferr)
	}
	return nil, err
}

// nameHeld says whether a seat was not found and a slot holds its name.
func nameHeld(err error) bool {
	var refused *wire.Error
	if !errors.As(err, &refused) {
		return false
	}
	_, held := refused.Detail(wire.DetailSlotObservation)
	return held
}

// inspect asks the host for the row of one seat.
func inspect(ctx context.Context, app *app, ref string) (wire.AgentRow, error) {
	c, err := app.target.Connect(ctx)
	if err != nil {
		return wire.AgentRow{}, err
	}
	defer c.Close()
	return c.Locate(ctx, ref)
}

// fromRow finds the seat of a row in the seat directories of this machine.
func fromRow(row wire.AgentRow, ep wire.Endpoint) (*local, error) {
	if row.SeatID == "" {
		return nil, cli.Fail(cli.Refused, "seat %s has no terminal here: the host does not say its custody id", row.Name)
	}
	root, err := cli.SeatRoot(ep)
	if err != nil {
		return nil, err
	}
	s, err := open(filepath.Join(root, row.SeatID))
	switch {
	case err == nil:
		s.Alias = row.Name
	case row.Exit != nil:
		s = &local{Alias: row.Name, CustodyID: row.SeatID, exit: row.Exit}
	case errors.Is(err, os.ErrNotExist) && row.Host != "" && row.Host != hostname():
		return nil, cli.Fail(cli.Refused, "seat %s runs on %s; its terminal can be reached on that machine only", row.Name, row.Host)
	case errors.Is(err, os.ErrNotExist) && row.Status == "starting":
		return nil, cli.Fail(cli.Refused, "seat %s is still being started; try again in a moment", row.Name)
	default:
		return nil, cli.Fail(cli.Refused, "seat %s is %s, but %w", row.Name, row.Status, err)
	}
	if s.exit == nil {
		s.exit = row.Exit
	}
	return s, nil
}

func hostname() string {
	name, _ := os.Hostname()
	return name
}

// open reads a seat directory.
func open(dir string) (*local, error) {
	rec, err := record.ReadSeat(dir)
	if err != nil {
		return nil, err
	}
	s := fromRecord(dir, rec)
	if x, err := record.ReadExit(dir); err == nil {
		s.exit = exitOfRecord(x)
	}
	if s.token, err = record.ReadToken(dir); err != nil && s.exit == nil {
		return nil, err
	}
	return s, nil
}

func fromRecord(dir string, rec record.Seat) *local {
	return &local{
		Alias: rec.Record.Owner.Alias, CustodyID: rec.CustodyID, Dir: dir, Socket: rec.Socket, identity: rec.Identity(),
	}
}

// find looks through the seat directories. Of several seats with one alias a living one is meant, and
// one of the host in question before those of others.
func find(root, ref, instanceID string) (*local, error) {
	matches, unreadable, err := record.Find(root, ref)
	if err != nil {
		return nil, fmt.Errorf("find seat %s: %w", ref, err)
	}
	best := pick(matches, instanceID)
	switch len(best) {
	case 1:
		return open(best[0].Dir)
	case 0:
		text := fmt.Sprintf("no seat is called %q in %s; see cotal ps", ref, root)
		for _, u := range unreadable {
			text += fmt.Sprintf("; %s cannot be read: %v", u.Dir, u.Err)
		}
		return nil, cli.Fail(cli.NotFound, "%s", text)
	}
	ids := make([]string, 0, len(best))
	for _, m := range best {
		ids = append(ids, m.CustodyID)
	}
	return nil, cli.Fail(cli.Refused, "%q names %d seats; use a custody id: %s", ref, len(best), strings.Join(ids, ", "))
}

// pick narrows matches to the living ones, then to those of the instance, as long as some remain.
func pick(matches []record.Found, instanceID string) []record.Found {
	for _, keep := range []func(record.Found) bool{
		func(m record.Found) bool { return m.Exit == nil },
		func(m record.Found) bool { l, _ := seat.Check(m.Seat.Identity()); return l != seat.Dead },
		func(m record.Found) bool {
			return instanceID != "" && m.Seat.Record.Owner.InstanceID == instanceID
		},
	} {
		var kept []record.Found
		for _, m := range matches {
			if keep(m) {
				kept = append(kept, m)
			}
		}
		if len(kept) > 0 {
			matches = kept
		}
	}
	return matches
}

// dial connects to the seat.
func (s *local) dial(ctx context.Context, role seat.Role, from uint64, rows, cols uint16) (*seat.Conn, error) {
	if len(s.token) == 0 {
		return nil, &os.PathError{Op: "dial seat", Path: s.Socket, Err: os.ErrNotExist}
	}
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	return seat.Dial(ctx, seat.DialConfig{Socket: s.Socket, Token: s.token, Role: role, From: from, Rows: rows, Cols: cols})
}

// status asks the seat how it is, over a connection of its own.
func (s *local) status(ctx context.Context) (seat.Status, error) {
	c, err := s.dial(ctx, seat.RoleOutput, seat.FromLive, 0, 0)
	if err != nil {
		return seat.Status{}, err
	}
	defer c.Close()
	return c.Welcome(), nil
}

// ended says whether the seat is at its end, by its exit record or because its process is proven gone.
func (s *local) ended() (exit *wire.SeatExit, why string, dead bool) {
	if s.Dir != "" {
		if x, err := record.ReadExit(s.Dir); err == nil {
			s.exit = exitOfRecord(x)
		}
	}
	if s.exit != nil {
		return s.exit, "", true
	}
	if l, why := seat.Check(s.identity); l == seat.Dead {
		return nil, "the process that held its terminal is gone (" + why + ") and left no exit record", true
	}
	return nil, "", false
}

func exitOfRecord(x record.Exit) *wire.SeatExit {
	out := &wire.SeatExit{
		Code: x.Code, Signal: x.Signal, At: x.At.UnixMilli(), Asked: x.Asked, Evidence: x.Evidence, Detail: x.Detail, Last: x.Last,
	}
	for _, k := range x.Reaped {
		out.Reaped = append(out.Reaped, wire.KilledProc(k))
	}
	return out
}

func exitOfFrame(x seat.ExitRecord) *wire.SeatExit { return exitOfRecord(record.FromFrame(x)) }
