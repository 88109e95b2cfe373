package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// realProgram is one real agent program and what the scenario has to know of it. Everything else it does as a user
// would, with cotal, and looks at the mesh, at what the program asked its model, and at processes and files.
type realProgram struct {
	agent     agents.Agent
	connector string
	// setUp gives the program a home and a way to the stub of its model, before the host is started.
	setUp func(t testing.TB, w *harness.World, stub *stubmodel.Server)
	// options are the launch options of its persona, lines of YAML.
	options string
	// meshTool is the name under which the program offers a tool of the bridge to its model.
	meshTool func(tool string) string
	// asks is a tool call, for which the program asks a person, that makes a file; nil: it asks for nothing.
	asks func(file string) string
	// allow are keys that answer such a question with yes.
	allow string
	// interrupt is the key that ends a turn, and every how often it is pressed until the turn has ended.
	interrupt string
	every     time.Duration
	// clear are keys that empty its input field, into which it puts the text of a turn that was interrupted.
	clear string
	// model is what its list of models has to hold.
	model string
	// process is what the command lines of its processes hold; empty: nothing of its own.
	process string
	// left is what there must not be when the seat is gone; it may be nil.
	left func(t *testing.T, w *harness.World) []string
}

// scenario is one life of a program in a seat.
type scenario struct {
	*testing.T
	p      realProgram
	w      *harness.World
	stub   *stubmodel.Server
	host   *harness.Host
	client *mesh.Client
	roster *mesh.Roster
	row    wire.AgentRow
	inbox  string // file of what the seat "mate" was told
	look   *canary
}

// patientPress is between two presses of a key that does harm where it was not needed any more.
const patientPress = 3 * time.Second

const (
	realSeat    = "coder"
	realPersona = "PERSONA-TEXT: you are careful."
)

// newScenario is a workspace in which a program is set up, with a stub of its model and a persona; front are the lines
// of the persona's front matter behind its name and agent. The host is not started yet.
func newScenario(t *testing.T, p realProgram, front string) *scenario {
	t.Helper()
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stub.Close)
	w := harness.New(t)
	w.Setenv("COTAL_"+strings.ToUpper(p.agent.Name)+"_BIN", agents.Need(t, p.agent))
	p.setUp(t, w, stub)
	w.Persona(realSeat, fmt.Sprintf("---\nname: %s\nagent: %s\n%s---\n\n%s\n", realSeat, p.connector, front, realPersona))
	return &scenario{T: t, p: p, w: w, stub: stub, row: wire.AgentRow{Name: realSeat}}
}

// serve starts the host, and a participant of the mesh that looks on.
func (s *scenario) serve() {
	s.Helper()
	s.host = s.w.Start(harness.HostOptions{})
	s.client, s.roster = watchPresence(s.T, s.w)
}

// spawns starts the seat and waits until it is on the mesh.
func (s *scenario) spawns(args ...string) {
	s.Helper()
	if r := s.w.CLI(append(append([]string{"spawn"}, args...), "--detach", "--timeout", "2m")...); r.Code != 0 {
		s.Fatalf("%v\nits screen:\n%s", r, s.screen())
	}
	s.row = s.w.AwaitStatus(realSeat, "running")
}

// session waits until a participant says in which session of its program it is.
func (s *scenario) session(id string) string {
	s.Helper()
	p := awaitPresence(s.T, s.roster, "the agent says its session", func(p wire.Presence) bool {
		return p.Card.ID == id && p.Card.MetaString("sessionId") != ""
	})
	return p.Card.MetaString("sessionId")
}

// sharedServerRan waits until a server that the operator shares with the seat has left what it was told by a variable.
func (s *scenario) sharedServerRan(file, told string) {
	s.Helper()
	await(s.T, agentWait, "the shared MCP server runs", func() (bool, string) {
		text, err := os.ReadFile(file)
		return string(text) == told+"\n", fmt.Sprintf("it left %q, %v", text, err)
	})
}

// goesOn kills the program and waits until the seat goes on with another, in its session and with what was said in it.
// It returns what that one asked its model first.
func (s *scenario) goesOn(said string) stubmodel.Request {
	s.Helper()
	id := s.session(s.row.ID)
	s.w.KillPID(s.row.PID)
	await(s.T, agentWait, "the seat goes on", func() (bool, string) {
		now, _ := s.w.Seat(realSeat)
		return now.Status == "running" && now.PID != s.row.PID && now.PID != 0 && now.Mesh == wire.StatusIdle, fmt.Sprintf("%+v\n%s", now, s.screen())
	})
	r := s.takes("HISTORY of the session")
	if !given(r, said) {
		s.Errorf("it goes on without its history: %s", r.Reply)
	}
	if now := s.session(s.row.ID); now != id {
		s.Errorf("it goes on in session %s, was in %s", now, id)
	}
	return r
}

