package seatdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// gonePrefix starts the hidden name of a directory whose seat is proven gone.
const gonePrefix = ".gone-"

// Root is the seat root, held open: what is done in it is done in the directory that was checked, whatever
// its path names by now.
type Root struct {
	Path  string
	dir   *os.File
	files *os.Root // the same directory, for removals that cannot leave it
}

// OpenRoot opens the seat root under the rules of OpenPrivate.
func OpenRoot(path string) (*Root, error) {
	dir, err := OpenPrivate(path)
	if err != nil {
		return nil, err
	}
	// Through the descriptor: the path may name something else by now.
	files, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		dir.Close()
		return nil, err
	}
	return &Root{Path: path, dir: dir, files: files}, nil
}

// Close gives the descriptors back; nil is closed already.
func (r *Root) Close() {
	if r != nil {
		r.files.Close()
		r.dir.Close()
	}
}

// Stands reports whether the path still names the directory.
func (r *Root) Stands() bool { return Stands(r.dir) }

// Stands reports whether the path a directory was opened by still names it.
func Stands(dir *os.File) bool {
	defer runtime.KeepAlive(dir)
	var a, b unix.Stat_t
	return unix.Lstat(dir.Name(), &a) == nil && unix.Fstat(int(dir.Fd()), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// Of returns the directory of a seat.
func (r *Root) Of(id string) string { return filepath.Join(r.Path, id) }

// Open opens the directory of a seat under the rules of OpenPrivate.
func (r *Root) Open(id string) (*os.File, error) {
	return OpenOwnAt(int(r.dir.Fd()), id, r.Of(id))
}

// Claim opens the directory of a seat, making it when it is missing, and takes its lock.
func (r *Root) Claim(ctx context.Context, id string) (dir *os.File, made bool, err error) {
	rfd := int(r.dir.Fd())
	for {
		err := unix.Mkdirat(rfd, id, 0o700)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, false, &fs.PathError{Op: "mkdir", Path: r.Of(id), Err: err}
		}
		made = err == nil
		if dir, err = r.Open(id); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue // a Reap took it away in between
			}
			return nil, false, err
		}
		if err := Lock(ctx, dir); err != nil {
			dir.Close()
			return nil, false, err
		}
		if Same(rfd, id, dir) {
			return dir, made, nil
		}
		dir.Close()
	}
}

// Unclaim removes the directory of a seat, which must be empty.
func (r *Root) Unclaim(id string) error {
	return unix.Unlinkat(int(r.dir.Fd()), id, unix.AT_REMOVEDIR)
}

// Entries returns what lies in the root.
func (r *Root) Entries() ([]fs.DirEntry, error) { return fs.ReadDir(r.files.FS(), ".") }

// Hide gives the directory of a seat that is proven gone its hidden name.
func (r *Root) Hide(id string) error {
	if err := r.Sweep(id); err != nil {
		return err
	}
	return r.files.Rename(id, gonePrefix+id)
}

// Hidden returns the seat id in the name of a directory that Hide made.
func Hidden(name string) (id string, ok bool) { return strings.CutPrefix(name, gonePrefix) }

// Sweep removes what Hide hid. A missing one is success.
func (r *Root) Sweep(id string) error { return r.removeAll(gonePrefix + id) }

// Sync makes the names in the root durable.
func (r *Root) Sync() error { return r.dir.Sync() }

// removeAll removes one name below the root and never what a symbolic link points to. An agent may have
// left directories without write permission in it.
func (r *Root) removeAll(name string) error {
	err := r.files.RemoveAll(name)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = fs.WalkDir(r.files.FS(), name, func(path string, e os.DirEntry, err error) error {
		if e != nil && e.IsDir() {
			_ = r.files.Chmod(path, 0o700)
		}
		return nil
	})
	return r.files.RemoveAll(name)
}

// Clear removes files from a seat's directory, by name, and sockets, by path. Missing ones are success.
func Clear(dir *os.File, names, sockets []string) error {
	var errs []error
	for _, path := range sockets {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, name := range names {
		if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, &fs.PathError{Op: "remove", Path: filepath.Join(dir.Name(), name), Err: err})
		}
	}
	return errors.Join(errs...)
}
