package retire_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// Variables of a child that is a host of its own on the broker of its parent.
const (
	childRoot  = "COTAL_TEST_RETIRE_ROOT"
	childURL   = "COTAL_TEST_RETIRE_URL"
	childAlias = "COTAL_TEST_RETIRE_ALIAS"
	childDo    = "COTAL_TEST_RETIRE_DO"
)

// child does one thing as a host, and is to be killed in it.
func child() int {
	if err := childAct(os.Getenv(childDo), os.Getenv(childAlias)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func childAct(do, alias string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	h, err := newHost(ctx, os.Getenv(childRoot), os.Getenv(childURL), inst1, 1)
	if err != nil {
		return err
	}
	switch do {
	case "spawn":
		_, err = h.spawn(ctx, spec(alias))
	case "retire":
		var row retire.Row
		if row, err = h.retire.Row(ctx, wire.SlotKey(wire.OwnerLocal, alias)); err == nil {
			err = h.retire.Retire(ctx, provision.LifeOf(row.Slot))
		}
	case "sweep":
		err = h.sweeper(nil).Sweep(ctx, retire.SweepStartup)
	}
	return err
}

// strike runs a child that is killed where a rule says.
func (r *rig) strike(do, alias, rule string) error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRoot+"="+r.root, childURL+"="+r.br.URL(), childAlias+"="+alias, childDo+"="+do, failpoint.EnvVar+"="+rule)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("%s of %s with %s was not killed: %w\n%s", do, alias, rule, err, out)
	}
	return nil
}

// aliasOf is the alias of a cell, by its failpoint.
func aliasOf(fp string) string { return strings.NewReplacer(".", "_", "host_", "").Replace(fp) }

// sweep is what the next process of the instance does at its start.
func (r *rig) sweep() *retire.Sweeper {
	r.t.Helper()
	next, err := newHost(r.t.Context(), r.root, r.br.URL(), inst1, 2)
	must(r.t, err)
	r.t.Cleanup(next.retire.Close)
	s := next.sweeper(nil)
	r.t.Cleanup(s.Stop)
	ctx, cancel := context.WithTimeout(r.t.Context(), busy.Limit(time.Minute))
	defer cancel()
	must(r.t, s.Sweep(ctx, retire.SweepStartup))
	r.host = next
	return s
}

func (h *host) sweeper(live func(provision.Life) bool) *retire.Sweeper {
	if live == nil {
		live = func(provision.Life) bool { return false }
	}
	return retire.NewSweeper(retire.SweeperConfig{
		Rows: h.retire.Rows, Row: h.retire.Row, Retire: h.retire.Retire, Instance: h.instance, Live: live,
	})
}

// all kills a child at each failpoint, some at a time.
func (r *rig) all(do string, fps []string, atOnce int) {
	r.t.Helper()
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, fp := range fps {
		g.Go(func() error { return r.strike(do, aliasOf(fp), fp+"=crash") })
	}
	must(r.t, g.Wait())
}

// left are the kinds of keys that a life leaves when it was cut short there, besides its slot.
var left = map[string][]string{
	"host.provision.intent": nil, "host.provision.slot": nil,
	"host.provision.uid":    {wire.KindUID},
	"host.provision.frozen": {wire.KindUID, wire.KindGate},
}

var provisioned = []string{wire.KindFrontier, wire.KindGate, wire.KindLifecycle, wire.KindUID}

