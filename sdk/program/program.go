// Package program is for connectors: it runs an agent program for a short question, such as which models there are, or
// beside another for as long as a seat lives,
// and reads small files that others wrote.
package program

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrTooMuch: a program printed, or a file holds, more than is read.
var ErrTooMuch = errors.New("too much output")

// Output keeps what a program prints, at most Max bytes. The byte after fails the write, which ends a program that
// heeds it.
type Output struct {
	Max int

	buf  bytes.Buffer
	over bool
}

// Write keeps p. Errors: ErrTooMuch.
func (o *Output) Write(p []byte) (int, error) {
	if o.buf.Len()+len(p) > o.Max {
		o.over = true
		return 0, ErrTooMuch
	}
	return o.buf.Write(p)
}

// Bytes is what was kept.
func (o *Output) Bytes() []byte { return o.buf.Bytes() }

// Over reports whether there was more than Max.
func (o *Output) Over() bool { return o.over }

// LastLine is the last line that is not blank, for a message.
func (o *Output) LastLine() string {
	b := bytes.TrimSpace(o.buf.Bytes())
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		b = b[i+1:]
	}
	return string(b)
}

// Open opens a regular file that somebody else made. An ordinary open of a FIFO would wait for whoever writes
// into it.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("open %s: is not a regular file", path)
	}
	return f, nil
}

// ReadFile reads such a file of at most limit bytes. Errors: ErrTooMuch, and those of the file system.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("read %s: %w: the limit is %d bytes", path, ErrTooMuch, limit)
	}
	return data, err
}
