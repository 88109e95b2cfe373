// Package crash kills processes of ours at every registered failpoint and checks, after a restart,
// that the promises of the host still hold.
package crash

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// notReached lists failpoints that the lives of this package cannot reach, with where their crash test
// is instead. A failpoint that is neither reached here nor listed fails the test.
var notReached = map[string]string{
	"host.restart.recorded": "TestKillWhileASeatIsStartedAgain",
	"host.restart.reaped":   "TestKillWhileASeatIsStartedAgain",
	"host.restart.followed": "TestKillWhileASeatIsStartedAgain",
	"host.restart.proved":   "TestKillWhileASeatIsStartedAgain",
	"host.lease.renewing":   "TestAHolderThatIsKilledAtAnyStepIsFollowedAtOnce of host/lease",
	"host.lease.renewed":    "TestAHolderThatIsKilledAtAnyStepIsFollowedAtOnce of host/lease",
	"host.lease.reread":     "TestAHolderThatIsKilledAtAnyStepIsFollowedAtOnce of host/lease",
	"host.lease.returned":   "TestAHolderThatIsKilledAtAnyStepIsFollowedAtOnce of host/lease",
	"host.lease.releasing":  "TestAHolderThatIsKilledAtAnyStepIsFollowedAtOnce of host/lease",
	"host.lease.released":   "TestAHolderThatIsKilledAtAnyStepIsFollowedAtOnce of host/lease",
	"ext.manifest.temp":     "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.manifest.written":  "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.stage.made":        "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.stage.copied":      "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.accept.described":  "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.accept.stored":     "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.enter.recorded":    "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.enter.swapped":     "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
	"ext.sweep.removed":     "TestKilledAtEveryPlaceLeavesTheOldVersionOrTheNewOne of plugins/store",
}

// with arms what else must go wrong for a failpoint to be reached. MARK is the name of a file.
var with = map[string]string{
	"catalog.spawn.unresolved": "pty.spawn.prepared=crash(MARK)",      // the plugin dies with the answer of a Spawn
	"pty.spawn.undo":           "pty.spawn.launched=1*error(no room)", // a step of a Spawn fails
	"pty.adopt.lost":           "seat.commit.after-exec=crash(MARK)",  // custody is killed
	"pty.adopt.swept":          "seat.commit.after-exec=crash(MARK)",
	"pty.adopt.recorded":       "seat.commit.after-exec=crash(MARK)",
	"tmux.spawn.undo":          "tmux.spawn.launched=1*error(no room)",
	"tmux.adopt.lost":          "tmuxseat.commit.after-exec=crash(MARK)",
	"tmux.adopt.swept":         "tmuxseat.commit.after-exec=crash(MARK)",
	"tmux.adopt.recorded":      "tmuxseat.commit.after-exec=crash(MARK)",
}

// runtimeOf is the runtime whose seats reach a failpoint.
func runtimeOf(s failpoints.Site) string {
	if strings.HasPrefix(s.Process(), "tmux") {
		return "tmux"
	}
	return "pty"
}

// unreachable returns why a failpoint is not reached here; empty when it is.
func unreachable(t *testing.T, s failpoints.Site) string {
	if where, ok := notReached[s.Name]; ok {
		return where
	}
	if authenticated(s) {
		return "open mode has no keys, credentials and slots: TestAuthenticatedMatrix"
	}
	rt := runtimeOf(s)
	if !strings.Contains(bundle(harness.Bin(t)), `"cotal-runtime-`+rt+`"`) {
		return "the bundle has no runtime " + rt
	}
	return ""
}

var manifest struct {
	once sync.Once
	text []byte
}

// bundle returns the manifest of the binaries under test; empty when there is none.
func bundle(dir string) string {
	manifest.once.Do(func() { manifest.text, _ = os.ReadFile(filepath.Join(dir, "plugins.toml")) })
	return string(manifest.text)
}

// TestKillAtEveryFailpoint runs the life of two seats, one that is stopped and one that exits by
// itself, with one process of ours killed once at the failpoint, and checks the invariants behind it.
func TestKillAtEveryFailpoint(t *testing.T) {
	for _, s := range scan(t) {
		if why := unreachable(t, s); why != "" {
			t.Logf("%s: %s", s.Name, why)
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			life(t, s)
		})
	}
}

func life(t *testing.T, s failpoints.Site) {
	w := newWorld(t)
	w.marker = filepath.Join(w.Dir, "killed")
	w.armed = harness.HostOptions{Failpoints: s.Name + "=crash(" + w.marker + ")"}
	if more := with[s.Name]; more != "" {
		w.armed.Failpoints += ";" + strings.ReplaceAll(more, "MARK", filepath.Join(w.Dir, "killed-too"))
	}
	w.prepare(s)
	if strings.Contains(w.armed.Failpoints, "seat.") {
		w.mayDie = func(string) bool { return true } // the custody of one seat is what is killed
	}
	if strings.Contains(s.Name, ".adopt.") { // recovery needs something to recover
		w.bystander()
	}
	w.host = w.Launch(w.armed)
	w.ready()

	w.liveOnce()
	// One more recovery: what the first one left must satisfy the second.
	w.lastRestart()
	if _, err := os.Stat(w.marker); err != nil {
		t.Errorf("no process was killed at %s: the failpoint was never reached", s.Name)
	}
}
