//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// BenchmarkProcess is a whole process of cotal, from its start to its end. `true` is what a process costs by
// itself.
func BenchmarkProcess(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	w.Spawn("one", "sleep", "600")
	cotal := filepath.Join(w.Bin, "cotal")
	for name, argv := range map[string][]string{
		"true": {"/bin/true"}, "help": {cotal, "--help"}, "version": {cotal, "version"}, "ps": {cotal, "ps"},
		"ps-all": {cotal, "ps", "--all"}, "complete": {cotal, "__complete", "attach", ""},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Dir, cmd.Env = w.Root, w.Environ()
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}
