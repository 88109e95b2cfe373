package host

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/sdk/private"
)

// socketName is as long as the longest name put into the socket directory.
const socketName = "/seats/0123456789abcdef.sock"

// seatRoot is where seat directories are.
func seatRoot(flag string) (string, error) {
	root := flag
	if root == "" {
		root = os.Getenv("COTAL_SEAT_ROOT")
	}
	if root == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the seat root: %w; set HOME or COTAL_SEAT_ROOT", err)
		}
		root = filepath.Join(home, ".cotal", "seats")
	}
	return filepath.Abs(root)
}

// runtimeDir is where sockets are: the directory of the flag, or the user's own for that.
func runtimeDir(flag string) (string, error) {
	switch {
	case flag == "":
		return private.RuntimeDir(socketName, nil)
	case !filepath.IsAbs(flag) || len(flag+socketName) >= private.SocketRoom:
		return "", fmt.Errorf("no directory for sockets: %s must be absolute and leave a socket path under %d bytes", flag, private.SocketRoom)
	}
	return flag, nil
}

// privateDir makes a directory of this user alone, or refuses the one that is there.
func privateDir(dir string) error { return private.Dir(dir) }

// maxLog is the size at which the log file is set aside; one older file is kept.
const maxLog = 8 << 20

// openLog sends the log to a bounded file, and what needs a person to stderr.
func (h *Host) openLog() error {
	dir := filepath.Join(h.inst.Dir, "log")
	if err := privateDir(dir); err != nil {
		return err
	}
	f, err := openBounded(filepath.Join(dir, "host.log"), maxLog)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	h.logFile = f
	level := h.cfg.LogLevel
	if level == hclog.NoLevel {
		level = hclog.Info
	}
	log := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "host", Output: f, Level: level, JSONFormat: true})
	log.RegisterSink(&problems{out: h.cfg.Stderr, level: max(level, hclog.Warn), now: time.Now})
	h.log = log
	return nil
}

// boundedFile is a log file that never grows past twice its limit on disk: when full it becomes
// name.1 and a new one begins. A disk that is full loses log lines and nothing else.
type boundedFile struct {
	mu    sync.Mutex
	path  string
	limit int64
	size  int64
	f     *os.File
}

var _ io.WriteCloser = (*boundedFile)(nil)

func openBounded(path string, limit int64) (*boundedFile, error) {
	b := &boundedFile{path: path, limit: limit}
	return b, b.open()
}

func (b *boundedFile) open() error {
	f, err := os.OpenFile(b.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("open %s: is not a plain file", b.path) // a FIFO takes records as long as somebody reads them
	}
	if err != nil {
		f.Close()
		return err
	}
	b.f, b.size = f, st.Size()
	return nil
}

// Write appends one record. It always reports success: a log that cannot be written stops nothing.
func (b *boundedFile) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.f != nil && b.size+int64(len(p)) > b.limit {
		b.f.Close()
		b.f = nil
		_ = os.Rename(b.path, b.path+".1")
	}
	if b.f == nil && b.open() != nil {
		return len(p), nil
	}
	n, _ := b.f.Write(p)
	b.size += int64(n)
	return len(p), nil
}

// Close closes the file.
func (b *boundedFile) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.f == nil {
		return nil
	}
	err := b.f.Close()
	b.f = nil
	return err
}
