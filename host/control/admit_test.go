package control

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

type gone map[string]string

func (g gone) Retiring(c wire.Caller) string { return g[c.Actor] }

type denies map[string]bool

func (d denies) Allow(_ context.Context, r *bus.Request, _ string) *wire.Error {
	if d[r.Caller().Actor] {
		return wire.Refuse(wire.CodePermissionDenied, "not for you")
	}
	return nil
}

func from(actor string) *bus.Request {
	return &bus.Request{Subject: wire.RequestSubject{Caller: wire.Caller{Owner: "local", Actor: actor, UID: wire.NewUID()}}}
}

// The fence speaks first, then whether the caller belongs here, then whether it may.
//
// proves: FENCE-6, FENCE-7, FENCE-8, FENCE-9
func TestAdmissionHasAnOrder(t *testing.T) {
	work, status, own := entry{Name: "spawn"}, entry{Name: wire.CmdStatus, Observes: true}, entry{Name: wire.CmdShutdown, InstanceOnly: true}
	open := func(*Fence) {}
	for _, c := range []struct {
		name  string
		state func(*Fence)
		e     entry
		actor string
		code  string // "" = admitted
		say   string
	}{
		{"an active host admits work", open, work, "alice", "", ""},
		{"a seat that is ending is no longer served", open, work, "ended", wire.CodePermissionDenied, "is retiring"},
		{"what the policy denies is denied", open, work, "mallory", wire.CodePermissionDenied, "not for you"},
		{"a stopping host refuses work", (*Fence).Stop, work, "alice", wire.CodeUnavailable, "is stopping"},
		{"and status", (*Fence).Stop, status, "alice", wire.CodeUnavailable, "is stopping"},
		{"the fence speaks before membership", (*Fence).Stop, work, "ended", wire.CodeUnavailable, "is stopping"},
		{"the host's own affairs are not fenced", (*Fence).Stop, own, "alice", "", ""},
		{"but they are for those who may", (*Fence).Stop, own, "mallory", wire.CodePermissionDenied, "not for you"},
		{"a preserving host refuses work", func(f *Fence) { f.Set(ModePreserving, "") }, work, "alice", wire.CodeUnavailable, "is preserving"},
		{"and status", func(f *Fence) { f.Set(ModePreserving, "") }, status, "alice", wire.CodeUnavailable, "is preserving"},
		{"a preserved host refuses work", func(f *Fence) { f.Set(ModePreserved, "") }, work, "alice", wire.CodeUnavailable, "is preserved"},
		{"and answers status", func(f *Fence) { f.Set(ModePreserved, "") }, status, "alice", "", ""},
		{"to those who belong here", func(f *Fence) { f.Set(ModePreserved, "") }, status, "ended", wire.CodePermissionDenied, "is retiring"},
		{"an active host that waits for a resume refuses work", func(f *Fence) { f.Set(ModeActive, "r1") }, work, "alice", wire.CodeUnavailable, "attempt r1"},
		{"and answers status", func(f *Fence) { f.Set(ModeActive, "r1") }, status, "alice", "", ""},
		{"a preserved one that waits refuses both", func(f *Fence) { f.Set(ModePreserved, "r1") }, status, "alice", wire.CodeUnavailable, "attempt r1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFence(gone{"ended": "it is retiring"})
			c.state(f)
			d := Deps{Fence: f, Policy: denies{"mallory": true}}
			release, err := d.admit(c.e)(t.Context(), from(c.actor))
			if c.code == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				release()
				release()
			} else if err == nil || err.Code != c.code || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, c.say) {
				t.Fatalf("got %v; want %s saying %q", err, c.code, c.say)
			}
			// Whatever was refused or released is not counted any more.
			if err := f.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// proves: FENCE-2, FENCE-3
func TestTheFenceSaysTheWeightiestReason(t *testing.T) {
	f := NewFence(nil)
	for _, step := range []struct {
		change func()
		say    string
	}{
		{func() { f.Set(ModePreserving, "") }, "is preserving"},
		{func() { f.Set(ModePreserving, "r2") }, "attempt r2"},
		{f.Stop, "is stopping"},
	} {
		step.change()
		if _, err := f.Enter(false); err == nil || !strings.Contains(err.Message, step.say) {
			t.Errorf("got %v; want it to say %q", err, step.say)
		}
	}
}

// Every operation is either waited for or refused, whenever the stop comes.
//
// proves: FENCE-1, FENCE-4, FENCE-5
func TestAStopWaitsForAllThatWasAdmitted(t *testing.T) {
	for range 50 {
		f := NewFence(nil)
		var running, admitted, refused atomic.Int32
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for {
					release, err := f.Enter(false)
					if err != nil {
						refused.Add(1)
						return
					}
					running.Add(1)
					admitted.Add(1)
					running.Add(-1)
					release()
					release() // a second time takes nobody else's place
				}
			})
		}
		for admitted.Load() == 0 {
			select {
			case <-time.After(time.Microsecond):
			case <-t.Context().Done():
			}
		}
		f.Stop()
		if err := f.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := running.Load(); n != 0 {
			t.Fatalf("%d operations run behind the drain", n)
		}
		wg.Wait()
		if refused.Load() != 16 {
			t.Fatalf("%d refusals", refused.Load())
		}
	}
	// One that does not end is not taken for ended.
	f := NewFence(nil)
	release, _ := f.Enter(false)
	f.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := f.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("drained: %v", err)
	}
	release()
	if err := f.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
}
