package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// MakeWorkspace creates .cotal in a workspace root if it is missing, and returns its path. It refuses a link, and a
// directory of another user.
//
// Errors: a *FileError that names it.
func MakeWorkspace(root string) (string, error) {
	dir := filepath.Join(root, ".cotal")
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		if err := syncDir(root); err != nil {
			return "", err
		}
	case !errors.Is(err, fs.ErrExist):
		return "", &FileError{Path: root, Err: err, Fix: "name a directory with --root"}
	}
	return dir, checkDir(dir, false)
}

// MakePrivate creates directories below base, which exists, each 0700, and returns the last one's path. One
// that exists already has to be ours alone.
//
// Errors: a *FileError that names the directory.
func MakePrivate(base string, names ...string) (string, error) {
	dir := base
	for _, name := range names {
		parent := dir
		dir = filepath.Join(dir, name)
		switch err := os.Mkdir(dir, 0o700); {
		case err == nil:
			if err := syncDir(parent); err != nil {
				return "", err
			}
		case !errors.Is(err, fs.ErrExist):
			return "", fmt.Errorf("make directory: %w", err)
		}
		if err := checkDir(dir, true); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// WritePrivate replaces dir/name in one step, mode 0600: whoever reads it, and a host that is killed at any
// point, finds the old content or the new. It survives power loss.
func WritePrivate(dir, name string, data []byte) error { return writeFile(dir, name, data, true) }

// RemovePrivate removes dir/name. Once it returns nil, power loss does not bring the file back; one that is not there is
// success.
func RemovePrivate(dir, name string) error {
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

// writeLasts is longer than anybody takes to write a file.
const writeLasts = time.Minute

// SweepPrivate removes what a process that died while writing left in dir, a minute ago or longer: what is younger
// may be another process's that writes just now.
func SweepPrivate(dir string) error { return sweepTemp(dir, writeLasts) }

// LockPrivate takes the lock file at path, waiting for whoever holds it until ctx ends. The file stays: it
// is the lock, and not its existence.
func LockPrivate(ctx context.Context, path string) (unlock func(), err error) {
	f, err := openLock(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	t := time.NewTicker(lockPoll)
	defer t.Stop()
	for {
		err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil // closing the file lets go
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: held by another process: %w", path, context.Cause(ctx))
		}
	}
}

// Identity reads the id that the hosts of a workspace have, without being one. Errors: fs.ErrNotExist (it never had a
// host), a *FileError.
func Identity(root string) (string, error) {
	rec, err := readRecord(filepath.Join(DirOf(root), instanceName))
	if err != nil {
		return "", fmt.Errorf("read identity: %w", err)
	}
	return rec.InstanceID, nil
}
