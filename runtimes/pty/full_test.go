//go:build linux

package pty

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// smallDisk mounts a file system of 16 MiB. fill takes all its space and returns what gives it back.
func smallDisk(t *testing.T) (dir string, fill func() (free func())) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func() func() {
		path := filepath.Join(dir, "filler")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		for page := make([]byte, 4096); err == nil; {
			_, err = f.Write(page)
		}
		if f.Close(); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		return func() {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	}
}

// diskRig is a rig whose seat root is on a small disk.
func diskRig(t *testing.T) (r *rig, fill func() (free func())) {
	disk, fill := smallDisk(t) // before the rig: it is unmounted after the rig has cleaned up
	r = newRig(t)
	r.cfg.SeatRoot = filepath.Join(disk, "seats")
	r.rt = r.fresh()
	return r, fill
}

// An agent that ended while the disk is full is not shown as running, a stop neither kills who holds
// its exit nor calls it gone, and with space again its exit code is there.
func TestFullDiskKeepsTheExitOfADeadAgent(t *testing.T) {
	r, fill := diskRig(t)
	// Its helper dies hard: the exit is written only a second after the agent's end.
	q, _ := r.run(`[{"fork":{"steps":[{"ignore":["HUP","TERM"]},{"pidfile":"{work}/helper"},{"hang":true}]}},{"waitFile":"{work}/go"},{"exit":7}]`)
	r.pid("helper")
	var mu sync.Mutex
	var news []sdk.SeatStatus
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	t.Cleanup(func() { cancel(); <-watched })
	go func() {
		defer close(watched)
		_ = r.rt.Watch(ctx, sdk.WatchRequest{SeatID: q.SeatID, InstanceID: r.instance, Fence: q.Fence}, func(st sdk.SeatStatus) error {
			mu.Lock()
			defer mu.Unlock()
			news = append(news, st)
			return nil
		})
	}()
	free := fill()
	t.Cleanup(free)
	if err := os.WriteFile(r.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	full := func(st sdk.SeatStatus) bool {
		return st.State == sdk.SeatRunning && st.Agent.PID == 0 && strings.Contains(st.Reason, "its exit record cannot be written: no space")
	}
	// The watch first: every other connection makes the seat tell its state again.
	eventually(t, "a watch says why", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(news) > 0 && full(news[len(news)-1])
	})
	if st := r.adopt(q, false); !full(st) {
		t.Errorf("adopt: %s (%s), agent %+v", st.State, st.Reason, st.Agent)
	}
	_, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow))
	if !errors.Is(err, sdk.ErrUnproven) || !strings.Contains(err.Error(), "no space") || !strings.Contains(err.Error(), "free space on the file system of "+r.dir(q)) {
		t.Errorf("stop: %v", err)
	}
	if live, why := seat.Check(r.custody(q)); live != seat.Alive {
		t.Fatalf("custody, which holds the exit, is %s: %s", live, why)
	}
	free()
	eventually(t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	rep := r.reap(q, sdk.StopGraceful)
	if rep.Outcome != sdk.ReapExited || rep.Exit == nil || rep.Exit.Code == nil || *rep.Exit.Code != 7 || rep.Exit.Evidence != sdk.EvidenceReaped {
		t.Errorf("report %+v, exit %+v", rep, rep.Exit)
	}
}