// press presses a key every so often until something has happened: programs tell that they ask, or that they work, before they take
// a key for an answer, and a key that comes too early is lost.
func (s *scenario) press(key string, every time.Duration, what string, happened func() bool) {
	s.Helper()
	for begin := time.Now(); ; {
		s.w.CLI("input", realSeat, "--keys", key).OK()
		if ok, _ := harness.Poll(every, func() (bool, string) { return happened(), "" }); ok {
			return
		}
		if busy.Over(begin, agentWait) {
			s.Fatalf("%s: it does not come to that; the screen:\n%s", what, s.screen())
		}
	}
}

// liveAsAgent is what a real agent program has to do in a seat. Each step is a subtest, and they build on each other.
func liveAsAgent(t *testing.T, p realProgram) {
	s := newScenario(t, p, "launchOptions:\n"+p.options)
	s.inbox = filepath.Join(s.w.Dir, "inbox")
	s.givesSecrets()
	s.serve()
	s.look.watch(t)
	s.w.Spawn("mate", filepath.Join(s.w.Bin, "cotal-bridge"), "run", "--messages", "file", "--file", s.inbox, "--text", "--", "sleep", "3600")
	for _, step := range []struct {
		name string
		do   func(*scenario)
	}{
		{"joins as the seat it was launched as", (*scenario).joins},
		{"completes a turn as its persona", (*scenario).turn},
		{"works and then is idle", (*scenario).worksThenIdle},
		{"reaches another seat with a tool of the mesh", (*scenario).reachesAnother},
		{"waits for a person when it asks", (*scenario).waitsForAPerson},
		{"is idle again when its turn is interrupted", (*scenario).isInterrupted},
		{"is woken by a direct message", (*scenario).isWoken},
		{"is forked with its history", (*scenario).isForked},
		{"lists its models", (*scenario).listsModels},
		{"keeps its secrets", (*scenario).keepsSecrets},
		{"goes on while its host is killed", (*scenario).survivesItsHost},
		{"leaves nothing when it is stopped", (*scenario).leavesNothing},
	} {
		begin := time.Now()
		if !t.Run(step.name, func(t *testing.T) {
			at := *s
			at.T = t
			step.do(&at)
			s.host, s.row = at.host, at.row
		}) {
			return
		}
		t.Logf("%s: %v", step.name, time.Since(begin).Round(100*time.Millisecond))
	}
}

// shown waits until ps shows the seat in a state.
func (s *scenario) shown(status string) wire.AgentRow {
	s.Helper()
	var row wire.AgentRow
	await(s.T, agentWait, "ps shows the agent "+status, func() (bool, string) {
		row, _ = s.w.Seat(realSeat)
		if row.Mesh == status {
			return true, ""
		}
		var last stubmodel.Request
		for _, r := range s.stub.Requests() {
			if !r.Side {
				last = r
			}
		}
		return false, fmt.Sprintf("it is %s (known by %q), condition %+v, activity %q; the model was last asked %q with %q and answered %q (done %v); the screen:\n%s",
			row.Mesh, row.MeshBy, row.Condition, row.Activity, last.Turn.LastUser(), value(last.Turn.ToolResult), last.Reply, last.Done, s.screen())
	})
	return row
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// screen is what the agent has printed last.
func (s *scenario) screen() string {
	lines := strings.Split(strings.TrimSpace(s.w.CLI("logs", s.row.Name).Stdout), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// say types a text into the seat, as cotal input does.
func (s *scenario) say(text string) {
	s.Helper()
	await(s.T, agentWait, "the text is typed", func() (bool, string) { // a boot may take longer than one attempt waits
		r := s.w.CLI("input", realSeat, "--text", text)
		return r.Code == 0, r.String()
	})
}

// takes types a text into a program that has just come up, until its model was asked it: some are idle, by what they
// tell, before their input field is there for good, and what is typed then is lost.
func (s *scenario) takes(text string) stubmodel.Request {
	s.Helper()
	for begin := time.Now(); ; {
		s.say(text)
		ctx, cancel := context.WithTimeout(s.Context(), busy.Limit(20*time.Second))
		r, err := s.stub.Wait(ctx, stubmodel.Asked(text))
		cancel()
		if err == nil {
			return r
		}
		if busy.Over(begin, agentWait) {
			s.Fatalf("the agent never takes %q: %v\nits screen:\n%s", text, err, s.screen())
		}
	}
}

// asked waits until the model was asked a text and has answered.
func (s *scenario) asked(text string) stubmodel.Request {
	s.Helper()
	return s.request("asks "+text, stubmodel.Asked(text))
}

func (s *scenario) request(what string, match func(stubmodel.Request) bool) stubmodel.Request {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), busy.Limit(agentWait))
	defer cancel()
	r, err := s.stub.Wait(ctx, match)
	if err != nil {
		s.Fatalf("the agent never %s: %v\nits screen:\n%s", what, err, s.screen())
	}
	return r
}

// given reports whether a question to the model holds a text, in whatever way the program put it there.
func given(r stubmodel.Request, text string) bool {
	all := append(slices.Clone(r.Turn.Users), r.Turn.Reminders...)
	if r.Turn.ToolResult != nil {
		all = append(all, *r.Turn.ToolResult)
	}
	return slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, text) })
}

