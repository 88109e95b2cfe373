package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/diskfull"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// lines counts the lines of a file.
func lines(path string) int {
	text, _ := os.ReadFile(path)
	return strings.Count(string(text), "\n")
}

// TestABrokerThatIsAwayCostsNoSeat: while the server is killed or stopped the host and its seats go on,
// a command says in time that nobody answers, and when the server is back on the same store and port the
// same host serves again, with the same seats.
func TestABrokerThatIsAwayCostsNoSeat(t *testing.T) {
	for name, away := range map[string]struct{ begin, end func(*harness.Broker) }{
		"killed":  {(*harness.Broker).Kill, (*harness.Broker).Restart},
		"stopped": {(*harness.Broker).Stop, (*harness.Broker).Cont},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			b := w.StartBroker()
			h := w.Start(harness.HostOptions{})
			if e := w.Endpoint(); e.URL != b.URL {
				t.Fatalf("the host is at %s, the broker at %s", e.URL, b.URL)
			}
			beat := filepath.Join(w.Dir, "beat")
			row := w.Spawn("worker", "/bin/sh", "-c", `while :; do echo x >>"$0"; sleep 0.02; done`, beat)

			away.begin(b)
			r := w.CLI("ps", "--timeout", "1500ms")
			if limit := busy.Limit(answerWithin); r.Code != 3 || r.Took > limit || !strings.Contains(r.Stderr, "unreachable") {
				t.Errorf("without a server: %v; want exit code 3 and the reason within %v", r, limit)
			}
			before := lines(beat)
			harness.Eventually(t, harness.DefaultWait, "the seat goes on", func() (bool, string) {
				n := lines(beat)
				return n > before+10, fmt.Sprint(n)
			})
			if !h.Running() {
				t.Fatal("the outage ended the host")
			}
			away.end(b)

			harness.Eventually(t, harness.DefaultWait, "the host serves again", func() (bool, string) {
				r := w.CLI("ps", "--timeout", "2s")
				return r.Code == 0, r.String()
			})
			if got := w.AwaitStatus("worker", "running"); got.PID != row.PID || got.LifecycleUID != row.LifecycleUID {
				t.Errorf("the seat is %+v, was %+v", got, row)
			}
			w.SpawnFake("another", `[{"hang": true}]`)
			if !h.Running() {
				t.Error("the host ended when the server was back")
			}
		})
	}
}

// TestFieldB17_SeatsOfAKilledHostAreAdoptedAtOnce: three seats of a host that is killed are those of the
// host that is started at once, without a step by hand.
func TestFieldB17_SeatsOfAKilledHostAreAdoptedAtOnce(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	pids := map[string]int{}
	for i := range 3 {
		name := fmt.Sprintf("seat-%d", i)
		pids[name] = w.SpawnFake(name, `[{"hang": true}]`).PID
	}
	h.Kill()
	next := w.Start(harness.HostOptions{})
	if limit := busy.Limit(15 * time.Second); next.Boot > limit {
		t.Errorf("the successor served after %v; at most %v are allowed", next.Boot, limit)
	}
	for name, pid := range pids {
		if got := w.AwaitStatus(name, "running"); got.PID != pid {
			t.Errorf("%s has pid %d, was %d", name, got.PID, pid)
		}
		w.CLI("stop", name).OK()
		if w.Alive(pid) {
			t.Errorf("%s was stopped, and process %d lives", name, pid)
		}
	}
}

