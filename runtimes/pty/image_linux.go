package pty

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// image is the cotal-seat program in sealed memory. What is executed is what was hashed: the file may
// be replaced or overwritten in place at any time, even between the check and the start.
type image struct {
	file *os.File
	path string // what a child of ours executes
}

// loadImage copies the program at path into sealed memory and compares its digest (hex SHA-256).
func loadImage(path, digest string) (*image, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open cotal-seat: %w", err)
	}
	defer src.Close()
	if st, err := src.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("open cotal-seat: %s is no regular file", path)
	}
	fd, err := memfd()
	if err != nil {
		return nil, fmt.Errorf("create memory for cotal-seat: %w (vm.memfd_noexec must not be 2)", err)
	}
	mem := os.NewFile(uintptr(fd), "memfd:cotal-seat")
	sum := sha256.New()
	// Not io.Copy into the file alone: the digest must be of the very bytes that were written.
	if _, err := io.Copy(io.MultiWriter(mem, sum), src); err != nil {
		mem.Close()
		return nil, fmt.Errorf("copy cotal-seat: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		mem.Close()
		return nil, fmt.Errorf("check cotal-seat: %s has sha256 %s, plugins.toml expects seat_sha256 %s; rebuild both with make build", path, got, digest)
	}
	seals := unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		mem.Close()
		return nil, fmt.Errorf("seal memory of cotal-seat: %w", err)
	}
	// Linux refuses to execute a file that is open for writing anywhere; sealing does not close
	// ours, so the image is opened once more for reading and the writable descriptor goes.
	ro, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	mem.Close()
	if err != nil {
		return nil, fmt.Errorf("reopen memory of cotal-seat: %w", err)
	}
	// By our pid, not /proc/self: between fork and exec the Go runtime moves descriptors of the child
	// around, and its error pipe may take the very number of the image. It did, about once in 500 starts.
	return &image{file: ro, path: "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(ro.Fd()))}, nil
}

func memfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// Kernels from 6.3 on want to be told that the memory will be executed; older ones refuse the flag.
	fd, err := unix.MemfdCreate("cotal-seat", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("cotal-seat", flags)
	}
	return fd, err
}

func (m *image) close() {
	if m != nil {
		m.file.Close()
	}
}
