//go:build linux

package pty

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// watching runs Watch and returns what it emits.
func (r *rig) watching(q sdk.SpawnRequest) (<-chan sdk.SeatStatus, <-chan error) {
	news, done := make(chan sdk.SeatStatus, 64), make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	go func() {
		done <- r.rt.Watch(ctx, sdk.WatchRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID, Fence: q.Fence}, func(st sdk.SeatStatus) error {
			news <- st
			return nil
		})
		close(news)
	}()
	return news, done
}

// proves: RT-6. A watch tells the current state, every change, and the exit, and then ends.
func TestWatchTellsEveryChange(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"waitFile":"{work}/go"},{"exit":3}]`)
	r.spawn(q)
	news, done := r.watching(q)
	if st := <-news; st.State != sdk.SeatPrepared {
		t.Fatalf("first %+v", st)
	}
	r.adopt(q, true)
	if st := <-news; st.State != sdk.SeatRunning || st.Agent.PID == 0 {
		t.Fatalf("second %+v", st)
	}
	if err := os.WriteFile(r.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var last sdk.SeatStatus
	for st := range news {
		last = st
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if last.State != sdk.SeatExited || last.Exit == nil || last.Exit.Code == nil || *last.Exit.Code != 3 {
		t.Errorf("last %+v", last)
	}
}

func TestWatchTellsTheLossOfCustody(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"ignore":["HUP"]},{"print":"deaf\n"},{"hang":true}]`)
	r.view(q, 0).await(t, "deaf")
	news, done := r.watching(q)
	if st := <-news; st.State != sdk.SeatRunning {
		t.Fatalf("first %+v", st)
	}
	r.killCustody(q)
	var last sdk.SeatStatus
	for st := range news {
		last = st
	}
	if err := <-done; err != nil || last.State != sdk.SeatExited || last.Exit.Evidence != sdk.EvidenceCustodyLost || alive(st.Agent.PID) {
		t.Errorf("last %+v, %v", last, err)
	}
}

func TestWatchEndsWithItsCaller(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"hang":true}]`)
	ctx, cancel := context.WithCancel(context.Background())
	err := r.rt.Watch(ctx, sdk.WatchRequest{SeatID: q.SeatID, InstanceID: r.instance, Fence: r.fence}, func(sdk.SeatStatus) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	broken := errors.New("nobody listens")
	err = r.rt.Watch(context.Background(), sdk.WatchRequest{SeatID: q.SeatID, InstanceID: r.instance, Fence: r.fence}, func(sdk.SeatStatus) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("emit failed: %v", err)
	}
}

// Every directory is listed: ours, foreign, never started, broken; and what is broken says which file.
func TestListShowsEverything(t *testing.T) {
	r := newRig(t)
	ours := r.spec(`[{"hang":true}]`)
	r.spawn(ours)
	foreign := r.spec(`[{"hang":true}]`)
	foreign.Owner.InstanceID = "somebody"
	r.specs[1] = foreign
	r.spawn(foreign)
	intent := r.spec(`[]`)
	if err := errors.Join(os.Mkdir(r.dir(intent), 0o700), record.WriteIntent(r.dir(intent), intentOf(intent))); err != nil {
		t.Fatal(err)
	}
	broken := strings.Repeat("b", 32)
	if err := errors.Join(os.Mkdir(filepath.Join(r.cfg.SeatRoot, broken), 0o700), os.WriteFile(filepath.Join(r.cfg.SeatRoot, broken, record.SeatFile), []byte(`{"version":1,"custodyId":"`+broken+`"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	link, odd, gone := strings.Repeat("c", 32), "odd", ".gone-"+strings.Repeat("d", 32)
	if err := errors.Join(os.Symlink(t.TempDir(), filepath.Join(r.cfg.SeatRoot, link)), os.Mkdir(filepath.Join(r.cfg.SeatRoot, odd), 0o700), os.MkdirAll(filepath.Join(r.cfg.SeatRoot, gone, "launch"), 0o700)); err != nil {
		t.Fatal(err)
	}
	list, err := r.rt.List(context.Background(), sdk.ListRequest{InstanceID: r.instance})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]sdk.SeatListing{}
	for _, l := range list {
		by[l.SeatID] = l
	}
	if len(list) != 6 {
		t.Errorf("%d entries: %+v", len(list), list)
	}
	if l := by[ours.SeatID]; !l.Ours || l.Owner != ours.Owner || l.Nonce != ours.Nonce || l.Fence != ours.Fence || string(l.Form) != string(ours.Form) || l.Created.IsZero() || l.Problem != "" {
		t.Errorf("ours %+v", l)
	}
	if l := by[foreign.SeatID]; l.Ours || l.Owner.InstanceID != "somebody" || l.Problem != "" {
		t.Errorf("foreign %+v", l)
	}
	if l := by[intent.SeatID]; !l.Ours || l.Owner != intent.Owner || !strings.Contains(l.Problem, "no seat was started") {
		t.Errorf("intent %+v", l)
	}
	if l := by[broken]; l.Ours || !strings.Contains(l.Problem, record.SeatFile) || !strings.Contains(l.Problem, "nonce") {
		t.Errorf("broken %+v", l)
	}
	if l := by[odd]; l.Problem == "" {
		t.Errorf("odd %+v", l)
	}
	if l := by[link]; l.Problem == "" || l.Ours {
		t.Errorf("link %+v", l)
	}
	if _, err := os.Lstat(filepath.Join(r.cfg.SeatRoot, gone)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the leftover was not swept: %v", err)
	}
	for _, name := range []string{broken, link, odd} {
		os.RemoveAll(filepath.Join(r.cfg.SeatRoot, name))
	}
}
