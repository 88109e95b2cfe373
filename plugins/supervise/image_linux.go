package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"golang.org/x/sys/unix"
)

// image is a verified executable: a sealed copy in memory. Hashing an open file protects against a
// rename over its path, but not against a write into it, which is executed all the same.
type image struct {
	file   *os.File
	script bool
}

func openImage(entry manifest.Entry, path string) (*image, error) {
	src, err := openBinary(entry, path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	mem, err := memfd("cotal-" + entry.Name)
	if err != nil {
		return nil, &StartError{
			Plugin: entry.Name, Path: path, Reason: ReasonHost,
			Detail: "the kernel gives no executable memory file: " + err.Error(),
			Fix:    "check sysctl vm.memfd_noexec and the limit of open files", Err: err,
		}
	}
	if err := copyVerified(entry, path, mem, src); err != nil {
		mem.Close()
		return nil, err
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(mem.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		mem.Close()
		return nil, &StartError{Plugin: entry.Name, Path: path, Reason: ReasonHost, Detail: "the verified copy cannot be sealed: " + err.Error(), Err: err}
	}
	var magic [2]byte
	_, _ = mem.ReadAt(magic[:], 0)
	return &image{file: mem, script: string(magic[:]) == "#!"}, nil
}

func memfd(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// Kernels since 6.3 want to be told that it is for executing; older ones refuse the flag.
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("create memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// command makes cmd execute the image.
func (i *image) command(cmd *exec.Cmd) {
	if i.script {
		// The interpreter opens the script again, after exec: it has to stay open in the child.
		cmd.ExtraFiles = []*os.File{i.file}
		cmd.Path = "/proc/self/fd/3"
		return
	}
	// The descriptor is closed by exec itself. Handed on, it would pin the binary in the memory of
	// everything the plugin starts, seats included. It is named by our pid, not by "self": between fork
	// and exec the Go runtime may move a descriptor of the child onto this number.
	cmd.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), i.file.Fd())
}

func (i *image) Close() { i.file.Close() }
