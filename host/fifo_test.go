package host

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestAFIFOInPlaceOfTheLogKeepsNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.log")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := openBounded(path, 1000); done <- err }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a FIFO is taken for the log")
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
	}
}
