package seat_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// talkative is the command connector for a program that takes prompts and sessions, and remembers what it was
// asked to launch.
type talkative struct {
	command.Connector
	mu   sync.Mutex
	reqs []sdk.LaunchRequest
}

func (c *talkative) BuildLaunch(ctx context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	c.mu.Lock()
	c.reqs = append(c.reqs, req)
	c.mu.Unlock()
	req.Prompt, req.Resume, req.Continue = "", "", ""
	return c.Connector.BuildLaunch(ctx, req)
}

func (c *talkative) requests() []sdk.LaunchRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.reqs)
}

func (w *world) talks(change func(*sdk.ConnectorFacts)) *talkative {
	c := &talkative{}
	w.plugins.mu.Lock()
	w.plugins.conns["command"] = c
	w.plugins.mu.Unlock()
	w.facts(func(f *sdk.ConnectorFacts) {
		f.SupportsPrompt, f.SupportsResume = true, true
		if change != nil {
			change(f)
		}
	})
	return c
}

// supervised spawns a seat that is started again, and waits until it runs.
func (w *world) supervised(name string, restarts int, change func(*wire.SpawnArgs)) wire.Acceptance {
	w.t.Helper()
	args := w.args(name, `[{"hang": true}]`)
	args.Supervise = &wire.Supervise{Restarts: restarts, WindowMs: 600_000}
	if change != nil {
		change(&args)
	}
	id := wire.NewID()
	acc, err := w.spawn(id, args)
	if err != nil {
		w.t.Fatal(err)
	}
	if end := w.terminal(id); end.State != wire.GoalSucceeded {
		w.t.Fatalf("%s %+v", end.State, end.Error)
	}
	return acc
}

