//go:build linux

package pty

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// proves: RT-2, RT-3. The handle of a fresh spawn, and the id alone, find the same seat from a runtime
// that never saw it, in each state of its life.
func TestAdoptByHandleAndByIDAlone(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"print":"hello\n"},{"waitFile":"{work}/go"},{"exit":7}]`)
	h := r.spawn(q)
	both := func(want sdk.SeatState) sdk.SeatStatus {
		t.Helper()
		byHandle := adoptOf(q, false)
		byHandle.Handle, byHandle.Nonce = h, ""
		a, err := r.fresh().Adopt(context.Background(), byHandle)
		if err != nil {
			t.Fatal(err)
		}
		byID := adoptOf(q, false)
		byID.Nonce = ""
		b, err := r.fresh().Adopt(context.Background(), byID)
		if err != nil {
			t.Fatal(err)
		}
		if a.State != want || !reflect.DeepEqual(a, b) {
			t.Errorf("by handle %+v\nby id     %+v\nwant %s", a, b, want)
		}
		if string(a.Handle.State) != string(h.State) || a.Owner != q.Owner {
			t.Errorf("handle %s, owner %+v", a.Handle.State, a.Owner)
		}
		return a
	}
	both(sdk.SeatPrepared)
	r.adopt(q, true)
	r.view(q, 0).await(t, "hello")
	if st := both(sdk.SeatRunning); st.Next == 0 || st.Rows != defaultRows || st.Cols != defaultCols || st.Agent.PID == 0 {
		t.Errorf("running %+v", st)
	}
	if err := os.WriteFile(r.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	// The answer is the same while custody serves its exit, and after it is gone.
	st := both(sdk.SeatExited)
	if st.Exit.Code == nil || *st.Exit.Code != 7 || st.Exit.Evidence != sdk.EvidenceReaped || st.Exit.Last != "hello" {
		t.Errorf("exit %+v", st.Exit)
	}
	r.killCustody(q)
	if after := both(sdk.SeatExited); !reflect.DeepEqual(after.Exit, st.Exit) {
		t.Errorf("exit %+v, before %+v", after.Exit, st.Exit)
	}
}

// An exit that nobody saw is found in the record, and stopping frees what is left of it.
func TestFieldB11_ExitMissedWhileAway(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"waitFile":"{work}/go"},{"exit":7}]`)
	m := r.remote("", nil)
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	if _, err := m.adopt(q, true); err != nil {
		t.Fatal(err)
	}
	m.kill()
	if err := os.WriteFile(r.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	if st := r.adopt(q, false); st.Exit.Code == nil || *st.Exit.Code != 7 || st.Exit.Asked {
		t.Errorf("exit %+v", st.Exit)
	}
	custody := r.custody(q)
	if rep := r.reap(q, sdk.StopGraceful); rep.Outcome != sdk.ReapExited {
		t.Errorf("report %+v", rep)
	}
	if live, why := seat.Check(custody); live != seat.Dead {
		t.Errorf("custody is %s: %s", live, why)
	}
}

// A seat that ended is never started again by adopting it, with or without a commit.
func TestFieldB16_FinishedWorkIsNotRepeated(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"append":{"file":"{work}/started","text":"x"}},{"exit":0}]`)
	eventually(t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	for range 3 {
		rt := r.fresh()
		for _, commit := range []bool{false, true} {
			st, err := rt.Adopt(context.Background(), adoptOf(q, commit))
			if err != nil || st.State != sdk.SeatExited {
				t.Errorf("adopt: %+v, %v", st, err)
			}
		}
		if h, err := rt.Spawn(context.Background(), q); err != nil || h.Ref != q.SeatID {
			t.Errorf("spawn again: %+v, %v", h, err)
		}
	}
	if got := r.read("started"); got != "x" {
		t.Errorf("started %d times", len(got))
	}
}

// Custody killed: what carries the nonce is killed, whatever it ignores, and the verdict is durable.
// proves: RT-6. The exit of a lost seat has no code: it is never guessed.
func TestCustodyLost(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"ignore":["HUP","TERM"]},{"daemon":{"steps":[{"ignore":["HUP","TERM"]},{"pidfile":"{work}/daemon"},{"hang":true}]}},{"fork":{"steps":[{"ignore":["HUP","TERM"]},{"pidfile":"{work}/child"},{"hang":true}],"scrub":true}},{"hang":true}]`)
	pids := []int{st.Agent.PID, r.pid("daemon"), r.pid("child")}
	r.killCustody(q)
	got := r.adopt(q, false)
	if got.State != sdk.SeatExited || got.Exit.Evidence != sdk.EvidenceCustodyLost || got.Exit.Code != nil || got.Exit.Signal != "" {
		t.Fatalf("adopt %+v, exit %+v", got, got.Exit)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
	if len(got.Exit.Reaped) != 3 {
		t.Errorf("reaped %+v", got.Exit.Reaped)
	}
	again, err := r.fresh().Adopt(context.Background(), adoptOf(q, true))
	if err != nil || !reflect.DeepEqual(again.Exit, got.Exit) {
		t.Errorf("again %+v, %v", again.Exit, err)
	}
	rep := r.reap(q, sdk.StopGraceful)
	if rep.Outcome != sdk.ReapExited || rep.Exit.Evidence != sdk.EvidenceCustodyLost || len(rep.Killed) != 3 {
		t.Errorf("report %+v", rep)
	}
}

