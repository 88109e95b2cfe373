// Package diskfull makes writes fail as a full disk does, for tests of what is left behind: by a limit
// of file sizes for one process (Limit), or by a small disk that is really full (Private, Small).
package diskfull

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

// Injected is what Private returns where no small disk can be made.
const Injected = "ENOSPC from failpoints"

// mark holds, in a child, the name of the test it is for.
const mark = "COTAL_TEST_CHILD"

// InChild runs the calling test once more in a child process and reports whether this is the child. A
// limit of file sizes holds for a whole process: in the parent it would also stop the log that the test
// runner itself writes.
//
//	if !diskfull.InChild(t) {
//		return
//	}
func InChild(t *testing.T) bool {
	t.Helper()
	if os.Getenv(mark) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in a process of its own: %v\n%s", err, out)
	}
	return false
}

// Limit makes every write beyond size bytes of a file fail, for this process until restore is called.
func Limit(t *testing.T, size uint64) (restore func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	tight := old
	tight.Cur = size
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &tight); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
	}
}
