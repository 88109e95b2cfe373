//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// join makes somebody present in the space of a world.
func join(t *testing.T, w *harness.World, name string) *mesh.Presence {
	t.Helper()
	p, err := w.Mesh().Join(t.Context(), mesh.JoinConfig{Card: wire.AgentCard{Name: name, Role: "review"}, Status: wire.StatusWorking, Activity: "reads\x1b[31m code"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRoster_ShowsWhoIsThereAndEveryChange(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	ann := join(t, w, "ann")
	r := w.CLI("roster", "--json").OK()
	var row *rosterRow
	for _, x := range jsonLines[rosterRow](t, r.Stdout) {
		if x.Card.Name == "ann" {
			row = &x
		}
	}
	if row == nil || row.Status != wire.StatusWorking || row.View != mesh.ViewCurrent || row.Card.ID != ann.Record().Card.ID {
		t.Fatalf("%v", r)
	}
	if r := w.CLI("roster").OK(); !strings.Contains(r.Stdout, "ann/review") || !strings.Contains(r.Stdout, `working  reads\x1b[31m code`) {
		t.Errorf("%v", r)
	}
	s := worldRig(t, w).run("roster", "--watch")
	s.see("ann/review")
	bob := join(t, w, "bob")
	s.see("bob/review")
	if err := bob.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.see("offline")
	s.cmd.Process.Signal(os.Interrupt)
	if code, shown := s.wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
}

func TestPs_WatchShowsEveryChangeAndOutlivesTheHost(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	r := worldRig(t, w)
	lines := r.run("ps", "--watch", "--json")
	list := r.run("ps", "--watch")
	list.see("(no seats)")
	w.Spawn("one", "sleep", "600")
	lines.see(`"name":"one"`)
	list.see("one   command, pty")
	h.Kill()
	list.see("the host does not answer: this is how it was")
	w.Start(harness.HostOptions{})
	w.CLI("stop", "--now", "one").OK()
	list.see("exited after")
	lines.see(`"status":"exited"`)
	for _, s := range []*screen{lines, list} {
		s.cmd.Process.Signal(os.Interrupt)
		if code, shown := s.wait(); code != 0 {
			t.Errorf("exit code %d: %q", code, tail(shown))
		}
	}
	w.CLI("ps", "--watch", "--all", "--on", w.Endpoint().InstanceID).Want(2)
}

func TestPs_AllAsksEveryHostOfTheSpace(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("one", "sleep", "600")
	if r := w.CLI("ps", "--all").OK(); !strings.HasPrefix(r.Stdout, "NAME") { // one host needs no heading
		t.Errorf("%v", r)
	}
	if got := jsonLines[wire.AgentRow](t, w.CLI("ps", "--all", "--json").OK().Stdout); len(got) != 1 || got[0].Name != "one" {
		t.Errorf("%+v", got)
	}
}

func TestPurge_AsksFirst(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	if r := w.CLI("purge").Want(2); !strings.Contains(r.Stderr, "say --yes") {
		t.Errorf("without a terminal: %v", r)
	}
	r := worldRig(t, w)
	s := r.run("purge")
	s.see("Type yes to go on")
	s.send("no\r")
	if code, shown := s.wait(); code != 1 || !strings.Contains(shown, "not confirmed; nothing was done") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	s = r.run("purge")
	s.see("Type yes to go on")
	s.cmd.Process.Signal(os.Interrupt)
	if code, shown := s.wait(); code != 130 || !strings.Contains(shown, "nothing was done") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	s = r.runEnv([]string{"COTAL_NO_PROMPT=1"}, "purge")
	if code, shown := s.wait(); code != 2 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
}

func TestAHistoryThatWasCutShortSaysSo(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	large := strings.Repeat("x", 950_000)
	const n = mesh.MaxHistoryBytes/950_000 + 2
	for range n {
		if _, err := c.SendChannel(t.Context(), "team", large); err != nil {
			t.Fatal(err)
		}
	}
	r := w.CLI("history", "team", "--json").OK()
	got := jsonLines[historyRow](t, r.Stdout)
	next := fmt.Sprintf("cotal history team --number %d --before %d\n", mesh.DefaultHistory-len(got), got[0].Seq)
	if len(got) == 0 || len(got) >= n || !strings.HasSuffix(r.Stderr, next) {
		t.Errorf("%d of %d messages, and %q; want %q", len(got), n, r.Stderr, next)
	}
	if r := w.CLI("history", "team", "-n", "2", "--json").OK(); r.Stderr != "" {
		t.Errorf("of two that were asked for and are there: %q", r.Stderr)
	}
}

func TestAWorkspaceThatRequiresEventsStartsNoSeatWithoutThem(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Write(".cotal/config.toml", "eventsRequired = true\n")
	w.Start(harness.HostOptions{})
	r := w.CLI("spawn", "--agent", "command", "--name", "mute", "--json", "--", "sleep", "600")
	if r.Code == 0 || !strings.Contains(r.Stderr, "this space requires them, and the connector has no event channel") {
		t.Errorf("%v", r)
	}
}

func TestSendAndHistory(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Setenv("USER", "dana")
	w.Setenv("NO_COLOR", "1")
	r := worldRig(t, w)
	follow := r.run("history", "team", "--follow")
	w.CLI("send", "team", "the", "build\x1b[31m", "is green").OK()
	follow.see(`dana: the build\x1b[31m is green`)
	if code, out, errw := r.pipe("two\nlines\n", "send", "team", "-", "--json"); code != 0 || jsonLines[sent](t, out)[0].Channel != "team" {
		t.Errorf("exit code %d: %s%s", code, out, errw)
	}
	follow.see("dana: two\r\n  lines")
	follow.cmd.Process.Signal(os.Interrupt)
	if code, shown := follow.wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	got := jsonLines[historyRow](t, w.CLI("history", "team", "--json").OK().Stdout)
	if len(got) != 2 || got[0].Text != "the build\x1b[31m is green" || got[1].Text != "two\nlines" || got[0].From.Name != "dana" || got[0].Seq == 0 || got[0].Channel != "team" {
		t.Errorf("%+v", got)
	}
	if got := jsonLines[historyRow](t, w.CLI("history", "team", "-n", "1", "--json").OK().Stdout); len(got) != 1 || got[0].Text != "two\nlines" {
		t.Errorf("%+v", got)
	}
	if r := w.CLI("history", "empty").OK(); r.Stdout != "" {
		t.Errorf("%v", r)
	}
	// Two at once do not take each other's place on the server.
	for range 5 {
		a, b := r.run("history", "team"), r.run("history", "team")
		for _, s := range []*screen{a, b} {
			if code, shown := s.wait(); code != 0 || !strings.Contains(shown, "is green") {
				t.Fatalf("exit code %d: %q", code, tail(shown))
			}
		}
	}
	row := w.Spawn("one", "sleep", "600")
	if got := jsonLines[sent](t, w.CLI("send", "@one", "hello", "--json").OK().Stdout); got[0].To != row.ID || got[0].Name != "one" {
		t.Errorf("%+v, want %s", got, row.ID)
	}
	ann := join(t, w, "ann")
	if got := jsonLines[sent](t, w.CLI("send", "@ann", "hello", "--json").OK().Stdout); got[0].To != ann.Record().Card.ID {
		t.Errorf("%+v", got)
	}
	w.CLI("send", "@nobody", "hello").Want(4)
	w.CLI("send", "no channel!", "hello").Want(2)
	w.CLI("send", "team").Want(2)
	w.CLI("history", "team", "-n", "0").Want(2)
	if r := w.CLI("__complete", "send", "t"); !strings.HasPrefix(r.Stdout, "team\t") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("__complete", "send", "@"); !strings.HasPrefix(r.Stdout, "@one\t") {
		t.Errorf("%v", r)
	}
}

func TestDescribeAndInvoke(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	id := w.Endpoint().InstanceID
	if r := w.CLI("describe").OK(); !strings.HasPrefix(r.Stdout, "manager, contract ai.cotal.manager revision ") || !strings.Contains(r.Stdout, "a seat (owner, any)") {
		t.Errorf("%v", r)
	}
	r := w.CLI("describe", "input").OK()
	for _, want := range []string{"command  input of manager\n", "grant    manager.lifecycle\n", "  text    string ", "exactly one of text, keys", "  bytes   integer"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("no %q: %v", want, r)
		}
	}
	d := jsonLines[described](t, w.CLI("describe", "--json").OK().Stdout)[0]
	if d.InstanceID != id || len(d.Commands) < 10 || len(d.Clusters) != 1 || len(d.Commands[0].Input) == 0 || len(d.Commands[0].Output) == 0 {
		t.Errorf("%+v", d)
	}
	w.CLI("describe", "nonsense").Want(4)

	got := jsonLines[invoked](t, w.CLI("invoke", "manager", "status", "--json").OK().Stdout)
	if len(got) != 1 || got[0].InstanceID != id || !strings.Contains(string(got[0].Data), `"instanceId":"`+id) {
		t.Errorf("%+v", got)
	}
	if got := jsonLines[invoked](t, w.CLI("invoke", "manager", "ps", "--all", "--json").OK().Stdout); len(got) != 1 || string(got[0].Data) != "[]" {
		t.Errorf("%+v", got)
	}
	// What does not fit the contract is not sent.
	for args, want := range map[string]string{
		`{"nmae": "x"}`: "nmae", `{`: "is no JSON", `[]`: "no object", `{"name": 5}`: `has type "integer", want "string"`, ``: "name",
	} {
		if r := w.CLI("invoke", "manager", "spawn", "--args", args).Want(2); !strings.Contains(r.Stderr, want) {
			t.Errorf("args %s: %v", args, r)
		}
	}
	w.CLI("invoke", "manager", "nonsense").Want(2)
	w.CLI("invoke", "manager").Want(2)
	w.CLI("invoke", "manager", "input", "--args", `{"text":"x"}`).Want(2)
	w.CLI("invoke", "manager", "ps", "--target", "one").Want(2)
	w.CLI("invoke", "manager", "input", "--target", "nobody", "--args", `{"text":"x"}`).Want(4)
	w.Spawn("one", "cat")
	if r := w.CLI("invoke", "manager", "input", "--target", "one", "--args", `{"text":"over the mesh"}`).OK(); !strings.Contains(r.Stdout, `"bytes": 14`) {
		t.Errorf("%v", r)
	}
	if r := w.CLI("invoke", "manager", "stop", "--target", "one").Want(2); !strings.Contains(r.Stderr, "acts on its caller alone") || !strings.Contains(r.Stderr, "cotal stop one") {
		t.Errorf("%v", r)
	}
	w.CLI("invoke", "manager", "input", "--target", "one", "--mode", "self", "--args", `{"text":"x"}`).Want(2)
	if r := w.CLI("invoke", "manager", "inspect", "--args", `{"name":"nobody"}`).Want(4); r.Stdout != "" {
		t.Errorf("%v", r)
	}
	if r := w.CLI("__complete", "invoke", "manager", ""); !strings.Contains(r.Stdout, "\ngoal-result\tmanager.read\n") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("__complete", "describe", ""); !strings.Contains(r.Stdout, "spawn\tmanager.spawn") {
		t.Errorf("%v", r)
	}
}

func TestModels_SaysWhoHasNoListAndWho(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	if r := w.CLI("models", "--agent", "command").OK(); r.Stdout != "command  has no list of models\n" {
		t.Errorf("%v", r)
	}
	r := w.CLI("models").OK()
	if !strings.Contains(r.Stdout, "command  has no list of models\n") || !strings.Contains(r.Stdout, "opencode") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("models", "--agent", "nosuch").Want(4); !strings.Contains(r.Stderr, "nosuch") {
		t.Errorf("%v", r)
	}
	w.CLI("models", "--agent=").Want(2)
	if r := w.CLI("__complete", "models", "--agent", ""); !strings.Contains(r.Stdout, "command\tavailable") {
		t.Errorf("%v", r)
	}
}

func TestPersonas_AreDefinedListedAndShown(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	r := worldRig(t, w)
	if code, out, errw := r.pipe("You read.\nYou never push.\n", "personas", "define", "reader", "--agent", "command", "--role", "read", "--from", "-"); code != 0 || !strings.Contains(out, "start it: cotal spawn reader -- <program> <arg>...\n") {
		t.Fatalf("exit code %d: %s%s", code, out, errw)
	}
	w.Write(".cotal/agents/broken.md", "---\nname: [\n---\n")
	if r := w.CLI("personas", "list").OK(); !strings.Contains(r.Stdout, "reader  read  ") || !strings.Contains(r.Stdout, "broken") || !strings.Contains(r.Stdout, "cannot be read: ") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("personas", "show", "reader").OK(); !strings.Contains(r.Stdout, "name         reader\nrole         read\nagent        command\n") || !strings.HasSuffix(r.Stdout, "\nYou read.\nYou never push.\n") {
		t.Errorf("%v", r)
	}
	if code, out, errw := r.pipe("", "personas", "define", "lost", "--agent", "nosuch", "--prompt", "You."); code != 0 || strings.Contains(out, "start it") || !strings.Contains(errw, `for the agent "nosuch", and this host has no such connector`) {
		t.Errorf("exit code %d: %s%s", code, out, errw)
	}
	// It is what spawn starts.
	w.CLI("spawn", "reader", "--detach", "--", "sleep", "600").OK()
	w.CLI("personas", "show", "nobody").Want(4)
	w.CLI("personas", "define", "x").Want(2)
	w.CLI("personas", "define", "x", "--prompt", "a", "--from", "b").Want(2)
	w.CLI("personas", "define", "x", "--prompt", "a", "--subscribe", "a..b").Want(2)
	w.CLI("personas", "nonsense").Want(2)
	// A file that somebody else wrote is left alone.
	w.Persona("theirs", "---\nname: theirs\nagent: command\n---\nMine.\n")
	if r := w.CLI("personas", "define", "theirs", "--prompt", "Yours.").Want(1); !strings.Contains(r.Stderr, "theirs") {
		t.Errorf("%v", r)
	}
	h.Signal(syscall.SIGTERM)
	h.WaitExit(harness.DefaultWait)
	if r := w.CLI("personas", "list").OK(); !strings.Contains(r.Stdout, "reader  read  ") || !strings.Contains(r.Stderr, "no host answers; read from "+w.Path(".cotal", "agents")) {
		t.Errorf("without a host: %v", r)
	}
	if r := w.CLI("personas", "show", "reader").OK(); !strings.HasSuffix(r.Stdout, "You never push.\n") {
		t.Errorf("without a host: %v", r)
	}
	w.CLI("personas", "show", "nobody").Want(4)
	w.CLI("personas", "define", "x", "--prompt", "a").Want(3)
	w.Start(harness.HostOptions{})
	if r := w.CLI("__complete", "personas", "show", "r"); !strings.Contains(r.Stdout, "reader") {
		t.Errorf("%v", r)
	}
}
