//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// thirdParty builds a connector that does not ship and lists it in the workspace, as its author would.
func thirdParty(t *testing.T, w *harness.World, name string) {
	t.Helper()
	dir := w.Path(".cotal", manifest.PluginDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "cotal-connector-"+name)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", file, "./testdata/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build ./testdata/%s: %v\n%s", name, err, out)
	}
	sum, err := manifest.HashFile(file)
	if err != nil {
		t.Fatal(err)
	}
	err = manifest.Write(w.Path(".cotal", manifest.FileName), []manifest.Entry{{
		Name: name, Kind: sdk.KindConnector, Command: filepath.Base(file), Version: "0.1.0", SHA256: sum,
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAPluginThatSpamsHarmsNobody: it prints as fast as it can, on both outputs, for as long as the test
// looks. Everybody is answered, the host's memory and log stay under their caps, the plugin itself goes on
// serving, and all of its output is taken: it never hangs on a full pipe.
func TestAPluginThatSpamsHarmsNobody(t *testing.T) {
	w := harness.New(t)
	thirdParty(t, w, "spam")
	h := w.Start(harness.HostOptions{})
	pid := w.PluginPID("spam")
	spawn := func(agent, name string) {
		t.Helper()
		quick(t, w, append([]string{"spawn", "--agent", agent, "--name", name, "--detach", "--"}, seatview.Working(w, 20)...)...)
	}
	spawn("spam", "begin") // from now on it prints on standard output too
	spawn("command", "calm")
	view := seatview.Watch(t, w, w.AwaitStatus("calm", "running"))
	var typed []string
	until := time.Now().Add(time.Duration(size(4, 60)) * time.Second)
	for i := 0; time.Now().Before(until); i++ {
		quick(t, w, "ps")
		quick(t, w, "status")
		typed = append(typed, fmt.Sprintf("line %d", i))
		quick(t, w, "input", "calm", "--text", typed[i])
		view.AwaitReplies(t, typed)
		spawn("spam", fmt.Sprintf("s%d", i))
		quick(t, w, "stop", fmt.Sprintf("s%d", i))
		if n := diskOf(t, w.Path(".cotal", "host", "log")); n > hostLog {
			t.Fatalf("the host has logged %d bytes; the limit is %d", n, hostLog)
		}
	}
	memoryUnder(t, "the host", h.PID, hostMemory)
	t.Logf("the log has %d bytes", diskOf(t, w.Path(".cotal", "host", "log")))
	if now := w.PluginPID("spam"); now != pid {
		t.Errorf("the plugin was restarted: process %d, was %d", now, pid)
	}
	written := func() uint64 {
		var n uint64
		text := read(t, fmt.Sprintf("/proc/%d/io", pid))
		if _, err := fmt.Sscanf(text[max(0, strings.Index(text, "wchar: ")):], "wchar: %d", &n); err != nil {
			t.Fatalf("%v in %q", err, text)
		}
		return n
	}
	before := written()
	await(t, harness.DefaultWait, "the plugin goes on printing", func() (bool, string) {
		n := written()
		return n > before+1<<20, fmt.Sprintf("%d bytes, were %d", n, before)
	})
	for _, name := range []string{"begin", "calm"} {
		quick(t, w, "stop", name)
	}
}
