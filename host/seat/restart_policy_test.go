package seat

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Which seats are started again, and how often.
//
// proves: EXIT-3, EXIT-7, LAUNCH-9
func TestRestartPolicy(t *testing.T) {
	asked := &wire.Supervise{Restarts: 5, WindowMs: 1000}
	for name, c := range map[string]struct {
		asked *wire.Supervise
		facts sdk.ConnectorFacts
		want  *journal.Restart
	}{
		"nobody asked and no session can be reopened": {nil, sdk.ConnectorFacts{SupportsFreshStart: true}, nil},
		"nobody asked and sessions can be reopened":   {nil, sdk.ConnectorFacts{SupportsSessionContinuation: true}, &journal.Restart{Restarts: 3, WindowMs: 120_000, Continue: true}},
		"asked, afresh":                       {asked, sdk.ConnectorFacts{SupportsFreshStart: true}, &journal.Restart{Restarts: 5, WindowMs: 1000, Asked: true}},
		"asked, and sessions can be reopened": {asked, sdk.ConnectorFacts{SupportsSessionContinuation: true}, &journal.Restart{Restarts: 5, WindowMs: 1000, Asked: true, Continue: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got := restartPolicy(c.asked, c.facts)
			if (got == nil) != (c.want == nil) || got != nil && (got.Restarts != c.want.Restarts || got.WindowMs != c.want.WindowMs || got.Asked != c.want.Asked || got.Continue != c.want.Continue) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// What follows on the end of a process.
//
// proves: EXIT-3, EXIT-8
func TestAfterEnd(t *testing.T) {
	now := time.Unix(10_000, 0)
	code := func(n int) sdk.Exit { return sdk.Exit{Code: &n, Evidence: sdk.EvidenceReaped} }
	killed := sdk.Exit{Signal: "SIGKILL", Evidence: sdk.EvidenceReaped}
	ends := func(ages ...time.Duration) (at []time.Time) {
		for _, age := range ages {
			at = append(at, now.Add(-age))
		}
		return at
	}
	row := func(change func(*journal.SeatRow)) journal.SeatRow {
		r := journal.SeatRow{Ready: now, Restart: &journal.Restart{Restarts: 3, WindowMs: 120_000, Asked: true}}
		if change != nil {
			change(&r)
		}
		return r
	}
	lost := code(1)
	lost.Evidence = sdk.EvidenceCustodyLost
	rebooted := sdk.Exit{Evidence: sdk.EvidenceRebooted}
	asked := code(1)
	asked.Asked = true
	cases := []struct {
		name    string
		row     journal.SeatRow
		exit    sdk.Exit
		session string
		want    follow
	}{
		{"a crash is followed by another process", row(nil), code(1), "", followNext},
		{"so is a kill from outside", row(nil), killed, "", followNext},
		{"three within two minutes are", row(func(r *journal.SeatRow) { r.Restart.Ends = ends(110*time.Second, 60*time.Second) }), code(1), "", followNext},
		{"the fourth is one too many", row(func(r *journal.SeatRow) { r.Restart.Ends = ends(110*time.Second, 60*time.Second, time.Second) }), code(1), "", followLoop},
		{"one of them is forgotten after two minutes", row(func(r *journal.SeatRow) { r.Restart.Ends = ends(120*time.Second, 60*time.Second, time.Second) }), code(1), "", followNext},
		{"a success is final", row(nil), code(0), "", followNone},
		{"an end that the runtime says was asked for is final", row(nil), asked, "", followNone},
		{"an end that this host asked for is final", row(func(r *journal.SeatRow) { r.Cause = causeRequested }), killed, "", followNone},
		{"the agent's own stop is final", row(func(r *journal.SeatRow) { r.Cause = causeSelf }), code(1), "", followNone},
		{"the end of the host with its seats is final", row(func(r *journal.SeatRow) { r.Cause = causeShutdown }), killed, "", followNone},
		{"lost custody is final: nobody knows what still runs", row(nil), lost, "", followNone},
		{"the end of the machine is final", row(nil), rebooted, "", followNone},
		{"an exit before the spawn was decided fails the spawn", row(func(r *journal.SeatRow) { r.Ready = time.Time{} }), code(1), "", followNone},
		{"a seat that is not started again has ended", row(func(r *journal.SeatRow) { r.Restart = nil }), code(1), "", followNone},
		{"without being asked, only a known session is gone on with", row(func(r *journal.SeatRow) { r.Restart.Asked = false }), code(1), "", followNone},
		{"and such a one is", row(func(r *journal.SeatRow) { r.Restart.Asked = false }), code(1), "ses_1", followNext},
		{"a replacement that never proved itself is not replaced", row(func(r *journal.SeatRow) { r.Restart.Proving = true }), code(1), "", followFailed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := afterEnd(c.row, c.exit, c.session, now); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// proves: F10
func TestRestartDelayGrowsAndIsBounded(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 0, 2: time.Second, 3: 2 * time.Second, 4: 4 * time.Second, 7: restartWaitMax, 1000: restartWaitMax} {
		if got := restartDelay(time.Second, n); got != want {
			t.Errorf("before process %d: %s, want %s", n, got, want)
		}
	}
}

// A fork is made again where it is known that nothing was said in it, and only there.
func TestBegun(t *testing.T) {
	end := time.UnixMilli(1_000_000)
	word := func(before time.Duration, meta map[string]json.RawMessage) wire.Presence {
		return wire.Presence{LifecycleUID: "u", TS: end.Add(-before).UnixMilli(), Card: wire.AgentCard{Meta: meta}}
	}
	session := func(text string) map[string]json.RawMessage {
		return map[string]json.RawMessage{metaSession: json.RawMessage(text)}
	}
	first := journal.Restart{}
	for name, c := range map[string]struct {
		r    journal.Restart
		last wire.Presence
		ours bool
		want bool
	}{
		"it was never on the mesh, and this host launched it":         {first, wire.Presence{}, true, false},
		"an earlier host launched it, and it is not seen":             {first, wire.Presence{}, false, true},
		"it told of no session up to its end":                         {first, word(time.Second, nil), false, false},
		"it was last heard of long before its end":                    {first, word(time.Minute, nil), true, true},
		"it told of a session":                                        {first, word(time.Minute, session(`"s"`)), true, true},
		"its conversation was cleared":                                {first, word(time.Second, session(`""`)), true, true},
		"it was to go on in a session and told of none":               {journal.Restart{Session: "s"}, word(time.Second, nil), true, true},
		"it was begun before":                                         {journal.Restart{Begun: true}, word(time.Second, nil), true, true},
		"only the process before it was heard of, and it is ours":     {journal.Restart{Floor: end.UnixMilli()}, word(time.Second, nil), true, false},
		"only the process before it was heard of, by an earlier host": {journal.Restart{Floor: end.UnixMilli()}, word(time.Second, nil), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := begun(&c.r, c.last, end, c.ours); got != c.want {
				t.Errorf("%t, want %t", got, c.want)
			}
		})
	}
}
