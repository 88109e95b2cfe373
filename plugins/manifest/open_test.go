package manifest

import (
	"errors"
	"fmt"
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

func TestAManifestThatEveryUserCanWriteIsRefused(t *testing.T) {
	const sound = "schema = 1\n"
	for _, c := range []struct {
		name             string
		file, dir, plugs os.FileMode // 0: none
		want             string      // what is to be repaired
	}{
		{"the owner's alone", 0o600, 0o700, 0o700, ""},
		{"that all can read", 0o644, 0o755, 0o755, ""},
		{"that the group can write", 0o664, 0o775, 0o775, ""},
		{"the file", 0o666, 0o755, 0o755, "plugins.toml"},
		{"the directory", 0o644, 0o777, 0o755, "."},
		{"a sticky directory", 0o644, 0o777 | os.ModeSticky, 0o755, ""},
		{"the directory of the binaries", 0o644, 0o755, 0o777, "plugins"},
		{"no directory of binaries", 0o644, 0o755, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path, plugs := filepath.Join(dir, FileName), filepath.Join(dir, PluginDir)
			if err := os.WriteFile(path, []byte(sound), 0o600); err != nil {
				t.Fatal(err)
			}
			set := map[string]os.FileMode{path: c.file, dir: c.dir}
			if c.plugs != 0 {
				if err := os.Mkdir(plugs, 0o700); err != nil {
					t.Fatal(err)
				}
				set[plugs] = c.plugs
			}
			for p, mode := range set {
				if err := os.Chmod(p, mode); err != nil { // whatever the umask
					t.Fatal(err)
				}
			}
			_, err := Load(path)
			want := ""
			if c.want != "" {
				bad := filepath.Join(dir, c.want)
				want = bad + " can be written by every user of this machine, and it decides what is executed: chmod o-w " + bad
			}
			if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}
