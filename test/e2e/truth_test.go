//go:build linux

package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestFieldO3_WhatAnAgentCallsItselfIsShownEscaped in every list, error and log: its last words, its model
// and its role are somebody else's text.
func TestFieldO3_WhatAnAgentCallsItselfIsShownEscaped(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	hostile := "a\x1b]52;c;aGk=\x07\x1b]0;owned\x07\x1bP+q\x1b\\\x1b[2J\u009b31m\u202eb"
	c := w.Mesh()
	args := w.FakeArgs("dying", `[{"print": "dying words \u001b]52;c;aGk=\u0007\u001b]0;owned\u0007\u001bP+q\u001b\\\u001b[2J\u0007\u009b31m\u202eend\n"}, {"exit": 3}]`)
	args.Role = hostile
	var refused *wire.Error
	_, err := c.Call(context.Background(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdSpawn, Args: args}, nil)
	if !errors.As(err, &refused) || refused.Code != wire.CodeBadRequest || refused.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("a role with control characters: %v", err)
	}
	args.Role = "a\u202eb" // no control character, and turns what stands behind it round
	if _, err := c.Call(context.Background(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdSpawn, Args: args}, nil); err != nil {
		t.Fatal(err)
	}
	w.AwaitStatus("dying", "exited")
	model := w.FakeArgs("model", `[{"hang": true}]`)
	model.Model = &hostile
	_, err = c.Call(context.Background(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdSpawn, Args: model}, nil)
	if !errors.As(err, &refused) {
		t.Errorf("a model for a program that takes none: %v", err)
	}
	for _, args := range [][]string{
		{"ps"},
		{"ps", "--wide"},
		{"inspect", "dying"},
		{"logs", "dying"},
		{"input", "dying", "--text", "x"},
		{"stop", "dying"},
		{"spawn", "--agent", "command", "--name", "m", "--model", hostile, "--detach", "--", "true"},
		{"inspect", hostile},
		{"attach", hostile},
	} {
		r := w.CLI(args...)
		for _, text := range []string{r.Stdout, r.Stderr} {
			if i := strings.IndexFunc(text, func(r rune) bool { return r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x202e }); i >= 0 {
				t.Errorf("%.40q shows a control character: %q", args, text)
			}
		}
	}
	if r := w.CLI("logs", "dying").OK(); !strings.Contains(r.Stdout, "dying words") || !strings.Contains(r.Stdout, "end") {
		t.Errorf("the log lost its text: %v", r)
	}
}

// TestFieldO5_NamesAreNamesAndNothingElse, from the command line and over the bare mesh: what breaks the
// grammar is refused with the rule, has no effect, and reaches no shell, no format and no path.
func TestFieldO5_NamesAreNamesAndNothingElse(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	touched := w.Path("touched")
	for _, name := range []string{
		"a;id", "$(id)", "#{pid}", "#(touch " + touched + ")", "../x", "-t", strings.Repeat("x", 256), "", ".", "..", "a:b", "a*", "a>b", "a b", "naïve", "\u6f22", "a\nb", "a\x00b", "a/b", "`touch " + touched + "`", "%x", "{x}",
	} {
		args := w.FakeArgs(name, `[{"hang": true}]`)
		var refused *wire.Error
		_, err := c.Call(context.Background(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdSpawn, Args: args}, nil)
		if !errors.As(err, &refused) || refused.Code != wire.CodeBadRequest || refused.Outcome != wire.OutcomeNotExecuted {
			t.Errorf("%.40q over the mesh: %v", name, err)
		}
		if strings.Contains(name, "\x00") { // no argument of a program
			continue
		}
		r := w.CLI("spawn", "--agent", "command", "--name="+name, "--detach", "--", "sleep", "600")
		if r.Code != 1 && r.Code != 2 || strings.TrimSpace(r.Stderr) == "" {
			t.Errorf("%.40q from the command line: %v", name, r)
		}
	}
	if rows := w.Ps(); len(rows) != 0 {
		t.Errorf("seats: %+v", rows)
	}
	if entries, err := os.ReadDir(w.SeatRoot); err == nil && len(entries) != 0 {
		t.Errorf("seat directories: %v", entries)
	}
	if _, err := os.Stat(touched); err == nil {
		t.Error("a name was executed")
	}
}

// TestFieldB19_AKillFromOutsideIsShownAsOne and not as an end that was asked for.
func TestFieldB19_AKillFromOutsideIsShownAsOne(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.CLI(append([]string{"spawn", "--agent", "command", "--name", "victim", "--detach", "--"}, w.FakeAgent(`[{"waitMs": 200}, {"die": "KILL"}]`)...)...)
	got := w.AwaitStatus("victim", "exited")
	if x := got.Exit; x == nil || x.Signal != "SIGKILL" || x.Asked || x.Code != nil && *x.Code == 0 {
		t.Errorf("it ended as %+v", got.Exit)
	}
	for _, args := range [][]string{{"ps"}, {"inspect", "victim"}} {
		if r := w.CLI(args...).OK(); !strings.Contains(r.Stdout, "SIGKILL") || strings.Contains(r.Stdout, "asked") {
			t.Errorf("%v", r)
		}
	}
}
