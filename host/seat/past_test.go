package seat

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// asker spawned every seat that has ended here.
var asker = wire.Caller{Owner: wire.OwnerLocal, Actor: "asker", UID: wire.NewUID()}

// endOf frees a seat as one that has ended, and returns its life.
func endOf(s *Set, i int, exit *sdk.Exit) wire.Target {
	t := wire.Target{Owner: wire.OwnerLocal, Actor: fmt.Sprintf("U%055d", i), LifecycleUID: fmt.Sprintf("u%025d", i)}
	row := journal.SeatRow{
		SeatID: fmt.Sprintf("%032x", i), UID: t.LifecycleUID, Alias: fmt.Sprintf("worker_%d", i), Principal: t.Owner + "." + t.Actor,
		RequestID: string(goal.KeyOf(asker, fmt.Sprintf("g%025d", i))), State: journal.StateExited, Reaped: true,
		Exit: exit, Ended: time.Now(), Cause: causeRequested, Created: time.Now().Add(-time.Second), Started: time.Now().Add(-time.Second),
	}
	a := s.newActor(row)
	s.mu.Lock()
	s.add(a)
	s.cap.adopt()
	a.counted = true
	s.mu.Unlock()
	s.freed(a)
	return t
}

func exitWith(code int) *sdk.Exit {
	return &sdk.Exit{Code: &code, At: time.Now(), Asked: true, Evidence: sdk.EvidenceReaped, Last: "goodbye"}
}

// TestADespawnAskedAgainBehindThousandsOfEndsIsNotExpired: who did not get the answer to a despawn asks again, and is
// told how the seat ended, however many others have ended behind it; ps has a bound of its own.
func TestADespawnAskedAgainBehindThousandsOfEndsIsNotExpired(t *testing.T) {
	const many = 5000
	s := New(Config{})
	lives := make([]wire.Target, many)
	for i := range lives {
		lives[i] = endOf(s, i, exitWith(i%7))
	}
	for _, i := range []int{0, 1, many - 4*keepEnded, many - keepEnded - 1, many - keepEnded, many - 1} {
		life := lives[i]
		reply, err := s.Despawn(context.Background(), asker, life, wire.DespawnArgs{WaitForExit: true})
		if err != nil {
			t.Errorf("of %d ends, the one at %d: %v", many, i, err)
			continue
		}
		x := reply.Report
		if reply.Name != fmt.Sprintf("worker_%d", i) || !reply.Stopped || x == nil || x.Exit == nil || x.Exit.Code == nil || *x.Exit.Code != i%7 || !x.Exit.Asked || x.Exit.Last != "goodbye" {
			t.Errorf("the end at %d: %+v, report %+v", i, reply, x)
		}
		who, known := s.Subject(life)
		if !known || who.Name != reply.Name || who.Spawner != asker.Principal() {
			t.Errorf("whose the life at %d was: %+v %v", i, who, known)
		}
		if got := s.Stands(wire.Caller{Owner: life.Owner, Actor: life.Actor, UID: life.LifecycleUID}); got != authz.Retired {
			t.Errorf("the life at %d stands as %v", i, got)
		}
		if _, err := s.target(life); err == nil || !strings.Contains(err.Error(), "has ended with code") {
			t.Errorf("to reach the life at %d: %v", i, err)
		}
		life.LifecycleUID = "another"
		if _, err := s.Despawn(context.Background(), asker, life, wire.DespawnArgs{}); wire.ErrorFrom(err) == nil || wire.ErrorFrom(err).Code != wire.CodeExpired {
			t.Errorf("another life of the principal at %d: %v", i, err)
		}
	}
	if n := len(s.Snapshots()); n != keepEnded {
		t.Errorf("ps tells of %d ends", n)
	}
}

// A seat whose start was undone has no exit, and is over all the same: who stopped it and asks again is not told that
// nobody knows it.
func TestADespawnAskedAgainOfASeatThatNeverRanIsNotExpired(t *testing.T) {
	s := New(Config{})
	life := endOf(s, 1, nil)
	reply, err := s.Despawn(context.Background(), asker, life, wire.DespawnArgs{WaitForExit: true})
	if err != nil || !reply.Stopped || reply.Report == nil || reply.Report.Outcome != string(sdk.ReapAbsent) || reply.Report.Exit != nil {
		t.Errorf("%+v %+v, %v", reply, reply.Report, err)
	}
	if _, err := s.target(life); err == nil || !strings.Contains(err.Error(), "the start of worker_1 was undone") {
		t.Errorf("to reach it: %v", err)
	}
	if n := len(s.Snapshots()); n != 0 {
		t.Errorf("ps tells of %d seats", n)
	}
}

