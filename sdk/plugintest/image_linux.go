package plugintest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// image is the program in sealed memory, which is what a host executes: a plugin that looks for itself by the
// path of its file does not find it there.
type image struct {
	file   *os.File
	script bool
}

func openImage(path string) (*image, error) {
	src, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // an ordinary open of a FIFO waits
	if err != nil {
		return nil, fmt.Errorf("read the plugin: %w", err)
	}
	defer src.Close()
	if st, err := src.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("read the plugin: %s is no regular file", path)
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("cotal-plugin", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3
		fd, err = unix.MemfdCreate("cotal-plugin", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("make memory to execute the plugin from: %w", err)
	}
	mem := os.NewFile(uintptr(fd), "cotal-plugin")
	_, err = io.Copy(mem, src)
	if err == nil {
		_, err = unix.FcntlInt(mem.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		mem.Close()
		return nil, fmt.Errorf("copy the plugin into memory: %w", err)
	}
	var magic [2]byte
	_, _ = mem.ReadAt(magic[:], 0)
	return &image{file: mem, script: string(magic[:]) == "#!"}, nil
}

// command makes cmd execute the image. The descriptor is named by our pid: between fork and exec the Go runtime
// may move a descriptor of the child onto its number.
func (i *image) command(cmd *exec.Cmd) {
	if i.script { // its interpreter opens it again
		cmd.ExtraFiles = []*os.File{i.file}
		cmd.Path = "/proc/self/fd/3"
		return
	}
	cmd.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), i.file.Fd())
}

func (i *image) close() { _ = i.file.Close() }
