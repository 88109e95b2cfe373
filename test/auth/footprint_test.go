//go:build linux

package auth

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// books are what a world began with, and what its lives have left since.
type books struct {
	*rig
	before census
}

// account holds that nothing is left since the books were opened but what is kept by design: of every life the rows
// that are never deleted, each of them closed; of every alias its slot. Lives may be fewer than tried: one that came to
// nothing before it was reserved has no row at all.
func (b books) account(what string, lives, aliases int) {
	b.t.Helper()
	grown := b.settled(b.before, what)
	want := growth{keptUID: lives, keptGate: lives, keptHead: lives, keptFrontier: lives, keptSlot: aliases}
	for _, k := range keptForEver {
		if grown[k] != want[k] {
			b.t.Errorf("%s: %d × %s is kept of %d lives under %d names", what, grown[k], k, lives, aliases)
		}
	}
	b.closed(what)
}

// closed holds that every life is over in each of its rows, and that what is not kept for ever has an end.
func (b books) closed(what string) {
	b.t.Helper()
	now := b.census()
	records, ledger := "KV_cotal_records_"+b.space, "KV_cotal_auth_"+b.space
	for _, alias := range now.rows(wire.BucketRecords, wire.KindSlot) {
		s, ok := b.slot(strings.TrimPrefix(alias, wire.OwnerLocal+"."))
		if !ok || s.Phase != wire.SlotRetired || !s.CleanupComplete {
			b.t.Errorf("%s: slot %s is %+v", what, alias, s)
		}
	}
	for _, uid := range now.rows(wire.BucketAuth, wire.KindGate) {
		m, _ := b.row(ledger, b.kv(wire.BucketAuth, "gate."+uid))
		if g, err := wire.DecodeGate(uid, m.Data); err != nil || g.State != wire.GateRetired {
			b.t.Errorf("%s: the gate of %s is %s, %v", what, uid, m.Data, err)
		}
	}
	for _, who := range now.rows(wire.BucketRecords, wire.KindLifecycle) {
		p, err := wire.PrincipalOf(who)
		if err != nil {
			b.t.Errorf("%s: head %s: %v", what, who, err)
			continue
		}
		m, _ := b.row(records, b.kv(wire.BucketRecords, "lifecycle."+who))
		if h, err := wire.DecodeLifecycleHead(p, m.Data); err != nil || h.State != wire.LifeRetired {
			b.t.Errorf("%s: the head of %s is %s, %v", what, who, m.Data, err)
		}
	}
	for _, kind := range []string{wire.KindCredential, wire.KindEndpointCred} {
		for _, key := range now.rows(wire.BucketAuth, kind) {
			m, ok := b.row(ledger, b.kv(wire.BucketAuth, kind+"."+key))
			if !ok {
				continue // its end came just now
			}
			ttl, err := time.ParseDuration(m.Hdrs.Get("Nats-TTL"))
			if err != nil || ttl <= 0 || ttl > 24*time.Hour+time.Second {
				b.t.Errorf("%s: row %s.%s of the ledger ends after %q", what, kind, key, m.Hdrs.Get("Nats-TTL"))
			}
			if kind == wire.KindCredential && !strings.Contains(string(m.Data), `"revoked"`) {
				b.t.Errorf("%s: credential %s of a seat that is gone is valid: %s", what, key, m.Data)
			}
		}
	}
}

// steps are the places at which a spawn can be made to fail, and what fails there is undone.
func steps(t *testing.T) (all []string) {
	t.Helper()
	dir, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	sites, err := failpoints.Scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sites {
		if strings.HasPrefix(s.Name, "host.spawn.") || strings.HasPrefix(s.Name, "host.provision.") {
			all = append(all, s.Name)
		}
	}
	if len(all) < 20 {
		t.Fatalf("found only %v", all)
	}
	return all
}

// Whatever way a seat ends, nothing of it is left: in the broker (consumers, rows, streams, accounts, connections), on
// the disk (names and modes), among the processes. Rows that are never deleted are counted, and closed.
//
// proves: DOWN-3, DOWN-4, DOWN-7, PROV-5, PROV-6
func TestFootprint_NothingIsLeftOfASeat(t *testing.T) {
	t.Parallel()
	r := newRig(t, harness.HostOptions{})
	b := books{r, r.still()}
	hang := `[{"print": "up\n"}, {"hang": true}]`
	gate := func(name, then string) (script, file string) {
		file = filepath.Join(r.Dir, name)
		return fmt.Sprintf(`[{"print": "up\n"}, {"waitFile": %s}, %s]`, quote(file), then), file
	}
	lives := 0
	end := func(what string, do func()) {
		t.Helper()
		lives++
		do()
		r.awaitFree("worker")
		b.account(what, lives, 1)
	}
	open := func(file string) {
		t.Helper()
		// Beside the world, and not in what is counted.
		if err := writeFile(file, ""); err != nil {
			t.Fatal(err)
		}
	}

	end("a despawn", func() {
		row := r.SpawnFake("worker", hang)
		if _, other := compare(b.before, r.census()); len(other) < 5 {
			t.Errorf("a seat that runs is hardly seen, so that nothing of this shows anything:%s", lines(other))
		}
		if s, _ := r.slot("worker"); s.Phase != wire.SlotActive || s.LifecycleUID != row.LifecycleUID {
			t.Errorf("the slot of a seat that runs is %+v", s)
		}
		r.CLI("stop", "worker").OK()
	})
	end("a clean exit", func() {
		script, file := gate("leave", `{"exit": 0}`)
		r.SpawnFake("worker", script)
		open(file)
		r.AwaitStatus("worker", "exited")
	})
	end("a crash", func() {
		script, file := gate("die", `{"die": "KILL"}`)
		r.SpawnFake("worker", script)
		open(file)
		r.AwaitStatus("worker", "exited")
	})
	end("its custody is killed", func() {
		r.SpawnFake("worker", hang)
		for _, p := range r.ProcsLike("cotal-seat") {
			r.TrySignal(p.PID, syscall.SIGKILL)
		}
		r.AwaitStatus("worker", "exited")
	})
	end("a host that is killed and started again, and a despawn", func() {
		row := r.SpawnFake("worker", hang)
		r.host.Kill()
		r.start(harness.HostOptions{})
		r.connected()
		if again := r.AwaitStatus("worker", "running"); again.PID != row.PID || again.LifecycleUID != row.LifecycleUID {
			t.Errorf("behind the restart it is %+v, was %+v", again, row)
		}
		r.CLI("stop", "worker").OK()
	})
	end("a seat that ends while there is no host", func() {
		row := r.SpawnFake("worker", hang)
		r.host.Kill()
		r.KillPID(row.PID)
		r.start(harness.HostOptions{})
		r.connected()
	})
	end("a stop of the host with its agents", func() {
		r.SpawnFake("worker", hang)
		r.Run(t.Context(), filepath.Join(r.Bin, "cotal-host"), "stop", "--with-agents", "--root", r.Root).OK()
		if _, ok := r.host.WaitExit(patience); !ok {
			t.Fatal("the host does not end")
		}
		r.start(harness.HostOptions{})
		r.connected()
	})
}

