//go:build linux

package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/test/diskfull"
)

func TestAFullDiskLeavesTheVersionBefore(t *testing.T) {
	how, here := diskfull.Private(t)
	if !here {
		return
	}
	if how == diskfull.Injected {
		t.Skip("no small disk can be made here")
	}
	for _, place := range []string{"the store", "the manifest"} {
		w := newWorld(t)
		if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "1")); err != nil {
			t.Fatal(err)
		}
		next := write(t, filepath.Join(w.dir, "big", "cotal-connector-echo"), script("echo", "2")+"exit\n"+strings.Repeat("#\n", 300<<10))
		small := filepath.Join(t.TempDir(), "small")
		if err := os.Mkdir(small, 0o700); err != nil {
			t.Fatal(err)
		}
		disk, err := diskfull.Small(filepath.Join(t.TempDir(), "at"), 512<<10, small)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := disk.Unmount(); err != nil {
				t.Error(err)
			}
		})
		switch place {
		case "the store": // what was installed moves there
			moved := at(filepath.Join(small, "cotal", "store"))
			t.Setenv("XDG_DATA_HOME", small)
			if err := install(t.Context(), moved, w.manifest, w.plugin(t, "1")); err != nil {
				t.Fatal(err)
			}
			w.Store = moved
		case "the manifest":
			w.manifest = filepath.Join(small, manifest.FileName)
			if err := install(t.Context(), w.Store, w.manifest, w.plugin(t, "1")); err != nil {
				t.Fatal(err)
			}
			if err := disk.Fill(); err != nil {
				t.Fatal(err)
			}
		}
		err = install(t.Context(), w.Store, w.manifest, next)
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v, want that the disk is full", place, err)
		}
		if v := w.works(t); v != "1" {
			t.Errorf("%s: version %s", place, v)
		}
		if left, _ := filepath.Glob(filepath.Join(w.root, ".staging", "*")); len(left) > 0 {
			t.Errorf("%s: left in staging: %v", place, left)
		}
	}
}
