package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestStatusShowsWhatIsWrongWithCredentialsAndSlots(t *testing.T) {
	in := func(d time.Duration) int64 { return time.Now().Add(d).UnixMilli() }
	for name, c := range map[string]struct {
		s     wire.StatusReply
		want  []string
		never []string
	}{
		"an open space has neither": {wire.StatusReply{}, nil, []string{"creds", "slots"}},
		"credentials that are well are counted": {
			wire.StatusReply{Credentials: []wire.CredentialStatus{{Profile: "supervisor", Health: "healthy", Expires: in(time.Hour)}, {Profile: "agent", Seat: "a", Health: "healthy"}}},
			[]string{"creds     2 of 2 credentials are well\n"},
			[]string{"supervisor", "agent"},
		},
		"one that cannot be renewed is named, with its end and the reason": {
			wire.StatusReply{Credentials: []wire.CredentialStatus{
				{Profile: "supervisor", Health: "healthy"},
				{Profile: "agent", Seat: "reviewer", Health: "near-expiry", Expires: in(90 * time.Minute), Reason: "renew agent: no\nbroker"},
				{Profile: "watcher", Health: "expired", Expires: in(-3 * time.Minute)},
			}},
			[]string{
				"creds     1 of 3 credentials are well\n", "creds     agent of reviewer: near-expiry, ends in 1.4h; NOT RENEWED: renew agent: no; broker\n",
				"creds     watcher: expired, ended 3m ago\n",
			},
			nil,
		},
		"a sweep that found nothing is told from one that failed": {
			wire.StatusReply{StaticReconciliation: &wire.StaticReconciliation{State: "idle", LastSweep: &wire.StaticSweep{Kind: "startup", StartedAt: in(-3 * time.Minute), CompletedAt: in(-2 * time.Minute)}}},
			[]string{"slots     idle; startup sweep 2m ago: 0 left over, 0 ended, 0 not\n"},
			[]string{"failed"},
		},
		"a slot that does not end is named, with what to do": {
			wire.StatusReply{StaticReconciliation: &wire.StaticReconciliation{State: "failed", Failures: []wire.SlotFailure{
				{Alias: "reviewer", Phase: "terminalizing", Attempts: 4, Disposition: "retry-exhausted", LastError: "no broker", Remedy: "restart the host"},
				{Alias: "scout", Phase: "active", Attempts: 1, Disposition: "retry-scheduled", NextRetryAt: in(4 * time.Second)},
			}}},
			[]string{
				"slots     failed\n", "slot      reviewer (terminalizing): retry-exhausted after 4 attempts; no broker; to do: restart the host\n",
				"slot      scout (active): retry-scheduled after 1 attempt, again in ",
			},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			PrintStatus(&b, c.s)
			for _, w := range c.want {
				if !strings.Contains(b.String(), w) {
					t.Errorf("%q is missing in:\n%s", w, b.String())
				}
			}
			for _, w := range c.never {
				if strings.Contains(b.String(), w) {
					t.Errorf("%q is in:\n%s", w, b.String())
				}
			}
		})
	}
}
