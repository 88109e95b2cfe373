//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// TestFieldB14_AWorkingDirectoryThatVanishesIsTold: the seat runs on, everything that is asked about it
// says what is missing, it can be typed into and stopped, and nothing new starts where nothing is.
func TestFieldB14_AWorkingDirectoryThatVanishesIsTold(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	dir := w.Path("place")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	spawn := func(name string) harness.Result {
		return w.CLI(append([]string{"spawn", "--agent", "command", "--name", name, "--cwd", dir, "--detach", "--"}, seatview.Working(w, 20)...)...)
	}
	spawn("homeless").OK()
	row := w.AwaitStatus("homeless", "running")
	view := seatview.Watch(t, w, row)
	if row.Reason != "" {
		t.Errorf("nothing is missing yet, and the reason is %q", row.Reason)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	await(t, harness.DefaultWait, "ps tells that the directory is missing", func() (bool, string) {
		got, _ := w.Seat("homeless")
		return strings.Contains(got.Reason, dir) && got.Status == "running", got.Status + " " + got.Reason
	})
	if got := w.Inspect("homeless"); !strings.Contains(got.Reason, dir) {
		t.Errorf("inspect says %q", got.Reason)
	}
	w.CLI("input", "homeless", "--text", "still there?").OK()
	view.AwaitReplies(t, []string{"still there?"})
	procs := len(w.Procs())
	if r := spawn("second"); r.Code == 0 || !strings.Contains(r.Stderr, dir) {
		t.Errorf("a seat in a directory that is not there: %v", r)
	}
	if n := len(w.Procs()); n > procs {
		t.Errorf("%d processes run, %d did before the spawn that was refused", n, procs)
	}
	if err := os.Mkdir(dir, 0o700); err != nil { // the name is back, the directory is not
		t.Fatal(err)
	}
	if got, _ := w.Seat("homeless"); got.Status != "running" {
		t.Errorf("it is %s", got.Status)
	}
	w.CLI("stop", "homeless").OK()
	if w.Alive(row.PID) {
		t.Error("the agent outlived its stop")
	}
}

// TestASeatDirectoryThatCannotBeReadIsUnknownAndNeverGone, for every answer and for the next host, until it
// can be read again.
func TestASeatDirectoryThatCannotBeReadIsUnknownAndNeverGone(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string) (repair func()){
		"no right to enter": func(t *testing.T, dir string) func() {
			return chmod(t, dir, 0)
		},
		"another directory under its name": func(t *testing.T, dir string) func() {
			rename(t, dir, dir+".away")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				rename(t, dir+".away", dir)
			}
		},
		"a record that is no record": func(t *testing.T, dir string) func() {
			record := filepath.Join(dir, "seat.json")
			text := read(t, record)
			if err := os.WriteFile(record, []byte("{\"schema\": "), 0o600); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heldBack(t)
			w := harness.New(t)
			h := w.Start(harness.HostOptions{})
			row := w.Spawn("hidden", seatview.Working(w, 20)...)
			view := seatview.Watch(t, w, row)
			other := w.Spawn("other", seatview.Working(w, 20)...)
			repair := spoil(t, filepath.Join(w.SeatRoot, row.SeatID))
			honest := func(when string) {
				t.Helper()
				got, ok := w.Seat("hidden")
				switch {
				case !ok:
					t.Errorf("%s: it is not listed", when)
				case got.Status == "unknown" && got.Reason == "":
					t.Errorf("%s: it is unknown, and nobody says why", when)
				case got.Status != "unknown" && got.Status != "running":
					t.Errorf("%s: it is %s %s, and it runs", when, got.Status, got.Reason)
				}
				if r := w.CLI(append([]string{"spawn", "--agent", "command", "--name", "hidden", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)...); r.Code == 0 {
					t.Errorf("%s: its name was given away: %v", when, r)
				}
				if got, _ := w.Seat("other"); got.Status != "running" || got.PID != other.PID {
					t.Errorf("%s: another seat is %+v", when, got)
				}
				view.AwaitMore(t)
			}
			honest("under its host")
			h.Kill()
			h = w.Start(harness.HostOptions{})
			inTime(t, w, "to take back a seat that cannot be read", h.Boot-8*time.Second) // Adopt may look at it for 5 s
			honest("under the next host")
			if r := w.CLI("stop", "hidden", "--timeout", "15s"); r.Code == 0 && w.Alive(row.PID) {
				t.Errorf("its stop says that it is gone: %v", r)
			}
			if !w.Alive(row.PID) { // found and ended with proof, whatever its directory looked like
				if err := os.RemoveAll(filepath.Join(w.SeatRoot, row.SeatID+".away")); err != nil {
					t.Error(err)
				}
				return
			}
			repair()
			w.CLI("inspect", "hidden", "--json").OK()
			await(t, harness.DefaultWait, "it is found again, or ended by the stop", func() (bool, string) {
				got, ok := w.Seat("hidden")
				return !ok || got.Status == "running" && got.PID == row.PID || got.Status == "exited" && !w.Alive(row.PID), got.Status + " " + got.Reason
			})
			w.CLI("stop", "hidden", "--timeout", "15s")
			if w.Alive(row.PID) {
				t.Error("it cannot be stopped once it can be read again")
			}
		})
	}
}

// heldBack makes a directory without rights closed to whatever this test starts from here on, as it is for
// everybody but root.
func heldBack(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // what is dropped is the thread's, which ends with the test
	for _, right := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, right, 0, 0, 0); err != nil {
			t.Skipf("root may enter any directory, and cannot be kept from it here: %v", err)
		}
	}
	dir := t.TempDir()
	chmod(t, dir, 0)
	if out, err := exec.Command("ls", dir).CombinedOutput(); err == nil {
		t.Fatalf("a closed directory is open: %s", out)
	}
}

func chmod(t *testing.T, dir string, mode os.FileMode) func() {
	t.Helper()
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}
