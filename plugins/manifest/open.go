package manifest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrNotRegular is the cause of an OpenRegular that found a directory, a FIFO, a socket or a device.
var ErrNotRegular = errors.New("it is not a regular file")

// OpenRegular opens a file that somebody else put in its place, for reading. It never waits: an ordinary
// open of a FIFO does, until somebody writes into it. Errors: ErrNotRegular, those of os.Open.
func OpenRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) { // a socket, or a device that is not there
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// refuseOpen refuses a manifest that every user of the machine can change: the file, the directory it is in,
// or the one with the binaries of its entries. The group is the owner's own affair: on many systems every
// user has a group alone.
func refuseOpen(path string, file fs.FileInfo) error {
	const why = "%s can be written by every user of this machine, and it decides what is executed: chmod o-w %[1]s"
	if file.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf(why, path)
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Join(filepath.Dir(path), PluginDir)} {
		st, err := os.Stat(dir)
		if err != nil {
			continue // there need not be one
		}
		// In a sticky directory nobody replaces the files of another.
		if st.IsDir() && st.Mode().Perm()&0o002 != 0 && st.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf(why, dir)
		}
	}
	return nil
}
