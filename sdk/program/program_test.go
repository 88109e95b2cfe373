package program_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/program"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// A program that leaves a child in its group behind does not hold the caller up, and the child does not go on.
func TestAGrandchildEndsWithTheProgram(t *testing.T) {
	for name, text := range map[string]string{
		"when the program has ended":        "sleep 300 & echo $! > %; echo done",
		"when the caller has waited enough": "sleep 300 & echo $! > %; sleep 300",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			cmd := exec.Command("/bin/sh", "-c", strings.ReplaceAll(text, "%", file))
			out := &program.Output{Max: 100}
			cmd.Stdout, cmd.WaitDelay = out, time.Second
			begin := time.Now()
			_ = program.Run(ctx, cmd) // how it ended is the caller's matter
			if took := time.Since(begin); took > busy.Limit(4*time.Second) {
				t.Errorf("it took %v", took)
			}
			pid, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if alive(strings.TrimSpace(string(pid))) {
				t.Errorf("the child %s is left", pid)
			}
		})
	}
}

// alive waits for the end of a process that was killed; a zombie has ended.
func alive(pid string) bool {
	for end := time.Now().Add(busy.Limit(2 * time.Second)); time.Now().Before(end); {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return false
		}
	}
	return true
}

func TestOutputHasALimit(t *testing.T) {
	o := &program.Output{Max: 4}
	if n, err := o.Write([]byte("abc")); n != 3 || err != nil || o.Over() {
		t.Errorf("below the limit: %d, %v", n, err)
	}
	if _, err := o.Write([]byte("de")); !errors.Is(err, program.ErrTooMuch) || !o.Over() || string(o.Bytes()) != "abc" {
		t.Errorf("above it: %v, %q", err, o.Bytes())
	}
	last := &program.Output{Max: 100}
	_, _ = last.Write([]byte("one\ntwo\n\n"))
	if last.LastLine() != "two" {
		t.Errorf("the last line is %q", last.LastLine())
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := program.ReadFile(fifo, 10); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a FIFO: %v", err)
	}
	if text, err := program.ReadFile(file, 5); err != nil || string(text) != "12345" {
		t.Errorf("a file as large as the limit: %q, %v", text, err)
	}
	if _, err := program.ReadFile(file, 4); !errors.Is(err, program.ErrTooMuch) {
		t.Errorf("a larger one: %v", err)
	}
	if _, err := program.ReadFile(filepath.Join(dir, "none"), 4); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}
