package seat

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

var hostname, _ = os.Hostname()

// baseRow is the public view of a seat, with what the mesh says of it. What is not known is absent. Uptime is
// not in it: it changes all the time, see uptime.
func (s *Set) baseRow(snap *Snapshot, m meshFacts, status string) wire.AgentRow {
	r, st := snap.Row, snap.Status
	row := wire.AgentRow{
		Name: r.Alias, ID: r.Principal, Agent: r.Agent, Space: s.cfg.Space, Mode: r.Runtime,
		Status: status, Mesh: m.mesh, MeshView: m.view, LifecycleUID: r.UID,
		Role: r.Role, Model: r.Model, Variant: r.Variant, Cwd: r.Cwd, InstanceID: s.cfg.InstanceID, Host: hostname,
		Provider: m.provider, ActiveAt: m.activeAt, OfflineSince: m.offlineSince,
		SeatID: r.SeatID, Reason: r.Reason, MeshBy: m.by, Activity: m.activity,
	}
	if m.reported {
		c := m.condition
		row.Condition = &c
	}
	if c, id, ok := goal.Key(r.RequestID).Split(); ok {
		row.GoalID, row.Spawner = id, c.Principal()
	}
	if !r.Started.IsZero() {
		row.StartedAt = r.Started.UnixMilli()
	}
	if snap.State.Live() && r.Exit == nil {
		row.PID, row.SeatPID, row.Attached = st.Agent.PID, st.Identity.PID, st.Attached
	}
	if r.Exit != nil {
		row.Exit = exitRow(*r.Exit, r.Cause)
	}
	if snap.State == Running && row.Reason == "" {
		row.Reason = snap.Degraded
	}
	if snap.State.Live() && r.Exit == nil {
		row.AuthHealth, row.AuthReason = snap.Auth.health, snap.Auth.reason
		if row.Reason == "" && snap.Auth.health != "" {
			row.Reason = strings.TrimSuffix("its credential is "+strings.ReplaceAll(snap.Auth.health, "-", " ")+": "+snap.Auth.reason, ": ")
		}
	}
	if snap.State == Running && !snap.Ending.IsZero() {
		row.Reason = st.Reason
	}
	return row
}

// row is the whole row of a seat as of this moment.
func (s *Set) row(snap *Snapshot) wire.AgentRow {
	now := time.Now()
	view := s.view()
	var there *wire.Presence
	if p, ok := view.Row(snap.Row.Principal); ok {
		there = &p
	}
	row := s.baseRow(snap, meshOf(view, snap.Row.Principal, snap.Row.UID, there), statusNow(snap, now))
	row.UptimeMs = uptime(snap, now)
	return row
}

// uptime is how long a seat has run, in milliseconds.
func uptime(snap *Snapshot, now time.Time) int64 {
	r := &snap.Row
	if r.Started.IsZero() {
		return 0
	}
	if !r.Ended.IsZero() {
		now = r.Ended
	}
	return max(0, now.Sub(r.Started).Milliseconds())
}

// statusNow is the word for a seat. One whose process has ended and whose end is not recorded must not be listed
// as running.
func statusNow(snap *Snapshot, now time.Time) string {
	if snap.State == Running && !snap.Ending.IsZero() {
		return endingStatus(now.Sub(snap.Ending))
	}
	return statusOf(snap.State)
}

// endingTime is how long the end of a seat may take to be recorded before something is wrong: a rest of its
// tree is ended, and a record is made durable.
const endingTime = 2 * time.Second

// endingStatus is the word for a seat whose process ended so long ago and whose end is not recorded.
func endingStatus(since time.Duration) string {
	if since < endingTime {
		return statusOf(Stopping)
	}
	return statusOf(Unknown)
}

// statusOf maps the actor's state to the word rows use.
func statusOf(s State) string {
	switch s {
	case Starting, Prepared, Restarting:
		return "starting"
	case Exited, Ended:
		return "exited"
	default:
		return string(s)
	}
}

func exitRow(e sdk.Exit, cause string) *wire.SeatExit {
	return &wire.SeatExit{
		Code: e.Code, Signal: e.Signal, At: e.At.UnixMilli(), Asked: e.Asked, Cause: cause,
		Evidence: string(e.Evidence), Detail: e.Detail, Last: e.Last, Reaped: killedRows(e.Reaped),
	}
}

func killedRows(killed []sdk.Killed) []wire.KilledProc {
	rows := make([]wire.KilledProc, 0, len(killed))
	for _, k := range killed {
		rows = append(rows, wire.KilledProc(k))
	}
	return rows
}

func reportOf(r sdk.ReapReport) *wire.StopReport {
	out := &wire.StopReport{Outcome: string(r.Outcome), Killed: killedRows(r.Killed), Removed: r.Removed, Evidence: r.Evidence}
	if r.Exit != nil {
		out.Exit = exitRow(*r.Exit, "")
	}
	return out
}

// maxLastWords bounds the last line of output in a message, in characters. Runtimes promise it; this host tells it
// to terminals.
const maxLastWords = 160

// describeExit is an exit in words, beginning with a space or a colon.
func describeExit(e sdk.Exit) string {
	var b strings.Builder
	switch {
	case e.Signal != "":
		fmt.Fprintf(&b, " by %s", e.Signal)
	case e.Code != nil:
		fmt.Fprintf(&b, " with code %d", *e.Code)
	default:
		b.WriteString(", code not known")
	}
	if e.Evidence != sdk.EvidenceReaped && e.Evidence != "" {
		fmt.Fprintf(&b, " (%s)", e.Evidence)
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if last := terminal.LastLine([]byte(e.Last), maxLastWords); last != "" {
		b.WriteString("; its last line was: " + last)
	}
	return b.String()
}
