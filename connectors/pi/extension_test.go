package pi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// A bridge that is killed is away until the extension has started another. A tool that was called meanwhile never
// returned, so its turn never ended; and a turn that ended while the state was told anew could be shown as working for
// ever, since both were told at once.
func TestAToolThatWasCalledWhileTheBridgeWasAwayNeverReturned(t *testing.T) {
	// In the packages of the program is what it loads extensions with.
	loader := filepath.Join(agents.Need(t, agents.Pi), "../../../../jiti/lib/jiti.mjs")
	dir, err := filepath.Abs(filepath.Join("testdata", "extension"))
	if err != nil {
		t.Fatal(err)
	}
	place := t.TempDir()
	if err := os.WriteFile(filepath.Join(place, extensionFile), extension, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(20*time.Second))
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", filepath.Join(dir, "drive.mjs"), loader, filepath.Join(place, extensionFile))
	cmd.Env = append(os.Environ(), "PLACE="+place, "COTAL_BRIDGE="+filepath.Join(dir, "cotal-bridge"))
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	want := `first: answered done
away: returned
again: answered done
told: working end working end idle end`
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%v, and what happened is\n%s\nwant\n%s", err, got, want)
	}
}