// A seat whose start was undone was told as exited for an hour, without an exit, which is taken for a live one: its name
// was found on two hosts once another had it, and what was sent to the name went to the life that never ran.
func TestAStartThatWasUndoneIsNoSeatOfThatName(t *testing.T) {
	s := New(Config{})
	life := endOf(s, 1, nil)
	for _, name := range []string{"worker_1", fmt.Sprintf("%032x", 1), life.LifecycleUID} {
		if snap, _ := s.endedAs(name); snap != nil {
			t.Fatalf("%s is told of as %s, exit %+v", name, snap.State, snap.Row.Exit)
		}
		row, err := s.Inspect(context.Background(), name)
		if refused := wire.ErrorFrom(err); refused == nil || refused.Code != wire.CodeNotFound {
			t.Errorf("inspect %s: %+v, %v", name, row, err)
		}
	}
	endOf(s, 2, exitWith(3))
	s.mu.Lock()
	s.ended = nil // as with many ends behind it
	s.mu.Unlock()
	if p, ok := s.past.named("worker_2"); !ok || p.code != 3 {
		t.Errorf("one that did run: %+v, %v", p, ok)
	}
}

// What is known of lives that are over is bounded in number and in time.
func TestWhatIsKnownOfEndsIsBounded(t *testing.T) {
	var ps pasts
	now := time.Now()
	uid := func(i int) string { return fmt.Sprintf("u%025d", i) }
	for i := range keepPast + 100 {
		ps.add(pastOf(journal.SeatRow{UID: uid(i), Principal: "local.a"}, now.Add(time.Duration(i)*time.Millisecond)))
		ps.prune(now)
	}
	if len(ps.all) != keepPast || len(ps.byUID) != keepPast {
		t.Errorf("%d lives are known, %d by their uid", len(ps.all), len(ps.byUID))
	}
	for i, want := range map[int]bool{99: false, 100: true, keepPast + 99: true} {
		if _, got := ps.life("local.a", uid(i)); got != want {
			t.Errorf("the life at %d is known: %v", i, got)
		}
	}
	if _, got := ps.life("local.b", uid(100)); got {
		t.Error("a life is known as somebody else's")
	}
	ps.prune(now.Add(keepEndedFor + 150*time.Millisecond))
	if len(ps.all) != keepPast-50 || ps.all[0].read().uid != uid(150) {
		t.Errorf("after an hour %d lives are known, from %s on", len(ps.all), ps.all[0].read().uid)
	}
	if ps.prune(now.Add(2 * keepEndedFor)); len(ps.all) != 0 || len(ps.byUID) != 0 {
		t.Errorf("after two hours %d lives are known", len(ps.all))
	}
}

// What a program says of itself has no part in how what is kept of it is read.
func TestWhatAProgramSaidDoesNotGarbleItsEnd(t *testing.T) {
	x := exitWith(-1)
	x.Signal, x.Detail, x.Last = "SIGKILL", "a\x00b", strings.Repeat("é", maxPastText)
	row := journal.SeatRow{SeatID: "s", UID: "u", Alias: "a", Principal: "local.a", RequestID: "local.b.u/g", Exit: x, Ended: x.At, Cause: causeSelf}
	got := pastOf(row, time.Now()).snapshot().Row
	e := got.Exit
	if got.SeatID != "s" || got.UID != "u" || got.Alias != "a" || got.Principal != "local.a" || got.RequestID != row.RequestID || got.Cause != causeSelf ||
		e.Signal != "SIGKILL" || *e.Code != -1 || e.Evidence != x.Evidence || e.Detail != "a b" || e.Last != strings.Repeat("é", maxPastText/2) || e.At.UnixMilli() != x.At.UnixMilli() {
		t.Errorf("%+v, exit %+v", got, e)
	}
}

// A host that starts and stops seats all day keeps no more of each than is worth it.
func TestWhatIsKeptOfAnEndIsSmall(t *testing.T) {
	const many = keepPast
	var ps pasts
	before := heap()
	for i := range many {
		ps.add(pastOf(journal.SeatRow{
			SeatID: fmt.Sprintf("%032x", i), UID: fmt.Sprintf("u%025d", i), Alias: fmt.Sprintf("worker_%d", i), Principal: fmt.Sprintf("local.U%055d", i),
			RequestID: string(goal.KeyOf(asker, fmt.Sprintf("g%025d", i))), Exit: exitWith(0), Ended: time.Now(), Cause: causeRequested,
		}, time.Now()))
	}
	each := int64(heap()-before) / many
	t.Logf("%d bytes each", each)
	if each > 400 {
		t.Errorf("%d bytes are kept of an end", each)
	}
	runtime.KeepAlive(&ps)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
