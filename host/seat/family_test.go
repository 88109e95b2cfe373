package seat_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// as makes what follows the requests of a seat.
func (w *world) as(acc wire.Acceptance) (back func()) {
	old := w.caller
	w.caller = wire.Caller{Owner: acc.Owner, Actor: acc.Actor, UID: acc.UID}
	return func() { w.caller = old }
}

// Who asked for an end is told with it, and whether its place has to cool depends on it.
//
// proves: CAP-2, EXIT-8
func TestAnEndSaysWhoAskedForIt(t *testing.T) {
	w := newWorld(t)
	w.crash()
	w.cooling = time.Hour // so that no place has cooled before it is looked at
	w.boot()
	cooling := 0
	check := func(name, cause string, cools bool) {
		t.Helper()
		row := w.awaitStatus(name, "exited")
		if row.Exit == nil || row.Exit.Cause != cause || !row.Exit.Asked {
			t.Errorf("%s: %+v", name, row.Exit)
		}
		if cools {
			cooling++
		}
		w.eventually("its place is counted", func() (bool, string) { o := w.set.Occupancy(); return o.Cooling == cooling, "" })
	}
	mine := w.run("mine", `[{"hang": true}]`)
	if _, err := w.stop(mine, true); err != nil {
		t.Fatal(err)
	}
	check("mine", "stopped-requested", false)

	self := w.run("self", `[{"hang": true}]`)
	back := w.as(self)
	reply, err := w.set.Despawn(context.Background(), w.caller, targetOf(self), wire.DespawnArgs{})
	back()
	if err != nil || !reply.Stopped || reply.Name != "self" {
		t.Fatalf("%+v, %v", reply, err)
	}
	check("self", "stopped-self", true)

	parent := w.run("parent", `[{"hang": true}]`)
	back = w.as(parent)
	child := w.run("child", `[{"hang": true}]`)
	_, err = w.stop(child, true)
	back()
	if err != nil {
		t.Fatal(err)
	}
	check("child", "stopped-parent", true)
	if status := w.row("parent").Status; status != "running" {
		t.Errorf("the parent is %s", status)
	}
}

// What a seat spawned ends with it, and what that spawned, however it ends; and also when the host dies in
// between.
//
// proves: EXIT-1
func TestChildrenEndWithTheirParent(t *testing.T) {
	for name, end := range map[string]func(*world, wire.Acceptance){
		"killed": func(w *world, _ wire.Acceptance) {
			if err := syscall.Kill(w.row("parent").PID, syscall.SIGKILL); err != nil {
				w.t.Fatal(err)
			}
		},
		"stopped": func(w *world, acc wire.Acceptance) {
			if _, err := w.stop(acc, true); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.run("bystander", `[{"hang": true}]`)
			parent := w.run("parent", `[{"hang": true}]`)
			back := w.as(parent)
			child := w.run("child", `[{"ignore": ["TERM", "HUP", "INT"]}, {"hang": true}]`)
			back()
			back = w.as(child)
			w.run("grandchild", `[{"hang": true}]`)
			back()
			end(w, parent)
			for _, of := range []string{"child", "grandchild"} {
				row := w.awaitStatus(of, "exited")
				if row.Exit == nil || row.Exit.Cause != "stopped-reap" || !row.Exit.Asked {
					t.Errorf("%s: %+v", of, row.Exit)
				}
			}
			if status := w.row("bystander").Status; status != "running" {
				t.Errorf("the bystander is %s", status)
			}
		})
	}
}