func (s *scenario) joins() {
	s.spawns(realSeat)
	p := awaitPresence(s.T, s.roster, "the agent is on the mesh", func(p wire.Presence) bool {
		return p.Card.ID == s.row.ID && p.LifecycleUID == s.row.LifecycleUID
	})
	if p.Card.MetaString("connector") != s.p.connector || p.Status == wire.StatusOffline {
		s.Errorf("it appears as %+v", p)
	}
}

func (s *scenario) turn() {
	if r := s.takes("say alpha"); !strings.Contains(r.Turn.System, realPersona) && !given(r, realPersona) {
		s.Error("the persona did not reach the model")
	}
	s.shown(wire.StatusIdle)
}

func (s *scenario) worksThenIdle() {
	s.say("HOLD beta and say beta")
	if row := s.shown(wire.StatusWorking); row.MeshBy == "" {
		s.Error("the row does not say how it is known that the agent works")
	}
	s.stub.Open("beta")
	s.shown(wire.StatusIdle)
	s.asked("say beta")
}

func (s *scenario) reachesAnother() {
	s.say("TOOLCALL " + s.p.meshTool("cotal_dm") + ` {"to":"mate","text":"good morning, mate"}`)
	await(s.T, agentWait, "the other seat has the message", func() (bool, string) {
		text, _ := os.ReadFile(s.inbox)
		return strings.Contains(string(text), realSeat+": good morning, mate"), fmt.Sprintf("it has %q; the agent shows\n%s", text, s.screen())
	})
	s.shown(wire.StatusIdle)
}

func (s *scenario) waitsForAPerson() {
	if s.p.asks == nil {
		s.Skip("this program asks for nothing")
	}
	file := filepath.Join(s.w.Dir, "made-by-the-agent")
	s.say(s.p.asks(file))
	row := s.shown(wire.StatusWaiting)
	if row.Condition == nil || row.Condition.Code != "approval" {
		s.Errorf("it waits, and the condition is %+v, not approval", row.Condition)
	}
	if _, err := os.Stat(file); err == nil {
		s.Error("the agent did it without waiting for the answer")
	}
	s.press(s.p.allow, patientPress, "the agent goes on", func() bool { _, err := os.Stat(file); return err == nil })
	s.shown(wire.StatusIdle)
}

func (s *scenario) isInterrupted() {
	// In the middle of an answer: before one, some programs put the text back into their input field.
	s.say("STREAM 3000 100 and say never")
	s.shown(wire.StatusWorking)
	await(s.T, agentWait, "the answer is on its way", func() (bool, string) { text := s.screen(); return strings.Contains(text, "word00"), text })
	var row wire.AgentRow
	s.press(s.p.interrupt, s.p.every, "the turn is interrupted", func() bool {
		row, _ = s.w.Seat(realSeat)
		return row.Mesh == wire.StatusIdle
	})
	if row.Condition != nil {
		s.Errorf("interrupted by hand, it has the condition %+v: nothing has failed", row.Condition)
	}
	if s.p.clear != "" {
		s.w.CLI("input", realSeat, "--keys", s.p.clear).OK()
	}
}

