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

// writeDurable replaces dir/name so that after a power cut it is the old text or the new. before runs
// when the text is on its way and nothing is certain yet.
func writeDurable(dir, name string, text []byte, before func() error) error {
	path := dir + "/" + name
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(path + ".tmp") }() // there no more when all went well
	defer func() { _ = f.Close() }()
	if _, err = f.Write(text); err == nil {
		err = before()
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
