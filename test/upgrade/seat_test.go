//go:build linux

package upgrade

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// seatTag is the form of cotal-seat that the archive holds; seatSource is what it is built from.
const seatTag = "seat-v1"

var seatSource = []string{"go.mod", "go.sum", "cmd/cotal-seat", "runtimes/pty/custody", "sdk/seat", "sdk/terminal", "sdk/failpoint"}

func hashFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// archive returns the files of the archive by name.
func archive(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", seatTag+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if !filepath.IsLocal(h.Name) {
			t.Fatalf("the archive names %q", h.Name)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheArchiveIsTheTaggedSource: where git knows the tag, nothing in the archive may differ from it.
func TestTheArchiveIsTheTaggedSource(t *testing.T) {
	t.Parallel()
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) ([]byte, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		return cmd.Output()
	}
	if _, err := git("rev-parse", "--verify", "--quiet", seatTag+"^{commit}"); err != nil {
		t.Skipf("git does not know the tag %s here", seatTag)
	}
	files := archive(t)
	list, err := git(append([]string{"ls-tree", "-r", "--name-only", seatTag, "--"}, seatSource...)...)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for name := range strings.Lines(string(list)) {
		if name = strings.TrimSuffix(name, "\n"); !strings.HasSuffix(name, "_test.go") && !strings.Contains(name, "/testdata/") {
			want = append(want, name)
		}
	}
	for name, text := range files {
		got = append(got, name)
		if tagged, err := git("show", seatTag+":"+name); err != nil || !bytes.Equal(tagged, text) {
			t.Errorf("%s in the archive is not what it is at %s (%v)", name, seatTag, err)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the archive holds %v\n%s holds %v", got, seatTag, want)
	}
}

// oldSeat builds cotal-seat from the archive.
func oldSeat(t *testing.T, w *harness.World) string {
	t.Helper()
	src := filepath.Join(w.Dir, seatTag)
	for name, text := range archive(t) {
		path := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return goBuild(t, src, filepath.Join(src, "bin"), nil, "cotal-seat")["cotal-seat"]
}

// TestAnOldSeatKeepsWorkingUnderANewHost: seats outlive the installation that started them. What a seat of
// an earlier form was asked when it was new, it is asked by the next host: adopt, look, type, attach,
// resize, signal, exit code, stop with proof, and all of it again after the death of the runtime plugin.
// The new host gives the new form to new seats only.
func TestAnOldSeatKeepsWorkingUnderANewHost(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	current := w.Bin
	old := oldSeat(t, w)
	oldSum, err := hashFile(old)
	if err != nil {
		t.Fatal(err)
	}
	w.Bin = bundle(t, w, "old", map[string]string{"cotal-seat": old})
	h := w.Start(harness.HostOptions{})

	gate := func(name string) string { return filepath.Join(w.Dir, name+".go") }
	open := func(name string) {
		t.Helper()
		if err := os.WriteFile(gate(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pasted := filepath.Join(w.Dir, "pasted.hex")
	rows := map[string]wire.AgentRow{
		"work":     w.Spawn("work", seatview.Working(w, 5)...),
		"plain":    w.Spawn("plain", seatview.Working(w, 20)...),
		"size":     w.SpawnFake("size", `[{"printSize": true}, {"hang": true}]`),
		"seven":    w.SpawnFake("seven", fmt.Sprintf(`[{"print": "last words\n"}, {"waitFile": %q}, {"exit": 7}]`, gate("seven"))),
		"term":     w.SpawnFake("term", fmt.Sprintf(`[{"waitFile": %q}, {"die": "TERM"}]`, gate("term"))),
		"missed":   w.SpawnFake("missed", fmt.Sprintf(`[{"print": "alone\n"}, {"waitFile": %q}, {"exit": 3}]`, gate("missed"))),
		"paste":    w.SpawnFake("paste", fmt.Sprintf(`[{"raw": true}, {"print": "up"}, {"hexlog": {"file": %q}}]`, pasted)),
		"stubborn": w.SpawnFake("stubborn", `[{"ignore": ["TERM", "HUP"]}, {"daemon": {"steps": [{"hang": true}], "scrub": true}}, {"hang": true}]`),
	}
	for name, row := range rows {
		if exe(t, row.SeatPID) != oldSum {
			t.Fatalf("seat %s does not run the old binary", name)
		}
	}
	view, plain := seatview.Watch(t, w, rows["work"]), seatview.Watch(t, w, rows["plain"])
	view.AwaitMore(t)
	var typed []string
	say := func(text string) {
		t.Helper()
		w.CLI("input", "work", "--text", text).OK()
		typed = append(typed, text)
		view.AwaitReplies(t, typed)
	}
	say("typed under the old bundle")

	h.Kill()
	open("missed") // it ends while there is no host
	view.AwaitMore(t)
	w.Bin = current
	h = w.Start(harness.HostOptions{})

	same := func(when string, names ...string) {
		t.Helper()
		for _, name := range names {
			got := w.AwaitStatus(name, "running")
			if want := rows[name]; got.PID != want.PID || got.SeatPID != want.SeatPID || got.LifecycleUID != want.LifecycleUID {
				t.Fatalf("%s: %s is %+v, was %+v", when, name, got, want)
			}
			if exe(t, got.SeatPID) != oldSum {
				t.Errorf("%s: seat %s is another program", when, name)
			}
		}
		view.AwaitMore(t)
		plain.AwaitMore(t)
	}
	same("under the new host", "work", "plain", "size", "seven", "term", "stubborn", "paste")
	if x := w.AwaitStatus("missed", "exited").Exit; x == nil || x.Code == nil || *x.Code != 3 || x.Evidence != "reaped" {
		t.Errorf("the end that nobody saw: %+v", x)
	}
	say("typed under the new host")
	say(strings.Repeat("long ", 600))
	paste := strings.Repeat("sixteen bytes..\n", 4096)
	w.CLI("input", "paste", "--text", paste).OK()
	harness.Eventually(t, harness.DefaultWait, "64 KiB and a Return are read", func() (bool, string) {
		got, _ := os.ReadFile(pasted)
		return len(got) >= 2*len(paste), fmt.Sprintf("%d digits", len(got))
	})
	if got, _ := os.ReadFile(pasted); string(got) != fmt.Sprintf("%x0d", paste[:len(paste)-1]) {
		t.Errorf("the program read %d digits, or others, ending %s", len(got), got[max(len(got)-40, 0):])
	}
	var row wire.AgentRow
	harness.Eventually(t, harness.DefaultWait, "the host counts the output", func() (bool, string) {
		row = w.Inspect("work") // a runtime that is busy is not waited for
		return row.Output > 0, row.Reason
	})
	if row.Output > view.Next() && !reaches(view, row.Output) {
		t.Errorf("the host counts %d bytes of output, the viewer saw %d", row.Output, view.Next())
	}
	if out := w.CLI("logs", "plain", "--raw", "--bytes", "8388608").OK().Stdout; !strings.HasPrefix(out, "tick 000000000001\r\n") {
		t.Errorf("the log begins with %q", out[:min(len(out), 60)])
	}

	term := seatview.Attach(t, w, "work", 30, 100)
	term.Type("typed at a terminal\r")
	typed = append(typed, "typed at a terminal")
	view.AwaitReplies(t, typed)
	term.See("got typed at a terminal")
	term.Detach()

	sized := seatview.Attach(t, w, "size", 31, 101)
	sized.See("size 31x101")
	sized.Resize(44, 133)
	sized.See("size 44x133")
	sized.Detach()

	fresh := w.Spawn("fresh", seatview.Working(w, 20)...)
	if exe(t, fresh.SeatPID) == oldSum {
		t.Error("the new host started a seat with the old binary")
	}
	beside := seatview.Watch(t, w, fresh)
	w.CLI("input", "fresh", "--text", "beside").OK()
	beside.AwaitReplies(t, []string{"beside"})

	plugin := w.PluginPID("pty")
	w.KillPID(plugin)
	harness.Eventually(t, harness.DefaultWait, "the runtime plugin is another process", func() (bool, string) {
		return w.PluginPID("pty") != plugin, "it is the one that was killed"
	})
	same("after the death of the runtime plugin", "work", "plain", "size", "seven", "term", "stubborn")
	say("typed after the death of the runtime plugin")
	h.Kill()
	w.Start(harness.HostOptions{})
	same("after one more host", "work", "plain", "size", "seven", "term", "stubborn")
	say("typed under one more host")

	open("seven")
	if x := w.AwaitStatus("seven", "exited").Exit; x == nil || x.Code == nil || *x.Code != 7 || x.Evidence != "reaped" || x.Last != "last words" {
		t.Errorf("exit %+v; want code 7", x)
	}
	open("term")
	if x := w.AwaitStatus("term", "exited").Exit; x == nil || x.Signal != "SIGTERM" || x.Evidence != "reaped" {
		t.Errorf("exit %+v; want SIGTERM", x)
	}
	for _, name := range []string{"work", "plain", "size", "stubborn", "paste", "fresh"} {
		w.CLI("stop", name).OK()
	}
	for name, row := range rows {
		if w.Alive(row.PID) || w.Alive(row.SeatPID) {
			t.Errorf("a process of %s is left", name)
		}
	}
	if left := w.ProcsLike("cotal-fakeagent"); len(left) > 0 {
		t.Errorf("left alive: %v", left)
	}
	view.AwaitReplies(t, typed)
}

// reaches waits until the viewer has seen that many bytes: the host may have asked the seat a moment later.
func reaches(v *seatview.View, n uint64) bool {
	ok, _ := harness.Poll(harness.DefaultWait, func() (bool, string) { return v.Next() >= n, "" })
	return ok
}
