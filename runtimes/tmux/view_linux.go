package tmux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

var kind = &custodied.Kind{
	Name: Name, HandleVersion: handleVersion,
	Points: custodied.Points{
		AdoptBegin: fpAdoptBegin, AdoptCommit: fpAdoptCommit, AdoptCommitted: fpAdoptCommitted,
		AdoptLost: fpAdoptLost, AdoptSwept: fpAdoptSwept, AdoptRecorded: fpAdoptRecorded,
		ReapBegin: fpReapBegin, ReapTerm: fpReapTerm, ReapKill: fpReapKill, ReapExited: fpReapExited,
		ReapGone: fpReapGone, ReapServer: fpReapServer, ReapScanned: fpReapScanned,
		ReapRenamed: fpReapRenamed, ReapRemoved: fpReapRemoved,
	},
}

// view is a seat and its place in tmux. It is the seat's Terminal: what tmux knows beside custody.
type view struct {
	*custodied.Seat
	s        *settings
	place    place // of the directory, else of the handle
	placeErr error
}

// view reads a seat. Errors: sdk.ErrInvalid for a malformed id or handle, or another runtime's seat;
// sdk.ErrUnavailable when the directory exists and is not trustworthy.
func (s *settings) view(id string, h sdk.Handle, nonce string) (*view, error) {
	v, err := s.read(id, h, nonce)
	if err != nil {
		return nil, err
	}
	if of, known := v.runtime(); known && of != Name {
		return nil, sdk.Errorf(sdk.ErrInvalid, "seat %s was made for the runtime %s, not for %s", id, of, Name)
	}
	return v, nil
}

// read is view, for a seat of any runtime.
func (s *settings) read(id string, h sdk.Handle, nonce string) (*view, error) {
	of, err := kind.Seat(s.root, s.sockets, id, h, nonce)
	if err != nil {
		return nil, err
	}
	v := &view{Seat: of, s: s}
	if len(v.State.Place) > 0 {
		if err := json.Unmarshal(v.State.Place, &v.place); err != nil {
			return nil, sdk.Errorf(sdk.ErrInvalid, "handle of seat %s: state: %v", id, err)
		}
	}
	v.Term = v
	return v, v.Read()
}

// ReadPlace reads the place from the seat's directory; without one that of the handle stays.
func (v *view) ReadPlace() {
	p, err := readPlace(v.Dir)
	if v.placeErr = err; err == nil {
		v.setPlace(p)
	}
}

func (v *view) setPlace(p place) { v.place, v.State.Place = p, p.text() }

// seatOf reads a seat for the rules that all custodied seats share.
func (s *settings) seatOf(id string, h sdk.Handle, nonce string) (*custodied.Seat, error) {
	v, err := s.view(id, h, nonce)
	if err != nil {
		return nil, err
	}
	return v.Seat, nil
}

// runtime returns which runtime the seat's directory was made for. A place in tmux is as good as an
// intent; an intent that names nobody is of the time when there was only one runtime.
func (v *view) runtime() (name string, known bool) {
	switch {
	case !v.Exists:
		return "", false
	case v.placeErr == nil:
		return Name, true
	case v.IntentErr == nil && v.Intent.Runtime == "":
		return "pty", v.RecErr == nil
	case v.IntentErr == nil:
		return v.Intent.Runtime, true
	}
	return "", false
}

// server returns the seat's tmux server as far as it is known: by its record, else by its place alone.
// It is talked to with its own program, else with the one that is installed now.
func (v *view) server() server {
	sv := server{socket: v.s.tmuxPath(v.ID)}
	if v.place.known() {
		sv.socket, sv.id = v.place.Socket, seatIdentity(v.place.Server)
		if path, ok := ownProgram(sv.id); ok {
			sv.program = path
			return sv
		}
	}
	sv.program = v.s.installed(v.place.Program)
	return sv
}

// installed returns a tmux to talk with: the configured one, the one in PATH, else the given one.
func (s *settings) installed(last string) string {
	if s.tmux != "" {
		return s.tmux
	}
	if path, err := lookTmux(); err == nil {
		return path
	}
	return last
}

// Running adds what tmux knows of a living seat: how many look at it, and the modes of its screen.
func (v *view) Running(ctx context.Context, st *sdk.SeatStatus) {
	if !v.place.known() {
		return
	}
	p, err := v.server().look(ctx, v.place.Pane)
	if err != nil {
		st.Reason = "tmux: " + err.Error()
		return
	}
	st.Attached, st.Modes = p.attached, uint32(p.modes)
}

// Carry keeps what only tmux tells, and it tells of nothing unasked.
func (v *view) Carry(st *sdk.SeatStatus, last sdk.SeatStatus) {
	st.Attached, st.Modes = last.Attached, last.Modes
	if st.State == last.State && st.Reason == "" && st.Agent == last.Agent {
		st.Reason = last.Reason
	}
}

