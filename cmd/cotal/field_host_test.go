//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestFieldE9_WhenAnAgentLastDidAnythingIsShown apart from whether its process and its presence are there.
func TestFieldE9_WhenAnAgentLastDidAnythingIsShown(t *testing.T) {
	row := wire.AgentRow{
		Name: "stuck", Agent: "claude", Mode: "pty", Status: "running", UptimeMs: (5 * time.Hour).Milliseconds(), Mesh: wire.StatusWorking,
		MeshView: "current", ActiveAt: time.Now().Add(-2*time.Hour - time.Minute).UnixMilli(),
		Condition: &wire.PresenceCondition{Code: "server", Message: "502 Bad Gateway"},
	}
	shown := func() string {
		var b strings.Builder
		printRow(&b, row, nil)
		return b.String()
	}
	for _, line := range []string{"status       running 5h\n", "mesh         working (server): 502 Bad Gateway\n", "last work    2h ago\n"} {
		if got := shown(); !strings.Contains(got, line) {
			t.Errorf("no %q in\n%s", line, got)
		}
	}
	row.ActiveAt = 0
	if got := shown(); strings.Contains(got, "last work") {
		t.Errorf("what is not known is shown:\n%s", got)
	}
}

// TestFieldF15_TheServiceInTheReadmeSparesSeats: by default systemd ends everything in the control group of a service.
func TestFieldF15_TheServiceInTheReadmeSparesSeats(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, unit, found := strings.Cut(string(text), "```ini\n[Unit]\n")
	unit, _, closed := strings.Cut(unit, "```")
	if !found || !closed {
		t.Fatal("README.md has no unit file")
	}
	set := map[string]string{}
	section := "[Unit]"
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		if key, value, ok := strings.Cut(line, "="); ok && section == "[Service]" {
			set[key] = value
		}
	}
	for key, want := range map[string]string{"KillMode": "process", "OOMPolicy": "continue", "Restart": "on-failure"} {
		if set[key] != want {
			t.Errorf("%s is %q, want %q", key, set[key], want)
		}
	}
	if !strings.HasSuffix(set["ExecStart"], "/cotal-host serve") || !strings.Contains(set["Environment"], "PATH=") {
		t.Errorf("it starts %q with %q", set["ExecStart"], set["Environment"])
	}
}

// TestFieldF16_SeatsThatCannotBeCountedAreNotNone: what a removal has to know first and cannot read, refuses it.
func TestFieldF16_SeatsThatCannotBeCountedAreNotNone(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	refused := func(why string) {
		t.Helper()
		for _, verb := range []string{"remove", "disable"} {
			if r := w.CLI("ext", verb, "pty"); r.Code != 1 || !strings.Contains(r.Stderr, why) {
				t.Errorf("ext %s: %v; want exit code 1 and %q", verb, r, why)
			}
		}
		if got := userManifest(t, w); strings.Contains(got, "pty") {
			t.Errorf("it was turned off all the same:\n%s", got)
		}
	}
	id := wire.NewCustodyID()
	dir := filepath.Join(w.SeatRoot, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "seat.json"), []byte(`{"schema":`), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("seat " + id[:8] + ", whose record cannot be read")
	// The seats cannot be listed at all.
	if err := os.RemoveAll(w.SeatRoot); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.SeatRoot, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(w.SeatRoot)
	if err := os.Remove(w.SeatRoot); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.SeatRoot, 0o700); err != nil {
		t.Fatal(err)
	}
	w.CLI("ext", "disable", "pty").OK() // there are none now
}