// TestFieldJ11_AFullDiskCostsNoSeatAndNoState: with no room for the journal and the seats a host answers,
// refuses what it cannot record, keeps what runs, leaves no empty file, and goes on when there is room.
func TestFieldJ11_AFullDiskCostsNoSeatAndNoState(t *testing.T) {
	how, here := diskfull.Private(t)
	if !here {
		return
	}
	if how == diskfull.Injected {
		t.Skip("no small disk can be made here; the matrix pretends one with failpoints")
	}
	w := newWorld(t)
	disk := w.SmallDisk(smallDisk, w.Path(".cotal", "host"), w.SeatRoot)
	w.host = w.Start(harness.HostOptions{})
	steady := w.SpawnFake("steady", `[{"hang": true}]`)
	w.SpawnFake("victim", `[{"hang": true}]`)

	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	limit := busy.Limit(answerWithin)
	if r := w.CLI("ps"); r.Code != 0 || r.Took > limit {
		t.Errorf("ps with a full disk: %v; want an answer within %v", r, limit)
	}
	argv := append([]string{"spawn", "--agent", "command", "--name", "late", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)
	if r := w.CLI(argv...); r.Code == 0 || !strings.Contains(r.Stderr, "no space left on device") {
		t.Errorf("a spawn with a full disk: %v; want a refusal that says why", r)
	}
	if r := w.CLI("stop", "victim", "--timeout", "2s"); r.Code == 0 {
		t.Logf("a stop with a full disk succeeded: %v", r)
	}
	if !w.Alive(steady.PID) || !w.host.Running() {
		t.Fatal("the full disk ended the host or a seat")
	}
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}

	harness.Eventually(t, harness.DefaultWait, "the stop succeeds once there is room", func() (bool, string) {
		if row, ok := w.Seat("victim"); ok && row.Status == "exited" {
			return true, ""
		}
		r := w.CLI("stop", "victim", "--timeout", "5s")
		return r.Code == 0, r.String()
	})
	w.SpawnFake("late", `[{"hang": true}]`)
	w.checkInvariants("once there is room")
	if got := w.AwaitStatus("steady", "running"); got.PID != steady.PID || !w.host.Running() {
		t.Errorf("steady has pid %d, was %d", got.PID, steady.PID)
	}
	w.host.Kill()
	w.host = w.Start(harness.HostOptions{})
	w.checkInvariants("after a restart")
}

// TestFieldJ11_AStateFileThatWasEmptiedIsNamed: a file of the host or of a seat that lost its content
// costs no process. What can be made again is; what cannot is named, with what to do, and is as before
// once that was done.
func TestFieldJ11_AStateFileThatWasEmptiedIsNamed(t *testing.T) {
	const (
		harmless = iota // the host starts, and has its seat
		refused         // the host does not start, and names the file
		unknown         // the host starts, and does not know its seat, because of the file
	)
	for file, want := range map[string]int{
		"endpoint.json": harmless, "instance.json": refused, "journal.db": refused,
		"seat/seat.json": harmless, "seat/intent.json": harmless, "seat/token": unknown,
	} {
		t.Run(strings.ReplaceAll(file, "/", "-"), func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			h := w.Start(harness.HostOptions{})
			row := w.SpawnFake("worker", `[{"hang": true}]`)
			h.Kill()
			path := w.Path(".cotal", "host", file)
			if name, ok := strings.CutPrefix(file, "seat/"); ok {
				path = filepath.Join(w.SeatRoot, row.SeatID, name)
			}
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			next := w.Launch(harness.HostOptions{})
			err = next.WaitReady(harness.DefaultWait)
			switch {
			case want == refused && (err == nil || !strings.Contains(next.Stderr(), path)):
				t.Errorf("the host is ready: %v; want a refusal that names %s\n%s", err, path, next.Stderr())
			case want != refused && err != nil:
				t.Errorf("the host does not start: %v\n%s", err, next.Stderr())
			case want == unknown:
				if got := w.AwaitStatus("worker", "unknown"); !strings.Contains(got.Reason, path) {
					t.Errorf("the reason is %q; want one that names %s", got.Reason, path)
				}
			}
			if !w.Alive(row.PID) {
				t.Fatal("the seat is gone")
			}
			var repair error
			switch file { // what the refusals say to do
			case "journal.db":
				repair = os.Rename(path, path+".away")
			case "instance.json", "seat/token":
				repair = os.WriteFile(path, whole, 0o600)
			}
			if repair != nil {
				t.Fatal(repair)
			}
			if want == refused {
				w.Start(harness.HostOptions{})
			}
			if got := w.AwaitStatus("worker", "running"); got.PID != row.PID {
				t.Errorf("the seat has pid %d, was %d", got.PID, row.PID)
			}
		})
	}
}