// A spawn that fails leaves as little as one that ended, whatever step it fails at.
//
// proves: PROV-5
func TestFootprint_NothingIsLeftOfASpawnThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, harness.HostOptions{})
	b := books{r, r.still()}
	r.host.Stop()
	points := steps(t)
	var armed []string
	for _, p := range points {
		armed = append(armed, p+"=1*error("+p+")")
	}
	r.start(harness.HostOptions{Failpoints: strings.Join(armed, ";")})
	r.connected()
	failed := map[string]bool{}
	aliases := 0
	for n := 1; ; n++ {
		// Every place is armed once, so each spawn gets one step further than the one before.
		if n > len(points)+1 {
			t.Fatalf("%d spawns fail at %d places", n-1, len(points))
		}
		said := r.CLI(append([]string{"spawn", "--agent", "command", "--name", "worker", "--detach", "--"}, r.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)...)
		at := ""
		for _, p := range points {
			if strings.Contains(said.Stdout+said.Stderr, p) {
				at = p
			}
		}
		if at == "" && said.Code != 0 {
			t.Fatalf("a spawn fails, and not by a failpoint: %v", said)
		}
		if at == "" {
			break
		}
		if failed[at] {
			t.Errorf("%s is reached twice: %v", at, said)
		}
		failed[at] = true
		r.awaitFree("worker")
		grown := r.settled(b.before, "a spawn that fails at "+at)
		if _, taken := r.slot("worker"); taken {
			aliases = 1
		}
		// What was not reached is not there; what was, is of one life and is closed.
		for _, k := range keptForEver {
			if most := map[bool]int{true: aliases, false: len(failed)}[k == keptSlot]; grown[k] > most {
				t.Errorf("%s: %d × %s", at, grown[k], k)
			}
		}
		b.closed("a spawn that fails at " + at)
	}
	r.CLI("stop", "worker").OK()
	r.awaitFree("worker")
	grown := r.settled(b.before, "the spawn that succeeds")
	b.closed("the spawn that succeeds")
	for _, p := range points {
		if strings.HasPrefix(p, "host.provision.") && !failed[p] {
			t.Errorf("no spawn failed at %s", p)
		}
	}
	t.Logf("%d steps failed: %v; %s", len(failed), slices.Sorted(keysOf(failed)), grown)
}

// manyInARow are enough to see whether memory grows.
const manyInARow = 100

// churn starts and ends seats under one name, and holds what is kept against their number.
func churn(t *testing.T, n int) {
	w := harness.NewAuthenticated(t)
	if n >= manyInARow {
		// Rows that are kept for ever cost a broker memory, some 50 KiB a life with those that end in a day. That of the host
		// is told from it where the broker is a process of its own.
		w.StartBroker()
	}
	r := over(t, w, harness.HostOptions{})
	c := r.Mesh()
	once := func() {
		t.Helper()
		l, err := harness.Launch(t.Context(), c, r.FakeArgs("worker", `[{"hang": true}]`))
		if err == nil {
			err = harness.Despawn(t.Context(), c, l.Acceptance)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const warm = 5
	for range warm {
		once()
	}
	r.awaitFree("worker")
	b := books{r, r.still()}
	fds := func() int { return entries(t, "/proc/"+strconv.Itoa(r.host.PID)+"/fd") }
	files := fds()
	memory := []int{anon(t, r.host.PID)}
	for i := range n {
		once()
		if (i+1)%(n/5) == 0 {
			memory = append(memory, anon(t, r.host.PID))
		}
	}
	b.account(fmt.Sprintf("%d spawns and retirements in a row", n), n, 0)
	harness.Eventually(t, patience, "the host has no more files open than before", func() (bool, string) {
		return fds() <= files+3, fmt.Sprintf("%d, had %d", fds(), files)
	})
	t.Logf("anonymous memory of the host, in KiB: %v", memory)
	if n < manyInARow {
		return // a heap that was just made grows
	}
	// The middle of the way against its end: what every spawn leaves shows in between.
	if was, is := memory[2], memory[len(memory)-1]; is > was+was/5+4096 {
		t.Errorf("the memory of the host grows: %v KiB", memory)
	}
}

// proves: DOWN-9
func TestFootprint_SpawnsInARowLeaveTheRowsOfTheirLivesAndNothingElse(t *testing.T) {
	t.Parallel()
	churn(t, spawnsInARow())
}
