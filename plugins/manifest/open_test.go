package manifest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestAFIFOInPlaceOfAManifestKeepsNobody(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "ct") // a socket wants a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	fifo, sock := filepath.Join(dir, "fifo"), filepath.Join(dir, "sock")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []string{fifo, sock, dir, os.DevNull} {
		for name, open := range map[string]func() error{
			"load": func() error { _, err := Load(path); return err },
			"hash": func() error { _, err := HashFile(path); return err },
		} {
			done := make(chan error, 1)
			go func() { done <- open() }()
			select {
			case err := <-done:
				if !errors.Is(err, ErrNotRegular) {
					t.Errorf("%s %s: %v", name, path, err)
				}
			case <-time.After(5 * time.Second):
				t.Errorf("%s %s waits", name, path)
			}
		}
	}
}
