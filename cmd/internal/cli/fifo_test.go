package cli

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/instance"
)

func TestAFIFOInPlaceOfTheIdentityKeepsNoStop(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(instance.DirOf(root), "instance.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := instanceID(root); done <- err }()
	select {
	case err := <-done:
		if !errors.Is(err, errNotRegular) {
			t.Errorf("%v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
	}
}
