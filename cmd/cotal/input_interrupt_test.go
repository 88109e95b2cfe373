//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// Who interrupts an input is told that the host may have typed it, and may go on.
func TestAnInterruptedInputSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("deaf", "sh", "-c", "stty raw -echo; echo deaf; exec sleep 600")
	harness.Eventually(t, harness.DefaultWait, "it is deaf", func() (bool, string) {
		out := w.CLI("logs", "deaf").Stdout
		return strings.Contains(out, "deaf"), out
	})
	r := worldRig(t, w)
	cmd := exec.Command(os.Args[0], "input", "deaf", "--text", "-")
	cmd.Dir, cmd.Env = r.root, r.env()
	cmd.Stdin = strings.NewReader(strings.Repeat("z", 60000))
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "the host types", func() (bool, string) {
		n, err := unreadOf(w.Inspect("deaf").PID)
		return n > 0, err
	})
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	for _, want := range []string{"interrupted", "60000 bytes into deaf", "all, some or nothing may be", "cotal logs deaf"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it says %q, not %q", said.String(), want)
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d", code)
	}
}

// unreadOf is how many bytes wait in the terminal of a process.
func unreadOf(pid int) (int, string) {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/0", pid), os.O_RDONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		return 0, err.Error()
	}
	defer f.Close()
	n, err := unixInq(int(f.Fd()))
	if err != nil {
		return 0, err.Error()
	}
	return n, ""
}