// A machine that booted since: every process of the seat is gone, and nothing is searched or killed.
func TestRebooted(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"ignore":["HUP"]},{"print":"deaf\n"},{"hang":true}]`)
	r.view(q, 0).await(t, "deaf")
	r.killCustody(q)
	path := filepath.Join(r.dir(q), record.SeatFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(r, q, record.SeatFile, strings.Replace(string(text), st.Identity.BootID, "11111111-2222-3333-4444-555555555555", 1))
	got := r.adopt(q, false)
	if got.State != sdk.SeatExited || got.Exit.Evidence != sdk.EvidenceRebooted || got.Exit.Code != nil {
		t.Errorf("adopt %+v, exit %+v", got, got.Exit)
	}
	if !alive(st.Agent.PID) {
		t.Error("a process was killed on the word of another boot's record")
	}
	kill9(t, st.Agent.PID)
	r.reap(q, sdk.StopGraceful)
}

// Absence is told only when it is proven: nothing there, nothing recorded, no process.
func TestNotFoundIsProven(t *testing.T) {
	r := newRig(t)
	t.Run("nothing was ever there", func(t *testing.T) {
		q := r.spec(`[]`)
		if st := r.adopt(q, true); st.State != sdk.SeatNotFound || st.Reason == "" {
			t.Errorf("%+v", st)
		}
	})
	t.Run("only the host's intent is there", func(t *testing.T) {
		q := r.spec(`[]`)
		if err := errors.Join(os.Mkdir(r.dir(q), 0o700), record.WriteIntent(r.dir(q), intentOf(q))); err != nil {
			t.Fatal(err)
		}
		if st := r.adopt(q, false); st.State != sdk.SeatNotFound || st.Owner != q.Owner {
			t.Errorf("%+v", st)
		}
		other := q
		other.Owner.InstanceID = "somebody"
		if _, err := r.rt.Reap(context.Background(), stopOf(other, sdk.StopNow)); !errors.Is(err, sdk.ErrNotOurs) {
			t.Errorf("reap by a stranger: %v", err)
		}
		rep := r.reap(q, sdk.StopGraceful)
		if rep.Outcome != sdk.ReapAbsent {
			t.Errorf("%+v", rep)
		}
	})
	t.Run("a stopped seat by its old handle", func(t *testing.T) {
		q := r.spec(`[]`)
		h := r.spawn(q)
		r.reap(q, sdk.StopNow)
		req := adoptOf(q, true)
		req.Handle = h
		st, err := r.rt.Adopt(context.Background(), req)
		if err != nil || st.State != sdk.SeatNotFound {
			t.Errorf("%+v, %v", st, err)
		}
	})
	t.Run("a broken intent is unknown", func(t *testing.T) {
		q := r.spec(`[]`)
		if err := os.Mkdir(r.dir(q), 0o700); err != nil {
			t.Fatal(err)
		}
		overwrite(r, q, record.IntentFile, "{")
		if st := r.adopt(q, false); st.State != sdk.SeatUnknown || !strings.Contains(st.Reason, record.IntentFile) {
			t.Errorf("%+v", st)
		}
		if _, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow)); !errors.Is(err, sdk.ErrUnproven) {
			t.Errorf("reap: %v", err)
		}
		os.RemoveAll(r.dir(q))
	})
	t.Run("a living custody whose directory vanished is unknown", func(t *testing.T) {
		q := r.spec(`[]`)
		h := r.spawn(q)
		if err := os.RemoveAll(r.dir(q)); err != nil {
			t.Fatal(err)
		}
		req := adoptOf(q, false)
		req.Handle, req.Nonce = h, ""
		st, err := r.rt.Adopt(context.Background(), req)
		if err != nil || st.State != sdk.SeatUnknown {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// proves: RT-4. Attaching gives the place to dial and the secret, for a seat that runs and for one that
// ended and was not stopped yet; afterwards it is gone.
func TestAttach(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"print":"last words\n"},{"exit":0}]`)
	eventually(t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	v := r.view(q, 0)
	v.await(t, "last words")
	r.reap(q, sdk.StopGraceful)
	_, err := r.rt.Attach(context.Background(), sdk.AttachRequest{SeatID: q.SeatID, InstanceID: r.instance})
	if !errors.Is(err, sdk.ErrGone) {
		t.Errorf("attach: %v", err)
	}
}

// proves: RT-8. Releasing a seat is doing nothing: a runtime that goes away leaves it running.
func TestRuntimeGoesAwayWithoutASeatNoticing(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"hang":true}]`)
	r.rt.cfg.close()
	r.rt = r.fresh()
	if again := r.adopt(q, false); again.State != sdk.SeatRunning || again.Agent != st.Agent {
		t.Errorf("%+v", again)
	}
}

// A handle finds its seat although the runtime is configured with another seat root by now.
func TestHandleOutlivesTheSeatRoot(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	h := r.spawn(q)
	moved := newRig(t)
	adopt, stop := adoptOf(q, true), stopOf(q, sdk.StopNow)
	adopt.Handle, stop.Handle = h, h
	st, err := moved.rt.Adopt(context.Background(), adopt)
	if err != nil || st.State != sdk.SeatRunning {
		t.Fatalf("adopt: %+v, %v", st, err)
	}
	if rep, err := moved.rt.Reap(context.Background(), stop); err != nil || rep.Outcome != sdk.ReapStopped {
		t.Errorf("reap: %+v, %v", rep, err)
	}
	r.gone(q)
}

// A handle of a newer runtime, or of another seat, is refused by name.
func TestHandlesAreChecked(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[]`)
	h := r.spawn(q)
	for name, bad := range map[string]sdk.Handle{
		"version 2": {Version: 2, Ref: h.Ref, State: h.State},
		"of seat":   {Version: 1, Ref: strings.Repeat("0", 32), State: h.State},
		"state":     {Version: 1, Ref: h.Ref, State: []byte("{")},
	} {
		req := adoptOf(q, false)
		req.Handle = bad
		if _, err := r.rt.Adopt(context.Background(), req); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
