package seat

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Probing a program that boots: each try is bounded, because a server that is still booting may
// accept and never answer.
const (
	probeEvery   = 100 * time.Millisecond
	probeTimeout = 1500 * time.Millisecond
)

// loopback reports whether addr is an address and port of this machine. Names are none: who resolves them is
// not ours.
func loopback(addr string) bool {
	at, err := netip.ParseAddrPort(addr)
	return err == nil && at.Addr().IsLoopback() && at.Port() != 0
}

// probe reports whether p answers now.
func probe(ctx context.Context, p sdk.Probe) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if p.Path == "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Addr+p.Path, nil)
	if err != nil {
		return false
	}
	if p.User != "" || p.Password != "" {
		req.SetBasicAuth(p.User, p.Password)
	}
	// A client of its own: no connection is kept to a program that may be killed, no proxy is used.
	// Nor is it followed elsewhere: a redirect is an answer.
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode < 500
}

// readyAtCommit reports whether a seat counts as ready once its process runs: its connector names the process,
// and no address that has to answer.
func readyAtCommit(row journal.SeatRow, p *sdk.Probe) bool {
	return row.ReadyBy != string(sdk.ReadyByPresence) && p == nil
}

// awaitReady decides the goal of a running seat by the first of three facts: what its connector counts as ready,
// the end of its process or of its seat, the end of the window. The watch of the exit is on already, so nothing
// that comes before this is missed; an exit or a stop settles the goal elsewhere, and this race is over then.
func (a *actor) awaitReady(p *sdk.Probe, window time.Duration) {
	row := a.snapshot().Row
	if readyAtCommit(row, p) {
		return // settled together with Running
	}
	a.race(row, p, window, func(ready bool) {
		end := uncertain(a.snapshot(), window)
		if ready {
			if row.ReadyBy == string(sdk.ReadyByPresence) {
				a.set.cfg.Goals.Phase(goal.Key(row.RequestID), wire.PhasePresence)
			}
			end = &settle{state: wire.GoalSucceeded, data: a.spawnResult()}
		}
		a.settleReady(end)
	})
}

// race waits for the readiness of one process and calls done in the actor, unless that process ends or is being
// stopped before.
func (a *actor) race(row journal.SeatRow, p *sdk.Probe, window time.Duration, done func(ready bool)) {
	ctx, cancel := context.WithCancel(a.set.life)
	a.endRace, a.racing = cancel, row.SeatID
	a.background(func() {
		defer cancel()
		bound, stop := context.WithTimeout(ctx, window)
		defer stop()
		ready := a.becomesReady(bound, row, p)
		if !ready && ctx.Err() == nil {
			a.lastLook(ctx, row)
		}
		over := func() { a.racing = "" }
		if ctx.Err() == nil {
			over = func() {
				a.racing = ""
				done(ready)
			}
		}
		a.post(func() {
			if a.snapshot().Row.SeatID == row.SeatID {
				over()
			}
		})
	})
}

// becomesReady reports whether a process got ready before ctx ended.
func (a *actor) becomesReady(ctx context.Context, row journal.SeatRow, p *sdk.Probe) bool {
	if row.ReadyBy == string(sdk.ReadyByPresence) {
		return a.set.joined(ctx, row)
	}
	for !probe(ctx, *p) {
		if sleep(ctx, probeEvery) != nil {
			return false
		}
	}
	return true
}

// joinedEvery bounds one wait for a change of the mesh: a heartbeat alone is none, and may be all that tells one
// process of a life from the next.
const joinedEvery = 250 * time.Millisecond

// joined waits until the mesh has seen exactly this life, and of it a process later than the last that ended.
func (s *Set) joined(ctx context.Context, row journal.SeatRow) bool {
	var floor int64
	if row.Restart != nil {
		floor = row.Restart.Floor
	}
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, joinedEvery)
		if s.cfg.Roster != nil {
			_, err := s.cfg.Roster.Await(wait, func(p wire.Presence) bool { return joins(p, row.Principal, row.UID, floor) })
			if err == nil {
				cancel()
				return true
			}
		}
		<-wait.Done() // also where the roster itself has given up
		cancel()
	}
	return false
}

// lastLook is for a runtime that tells of no exit by itself: what its seat came to is asked once more before its
// readiness is called uncertain, and if there is no proof of an end then, one more time between two looks is
// granted.
func (a *actor) lastLook(ctx context.Context, row journal.SeatRow) {
	_, info, err := a.set.cfg.Plugins.Runtime(ctx, row.Runtime)
	if err == nil && info.Has(sdk.CapWatch) {
		return
	}
	if st, err := a.adopt(ctx, false); err == nil && (st.State == sdk.SeatExited || st.State == sdk.SeatNotFound) {
		a.post(func() { a.onStatusOf(row.SeatID, st) })
		return
	}
	_ = sleep(ctx, a.set.cfg.ExitPoll)
}

