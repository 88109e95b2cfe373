//go:build linux

package auth

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// long runs try everything; a short one has a slice of it.
var long = os.Getenv("COTAL_LONG") != ""

// patient is a world with a seat that a bridge puts on the mesh and prints what is said to it.
type patient struct {
	*rig
	broker *harness.Broker // nil: it is inside the host
	row    wire.AgentRow
	n      int
}

// newPatient starts a host with such a seat, on a broker of its own with apart, else inside the host.
func newPatient(t *testing.T, apart bool) *patient {
	t.Helper()
	w := harness.NewAuthenticated(t)
	p := &patient{}
	if apart {
		p.broker = w.StartBroker()
	}
	p.rig = over(t, w, harness.HostOptions{})
	args := p.FakeArgs("worker", `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)
	args.LaunchOptions["mesh"] = "stdin"
	args.Subscribe, args.AllowSubscribe, args.AllowPublish = []string{"team"}, []string{"team"}, []string{"team"}
	if _, err := harness.Launch(t.Context(), p.Mesh(), args); err != nil {
		t.Fatal(err)
	}
	p.row = p.AwaitStatus("worker", "running")
	p.reads()
	return p
}

// reads fails unless the seat gets a direct message.
func (p *patient) reads() {
	p.t.Helper()
	p.n++
	word := fmt.Sprintf("word-%d-for-you", p.n)
	p.CLI("send", "@worker", word).OK()
	harness.Eventually(p.t, patience, "the seat reads "+word, func() (bool, string) {
		out := p.CLI("logs", "worker").OK().Stdout
		return strings.Contains(out, word), out
	})
}

// kept fails unless the seat is the same process in the same life.
func (p *patient) kept(when string) {
	p.t.Helper()
	if !p.Alive(p.row.PID) {
		p.t.Fatalf("%s: process %d of the seat is gone", when, p.row.PID)
	}
	if _, err := os.Stat(filepath.Join(p.SeatRoot, p.row.SeatID)); err != nil {
		p.t.Errorf("%s: %v", when, err)
	}
}

// same fails unless a host has the seat as it was.
func (p *patient) same(when string) {
	p.t.Helper()
	p.kept(when)
	again := p.AwaitStatus("worker", "running")
	if again.PID != p.row.PID || again.LifecycleUID != p.row.LifecycleUID || again.ID != p.row.ID {
		p.t.Errorf("%s: the seat is %+v, was %+v", when, again, p.row)
	}
}

// whole fails unless the mesh has all that the seat needs, the seat is read and answered, another one can be started beside it,
// and nothing is left of either when they are stopped.
func (p *patient) whole(when string) {
	p.t.Helper()
	p.same(when)
	p.reads()
	if s, ok := p.slot("worker"); !ok || s.Phase != wire.SlotActive || s.LifecycleUID != p.row.LifecycleUID {
		p.t.Errorf("%s: the slot is %+v, %v", when, s, ok)
	}
	if f := p.doctor(0)["seat worker"]; f.Verdict != trust.Good {
		p.t.Errorf("%s: %+v", when, f)
	}
	p.Spawn("other", p.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)
	for _, name := range []string{"other", "worker"} {
		p.CLI("stop", name).OK()
		p.awaitFree(name)
	}
	if left, _ := filepath.Glob(p.Path(".cotal", "auth", "creds", "*", "*.*.creds")); len(left) > 1 {
		p.t.Errorf("%s: credentials are left: %v", when, left)
	}
}

// doctor returns the facts by their names; of several with one name the worst.
func (p *patient) doctor(code int, args ...string) map[string]trust.Fact {
	p.t.Helper()
	res := p.Host("doctor", append(args, "--json")...)
	if res.Code != code {
		p.t.Fatalf("doctor: want code %d: %v", code, res)
	}
	all := map[string]trust.Fact{}
	for line := range strings.Lines(res.Stdout) {
		var f trust.Fact
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			p.t.Fatalf("%q: %v", line, err)
		}
		if have, ok := all[f.Name]; !ok || trust.Worst([]trust.Fact{have, f}) != have.Verdict {
			all[f.Name] = f
		}
	}
	if len(all) == 0 {
		p.t.Fatalf("doctor tells nothing: %v", res)
	}
	return all
}

// answers waits until the host answers again.
func (p *patient) answers() {
	p.t.Helper()
	harness.Eventually(p.t, patience, "the host answers", func() (bool, string) {
		res := p.CLI("ps")
		return res.Code == 0, res.String()
	})
}

// stopHost stops the host and leaves the seat.
func (p *patient) stopHost() {
	p.t.Helper()
	p.host.Stop()
	p.kept("the host has stopped")
}

// refusesToServe fails unless a host does not start, says why, and names the repair.
func (p *patient) refusesToServe() {
	p.t.Helper()
	h := p.Launch(harness.HostOptions{})
	exit, ok := h.WaitExit(patience)
	if !ok || exit.Code == 0 || !strings.Contains(h.Stderr(), "cotal-host doctor --repair") {
		p.t.Errorf("a host that starts on a mesh that has lost its store: %v, %v\n%s", exit, ok, h.Stderr())
	}
	p.kept("a host has refused to start")
}

// store is the store of the embedded broker.
func (p *patient) store() string { return p.Path(".cotal", "host", "nats-auth") }

// stream is the directory of a stream in a store.
func (p *patient) stream(store, name string) string {
	p.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", name+"_"+p.space))
	if err != nil || len(dirs) != 1 {
		p.t.Fatalf("directory of stream %s: %v, %v", name, dirs, err)
	}
	return dirs[0]
}

// repair makes the mesh whole, twice: the second time there is nothing to do.
func (p *patient) repair(args ...string) {
	p.t.Helper()
	args = append(args, "--repair")
	if f := p.doctor(0, args...); f["repaired"].Text == "" {
		p.t.Errorf("nothing was repaired: %v", f)
	}
	p.kept("the mesh was repaired")
	if f := p.doctor(0, args...); f["repaired"].Text != "" {
		p.t.Errorf("a second repair does something: %+v", f["repaired"])
	}
}

// A broker that was killed and has its store is nobody's affair: the seat reads on, and new ones are started.
func TestRepair_ABrokerThatIsBackWithItsStoreNeedsNone(t *testing.T) {
	t.Parallel()
	p := newPatient(t, true)
	p.broker.Kill()
	p.kept("the broker is gone")
	p.broker.Restart()
	p.connected()
	p.answers()
	p.whole("the broker is back")
}

// A broker that comes back without its store has lost who everybody is. Seats are kept, nothing new is begun, and the reason
// and the repair are told, until everything is made again.
//
// proves: I8
func TestRepair_ABrokerThatLostItsStoreUnderAHostThatRuns(t *testing.T) {
	t.Parallel()
	p := newPatient(t, true)
	b := p.broker
	b.Kill()
	if err := os.RemoveAll(b.Store); err != nil {
		t.Fatal(err)
	}
	b.Restart()
	p.connected()
	p.answers()
	args := []string{"spawn", "--agent", "command", "--name", "other", "--detach", "--", "/bin/sleep", "3600"}
	res := p.Run(t.Context(), filepath.Join(p.Bin, "cotal"), args...)
	if res.Code == 0 {
		t.Errorf("a seat was started on a mesh that has lost its store: %v", res)
	}
	p.same("its store is gone")
	if f := p.doctor(1)["seat worker"]; f.Verdict != trust.Wrong || !strings.Contains(f.Repair, "cotal-host doctor --repair") || !strings.Contains(f.Repair, "cotal-host stop") {
		t.Errorf("%+v", f)
	}
	if res := p.Host("doctor", "--repair", "--server", b.URL); res.Code != 1 || !strings.Contains(res.Stderr, "cotal-host stop") {
		t.Errorf("a repair beside a host that runs: %v", res)
	}
	p.stopHost()
	p.refusesToServe()
	if f := p.doctor(1, "--server", b.URL)["streams"]; f.Verdict != trust.Wrong {
		t.Errorf("%+v", f)
	}
	p.repair("--server", b.URL)
	p.start(harness.HostOptions{})
	p.whole("the mesh was repaired")
}

// The store of an embedded broker was removed while no host ran.
func TestRepair_AnEmbeddedStoreThatIsGone(t *testing.T) {
	t.Parallel()
	p := newPatient(t, false)
	p.stopHost()
	if err := os.RemoveAll(p.store()); err != nil {
		t.Fatal(err)
	}
	p.refusesToServe()
	f := p.doctor(1)
	if f["store"].Verdict != trust.Wrong || !strings.Contains(f["store"].Repair, "cotal-host doctor --repair") || f["seat worker"].Verdict != trust.Wrong {
		t.Errorf("%+v", f)
	}
	p.repair()
	p.start(harness.HostOptions{})
	p.connected()
	p.whole("the mesh was repaired")
}

// What a host keeps in a store that is damaged is told of by name, moved aside, and made again.
func TestRepair_AStoreThatIsGarbled(t *testing.T) {
	flip := func(b []byte) []byte { b[len(b)/2] ^= 0xff; return b }
	for what, c := range map[string]struct {
		long         bool
		stream, file string
		change       func([]byte) []byte
	}{
		"the description of the records is cut off": {false, "KV_cotal_records", "meta.inf", func(b []byte) []byte { return b[:len(b)/2] }},
		"the description of the ledger is empty":    {true, "KV_cotal_auth", "meta.inf", func([]byte) []byte { return nil }},
		"a byte of the ledger is flipped":           {true, "KV_cotal_auth", "msgs/1.blk", flip},
		"a byte of the records is flipped":          {true, "KV_cotal_records", "msgs/1.blk", flip},
		"a byte of the messages is flipped":         {false, "DM", "msgs/1.blk", flip},
	} {
		if c.long && !long {
			continue
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, false)
			p.stopHost()
			path := filepath.Join(p.stream(p.store(), c.stream), filepath.FromSlash(c.file))
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.change(raw), 0o600); err != nil {
				t.Fatal(err)
			}
			f := p.doctor(1)["store"]
			if f.Verdict != trust.Wrong || !strings.Contains(f.Text, c.stream+"_"+p.space) || !strings.Contains(f.Repair, "cotal-host doctor --repair") {
				t.Errorf("%+v", f)
			}
			p.repair()
			aside, _ := filepath.Glob(filepath.Join(p.store()+".damaged", "*", "*", c.stream+"_"+p.space))
			if len(aside) != 1 {
				t.Errorf("what was damaged is not kept: %v", aside)
			}
			p.start(harness.HostOptions{})
			p.connected()
			p.whole("the mesh was repaired")
		})
	}
}

// A repair that is killed leaves nothing that the next one does not finish.
func TestRepair_ThatIsKilledIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	p := newPatient(t, false)
	points := []string{
		"host.provision.minted", // of a short run
		"host.repair.streams", "host.repair.set-aside", "host.register.frozen", "host.provision.uid", "host.provision.head", "host.provision.minting", "host.mint.ledgered",
		"host.mint.gated", "host.repair.restored", "host.repair.repaired",
	}
	if !long {
		points = points[:1]
	}
	for _, point := range points {
		p.stopHost()
		if err := os.RemoveAll(p.store()); err != nil {
			t.Fatal(err)
		}
		p.killedRepair(point)
		p.doctor(0, "--repair")
		p.start(harness.HostOptions{})
		p.connected()
		p.same("a repair was killed at " + point)
		p.reads()
	}
	p.whole("repairs were killed")
}

// killedRepair runs a repair that kills itself.
func (p *patient) killedRepair(point string) {
	p.t.Helper()
	h := p.LaunchProgram(filepath.Join(p.Bin, "cotal-host"), []string{"doctor", "--repair", "--root", p.Root}, harness.HostOptions{Failpoints: point + "=crash"})
	h.AwaitCrash()
	p.kept("a repair was killed at " + point)
}

// A seat whose process ended while its mesh was lost is ended there, too, once that is repaired; so is one whose credential
// nobody has any more.
func TestRepair_OfASeatThatHasEnded(t *testing.T) {
	t.Parallel()
	p := newPatient(t, false)
	p.stopHost()
	if err := os.RemoveAll(p.store()); err != nil {
		t.Fatal(err)
	}
	p.KillPID(p.row.PID)
	p.AwaitGone(p.row.PID)
	p.doctor(0, "--repair")
	p.start(harness.HostOptions{})
	p.connected()
	p.awaitFree("worker")
	if !long {
		return
	}
	p.Spawn("worker", p.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)
	row := p.AwaitStatus("worker", "running")
	p.stopHost2(row.PID)
	path, _ := p.credential(row)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(p.store()); err != nil {
		t.Fatal(err)
	}
	f := p.doctor(1, "--repair")["seat worker"]
	if f.Verdict != trust.Wrong || !strings.Contains(f.Repair, "cotal stop worker") {
		t.Errorf("%+v", f)
	}
	p.start(harness.HostOptions{})
	p.connected()
	p.CLI("stop", "worker").OK()
	p.awaitFree("worker")
}

// stopHost2 stops the host and leaves the process of another seat.
func (p *patient) stopHost2(pid int) {
	p.t.Helper()
	p.host.Stop()
	if !p.Alive(pid) {
		p.t.Fatalf("process %d of the seat is gone", pid)
	}
}

// A signing key that was stolen is taken away at once, under a host with a seat: both are renewed, and go on as who they were.
func TestRepair_ASigningKeyThatIsDroppedCostsNoSeat(t *testing.T) {
	t.Parallel()
	p := newPatient(t, false)
	path, was := p.credential(p.row)
	p.CLI("auth", "rotate", "--drop").OK()
	p.answers()
	p.same("its signing key was dropped")
	harness.Eventually(t, patience, "the seat has another credential", func() (bool, string) {
		text, err := os.ReadFile(path)
		return err == nil && string(text) != string(was), fmt.Sprint(err)
	})
	p.reads()
	p.Spawn("other", p.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)
	p.CLI("stop", "other").OK()
	p.CLI("stop", "worker").OK()
}

// Two hosts share a broker that lost its store. Each is repaired from its own workspace; a host that starts before that keeps
// its seat, and says of it what is missing.
func TestRepair_OfTwoHostsIsOfEachByItself(t *testing.T) {
	if !long {
		t.Skip("in a long run")
	}
	t.Parallel()
	one := newPatient(t, true)
	w := harness.NewAuthenticated(t)
	args := []string{"--server", one.broker.URL, "--keys", one.Root}
	two := &patient{rig: over2(t, w, one.rig, harness.HostOptions{Args: args}), broker: one.broker}
	two.row = two.Spawn("there", two.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)
	one.stopHost()
	two.stopHost()
	one.broker.Kill()
	if err := os.RemoveAll(one.broker.Store); err != nil {
		t.Fatal(err)
	}
	one.broker.Restart()
	one.connected()
	one.repair("--server", one.broker.URL)
	one.start(harness.HostOptions{})
	if s, ok := one.slot("there"); ok {
		t.Errorf("the repair of one host wrote the slot of another: %+v", s)
	}
	two.start(harness.HostOptions{Args: args})
	harness.Eventually(t, patience, "the seat is kept, and says what is missing", func() (bool, string) {
		row := two.Inspect("there")
		raw, _ := json.Marshal(row)
		return row.PID == two.row.PID && strings.Contains(string(raw), "cotal-host doctor --repair"), string(raw)
	})
	two.stopHost()
	if f := two.doctor(1, args...)["seat there"]; f.Verdict != trust.Wrong || !strings.Contains(f.Repair, "--keys") {
		t.Errorf("%+v", f)
	}
	two.repair(args...)
	two.start(harness.HostOptions{Args: args})
	if again := two.AwaitStatus("there", "running"); again.PID != two.row.PID || again.LifecycleUID != two.row.LifecycleUID {
		t.Errorf("behind the repair: %+v, was %+v", again, two.row)
	}
	if f := two.doctor(0, args...)["seat there"]; f.Verdict != trust.Good {
		t.Errorf("%+v", f)
	}
	one.whole("both were repaired")
	two.CLI("stop", "there").OK()
	one.awaitFree("there")
}

// A store that is brought back from a backup knows nothing of what was started since, and has what has ended since.
func TestRepair_AnOlderStoreThatIsBroughtBack(t *testing.T) {
	if !long {
		t.Skip("in a long run")
	}
	t.Parallel()
	p := newPatient(t, false)
	hang := p.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)
	p.Spawn("other", hang...)
	p.stopHost()
	older := filepath.Join(p.Dir, "older")
	if err := os.CopyFS(older, os.DirFS(p.store())); err != nil {
		t.Fatal(err)
	}
	p.start(harness.HostOptions{})
	p.CLI("stop", "other").OK()
	again, since := p.Spawn("other", hang...), p.Spawn("since", hang...)
	p.stopHost()
	if err := os.RemoveAll(p.store()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(older, p.store()); err != nil {
		t.Fatal(err)
	}
	p.repair()
	p.start(harness.HostOptions{})
	p.connected()
	for _, row := range []wire.AgentRow{again, since} {
		if now := p.AwaitStatus(row.Name, "running"); now.PID != row.PID || now.LifecycleUID != row.LifecycleUID {
			t.Errorf("%+v, was %+v", now, row)
		}
		if s, ok := p.slot(row.Name); !ok || s.Phase != wire.SlotActive || s.LifecycleUID != row.LifecycleUID {
			t.Errorf("slot of %s: %+v", row.Name, s)
		}
		p.CLI("stop", row.Name).OK()
		p.awaitFree(row.Name)
	}
	p.whole("an older store was brought back")
}
