package record

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// An open of a FIFO waits for somebody who writes into it.
func TestAFIFOInPlaceOfARecordKeepsNobody(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{SeatFile, ExitFile, IntentFile, TokenFile} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { _, _, err := read(dir, name); done <- err }()
		select {
		case err := <-done:
			if !errors.Is(err, ErrBroken) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s waits", name)
		}
	}
}
