package manifest

import (
	"errors"
	"io/fs"
	"os"
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