// kill ends the process of a seat from outside.
func (w *world) kill(name string) wire.AgentRow {
	w.t.Helper()
	row := w.awaitStatus(name, "running")
	if err := syscall.Kill(row.PID, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	return row
}

// next waits for the process that follows the one of row.
func (w *world) next(row wire.AgentRow) wire.AgentRow {
	w.t.Helper()
	var now wire.AgentRow
	w.eventually(row.Name+" runs again", func() (bool, string) {
		now = w.row(row.Name)
		return now.Status == "running" && now.PID != row.PID && now.PID != 0 && now.Reason == "", now.Status + " " + now.Reason
	})
	return now
}

// A seat that was asked to be started again is, as the same life in a custody of its own, without its prompt; the
// process that ends once too often ends the seat, and that is told.
//
// proves: EXIT-3, EXIT-4, EXIT-6, EXIT-7, MULTI-10
func TestACrashedSeatIsStartedAgain(t *testing.T) {
	w := newWorld(t)
	c := w.talks(nil)
	prompt, fork := "do this", "session-0"
	acc := w.supervised("steady", 2, func(a *wire.SpawnArgs) { a.Prompt, a.Resume = &prompt, &fork })
	seen := map[string]bool{}
	for range 2 {
		old := w.kill("steady")
		now := w.next(old)
		if now.LifecycleUID != acc.UID || now.ID != principal(acc) || now.SeatID == old.SeatID || seen[now.SeatID] || now.GoalID != acc.GoalID {
			t.Fatalf("the next process is %+v after %+v", now, old)
		}
		seen[now.SeatID] = true
		if _, err := os.Stat(filepath.Join(w.seatRoot, old.SeatID)); !os.IsNotExist(err) {
			t.Errorf("the directory of the last process is left: %v", err)
		}
		if occ := w.set.Occupancy(); occ.Live != 1 || occ.Pending+occ.Cooling != 0 {
			t.Errorf("%+v", occ)
		}
	}
	reqs := c.requests()
	if len(reqs) != 3 || reqs[0].Prompt != prompt || reqs[0].Resume != fork {
		t.Fatalf("%d launches, the first with %q, %q", len(reqs), reqs[0].Prompt, reqs[0].Resume)
	}
	for i, req := range reqs[1:] {
		if req.Prompt != "" || req.Resume != "" || req.Continue != "" {
			t.Errorf("process %d got the prompt %q, resume %q, continue %q", i+1, req.Prompt, req.Resume, req.Continue)
		}
		if !slices.Contains(req.BaseEnv, "COTAL_MANAGER_INSTANCE="+w.instanceID) || req.LifecycleUID != acc.UID || req.Principal != principal(acc) {
			t.Errorf("process %d is launched as %s %s", i+1, req.Principal, req.LifecycleUID)
		}
	}
	w.kill("steady")
	row := w.awaitStatus("steady", "exited")
	if row.Exit == nil || row.Exit.Cause != "supervise-crash-loop" || row.Exit.Signal != "SIGKILL" || row.Exit.Asked {
		t.Errorf("the third: %+v", row.Exit)
	}
	if n := w.events.terminals(acc.GoalID); n != 1 {
		t.Errorf("%d terminals of the spawn were told", n)
	}
}

// A stop is no crash, whenever it comes; nor is an end that the program calls a success.
//
// proves: EXIT-8
func TestADeliberateEndIsFinal(t *testing.T) {
	w := newWorld(t)
	acc := w.supervised("stopped", 3, nil)
	if _, err := w.stop(acc, true); err != nil {
		t.Fatal(err)
	}
	if row := w.row("stopped"); row.Status != "exited" || row.Exit == nil || !row.Exit.Asked {
		t.Errorf("%s %+v", row.Status, row.Exit)
	}
	gate := filepath.Join(w.dir, "go")
	w.supervised("done", 3, func(a *wire.SpawnArgs) {
		a.LaunchOptions["argv"] = []any{filepath.Join(bundle, "cotal-fakeagent"), `[{"waitFile": "` + gate + `"}, {"exit": 0}]`}
	})
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if row := w.awaitStatus("done", "exited"); row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 0 || row.Exit.Cause != "process-exit" {
		t.Errorf("%+v", row.Exit)
	}
	// Between two processes there is nothing to stop, and the seat has ended with the last one.
	w.restartWait = time.Hour
	w.crash()
	w.boot()
	acc = w.supervised("between", 3, nil)
	w.next(w.kill("between"))
	w.kill("between") // the second in a row is followed after a while
	w.awaitStatus("between", "starting")
	reply, err := w.stop(acc, false)
	if err != nil || reply.Report == nil || reply.Report.Exit == nil || reply.Report.Exit.Signal != "SIGKILL" {
		t.Errorf("%+v, %v", reply.Report, err)
	}
}

// A connector that reopens sessions gets a crashed seat back in the session that it worked in, without anybody
// asking, three times in two minutes; where no session is known, the seat has ended.
//
// proves: EXIT-3, EXIT-4, F1
func TestASessionIsGoneOnWith(t *testing.T) {
	w := newWorld(t)
	c := w.talks(func(f *sdk.ConnectorFacts) { f.SupportsSessionContinuation, f.SupportsFreshStart = true, false })
	r := newRoster(seat.ViewCurrent)
	w.withRoster(r)
	acc := w.run("talker", `[{"hang": true}]`)
	there := present("talker", principal(acc), acc.UID)
	there.Card.Meta = map[string]json.RawMessage{"sessionId": json.RawMessage(`"ses_7"`)}
	r.set(seat.ViewCurrent, there)
	for range 3 {
		w.next(w.kill("talker"))
	}
	reqs := c.requests()
	if len(reqs) != 4 {
		t.Fatalf("%d launches", len(reqs))
	}
	for i, req := range reqs[1:] {
		if req.Continue != "ses_7" {
			t.Errorf("process %d goes on with %q", i+1, req.Continue)
		}
	}
	w.kill("talker") // the fourth within two minutes
	if row := w.awaitStatus("talker", "exited"); row.Exit.Cause != "supervise-crash-loop" {
		t.Errorf("%+v", row.Exit)
	}
	w.run("mute", `[{"hang": true}]`)
	w.kill("mute")
	if row := w.awaitStatus("mute", "exited"); row.Exit.Cause != "process-exit" {
		t.Errorf("%+v", row.Exit)
	}
}

// The process that follows has to be seen on the mesh itself: what the last one left there does not count.
//
// proves: EXIT-5, READY-13
func TestAReplacementProvesItselfByALaterHeartbeat(t *testing.T) {
	w, r := byPresence(t, time.Minute)
	args := w.args("ada", `[{"hang": true}]`)
	args.Supervise = &wire.Supervise{Restarts: 3, WindowMs: 600_000}
	id := wire.NewID()
	acc, err := w.spawn(id, args)
	if err != nil {
		t.Fatal(err)
	}
	w.awaitStatus("ada", "running")
	last := present("ada", principal(acc), acc.UID)
	r.set(seat.ViewCurrent, last)
	w.terminal(id)
	old := w.kill("ada")
	w.eventually("the next process runs", func() (bool, string) {
		row := w.row("ada")
		return row.Status == "running" && row.PID != old.PID && row.PID != 0, row.Status
	})
	r.set(seat.ViewCurrent, last)
	w.never("it is ready by what the last one said", func() bool { return w.row("ada").Reason == "" })
	r.set(seat.ViewCurrent, present("ada", principal(acc), acc.UID))
	w.next(old)
}

// A process that follows and does not get ready is ended, and so is its seat.
func TestAReplacementThatDoesNotProveItselfEndsTheSeat(t *testing.T) {
	w, r := byPresence(t, 300*time.Millisecond)
	args := w.args("ada", `[{"hang": true}]`)
	args.Supervise = &wire.Supervise{Restarts: 3, WindowMs: 600_000}
	id := wire.NewID()
	if _, err := w.spawn(id, args); err != nil {
		t.Fatal(err)
	}
	w.terminal(id) // uncertain: nobody joined
	w.kill("ada")
	r.set(seat.ViewCurrent)
	row := w.awaitStatus("ada", "exited")
	if row.Exit == nil || row.Exit.Cause != "supervise-recovery-failed" {
		t.Errorf("%+v", row.Exit)
	}
}

// What cannot get better is not tried: the seat ends with the exit of its last process and says why it was not
// started again.
//
// proves: F20
func TestASeatThatCannotBeStartedAgainEnds(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.root, "place")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.supervised("homeless", 3, func(a *wire.SpawnArgs) { a.Cwd = dir })
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	w.kill("homeless")
	row := w.awaitStatus("homeless", "exited")
	if row.Exit == nil || row.Exit.Cause != "supervise-recovery-failed" || row.Exit.Signal != "SIGKILL" || !strings.Contains(row.Exit.Detail, "not started again") {
		t.Errorf("%+v", row.Exit)
	}
	w.eventually("its name and place are free", func() (bool, string) { return w.set.Occupancy().Live == 0, "" })
}

