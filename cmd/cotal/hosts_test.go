//go:build linux

package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Two hosts serve one space. Whoever is in a workspace means its host; whoever names the server alone means the
// space, and a seat is found wherever it is.
func TestTwoHostsOfOneSpace(t *testing.T) {
	t.Parallel()
	a, b := harness.New(t), harness.New(t)
	broker := a.StartBroker()
	a.Start(harness.HostOptions{})
	server := []string{"--server", broker.URL, "--token-file", broker.TokenFile}
	other := b.Start(harness.HostOptions{Args: server})
	a.Spawn("mine", "sleep", "600")
	a.Spawn("both", "sleep", "600")
	b.Spawn("yours", "cat")
	b.Spawn("both", "sleep", "600")
	names := func(text string) (out []string) {
		for _, r := range jsonLines[wire.AgentRow](t, text) {
			out = append(out, r.Name)
		}
		return out
	}
	if got := names(a.CLI("ps", "--json").OK().Stdout); len(got) != 2 {
		t.Errorf("ps in the workspace lists %v", got)
	}
	of := func(args ...string) harness.Result { return a.CLI(append(args, server...)...) }
	if got := names(of("ps", "--json").OK().Stdout); len(got) != 4 {
		t.Errorf("ps of the space lists %v", got)
	}
	if r := a.CLI("ps", "--all").OK(); !strings.Contains(r.Stdout, "host "+a.Endpoint().InstanceID+", 2 seats\n") || !strings.Contains(r.Stdout, "host "+b.Endpoint().InstanceID+", 2 seats\n") {
		t.Errorf("%v", r)
	}
	watch := worldRig(t, a).run(append([]string{"ps", "--watch", "--json"}, server...)...)
	watch.see(`"name":"mine"`)
	watch.see(`"name":"yours"`)
	all := worldRig(t, a).run("ps", "--all", "--watch", "--json") // in the workspace of one of them
	all.see(`"name":"mine"`)
	all.see(`"name":"yours"`)
	_ = all.cmd.Process.Signal(os.Interrupt)
	if code, shown := all.wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	var row wire.AgentRow
	of("inspect", "yours", "--json").OK().JSON(&row)
	if row.InstanceID != b.Endpoint().InstanceID {
		t.Errorf("%+v", row)
	}
	of("input", "yours", "--text", "hello").OK()
	if r := of("stop", "both").Want(1); !strings.Contains(r.Stderr, "2 hosts have a seat both") || !strings.Contains(r.Stderr, "--on "+b.Endpoint().InstanceID) {
		t.Errorf("%v", r)
	}
	of("inspect", "nobody").Want(4)
	of("stop", "both", "--now", "--on", b.Endpoint().InstanceID).OK()
	if row, ok := a.Seat("both"); !ok || row.Status != "running" {
		t.Errorf("the seat of the other host is %+v", row)
	}
	// A host that is not heard is not taken for one without the seat.
	gone := b.Endpoint().InstanceID
	other.Kill()
	if r := of("inspect", "yours").Want(3); !strings.Contains(r.Stderr, "where yours is, is not known") || !strings.Contains(r.Stderr, gone) {
		t.Errorf("%v", r)
	}
	r := of("ps", "--json").Want(5)
	if got := names(r.Stdout); len(got) != 2 || !strings.Contains(r.Stderr, gone) || !strings.Contains(r.Stderr, "not complete") {
		t.Errorf("%v: %v", got, r)
	}
	// Who watches is told that it is not heard; its seats are not gone.
	watch.see("note: instance " + gone)
	_ = watch.cmd.Process.Signal(os.Interrupt)
	if code, shown := watch.wait(); code != 0 || strings.Contains(shown, `"status":"gone"`) {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	b.Start(harness.HostOptions{Args: server}) // for the end of the world, which stops its seats
}

// While B did not answer, the seat of A was taken for the one that a name means, stopped and typed into: exit code 0.
func TestANameIsNotTakenForUniqueWhileAHostIsSilent(t *testing.T) {
	t.Parallel()
	a, b := harness.New(t), harness.New(t)
	broker := a.StartBroker()
	a.Start(harness.HostOptions{})
	server := []string{"--server", broker.URL, "--token-file", broker.TokenFile}
	other := b.Start(harness.HostOptions{Args: server})
	mine := a.Spawn("t7", "cat")
	b.Spawn("t7", "cat")
	here, there := a.Endpoint().InstanceID, b.Endpoint().InstanceID
	of := func(args ...string) harness.Result {
		return a.CLI(append(append(args, server...), "--timeout", "1s")...)
	}

	// What is for one host is not for whichever answers.
	for _, args := range [][]string{{"personas", "define", "q", "--agent", "command", "--prompt", "x"}, {"ext", "restart", "pty"}} {
		if r := of(args...).Want(1); !strings.Contains(r.Stderr, "has 2 hosts") || !strings.Contains(r.Stderr, "--on "+here) || !strings.Contains(r.Stderr, "--on "+there) {
			t.Errorf("%v", r)
		}
	}
	for _, args := range [][]string{{"invoke", "manager", "shutdown", "--all"}, {"invoke", "manager", "shutdown"}} {
		if r := of(args...).Want(2); !strings.Contains(r.Stderr, "shutdown is for one instance") {
			t.Errorf("%v", r)
		}
	}
	of("personas", "define", "q", "--agent", "command", "--prompt", "x", "--on", there).OK()
	if r := a.CLI("personas", "show", "q"); r.Code != 4 {
		t.Errorf("the other host has the persona: %v", r)
	}

	// Which of the hosts answered was not said where the answer does not tell.
	for _, args := range [][]string{
		{"status"}, {"personas", "list"}, {"ext", "list"}, {"models"}, {"spawn", "--agent", "command", "--name", "any", "--detach", "--", "sleep", "600"},
	} {
		if r := a.CLI(append(slices.Clone(server), args...)...).OK(); !strings.Contains(r.Stderr, "note: space main has 2 hosts, and this is of ") || !strings.Contains(r.Stderr, "; for another: --on ") {
			t.Errorf("%v", r)
		}
	}
	if r := a.CLI(append(slices.Clone(server), "status", "--on", there)...).OK(); strings.Contains(r.Stderr, "note: ") || !strings.Contains(r.Stdout, there) {
		t.Errorf("%v", r)
	}

	other.Signal(syscall.SIGSTOP)
	for _, args := range [][]string{
		{"stop", "t7", "--now"}, {"input", "t7", "--text", "hello"}, {"invoke", "manager", "despawn", "--target", "t7"}, {"send", "@t7", "hello"}, {"logs", "t7"}, {"inspect", "t7"},
	} {
		if r := of(args...).Want(3); !strings.Contains(r.Stderr, "which t7 is meant is not known") || !strings.Contains(r.Stderr, there) || !strings.Contains(r.Stderr, "--on "+here) {
			t.Errorf("%v", r)
		}
	}
	if row, ok := a.Seat("t7"); !ok || row.Status != "running" || row.Output != 0 {
		t.Errorf("the seat is %+v", row)
	}
	of("input", "t7", "--text", "hello", "--on", here).OK()
	of("stop", mine.LifecycleUID, "--now").OK() // an id in full names one, whoever is silent
	other.Signal(syscall.SIGCONT)
}

// A host that hangs got the questions about who is there, which go to any: "no host answers", while one did.
func TestOneHostThatHangsDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	a, b := harness.New(t), harness.New(t)
	broker := a.StartBroker()
	a.Start(harness.HostOptions{})
	server := []string{"--server", broker.URL, "--token-file", broker.TokenFile}
	other := b.Start(harness.HostOptions{Args: server})
	a.Spawn("mine", "sleep", "600")
	other.Signal(syscall.SIGSTOP)
	for range 4 {
		r := a.CLI(append([]string{"ps", "--timeout", "1s"}, server...)...).Want(5)
		if !strings.Contains(r.Stdout, "mine") || !strings.Contains(r.Stderr, b.Endpoint().InstanceID+" is there and has not answered") {
			t.Errorf("%v", r)
		}
	}
	other.Signal(syscall.SIGCONT)
}
