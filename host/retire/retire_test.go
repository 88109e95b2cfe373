package retire_test

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// kindOf is the kind of a row by its name in a footprint.
func kindOf(row string) string {
	_, key, _ := strings.Cut(row, ".")
	kind, _, _ := strings.Cut(key, ".")
	return kind
}

// ending reports whether a row ends by itself: ledger rows of credentials, and the mark of a membership.
func ending(row string) bool { return strings.HasPrefix(row, "(ends) ") }

// compare holds the footprint of now against one of before: nothing may be more but rows that end by themselves, and
// keys that are never deleted, of which there are as many more as want says by their kind.
func (r *rig) compare(before footprint, want map[string]int) {
	r.t.Helper()
	after := r.footprint()
	// The server may learn a moment later that a connection has been closed.
	for end := time.Now().Add(busy.Limit(5 * time.Second)); !slices.Equal(before.Conns, after.Conns) && time.Now().Before(end); {
		after = r.footprint()
	}
	got := map[string]int{}
	for _, row := range after.Rows {
		if !ending(row) && !slices.Contains(before.Rows, row) {
			got[kindOf(row)]++
		}
	}
	if !maps.Equal(got, want) {
		r.t.Errorf("keys that are left, by kind: %v, want %v", got, want)
	}
	r.t.Logf("keys that are never deleted: %v", got)
	for _, row := range before.Rows {
		if !ending(row) && !slices.Contains(after.Rows, row) {
			r.t.Errorf("the row %s went away", row)
		}
	}
	for what, l := range map[string][2][]string{
		"streams": {before.Streams, after.Streams}, "consumers": {before.Consumers, after.Consumers},
		"connections": {before.Conns, after.Conns}, "files": {before.Files, after.Files},
	} {
		if !slices.Equal(l[0], l[1]) {
			r.t.Errorf("%s were %v and are %v", what, l[0], l[1])
		}
	}
}

// proves: DOWN-4, DOWN-7, SLOT-1, SLOT-5, SLOT-7
func TestALifeLeavesNothingButTheKeysThatAreNeverDeleted(t *testing.T) {
	r := newRig(t)
	must(t, r.retire(r.spawn("before"))) // the queue of a role belongs to no life
	before := r.footprint()
	d := r.spawn("reviewer")
	if s := r.slot(d.Life); s.Phase != wire.SlotActive || s.Runtime == nil || s.CredentialID != d.Credential().Current().ID {
		t.Errorf("slot of a seat that runs: %+v", s)
	}
	agent := r.agent(d)
	during := r.footprint()
	if len(during.Consumers) != len(before.Consumers)+1 || len(during.Files) != len(before.Files)+1 || len(during.Conns) != len(before.Conns)+1 {
		t.Errorf("this test sees nothing of a life: %+v", during)
	}
	must(t, r.retire(d))
	if !agent.IsClosed() {
		t.Error("the agent is connected behind its end")
	}
	r.compare(before, map[string]int{wire.KindUID: 1, wire.KindGate: 1, wire.KindLifecycle: 1, wire.KindFrontier: 1, wire.KindSlot: 1})
	if len(r.host.over) != 2 || r.host.over[1] != d.Life || len(r.host.retire.Holds()) != 0 {
		t.Errorf("told of %v, held %v", r.host.over, r.host.retire.Holds())
	}
	must(t, r.retire(d)) // once more is nothing
	for _, row := range r.footprint().Rows {
		if strings.Contains(row, "cotal_membership_") && !ending(row) {
			t.Errorf("the mark of a membership does not end: %s", row)
		}
	}
}

// One life after another leaves four keys each, and one slot for all of them.
func TestFieldC3_OneLifeAfterAnotherLeavesNoMoreThanItsKeys(t *testing.T) {
	lives := 20
	if os.Getenv("COTAL_LONG") != "" {
		lives = 500
	}
	r := newRig(t)
	must(t, r.retire(r.spawn("reviewer")))
	before, routines := r.footprint(), runtime.NumGoroutine()
	for range lives {
		must(t, r.retire(r.spawn("reviewer")))
	}
	r.compare(before, map[string]int{wire.KindUID: lives, wire.KindGate: lives, wire.KindLifecycle: lives, wire.KindFrontier: lives})
	if n := runtime.NumGoroutine(); n > routines+10 {
		t.Errorf("%d goroutines, %d before", n, routines)
	}
}

// A life once took a dozen one-shot connections, each with a credential of its own, to begin.
func TestALifeIsBegunAndEndedOverFewConnections(t *testing.T) {
	r := newRig(t)
	minted := func() int {
		n := 0
		for _, row := range r.footprint().Rows {
			if strings.Contains(row, "."+wire.KindEndpointCred+".") {
				n++
			}
		}
		return n
	}
	first := minted()
	look := minted() - first // a look mints, too
	since := func(before int) int { return minted() - before - look }
	before := first + look
	d := r.spawn("reviewer")
	if n := since(before); n != 3 { // an executor of the life; one of the instance for the provisioner, and that
		t.Errorf("a life is begun with %d credentials of the host", n)
	}
	before = minted()
	must(t, r.retire(d))
	if n := since(before); n > 6 { // its executor; that of the ledger; an evictor and a deprovisioner, and who mints them
		t.Errorf("a life is ended with %d credentials of the host", n)
	}
}

// A connection that is lost between two steps is no end of a spawn.
func TestASpawnGoesOnOverAnotherConnectionWhenItsOwnIsLost(t *testing.T) {
	r := newRig(t)
	ctx, cancel := limit(t)
	defer cancel()
	d, err := r.host.prov.Draw(spec("reviewer"))
	must(t, err)
	for _, step := range append(r.host.prov.Steps(d), r.host.prov.Active(d)) {
		if err := step.Do(ctx); err != nil {
			t.Fatalf("%s: %v", step.Name, err)
		}
		r.br.Shutdown()
		r.br, err = broker.Start(ctx, r.cfg)
		must(t, err)
	}
	if s := r.slot(d.Life); s.Phase != wire.SlotActive {
		t.Errorf("the slot: %+v", s)
	}
	must(t, r.retire(d))
}