// A configuration that cannot be read when a process ends, because somebody is at it, ends no seat: the next process
// gets what the first one got.
func TestASeatIsStartedAgainWhileTheConfigurationIsBroken(t *testing.T) {
	w := newWorld(t)
	w.plugins.mu.Lock()
	info := w.plugins.facts["command"]
	info.Capabilities = append(slices.Clone(info.Capabilities), sdk.CapMCPServers)
	w.plugins.facts["command"] = info
	w.plugins.mu.Unlock()
	path := config.Path(w.root)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("[connectors.command.mcpServers.files]\ncommand = \"/bin/files\"\n")
	w.supervised("edited", 3, nil)
	shared := func(row wire.AgentRow) string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(w.seatRoot, row.SeatID, "*", sdk.MCPServersFile))
		if err != nil || len(found) != 1 {
			t.Fatalf("files of shared servers: %v, %v", found, err)
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := shared(w.awaitStatus("edited", "running"))
	if !strings.Contains(want, "/bin/files") {
		t.Fatalf("the first process has %s", want)
	}
	configure("[connectors.command.mcpServers.files\n")
	if got := shared(w.next(w.kill("edited"))); got != want {
		t.Errorf("the next process has %s, want %s", got, want)
	}
}

// A host that dies between two processes leaves the work to the next one, which knows the launch by its form.
//
// proves: EXIT-3, F7
func TestTheNextHostGoesOnWithARestart(t *testing.T) {
	w := newWorld(t)
	c := w.talks(nil)
	w.persona("ada", `[{"hang": true}]`)
	id := wire.NewID()
	acc, err := w.spawn(id, wire.SpawnArgs{Name: "ada", Supervise: &wire.Supervise{Restarts: 2, WindowMs: 600_000}})
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	w.plugins.mu.Lock()
	rt := &stuck{Runtime: w.plugins.runtime, fails: sdk.Errorf(sdk.ErrUnproven, "the directory is busy")}
	w.plugins.runtime = rt
	w.plugins.mu.Unlock()
	old := w.kill("ada")
	w.eventually("the restart waits for the removal", func() (bool, string) {
		row := w.row("ada")
		return row.Status == "starting" && strings.Contains(row.Reason, "the directory is busy"), row.Status + " " + row.Reason
	})
	w.crash()
	w.boot()
	now := w.next(old)
	if now.LifecycleUID != acc.UID || now.SeatID == old.SeatID {
		t.Errorf("%+v", now)
	}
	w.next(w.kill("ada"))
	w.kill("ada") // the budget went along
	if row := w.awaitStatus("ada", "exited"); row.Exit.Cause != "supervise-crash-loop" {
		t.Errorf("%+v", row.Exit)
	}
	reqs := c.requests()
	if len(reqs) != 3 || reqs[1].PersonaPath != reqs[0].PersonaPath || reqs[1].Persona != reqs[0].Persona || reqs[1].Name != "ada" {
		t.Errorf("%d launches; %+v", len(reqs), reqs[len(reqs)-1])
	}
}

