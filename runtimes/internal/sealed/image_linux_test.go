package sealed

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAFIFOInPlaceOfAProgramKeepsNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cotal-seat")
	if err := syscall.Mkfifo(path, 0o755); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := Load(path, "", "seat_sha256"); done <- err }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
	}
}