func (s *scenario) isWoken() {
	s.say("say gamma") // what comes next is answered by the rule of this text
	s.asked("say gamma")
	s.shown(wire.StatusIdle)
	// Two, one behind the other: what wakes an idle agent once may have spoilt its way for the next.
	for _, word := range []string{"the wake-up word is zebra", "the second wake-up word is gnu"} {
		before := len(s.stub.Requests())
		if _, err := s.client.SendDirect(s.Context(), s.row.ID, word); err != nil {
			s.Fatal(err)
		}
		s.request("is given the message: "+word, func(r stubmodel.Request) bool {
			return r.Seq > before && r.Done && !r.Side && given(r, word)
		})
		s.shown(wire.StatusIdle)
	}
}

func (s *scenario) isForked() {
	source := s.session(s.row.ID)
	r := s.w.CLI("spawn", realSeat, "--name", "forked", "--resume", source, "--prompt", "HISTORY of the fork", "--detach", "--timeout", "2m")
	if r.Code != 0 {
		s.Fatalf("%v\nits screen:\n%s", r, s.w.CLI("logs", "forked").Stdout)
	}
	got := s.asked("HISTORY of the fork")
	if !strings.Contains(got.Reply, "say alpha") || !strings.Contains(got.Reply, "say gamma") {
		s.Errorf("the fork answered %q, without the history", got.Reply)
	}
	fork := s.w.Inspect("forked")
	if s.session(fork.ID) == source {
		s.Error("the fork works in the session that it was forked from")
	}
	s.knows(fork)
	s.w.CLI("stop", "forked").OK()
	s.forgets(fork)
	s.say("HISTORY of the source")
	if got := s.asked("HISTORY of the source"); strings.Contains(got.Reply, "of the fork") {
		s.Errorf("the source answered %q: it has what the fork was told", got.Reply)
	}
	s.shown(wire.StatusIdle)
}

func (s *scenario) listsModels() {
	r := s.w.CLI("models", "--agent", s.p.connector, "--json")
	var catalog wire.ModelCatalog
	if err := json.Unmarshal([]byte(r.OK().Stdout), &catalog); err != nil {
		s.Fatalf("%v in %v", err, r)
	}
	if !strings.Contains(r.Stdout, fmt.Sprintf("%q", s.p.model)) {
		s.Errorf("the models are %s, without %s", r.Stdout, s.p.model)
	}
}

func (s *scenario) survivesItsHost() {
	s.say("STREAM 30 100 and say delta")
	s.request("asks", func(r stubmodel.Request) bool { return strings.Contains(r.Turn.LastUser(), "say delta") })
	s.host.Kill()
	s.asked("say delta") // there is no host now, and the turn comes to its end
	s.host = s.w.Start(harness.HostOptions{})
	if got := s.w.AwaitStatus(realSeat, "running"); got.PID != s.row.PID || got.LifecycleUID != s.row.LifecycleUID {
		s.Fatalf("the seat has pid %d, had %d", got.PID, s.row.PID)
	}
	s.shown(wire.StatusIdle)
	s.say("say epsilon")
	s.asked("say epsilon")
	s.shown(wire.StatusIdle)
}

func (s *scenario) leavesNothing() {
	_, roster := watchPresence(s.T, s.w) // before it goes: its last word is kept for seconds, and what follows may take longer
	if err := roster.Ready(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.w.CLI("stop", realSeat).OK()
	if _, err := os.Stat(filepath.Join(s.w.SeatRoot, s.row.SeatID)); !os.IsNotExist(err) {
		s.Errorf("the seat directory is left: %v", err)
	}
	// The processes of the mate are the host's only other ones.
	if s.w.Alive(s.row.PID) {
		s.Errorf("the program (pid %d) is left", s.row.PID)
	}
	for _, of := range []string{s.p.process, s.row.SeatID} {
		if left := s.w.ProcsLike(of); of != "" && len(left) > 0 {
			s.Errorf("processes are left: %v", left)
		}
	}
	if s.p.left != nil {
		if left := s.p.left(s.T, s.w); len(left) > 0 {
			s.Errorf("left are %v", left)
		}
	}
	s.leavesNoSecret()
	awaitPresence(s.T, roster, "the agent is gone from the mesh", func(p wire.Presence) bool {
		return p.Card.ID == s.row.ID && p.Status == wire.StatusOffline
	})
	// The end of the world looks for every other process, socket and directory.
}
