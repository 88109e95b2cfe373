package claude

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// What is kept of seats that are gone does not grow for ever, and what a seat goes on with is there when it does.
func TestOldSessionsOfSeatsThatAreGoneDoNotStay(t *testing.T) {
	root := t.TempDir()
	c := &Connector{}
	if err := c.Configure(t.Context(), sdk.PluginConfig{Config: json.RawMessage(`{"keep_sessions":1,"keep_days":30}`)}); err != nil {
		t.Fatal(err)
	}
	put := func(path string, age time.Duration) string {
		t.Helper()
		at := time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("{}\n"), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	reap := func() sdk.ReapReport {
		t.Helper()
		dir := t.TempDir()
		put(filepath.Join(dir, homeDir, "projects", "-p", "11111111-1111-4111-8111-111111111111.jsonl"), 400*24*time.Hour)
		report, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: dir, WorkspaceRoot: root})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	left := func() []string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(keptDir(root), "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	put(filepath.Join(keptDir(root), "-q", "22222222-2222-4222-8222-222222222222.jsonl"), 400*24*time.Hour)
	notes := put(filepath.Join(keptDir(root), "-q", "notes.txt"), 400*24*time.Hour)
	reap()
	if all := left(); len(all) != 3 { // however few are to be kept, and however long nothing was said in it
		t.Errorf("behind the end of a seat there are %v, want its session and what was there", all)
	}
	c.now = func() time.Time { return time.Now().Add(31 * 24 * time.Hour) }
	report := reap()
	if all := left(); len(all) != 1 || all[0] != notes {
		t.Errorf("a month later there are %v, want what is no session", all)
	}
	if said := strings.Join(report.Evidence, "\n"); !strings.Contains(said, "2 sessions") {
		t.Errorf("the report says %s", said)
	}
	for _, text := range []string{`{"keep_days":-1}`, `{"keep_sessions":"many"}`} {
		if err := (&Connector{}).Configure(t.Context(), sdk.PluginConfig{Config: json.RawMessage(text)}); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "keep_") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