// settleReady writes the terminal of a spawn whose seat still runs, as far as is known.
func (a *actor) settleReady(end *settle) {
	ev := EvRunning
	switch a.snapshot().State {
	case Running:
	case Unknown: // its runtime does not answer; who joined the mesh did all the same
		ev = EvUnknown
	default:
		return // stopped or exited: that transition settled the goal
	}
	if err := a.transition(ev, func(r *journal.SeatRow) { r.Ready = time.Now() }, end); err != nil {
		a.log.Error("settle spawn goal", "err", err)
		a.after(0, func() { a.settleReady(end) })
	}
}

// foundRunning takes back a seat that runs, and decides its spawn, or goes on deciding it, when that was left open.
func (a *actor) foundRunning(handle sdk.Handle) error {
	end := a.recoveredTerminal()
	err := a.transition(EvRunning, func(r *journal.SeatRow) {
		r.Reason = ""
		if handle.Ref != "" {
			r.Handle = handle
		}
		if r.Started.IsZero() {
			r.Started = time.Now()
		}
		if r.Ready.IsZero() && end != nil {
			r.Ready = time.Now()
		}
	}, end)
	a.resumeReady()
	a.adoptLife(0)
	return err
}

// recoveredTerminal is the terminal of a spawn whose host ended before it was decided, and whose seat runs; nil
// when it was decided, or is to be decided by the mesh, for which resumeReady waits. A spawn that waited for
// an address is decided by what is known: it runs.
func (a *actor) recoveredTerminal() *settle {
	if row := a.snapshot().Row; row.ReadyBy == string(sdk.ReadyByPresence) || !row.Ready.IsZero() {
		return nil
	}
	return &settle{state: wire.GoalSucceeded, data: a.spawnResult()}
}

// resumeReady goes on waiting for the mesh to see a seat, for what is left of its window. Whoever is on the mesh
// needs a window of presence to be seen again by a host that has only just come.
func (a *actor) resumeReady() {
	row := a.snapshot().Row
	if a.racing == row.SeatID {
		return // this host waits already
	}
	if follows(row) && row.Restart.Proving {
		a.onFollowed(nil, nil)
		return
	}
	if row.ReadyBy != string(sdk.ReadyByPresence) || !row.Ready.IsZero() {
		return
	}
	a.awaitReady(nil, max(time.Until(row.Started.Add(readyWindow(row))), wire.PresenceWindow))
}

// uncertain is the terminal of a launch that neither got ready nor exited in its window. The seat is
// kept: slow is not dead.
func uncertain(snap *Snapshot, window time.Duration) *settle {
	what := "did not answer its readiness probe"
	if snap.Row.ReadyBy == string(sdk.ReadyByPresence) {
		what = "did not join the mesh"
	}
	name := snap.Row.Alias
	return &settle{state: wire.GoalUncertain, err: &wire.Error{
		Code: wire.CodeDeadlineExceeded, Outcome: wire.OutcomeUnknown,
		Message: name + " runs but " + what + " within " + window.String() + "; it is kept: look with cotal attach " + name +
			", cotal logs or cotal ps, do not stop it only because the wait is over, and do not spawn it again",
	}}
}

// spawnResult is the data of a spawn that succeeded.
func (a *actor) spawnResult() wire.SpawnResult {
	snap := a.snapshot()
	r := snap.Row
	out := wire.SpawnResult{
		Name: r.Alias, Agent: r.Agent, ID: r.Principal, Mode: r.Runtime, LifecycleUID: r.UID, Role: r.Role,
		SeatID: r.SeatID, PID: snap.Status.Agent.PID,
	}
	if form, err := launch.ParseForm(r.Form); err == nil { // a seat found without its journal has none
		out.EventsNotice = form.EventsNotice
		if l := form.Launch; l != nil {
			out.RunID, out.Requested, out.Hash = l.RunID, l.Requested, l.Hash
		}
	}
	return out
}

// result encodes a terminal.
func (s *settle) result() (wire.GoalResult, error) {
	out := wire.GoalResult{State: s.state, Error: s.err}
	if s.data != nil {
		data, err := wire.CanonicalJSON(s.data)
		if err != nil {
			return out, err
		}
		out.Data = data
	}
	return out, nil
}

// readyWindow is how long a seat has to answer its probe.
func readyWindow(row journal.SeatRow) time.Duration {
	ms := row.ReadinessMs
	if ms <= 0 {
		ms = sdk.DefaultReadinessTimeoutMs
	}
	return time.Duration(ms) * time.Millisecond
}