// A crash while the host is away is a crash, and the next host starts the seat again; one while it stops is left
// to the next one.
func TestACrashWhileTheHostIsAwayIsFollowed(t *testing.T) {
	w := newWorld(t)
	w.supervised("away", 3, nil)
	old := w.row("away")
	w.set.Fence("this host is stopping")
	if err := syscall.Kill(old.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("the end is recorded by custody", func() (bool, string) {
		_, err := os.Stat(filepath.Join(w.seatRoot, old.SeatID, "exit.json"))
		return err == nil, ""
	})
	w.crash()
	w.boot()
	w.next(old)
}

// What a launch was given under the name of a secret is stored nowhere: the host that was given it gives it to the
// next process too, and one that was not ends the seat and says why.
func TestSecretsOfALaunchAreNotGivenAgainByAnotherHost(t *testing.T) {
	w := newWorld(t)
	c := w.talks(nil)
	w.supervised("keeper", 3, func(a *wire.SpawnArgs) { a.LaunchOptions["env"] = map[string]any{"API_TOKEN": "hush"} })
	w.next(w.kill("keeper"))
	if reqs := c.requests(); len(reqs) != 2 || !reflect.DeepEqual(reqs[1].LaunchOptions, reqs[0].LaunchOptions) {
		t.Fatalf("%d launches; %v", len(reqs), reqs[len(reqs)-1].LaunchOptions)
	}
	w.crash()
	if text, err := os.ReadFile(filepath.Join(w.dir, "journal.db")); err != nil || strings.Contains(string(text), "hush") {
		t.Errorf("the secret is in the journal, or %v", err)
	}
	w.boot()
	w.kill("keeper")
	row := w.awaitStatus("keeper", "exited")
	if row.Exit.Cause != "supervise-recovery-failed" || !strings.Contains(row.Exit.Detail, "env.API_TOKEN") || !strings.Contains(row.Exit.Detail, "not stored") {
		t.Errorf("%+v", row.Exit)
	}
}

// A seat whose form is larger than a spawn may have now, of a host that took larger ones, was told to shorten its request
// when its process crashed, and ended.
func TestASeatWithAFormThatWouldBeRefusedNowIsStartedAgain(t *testing.T) {
	w := newWorld(t)
	w.supervised("ample", 3, nil)
	old := w.row("ample")
	var many []string
	for range 1500 {
		many = append(many, strings.Repeat("c", 40))
	}
	var size int
	err := w.journal.Update(context.Background(), func(tx *journal.Tx) error {
		row, err := tx.Seat(old.SeatID)
		if err != nil {
			return err
		}
		var form map[string]any
		if err := json.Unmarshal(row.Form, &form); err != nil {
			return err
		}
		form["subscribe"], form["allowSubscribe"], form["allowPublish"] = many, many, many
		if row.Form, err = json.Marshal(form); err != nil {
			return err
		}
		size = len(row.Form)
		return tx.PutSeat(row)
	})
	if err != nil || size <= launch.MaxForm {
		t.Fatalf("a form of %d bytes, %v", size, err)
	}
	w.crash()
	w.boot()
	w.next(w.kill("ample"))
}
