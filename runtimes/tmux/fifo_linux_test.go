package tmux

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

func TestAFIFOInPlaceOfThePlaceKeepsNobody(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, placeFile), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := readPlace(dir); done <- err }()
	select {
	case err := <-done:
		if !errors.Is(err, record.ErrBroken) {
			t.Errorf("%v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
	}
}
