package sealed

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Image is a program in sealed memory. What is executed is what was hashed: the file may
// be replaced or overwritten in place at any time, even between the check and the start.
type Image struct {
	file *os.File
	Path string // what a child of ours executes
}

// Load copies the program at path into sealed memory and compares its digest (hex SHA-256), which stands
// under key in plugins.toml.
func Load(path, digest, key string) (*Image, error) {
	name := filepath.Base(path)
	src, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // an ordinary open of a FIFO waits
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer src.Close()
	if st, err := src.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("open %s: %s is no regular file", name, path)
	}
	fd, err := memfd(name)
	if err != nil {
		return nil, fmt.Errorf("create memory for %s: %w (vm.memfd_noexec must not be 2)", name, err)
	}
	mem := os.NewFile(uintptr(fd), "memfd:"+name)
	sum := sha256.New()
	// Not io.Copy into the file alone: the digest must be of the very bytes that were written.
	if _, err := io.Copy(io.MultiWriter(mem, sum), src); err != nil {
		mem.Close()
		return nil, fmt.Errorf("copy %s: %w", name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		mem.Close()
		return nil, fmt.Errorf("check %s: %s has sha256 %s, plugins.toml expects %s %s; rebuild both with make build", name, path, got, key, digest)
	}
	seals := unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		mem.Close()
		return nil, fmt.Errorf("seal memory of %s: %w", name, err)
	}
	// Linux refuses to execute a file that is open for writing anywhere; sealing does not close
	// ours, so the image is opened once more for reading and the writable descriptor goes.
	ro, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	mem.Close()
	if err != nil {
		return nil, fmt.Errorf("reopen memory of %s: %w", name, err)
	}
	// By our pid, not /proc/self: between fork and exec the Go runtime moves descriptors of the child
	// around, and its error pipe may take the very number of the image. It did, about once in 500 starts.
	return &Image{file: ro, Path: "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(ro.Fd()))}, nil
}

func memfd(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// Kernels from 6.3 on want to be told that the memory will be executed; older ones refuse the flag.
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, err
}

// Close gives the memory back; nil is closed already.
func (m *Image) Close() {
	if m != nil {
		m.file.Close()
	}
}
