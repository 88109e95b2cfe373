package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// An open of a FIFO waits for somebody who writes into it: nothing of the host may.
func TestAFIFOInPlaceOfABinaryKeepsNobody(t *testing.T) {
	f := newFixture(t)
	e := f.entry()
	e.Command = "pipe"
	if err := syscall.Mkfifo(filepath.Join(f.bundle, "pipe"), 0o755); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	se := f.startError(e)
	if se.Reason != ReasonNotExecutable || !strings.Contains(se.Detail, "not a regular file") || time.Since(begin) > busy.Limit(5*time.Second) {
		t.Errorf("after %s: %v", time.Since(begin), se)
	}
}

func TestAFIFOInPlaceOfACrashReportKeepsNoPluginFromItsNextStart(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	path := filepath.Join(f.dir, "log", CrashFile(live.Info.Kind, "fake"))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path+".new", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if next, err := s.After(f.ctx(), live.Attempt); err != nil || next.PID == live.PID {
		t.Fatalf("%+v, %v", next, err)
	}
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		t.Errorf("the report: %v, %v", st, err)
	}
}

func TestACrashReportEmptiesNoFileThatItsNameIsLinkedTo(t *testing.T) {
	dir := t.TempDir()
	theirs, path := filepath.Join(dir, "theirs"), filepath.Join(dir, "report")
	if err := os.WriteFile(theirs, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(theirs, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(path, []byte("a death")); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(theirs); string(b) != "precious" {
		t.Errorf("the other file holds %q", b)
	}
	if b, _ := os.ReadFile(path); string(b) != "a death" {
		t.Errorf("the report holds %q", b)
	}
}

func TestACrashReportThatCannotBeFinishedLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	// A directory with something in it takes no file in its place.
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(path, []byte("a death")); err == nil {
		t.Fatal("it was written over a directory")
	}
	if _, err := os.Lstat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// A disk that does not answer keeps the reader, not who waits for it.
func TestAStartIsGivenUpThoughTheDiskDoesNotAnswer(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	img, err := openWithin(ctx, f.entry(), filepath.Join(f.bundle, "fakeplugin"))
	if err == nil {
		img.Close() // it was quicker
	} else if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var se *StartError
	e := manifest.Entry{Name: "fake", SHA256: strings.Repeat("0", 64)}
	if _, err := openWithin(context.Background(), e, filepath.Join(f.bundle, "fakeplugin")); !errors.As(err, &se) || se.Reason != ReasonDigest {
		t.Errorf("%v", err)
	}
}