// Killed at each step of provisioning, a life is found by its slot and brought to its end by the next process: what
// is left are the keys that are never deleted, and how many of them follows from the step.
//
// proves: PROV-3, PROV-6, SLOT-3, SLOT-9, RECON-1
func TestAProvisioningThatIsKilledIsRetiredByTheNext(t *testing.T) {
	r := newRig(t)
	must(t, r.retire(r.spawn("before"))) // the queue of the role is there
	before := r.footprint()
	fps := failpoints("host.provision.")
	r.all("spawn", fps, 4)
	s := r.sweep()
	if st := s.Status(); st.LastSweep.Attempted != len(fps)-1 || st.LastSweep.Failed != 0 || st.State != retire.SweepRecovered {
		t.Errorf("the sweep: %+v, %+v", st, st.LastSweep)
	}
	want := map[string]int{}
	for _, fp := range fps {
		kinds, early := left[fp]
		if !early {
			kinds = provisioned
		}
		for _, k := range kinds {
			want[k]++
		}
		if fp != "host.provision.intent" {
			want[wire.KindSlot]++
		}
	}
	r.compare(before, want)
	for _, fp := range fps {
		key := wire.SlotKey(wire.OwnerLocal, aliasOf(fp))
		row, err := r.host.retire.Row(t.Context(), key)
		if fp == "host.provision.intent" {
			if err == nil {
				t.Errorf("%s: there is a slot", fp)
			}
			continue
		}
		if err != nil || row.Slot.Phase != wire.SlotRetired {
			t.Errorf("%s: slot %+v, %v", fp, row.Slot, err)
		}
		if fp != "host.provision.intent" && !slices.Contains(r.host.reaped, *row.Slot.Runtime) {
			t.Errorf("%s: its process was not looked for", fp)
		}
	}
	// The aliases are free, for lives that have nothing of the earlier ones.
	d := r.spawn(aliasOf("host.provision.minted"))
	must(t, r.retire(d))
}

// Killed at each step of a retirement, it is finished by the next process, under the same operation; the agent is
// not connected any more, and its file is gone.
//
// proves: DOWN-9, SLOT-7, RECON-1
func TestARetirementThatIsKilledIsFinishedByTheNext(t *testing.T) {
	r := newRig(t)
	must(t, r.retire(r.spawn("before")))
	before := r.footprint()
	fps := append(failpoints("host.retire."), "host.revoke.rows", "host.trust.keys-revoked", "host.revoke.pushed", "host.revoke.evicted")
	agents := map[string]*nats.Conn{}
	for _, fp := range fps {
		d := r.spawn(aliasOf(fp))
		agents[fp] = r.agent(d)
	}
	r.all("retire", fps, 1) // one host at a time gives the servers the account
	s := r.sweep()
	if st := s.Status(); st.LastSweep.Attempted != len(fps)-1 || st.LastSweep.Failed != 0 {
		t.Errorf("the sweep: %+v", st)
	}
	want := map[string]int{wire.KindSlot: len(fps)}
	for _, k := range provisioned {
		want[k] = len(fps)
	}
	r.compare(before, want)
	for fp, nc := range agents {
		if !nc.IsClosed() {
			t.Errorf("%s: the agent is connected", fp)
		}
	}
}

// A host that is killed in the middle of a sweep has another one that goes on.
func TestASweepThatIsKilledIsFinishedByTheNext(t *testing.T) {
	r := newRig(t)
	must(t, r.retire(r.spawn("before")))
	before := r.footprint()
	for i := range 3 {
		r.spawn(fmt.Sprintf("left_%d", i))
	}
	must(t, r.strike("sweep", "", "host.retire.cleaned=1*off->crash"))
	must(t, r.strike("sweep", "", "host.retire.gate=crash"))
	r.sweep()
	want := map[string]int{wire.KindSlot: 3}
	for _, k := range provisioned {
		want[k] = 3
	}
	r.compare(before, want)
}

// failpoints lists those of this binary that begin so.
func failpoints(prefix string) []string {
	var out []string
	for _, n := range failpoint.Names() {
		if strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	return out
}

// agent connects with the file that a seat's program reads. Its connection does not come back.
func (r *rig) agent(d *provision.Draft) *nats.Conn {
	r.t.Helper()
	nc, err := nats.Connect(r.br.URL(), nats.UserCredentials(filepath.Join(r.host.store.Dir(), d.File)), nats.NoReconnect(),
		nats.CustomInboxPrefix(wire.InboxPrefix(d.Life.Actor)))
	must(r.t, err)
	r.t.Cleanup(nc.Close)
	return nc
}
