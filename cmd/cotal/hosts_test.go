//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Two hosts serve one space. Whoever is in a workspace means its host; whoever names the server alone means the
// space, and a seat is found wherever it is.
func TestTwoHostsOfOneSpace(t *testing.T) {
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
	b.Start(harness.HostOptions{Args: server}) // for the end of the world, which stops its seats
}
