package instance

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// FileError is a file or directory of the workspace that cannot be used as it is. Its text names the
// path, the cause and what to do.
type FileError struct {
	Path string
	Err  error
	Fix  string
}

// Error names path, cause and fix.
func (e *FileError) Error() string {
	s := e.Path + ": " + e.Err.Error()
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// tempMark is in the name of every file that is being written. Whatever carries it when a host takes
// the lock belongs to one that died.
const tempMark = ".tmp-"

// makeDirs creates root/.cotal/host where missing and refuses directories that are not ours: files
// in there decide who may command the host.
func makeDirs(root string) (string, error) {
	if st, err := os.Stat(root); err != nil {
		return "", fmt.Errorf("open workspace: %w", err)
	} else if !st.IsDir() {
		return "", &FileError{Path: root, Err: syscall.ENOTDIR, Fix: "name a directory with --root"}
	}
	dir := root
	for _, name := range []string{".cotal", "host"} {
		dir = filepath.Join(dir, name)
		// Mkdir may be cut down by the umask, never widened; what existed before is checked below.
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			if err := syncDir(filepath.Dir(dir)); err != nil {
				return "", err
			}
		} else if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("make directory: %w", err)
		}
		if err := checkDir(dir, name == "host"); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// checkDir refuses a symbolic link, something that is no directory, and another user's directory.
// private also demands mode 0700.
func checkDir(dir string, private bool) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check directory: %w", err)
	}
	switch uid, euid := ownerOf(st), os.Geteuid(); {
	case st.Mode()&fs.ModeSymlink != 0:
		return &FileError{Path: dir, Err: errors.New("is a symbolic link"), Fix: "replace it by a directory of your own"}
	case !st.IsDir():
		return &FileError{Path: dir, Err: syscall.ENOTDIR, Fix: "move it away"}
	case uid != euid && (private || euid != 0):
		// Root in a container often serves a workspace that belongs to the user outside; the
		// private directory inside is then root's own.
		return &FileError{
			Path: dir, Err: fmt.Errorf("belongs to user %d, this process runs as %d", uid, euid),
			Fix: "run as the owner, or use another --root",
		}
	case private && st.Mode().Perm()&0o077 != 0:
		return &FileError{
			Path: dir, Err: fmt.Errorf("mode %04o lets other users in", st.Mode().Perm()),
			Fix: "check what is in there, then: chmod 700 " + dir,
		}
	}
	return nil
}

func ownerOf(st fs.FileInfo) int {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(sys.Uid)
	}
	return -1
}

// readPrivate reads a small file that is ours alone. A missing file is fs.ErrNotExist; everything
// else that is wrong with it is a *FileError that carries fix.
func readPrivate(path, fix string) ([]byte, error) { return ReadPrivate(path, maxFile, fix) }

// ReadPrivate reads a file that is ours alone, of at most limit bytes. A missing file is fs.ErrNotExist;
// everything else that is wrong with it is a *FileError that carries fix.
func ReadPrivate(path string, limit int64, fix string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if errors.Is(err, syscall.ELOOP) {
		return nil, &FileError{Path: path, Err: errors.New("is a symbolic link"), Fix: fix}
	}
	if err != nil {
		return nil, &FileError{Path: path, Err: err, Fix: fix}
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, &FileError{Path: path, Err: err, Fix: fix}
	}
	switch {
	case !st.Mode().IsRegular():
		err = errors.New("is not a regular file")
	case ownerOf(st) != os.Geteuid():
		err = fmt.Errorf("belongs to user %d, this process runs as %d", ownerOf(st), os.Geteuid())
	case st.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("mode %04o lets other users in", st.Mode().Perm())
		fix = "check it, then: chmod 600 " + path
	case st.Size() > limit:
		err = fmt.Errorf("%d bytes is too large for what it should hold", st.Size())
	}
	if err != nil {
		return nil, &FileError{Path: path, Err: err, Fix: fix}
	}
	// Read at once into what is returned: no copy of a secret is left behind.
	raw := make([]byte, st.Size()+1)
	n, err := io.ReadFull(f, raw)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		raw, err = raw[:n], nil
	case err == nil:
		err = errors.New("it grows while it is read")
	}
	if err != nil {
		return nil, &FileError{Path: path, Err: err, Fix: fix}
	}
	return raw, nil
}

// writeFile replaces dir/name in one step, mode 0600. The temporary name cannot be guessed and is
// created exclusively, so nobody can plant a link there; the rename replaces a planted final name
// and never follows it. durable also survives power loss.
func writeFile(dir, name string, data []byte, durable bool) error {
	var r [8]byte
	_, _ = rand.Read(r[:])
	tmp := filepath.Join(dir, "."+name+tempMark+hex.EncodeToString(r[:]))
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, name))
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", name, err)
	}
	if durable {
		return syncDir(dir)
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer f.Close()
	// Some file systems cannot sync a directory and say EINVAL; there is nothing more to be done there.
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// sweepTemp removes what a host that died while writing left. The caller holds the lock.
func sweepTemp(dir string, age time.Duration) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("sweep directory: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") || !strings.Contains(e.Name(), tempMark) || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < age {
			continue // it has just gone, or is being written
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sweep directory: %w", err)
		}
	}
	return nil
}
