//go:build linux

package upgrade

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// An upgrade replaces the files of a host that runs. Status is of the process: it names the version that serves until the
// host is started again, whatever is installed by then.
//
// proves: START-19
func TestStatusNamesTheVersionThatServesAndNotTheInstalledOne(t *testing.T) {
	w := harness.New(t)
	asking := w.Bin // who asks is not what is exchanged
	w.Bin = bundle(t, w, "bundle", nil)
	program := filepath.Join(w.Bin, "cotal-host")
	says := func() string {
		out, err := exec.Command(program, "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	w.Start(harness.HostOptions{})
	w.Bin = asking
	before := w.Status().Version
	if before == "" || !strings.Contains(says(), before) {
		t.Fatalf("status names version %q, and the program %q", before, says())
	}
	if err := os.WriteFile(program+".new", []byte("#!/bin/sh\necho cotal-host 99.9.9\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(program+".new", program); err != nil {
		t.Fatal(err)
	}
	if got := says(); !strings.Contains(got, "99.9.9") {
		t.Fatalf("the installed program is %q", got)
	}
	if after := w.Status().Version; after != before {
		t.Errorf("status names version %q, and %q serves", after, before)
	}
}
