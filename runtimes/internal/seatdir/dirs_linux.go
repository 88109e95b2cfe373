package seatdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
)

// OpenPrivate opens a directory that only this user can change, making it (and missing parents)
// first. What is found there is trusted only if it is a real directory, ours, and closed to others: in
// a shared place somebody else may have made the name first, or put a symbolic link there.
//
// A directory of ours that others may merely read is closed (0700); one that others may write is
// refused, because what is in it already may not be ours.
func OpenPrivate(path string) (*os.File, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("open directory %s: the path must be absolute and clean", path)
	}
	parent, name := filepath.Split(path)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("create directory %s: %w", parent, err)
	}
	pfd, err := unix.Open(parent, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: parent, Err: err}
	}
	defer unix.Close(pfd)
	var st unix.Stat_t
	if err := unix.Fstat(pfd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: parent, Err: err}
	}
	if st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return nil, fmt.Errorf("use directory %s: everybody may rename what is in %s; run: chmod o-w %s", path, parent, parent)
	}
	return OpenPrivateAt(pfd, name, path)
}

// OpenPrivateAt is OpenPrivate for one name in an open parent directory.
func OpenPrivateAt(pfd int, name, path string) (*os.File, error) {
	if err := unix.Mkdirat(pfd, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return OpenOwnAt(pfd, name, path)
}

// OpenOwnAt opens an existing directory under the rules of OpenPrivate.
func OpenOwnAt(pfd int, name, path string) (*os.File, error) {
	fd, err := unix.Openat(pfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("use directory %s: it is a symbolic link or no directory; remove it, or choose another place", path)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	if err := checkOwn(fd, path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkOwn(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return fmt.Errorf("use directory %s: it belongs to user %d and we are user %d; remove it, or choose another place", path, st.Uid, uid)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("use directory %s: others may write it (mode %04o); look at what is in it, then run: chmod 700 %s", path, st.Mode&0o7777, path)
	}
	if st.Mode&0o077 != 0 {
		if err := unix.Fchmod(fd, 0o700); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	return nil
}

// Lock takes the advisory lock of a directory against other processes, waiting at most
// dirLockTimeout. The lock goes with the descriptor, so a killed plugin leaves none; it is closed on
// exec, so a custody process does not inherit it.
func Lock(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, dirLockTimeout)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		if err := proctree.Pause(ctx, pollEvery); err != nil {
			return fmt.Errorf("lock %s: another runtime process works on this seat: %w", f.Name(), err)
		}
	}
}

// Same reports whether name in the directory pfd still is the directory that f holds: a Reap of
// another process may have moved it away while we waited for the lock.
func Same(pfd int, name string, f *os.File) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(pfd, name, &a, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstat(int(f.Fd()), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}
