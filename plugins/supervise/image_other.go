//go:build !linux

package supervise

import (
	"io"
	"os/exec"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
)

// image is the path of a file whose digest was right when it was looked at. There is no sealed
// memory file to execute from on this system: who can write to the bundle directory between the
// check and the exec decides what runs. Keep that directory yours alone.
type image struct{ path string }

func openImage(entry manifest.Entry, path string) (*image, error) {
	src, err := openBinary(entry, path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if err := copyVerified(entry, path, io.Discard, src); err != nil {
		return nil, err
	}
	return &image{path: path}, nil
}

func (i *image) command(cmd *exec.Cmd) { cmd.Path = i.path }

func (i *image) Close() {}
