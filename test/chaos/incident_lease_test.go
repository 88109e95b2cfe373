//go:build linux

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestIncident_TwoFirstStartsAtOnceAreOneInstance: starts of an empty workspace at the same time once gave it two
// identities. One of them has it, the others name it and end, and the identity stays.
//
// proves: H5
func TestIncident_TwoFirstStartsAtOnceAreOneInstance(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	hosts := []*harness.Host{w.Launch(harness.HostOptions{}), w.Launch(harness.HostOptions{}), w.Launch(harness.HostOptions{})}
	var winner *harness.Host
	harness.Eventually(t, harness.DefaultWait, "one serves and the others have ended", func() (bool, string) {
		winner = nil
		var state []string
		ended := 0
		for _, h := range hosts {
			if e, ok := h.WaitExit(0); ok {
				ended++
				state = append(state, fmt.Sprintf("%d ended with %v: %s", h.PID, e, h.Stderr()))
			} else if h.WaitReady(0) == nil {
				winner = h
				state = append(state, fmt.Sprintf("%d serves", h.PID))
			}
		}
		return winner != nil && ended == len(hosts)-1, strings.Join(state, "\n")
	})
	for _, h := range hosts {
		if e, ok := h.WaitExit(0); ok && (e.Code != 1 || !strings.Contains(h.Stderr(), fmt.Sprint(winner.PID))) {
			t.Errorf("a start beside process %d ended with %v and said %q", winner.PID, e, h.Stderr())
		}
	}
	id := w.Status().InstanceID
	winner.Stop()
	w.Start(harness.HostOptions{})
	if st := w.Status(); st.InstanceID != id || st.Epoch != 2 {
		t.Errorf("the next start is instance %s in epoch %d, the first was %s", st.InstanceID, st.Epoch, id)
	}
}

// TestIncident_AStopWhileItsRegistrationIsHalfDoneLeavesItToTheNext: a stop once deleted a registration that was just
// completing, and a host that had died within one kept all others from starting. Whatever the registration had come to,
// the host that cannot finish it serves its seats, stops when it is told to, and the next one finishes it.
func TestIncident_AStopWhileItsRegistrationIsHalfDoneLeavesItToTheNext(t *testing.T) {
	for _, place := range []string{"frozen", "specified"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			h := w.Start(harness.HostOptions{})
			seat := w.SpawnFake("early", `[{"hang": true}]`)
			h.Stop()
			w.Start(harness.HostOptions{Failpoints: "host.register." + place + "=error(cut short)"})
			if got := w.AwaitStatus("early", "running"); got.PID != seat.PID {
				t.Errorf("the seat has pid %d, was %d", got.PID, seat.PID)
			}
			w.Host("stop").OK()
			h = w.Start(harness.HostOptions{})
			if strings.Contains(h.Stderr(), "waiting") {
				t.Errorf("the next host had to wait: %s", h.Stderr())
			}
			w.SpawnFake("late", `[{"hang": true}]`)
			st := w.Status()
			var known wire.InstancesReply
			_, err := w.Mesh().Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdInstances}, &known)
			if err != nil || len(known.Instances) != 1 || known.Instances[0].Epoch != st.Epoch {
				t.Errorf("registered are %+v, %v; want this host in epoch %d", known.Instances, err, st.Epoch)
			}
		})
	}
}

// TestIncident_WhatIsLeftOfADeadSeatDelaysNoStart: a start once waited for minutes until everything was reconciled that
// the host before had left, before it registered. Its name is held until that is done, and nothing else waits for it.
func TestIncident_WhatIsLeftOfADeadSeatDelaysNoStart(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	h := w.Start(harness.HostOptions{})
	left := w.SpawnFake("left", `[{"hang": true}]`)
	h.Kill()
	w.KillPID(left.PID)
	gate := filepath.Join(w.Dir, "gate")
	w.Start(harness.HostOptions{Failpoints: "host.retire.revoked=pause(" + gate + ")"})
	harness.Eventually(t, harness.DefaultWait, "the end of the seat is on its way", func() (bool, string) {
		_, err := os.Stat(gate + ".reached")
		return err == nil, fmt.Sprint(err)
	})
	w.SpawnFake("other", `[{"hang": true}]`)
	argv := func(wait string) []string {
		return append([]string{"spawn", "--agent", "command", "--name", "left", "--detach", "--timeout", wait, "--"}, w.FakeAgent(`[{"hang": true}]`)...)
	}
	if r := w.CLI(argv("3s")...); r.Code == 0 {
		t.Errorf("its name is given to another one while its end is on its way: %v", r)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "its name is free", func() (bool, string) {
		if got, ok := w.Seat("left"); ok && got.Status == "running" {
			return true, ""
		}
		r := w.CLI(argv("10s")...)
		return r.Code == 0, r.String()
	})
}