// Ended asks the dead pane, as long as it stands, for its last line and hears it as a second witness.
func (v *view) Ended(ctx context.Context, x *record.Exit) {
	if !v.place.known() {
		return
	}
	if id, known := v.Custody(); known {
		_ = proctree.AwaitDeath(ctx, id) // then the pane is dead, and can be asked
	}
	p, screen, _ := v.deadPane(ctx)
	if !p.dead {
		return
	}
	if said := witness(*x, p); said != "" {
		if x.Detail != "" {
			said = x.Detail + "; " + said
		}
		x.Detail = said
	}
	if x.Last == "" {
		x.Last = terminal.LastLine([]byte(screen), 160)
	}
}

// deadPane returns what tmux says of the pane of a seat that has ended, as far as it says it by the end of
// ctx. Custody writes its record a moment before it ends; tmux notices the end of the terminal a moment
// later, and after that how the process ended. An error is that of the last call.
func (v *view) deadPane(ctx context.Context) (p pane, screen string, err error) {
	sv := v.server()
	for {
		out, err := sv.call(ctx, nil, "display-message", "-p", "-t", v.place.Pane, paneFormat, ";", "capture-pane", "-p", "-J", "-t", v.place.Pane)
		if err != nil {
			return p, screen, err // with what it said when it last answered
		}
		head, shown := cutLine(out)
		now, err := parsePane(head)
		if err != nil {
			return p, screen, err
		}
		p, screen = now, shown
		if p.dead && p.told() {
			return p, screen, nil
		}
		if p.dead {
			v.tellAgain(sv)
		}
		if proctree.Pause(ctx, custodied.PollEvery) != nil {
			return p, screen, nil
		}
	}
}

// tellAgain repeats to the server the signal that the process of its pane has ended. When a terminal comes
// and when it goes, tmux has libutempter run a helper, which takes the handler of SIGCHLD away for that
// long; the process of the pane ends in just that moment every third time, and then it stays a zombie and
// the pane never tells. A server that says that the pane is dead is through with its helper, so this one
// arrives.
func (v *view) tellAgain(sv server) {
	st, err := seat.ReadProc(v.place.PanePID)
	if err == nil && st.State == 'Z' && sv.id.PID != 0 && st.PPID == sv.id.PID {
		_ = seat.SignalExact(sv.id, unix.SIGCHLD)
	}
}

// LastWord is what tmux says of how a lost custody process ended, for a sentence. It proves nothing about
// the agent, whose code stays unknown.
func (v *view) LastWord(ctx context.Context) string {
	if !v.place.known() {
		return ""
	}
	p, _, err := v.deadPane(ctx)
	switch {
	case err != nil && !p.dead:
		return " (tmux: " + err.Error() + ")"
	case p.dead && p.signal != 0:
		return " (tmux says by " + nameOf(p.signal) + ")"
	case p.dead && p.status != nil:
		return fmt.Sprintf(" (tmux says with code %d)", *p.status)
	}
	return ""
}

// Starting names the process of the seat's pane, which may be about to become custody.
func (v *view) Starting(ctx context.Context) string {
	if live, pid := v.paneLives(ctx); live {
		return fmt.Sprintf("the process %d of its pane lives", pid)
	}
	return ""
}

// paneLives reports whether the process that was started in the seat's pane may live.
func (v *view) paneLives(ctx context.Context) (bool, int) {
	if !v.place.known() {
		out, err := v.server().call(ctx, nil, "display-message", "-p", "#{pane_dead} #{pane_pid}")
		var dead, pid int
		if _, serr := fmt.Sscan(out, &dead, &pid); err != nil || serr != nil || dead == 1 {
			return false, 0
		}
		_, err = seat.IdentityOf(pid)
		return err == nil, pid
	}
	st, err := seat.ReadProc(v.place.PanePID)
	return err == nil && st.State != 'Z' && st.StartTicks >= v.place.Server.StartTicks && st.PPID == v.place.Server.PID, v.place.PanePID
}

// End ends the seat's tmux server and proves it. A server that is only known by its socket must
// carry the seat's tag; one that does not is left alone, and is an error.
func (v *view) End(ctx context.Context) (how string, err error) {
	sv := v.server()
	if sv.id.PID == 0 {
		if _, err := os.Lstat(sv.socket); custodied.Missing(err) {
			return "", nil
		}
		id, pid, err := sv.tagged(ctx)
		switch {
		case err != nil && verdictOf(err) == noServer:
			return "", nil
		case err != nil:
			return "", fmt.Errorf("ask the tmux server at %s whose it is: %w", sv.socket, err)
		case id != v.ID:
			return "", fmt.Errorf("the tmux server at %s (process %d) is not the seat's; look at it with: tmux -S %s list-panes -a", sv.socket, pid, sv.socket)
		}
		if sv.id, err = seat.IdentityOf(pid); errors.Is(err, seat.ErrProcessGone) {
			return "", nil
		} else if err != nil {
			return "", err
		}
	} else if live, _ := seat.Check(sv.id); live == seat.Dead {
		return fmt.Sprintf("tmux server %d is gone", sv.id.PID), nil
	}
	return sv.end(ctx)
}

// Sockets are those of the seat's server, and of a start.
func (v *view) Sockets() []string { return []string{v.server().socket, v.s.startPath(v.ID)} }
