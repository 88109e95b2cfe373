//go:build linux

package custody

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const maxLog = 1 << 20

// logFile is seat.log: standard error of the seat, rotated at 1 MiB. Terminal bytes never enter it.
type logFile struct {
	mu   sync.Mutex
	path string
	size int64
}

// open makes the file standard error, so that a crash of the runtime is recorded too.
func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	l.size, _ = f.Seek(0, unix.SEEK_END)
	return unix.Dup3(int(f.Fd()), 2, 0)
}

// say writes one line. Failures are ignored: a seat must not die of a full disk.
func (l *logFile) say(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := time.Now().UTC().Format("2006-01-02T15:04:05.000Z") + " " + text + "\n"
	if l.size+int64(len(line)) > maxLog && os.Rename(l.path, l.path+".1") == nil {
		_ = l.open()
	}
	n, _ := unix.Write(2, []byte(line))
	l.size += int64(max(n, 0))
}
