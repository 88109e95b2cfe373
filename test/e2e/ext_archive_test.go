//go:build linux

package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// archive packs a plugin with a file beside it, and whatever else.
func archive(t *testing.T, w *extWorld, s source, more ...tar.Header) source {
	t.Helper()
	path := filepath.Join(filepath.Dir(s.path), "plugin.tar.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	gz := gzip.NewWriter(f)
	tw := tar.NewWriter(gz)
	pack := func(name, text string, mode int64) {
		h := tar.Header{Name: name, Mode: mode, Size: int64(len(text)), Typeflag: tar.TypeReg}
		err := tw.WriteHeader(&h)
		if err == nil {
			_, err = tw.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pack("echo/README.md", "read me", 0o644)
	pack("echo/"+filepath.Base(s.path), read(t, s.path), 0o755)
	for i := range more {
		if err := tw.WriteHeader(&more[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	digest, err := manifest.HashFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return source{path, digest, s.version}
}

// An archive is installed by its own digest or by that of the program in it, a directory by the latter; what is not
// sound in either is refused in one line, and nothing is different then.
func TestExt_ArchivesAndDirectories(t *testing.T) {
	t.Parallel()
	w := newExtWorld(t, harness.New(t))
	w.Start(harness.HostOptions{})
	first := w.source(t, "one", "1")
	packed := archive(t, w, first)
	command := filepath.Base(first.path)
	if r := w.CLI("ext", "install", packed.path, "--command", command).Want(2); !strings.Contains(r.Stderr, "--sha256 "+packed.digest) {
		t.Errorf("%v", r)
	}
	r := w.CLI("ext", "install", packed.path, "--command", command, "--sha256", packed.digest).OK()
	if !strings.HasPrefix(r.Stdout, "installed connector one 1") || !strings.Contains(r.Stderr, "only "+command+" is kept") {
		t.Errorf("%v", r)
	}
	if _, digest := w.installed(t, "one"); digest != first.digest {
		t.Errorf("%s is installed, want the program in the archive, %s", digest, first.digest)
	}
	second := w.source(t, "one", "2")
	w.CLI("ext", "upgrade", "one", filepath.Dir(second.path), "--command", filepath.Base(second.path), "--sha256", second.digest).OK()
	third := w.source(t, "one", "3")
	packed = archive(t, w, third)
	w.CLI("ext", "upgrade", "one", packed.path, "--command", filepath.Base(third.path), "--sha256", third.digest).OK()
	for _, more := range []tar.Header{
		{Name: "../x", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "l", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink},
	} {
		next := w.source(t, "one", "4")
		packed := archive(t, w, next, more)
		r := w.CLI("ext", "upgrade", "one", packed.path, "--command", filepath.Base(next.path), "--sha256", packed.digest).Want(1)
		if !strings.Contains(r.Stderr, "unsafe source") || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%v", r)
		}
	}
	next := w.source(t, "one", "4")
	if err := os.Symlink("/etc/passwd", filepath.Join(filepath.Dir(next.path), "link")); err != nil {
		t.Fatal(err)
	}
	if r := w.CLI("ext", "upgrade", "one", filepath.Dir(next.path), "--command", filepath.Base(next.path), "--sha256", next.digest).Want(1); !strings.Contains(r.Stderr, "symbolic link") {
		t.Errorf("%v", r)
	}
	if v, _ := w.installed(t, "one"); v != "3" || w.plugin(t, "one").Version != "3" {
		t.Errorf("version %s is installed", v)
	}
	w.CLI("ext", "rollback", "one").OK()
	if v, digest := w.installed(t, "one"); digest != second.digest || w.plugin(t, "one").Version != v {
		t.Errorf("version %s is installed, want 2", v)
	}
	w.tidy(t, 2)
}
