//go:build linux

package custody

import (
	"errors"
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

// openLog opens path, takes the lock that makes a second custody process for this directory fail, and
// makes it standard error, so that a crash of the runtime is recorded too.
func openLog(path string) (*logFile, error) {
	lock, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errors.New("open " + path + ": " + err.Error())
	}
	if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil { // held until this process ends
		_ = unix.Close(lock)
		return nil, errBusyDir
	}
	l := &logFile{path: path}
	return l, l.open()
}

var errBusyDir = errors.New("another custody process holds this seat directory")

func (l *logFile) open() error {
	fd, err := unix.Open(l.path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return errors.New("open " + l.path + ": " + err.Error())
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil {
		l.size = st.Size
	}
	return unix.Dup3(fd, 2, 0)
}

// say writes one line. Failures are ignored: a seat must not die of a full disk.
func (l *logFile) say(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := time.Now().UTC().Format("2006-01-02T15:04:05.000Z") + " " + text + "\n"
	if l.size+int64(len(line)) > maxLog {
		if err := os.Rename(l.path, l.path+".1"); err == nil {
			_ = l.open()
		}
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
	_, err = f.Write(text)
	if err == nil {
		err = before()
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp")
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	_ = d.Close()
	return err
}
