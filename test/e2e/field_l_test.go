//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestFieldL3_AnEmptyRecordTakesNoName: what a crash left half made is told of, and neither a start nor a spawn waits
// for it.
func TestFieldL3_AnEmptyRecordTakesNoName(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	id := wire.NewCustodyID()
	dir := filepath.Join(w.SeatRoot, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"intent.json", "seat.json", "exit.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := w.Start(harness.HostOptions{})
	quick(t, w, append([]string{"spawn", "--agent", "command", "--name", "worker", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)...)
	row := w.AwaitStatus("worker", "running")
	if r := w.CLI("status").OK(); !strings.Contains(r.Stdout, "foreign   1 seat") {
		t.Errorf("nobody tells of it: %v", r)
	}
	if text := h.Stderr(); !strings.Contains(text, filepath.Join(dir, "seat.json")) {
		t.Errorf("the host does not name it:\n%s", text)
	}
	quick(t, w, "stop", "worker")
	if w.Alive(row.PID) {
		t.Error("it outlived its stop")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}