// The same when the stop itself ends the agent, and when custody cannot even be asked.
func TestStopOnAFullDiskKeepsCustody(t *testing.T) {
	for name, reachable := range map[string]bool{"reachable": true, "unreachable": false} {
		t.Run(name, func(t *testing.T) {
			r, fill := diskRig(t)
			q, st := r.run(`[{"hang":true}]`)
			free := fill()
			t.Cleanup(free)
			if !reachable {
				if err := os.Remove(r.record(q).Socket); err != nil {
					t.Fatal(err)
				}
			}
			req := stopOf(q, sdk.StopGraceful)
			req.GraceMs = 500
			_, err := r.rt.Reap(context.Background(), req)
			if !errors.Is(err, sdk.ErrUnproven) || !strings.Contains(err.Error(), "free space") {
				t.Errorf("stop: %v", err)
			}
			if alive(st.Agent.PID) {
				t.Error("the agent lives")
			}
			if live, why := seat.Check(r.custody(q)); live != seat.Alive {
				t.Fatalf("custody, which holds the exit, is %s: %s", live, why)
			}
			free()
			eventually(t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
			want := map[bool]string{true: "SIGTERM", false: "SIGKILL"}[reachable]
			if rep := r.reap(q, sdk.StopGraceful); rep.Exit == nil || rep.Exit.Signal != want || rep.Exit.Evidence != sdk.EvidenceReaped {
				t.Errorf("exit %+v", rep.Exit)
			}
		})
	}
}

// When custody cannot write the exit and the runtime can, the stop completes with what custody knows.
func TestRuntimeRecordsWhatCustodyCannot(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"exit":7}]`)
	m := r.remote("seat.exit.before-fsync=error(broken)", nil) // forwarded to custody
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	r.adopt(q, true)
	eventually(t, "the agent has ended", func() bool { st := r.adopt(q, false); return st.Agent.PID == 0 && st.Reason != "" })
	rec := r.record(q)
	v, err := r.rt.cfg.look(q.SeatID, sdk.Handle{}, q.Nonce)
	if err != nil {
		t.Fatal(err)
	}
	c, why, err := v.Dial(context.Background(), 0, 0)
	if c == nil {
		t.Fatal(why, err)
	}
	now, err := c.Get(context.Background())
	c.Close()
	if err != nil {
		t.Fatal(err)
	}
	rep := r.reap(q, sdk.StopNow)
	if rep.Exit == nil || rep.Exit.Evidence != sdk.EvidenceReaped || (rep.Exit.Code != nil) != now.CodeKnown {
		t.Fatalf("exit %+v, custody says %+v", rep.Exit, now)
	}
	if now.CodeKnown && *rep.Exit.Code != 7 {
		t.Errorf("exit code %d", *rep.Exit.Code)
	}
	if live, why := seat.Check(rec.Identity()); live != seat.Dead {
		t.Errorf("custody is %s: %s", live, why)
	}
}

// crowd answers at the seat's socket that all connections are taken, the first n times; after that the
// seat itself answers again.
func (r *rig) crowd(q sdk.SpawnRequest, n int64) {
	r.t.Helper()
	path := r.record(q).Socket
	if err := os.Rename(path, path+"0"); err != nil {
		r.t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		r.t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	r.t.Cleanup(func() { l.Close(); os.Remove(path + "0") })
	var told atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if told.Add(1) == n {
				_ = os.Rename(path+"0", path)
			}
			_, _ = c.Write(seat.AppendError(nil, 0, seat.Refuse(seat.CodeLimit, "64 connections are open")))
			c.Close()
		}
	}()
}

// Connections that are all taken are no verdict: the host gets in when one is free, says why it cannot
// when none is, and can stop the seat all the same.
func TestFullSocketDoesNotLockTheHostOut(t *testing.T) {
	t.Run("until a connection is free", func(t *testing.T) {
		r := newRig(t)
		q, st := r.run(`[{"hang":true}]`)
		r.crowd(q, 3)
		if got := r.adopt(q, false); got.State != sdk.SeatRunning || got.Agent != st.Agent {
			t.Errorf("adopt: %s (%s)", got.State, got.Reason)
		}
		if rep := r.reap(q, sdk.StopGraceful); rep.Exit == nil || rep.Exit.Signal != "SIGTERM" {
			t.Errorf("exit %+v", rep.Exit)
		}
	})
	t.Run("for good", func(t *testing.T) {
		r := newRig(t)
		q, st := r.run(`[{"hang":true}]`)
		r.crowd(q, 0)
		if got := r.adopt(q, false); got.State != sdk.SeatUnknown || !strings.Contains(got.Reason, "64 connections are open") {
			t.Errorf("adopt: %s (%s)", got.State, got.Reason)
		}
		rep := r.reap(q, sdk.StopGraceful)
		// Custody that only cannot be reached still knows how its agent ended.
		if rep.Outcome != sdk.ReapStopped || rep.Exit == nil || rep.Exit.Evidence != sdk.EvidenceReaped || rep.Exit.Signal != "SIGKILL" {
			t.Errorf("report %+v, exit %+v", rep, rep.Exit)
		}
		if alive(st.Agent.PID) || alive(st.Identity.PID) {
			t.Error("something lives")
		}
	})
	t.Run("real viewers", func(t *testing.T) {
		r := newRig(t)
		q, _ := r.run(`[{"hang":true}]`)
		target, err := r.rt.Attach(context.Background(), sdk.AttachRequest{SeatID: q.SeatID, InstanceID: r.instance})
		if err != nil {
			t.Fatal(err)
		}
		for {
			c, err := seat.Dial(context.Background(), seat.DialConfig{Socket: target.Seat.Socket, Token: target.Seat.Token, Role: seat.RoleOutput, From: seat.FromLive})
			if errors.Is(err, seat.ErrLimit) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		if rep := r.reap(q, sdk.StopGraceful); rep.Outcome != sdk.ReapStopped || rep.Exit == nil || rep.Exit.Evidence != sdk.EvidenceReaped {
			t.Errorf("report %+v, exit %+v", rep, rep.Exit)
		}
	})
}
