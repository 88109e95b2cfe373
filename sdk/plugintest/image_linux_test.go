package plugintest

import (
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A host executes a sealed copy in memory. The suite once executed the file: a runtime that found itself by the
// path of its file kept every rule and could not start a seat under a host.
func TestAPluginIsExecutedFromSealedMemoryAsAHostDoes(t *testing.T) {
	path, err := exec.LookPath("readlink")
	if err != nil {
		t.Skip("there is no readlink")
	}
	img, err := openImage(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.close()
	if _, err := img.file.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the copy can be written")
	}
	p := &process{path: path, image: img, dir: t.TempDir(), args: []string{"/proc/self/exe"}, gone: make(chan struct{})}
	p.handR, p.handW = io.Pipe()
	go func() { _, _ = io.Copy(io.Discard, p.handR) }()
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !p.waitGone(10 * time.Second) {
		p.kill()
		t.Fatal("it does not end")
	}
	p.readers.Wait()
	if exe := p.first.String(); !strings.HasPrefix(exe, "/memfd:") || p.cmd.Args[0] != path {
		t.Errorf("it is executed from %q as %q, want memory, as %q; it said %q", exe, p.cmd.Args[0], path, p.stderr.String())
	}
}
