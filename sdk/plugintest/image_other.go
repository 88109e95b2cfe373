//go:build !linux

package plugintest

import "os/exec"

// image is the file itself: no memory can be executed here, and a host executes the file too.
type image struct{ path string }

func openImage(path string) (*image, error) { return &image{path}, nil }

func (i *image) command(cmd *exec.Cmd) { cmd.Path = i.path }

func (i *image) close() {}
