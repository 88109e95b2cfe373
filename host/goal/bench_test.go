package goal_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// BenchmarkAccept is what a spawn waits for: the goal is durable in the journal and on the mesh. The broker
// is one of the same process over TCP.
func BenchmarkAccept(b *testing.B) {
	h := newMesh(b).host().boot().serve()
	var took []time.Duration
	for b.Loop() {
		begun := time.Now()
		if _, started, err := h.submit(goal.KeyOf(caller, fmt.Sprint("g", len(took))), fingerprintOf("a")); err != nil || !started {
			b.Fatal(started, err)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// BenchmarkAcceptTheJournalAlone is the part of BenchmarkAccept that is a commit to the disk.
func BenchmarkAcceptTheJournalAlone(b *testing.B) {
	h := newMesh(b).host().boot().serve()
	ids := 0
	for b.Loop() {
		ids++
		err := h.journal.Update(b.Context(), func(tx *journal.Tx) error {
			return h.store.Accept(tx, goal.KeyOf(caller, fmt.Sprint("g", ids)), wire.CmdSpawn, "seat", wire.Acceptance{GoalID: "g"}, time.Time{})
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommit is one goal's end up to the moment at which its followers are told: journal, fence, result fact.
func BenchmarkCommit(b *testing.B) {
	h := newMesh(b).host()
	told := make(chan struct{}, 1)
	h.told = func() { told <- struct{}{} }
	h.boot().serve()
	ids := 0
	for b.Loop() {
		b.StopTimer()
		ids++
		k := goal.KeyOf(caller, fmt.Sprint("g", ids))
		if _, started, err := h.submit(k, fingerprintOf("a")); err != nil || !started {
			b.Fatal(started, err)
		}
		b.StartTimer()
		h.end(k, wire.GoalSucceeded)
		<-told
	}
}

// BenchmarkRecall is a submission that is repeated after its end, on a host that did not carry it out.
func BenchmarkRecall(b *testing.B) {
	m := newMesh(b)
	h, other := m.host().boot().serve(), m.host().boot().serve()
	k := goal.KeyOf(caller, "g")
	if _, _, err := h.submit(k, fingerprintOf("a")); err != nil {
		b.Fatal(err)
	}
	h.end(k, wire.GoalSucceeded)
	h.settledOnMesh(k, wire.GoalSucceeded)
	for b.Loop() {
		if _, ok, err := other.store.Recall(b.Context(), k, fingerprintOf("a")); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
