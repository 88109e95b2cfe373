package codex

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The program would wait at a FIFO for whoever writes into it, until its boot is given up.
func TestAFIFOOrADirectoryIsNoSession(t *testing.T) {
	const id = "0199a213-81c0-7800-8aa1-bbab2a035a53"
	dir := t.TempDir()
	day := filepath.Join(dir, "2026", "11", "30")
	if err := os.MkdirAll(filepath.Join(day, "rollout-3-"+id+".jsonl"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(day, "rollout-2-"+id+".jsonl"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := newest(dir, id); got != "" {
		t.Errorf("the session is %s", got)
	}
	want := filepath.Join(day, "rollout-1-"+id+".jsonl")
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := newest(dir, id); got != want {
		t.Errorf("the session is %s, want %s", got, want)
	}
}
