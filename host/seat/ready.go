package seat

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
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

// awaitReady decides the goal of a running seat: succeeded once the probe answers, uncertain when the
// window passes. An exit or a stop meanwhile settles the goal elsewhere, and this one is over.
func (a *actor) awaitReady(p *sdk.Probe, window time.Duration) {
	if p == nil {
		return // settled together with Running
	}
	a.background(func() {
		deadline := time.Now().Add(window)
		for !probe(a.set.life, *p) {
			select {
			case <-a.done:
				return
			case <-a.set.life.Done():
				return
			case <-time.After(probeEvery):
			}
			if time.Now().After(deadline) {
				a.post(func() { a.settleReady(uncertain(a.snapshot(), window)) })
				return
			}
		}
		a.post(func() { a.settleReady(&settle{state: wire.GoalSucceeded, data: a.spawnResult()}) })
	})
}

// settleReady writes the terminal of a spawn whose seat still runs.
func (a *actor) settleReady(end *settle) {
	if a.snapshot().State != Running {
		return // stopped or exited: that transition settled the goal
	}
	if err := a.transition(EvRunning, nil, end); err != nil {
		a.log.Error("settle spawn goal", "err", err)
		a.after(0, func() { a.settleReady(end) })
	}
}

// uncertain is the terminal of a launch that neither answered nor exited in its window. The seat is
// kept: slow is not dead.
func uncertain(snap *Snapshot, window time.Duration) *settle {
	return &settle{state: wire.GoalUncertain, err: &wire.Error{
		Code: wire.CodeDeadlineExceeded, Outcome: wire.OutcomeUnknown,
		Message: snap.Row.Alias + " runs but did not answer its readiness probe within " + window.String() +
			"; it is kept: look with cotal attach or cotal logs, and do not spawn it again",
	}}
}

// spawnResult is the data of a spawn that succeeded.
func (a *actor) spawnResult() wire.SpawnResult {
	snap := a.snapshot()
	r := snap.Row
	return wire.SpawnResult{
		Name: r.Alias, Agent: r.Agent, ID: r.Principal, Mode: r.Runtime, LifecycleUID: r.UID, Role: r.Role,
		SeatID: r.SeatID, PID: snap.Status.Agent.PID,
	}
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
