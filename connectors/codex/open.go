package codex

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxRead bounds the small files of others that are read here.
const maxRead = 1 << 20

// openRegular opens a file that somebody else made. An ordinary open of a FIFO waits for whoever writes into it.
func openRegular(path string) (*os.File, error) {
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

// readRegular reads at most maxRead bytes of such a file.
func readRegular(path string) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}
