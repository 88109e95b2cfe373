package provision

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestJudge(t *testing.T) {
	const mine, other, uid = "aaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccc"
	l := Life{Alias: "reviewer", Caller: wire.Caller{Owner: "local", Actor: "a", UID: uid}}
	whole := func() Found {
		return Found{
			Slot:       &wire.Slot{LifecycleUID: uid, OwnerInstanceID: mine, Phase: wire.SlotActive},
			UID:        &wire.UIDReservation{Owner: "local", Actor: "a"},
			Gate:       &wire.Gate{LifecycleUID: uid, State: wire.GateOpen},
			Head:       &wire.LifecycleHead{LifecycleUID: uid, State: wire.LifeActive},
			Credential: &wire.CredentialRow{State: wire.CredentialActive},
		}
	}
	activation := &wire.GateOp{OpID: wire.ActivationOpID(uid), Kind: wire.OpActivation}
	retirement := &wire.GateOp{OpID: wire.RetirementOpID(uid), Kind: wire.OpRetirement}
	for _, c := range []struct {
		what  string
		found func(*Found)
		want  Verdict
		says  string
	}{
		{"a life with every row has all it needs", func(*Found) {}, Whole, ""},
		{"a store without any row has lost the life", func(f *Found) { *f = Found{} }, Lost, "its slot, the reservation of its uid, its gate, the head of its principal, the ledger row"},
		{"a store of before the life has the slot of the one before", func(f *Found) {
			f.Slot = &wire.Slot{LifecycleUID: other, OwnerInstanceID: mine, Phase: wire.SlotRetired}
		}, Lost, "the one of a life before"},
		{"a slot that was only begun is gone on with", func(f *Found) { f.Slot.Phase = wire.SlotProvisioning }, Lost, "only provisioning"},
		{"a gate that an interrupted activation has frozen is gone on with", func(f *Found) {
			f.Gate.State, f.Gate.Op = wire.GateFrozen, activation
		}, Lost, "not open yet"},
		{"a ledger that lost the row of the credential has it made again", func(f *Found) { f.Credential = nil }, Lost, "ledger row"},
		{"without its file a life cannot have its credential again", func(f *Found) { f.File = fs.ErrNotExist; f.Credential = nil }, Lost, "file of its credential"},
		{"a file that is damaged is no credential", func(f *Found) { f.File = errors.New("it is no credentials file"); f.Credential = nil }, Lost, "no credentials file"},
		{"an alias that another life has is left to it", func(f *Found) { f.Slot.LifecycleUID = other }, Taken, other},
		{"a slot of another host is never written", func(f *Found) { f.Slot.OwnerInstanceID = other }, Taken, "of host " + other},
		{"a uid of somebody else is never taken", func(f *Found) { f.UID.Actor = "b" }, Taken, "reserved for local.b"},
		{"a gate of another operation is left to it", func(f *Found) {
			f.Gate.State, f.Gate.Op = wire.GateFrozen, &wire.GateOp{OpID: other, Kind: wire.OpTakeover}
		}, Taken, wire.OpTakeover},
		{"a principal with another life that lives keeps it", func(f *Found) { f.Head.LifecycleUID = other }, Taken, other},
		{"a principal whose life before is over gets this one", func(f *Found) {
			f.Head.LifecycleUID, f.Head.State = other, wire.LifeRetired
		}, Lost, "head of its principal"},
		{"a life whose end is decided gets nothing any more", func(f *Found) { f.Slot.Phase = wire.SlotTerminalizing }, Over, wire.SlotTerminalizing},
		{"not with a lost gate either", func(f *Found) { f.Slot.Phase, f.Gate = wire.SlotTerminalizing, nil }, Over, wire.SlotTerminalizing},
		{"a gate that is frozen for its end says that it is decided", func(f *Found) {
			f.Gate.State, f.Gate.Op = wire.GateFrozen, retirement
		}, Over, "frozen for its end"},
		{"a retired gate never opens again", func(f *Found) { f.Gate.State, f.Gate.Op = wire.GateRetired, retirement }, Over, "retired"},
		{"a life that is retiring is on its way out", func(f *Found) { f.Head.State = wire.LifeRetiring }, Over, wire.LifeRetiring},
		{"a queue that went with its stream is made again", func(f *Found) { f.NoQueue = true }, Lost, "queue of direct messages"},
		{"a revoked credential is not made valid again", func(f *Found) { f.Credential.State = wire.CredentialRevoked }, Over, "revoked"},
	} {
		f := whole()
		c.found(&f)
		got, why := f.Judge(l, mine)
		if got != c.want || !strings.Contains(strings.Join(why, ", "), c.says) {
			t.Errorf("%s: %s %q, want %s and %q", c.what, got, why, c.want, c.says)
		}
	}
}
