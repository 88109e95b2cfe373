package supervise

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Every plugin process gets a private directory for its sockets, which is also its working
// directory. It is named by us, removed when the process is gone, and locked by this process as
// long as it is in use: the lock dies with its holder, so what can be locked is left over.

const (
	dirPrefix  = "plug-"
	lockSuffix = ".lock"

	// maxSocketPath: unix socket addresses end at 104 (macOS) or 108 bytes.
	maxSocketPath = 100
	socketName    = "/plugin1234567890" // as go-plugin names it
)

type instanceDir struct {
	path string
	lock *os.File
}

func newInstanceDir(runDir, name string) (*instanceDir, error) {
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	for range 100 { // a busy sweeper can take a name away at every try
		var id [4]byte
		_, _ = rand.Read(id[:])
		path := filepath.Join(runDir, dirPrefix+name+"-"+hex.EncodeToString(id[:]))
		if len(path)+len(socketName) > maxSocketPath {
			return nil, fmt.Errorf("make socket directory %s: the path of a socket in it would be above %d bytes: use a shorter run directory", path, maxSocketPath)
		}
		lock, err := lockNew(path + lockSuffix)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("make socket directory: %w", err)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			os.Remove(lock.Name())
			lock.Close()
			return nil, fmt.Errorf("make socket directory: %w", err)
		}
		return &instanceDir{path: path, lock: lock}, nil
	}
	return nil, fmt.Errorf("make socket directory in %s: no free name", runDir)
}

// lockNew creates a lock file and holds it. A sweeper may see the file between its creation and
// the lock, take it for a leftover and remove it: then the name is given up.
func lockNew(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fs.ErrExist
	}
	if !isAt(f, path) {
		f.Close()
		return nil, fs.ErrExist
	}
	return f, nil
}

// isAt reports whether path still leads to the open file: who waited for a lock may hold that of a
// file that was removed meanwhile.
func isAt(f *os.File, path string) bool {
	mine, err1 := f.Stat()
	there, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(mine, there)
}

// A plugin whose host was killed a moment ago may still be putting its socket into the directory that is
// being removed; it notices the end of its host within this time.
const (
	orphanTime  = 2500 * time.Millisecond
	orphanEvery = 10 * time.Millisecond
)

// remove deletes the directory, then the lock: never a directory without a lock beside it.
func (d *instanceDir) remove() error {
	err := os.RemoveAll(d.path)
	for until := time.Now().Add(orphanTime); err != nil && time.Now().Before(until); err = os.RemoveAll(d.path) {
		time.Sleep(orphanEvery)
	}
	if err == nil {
		err = os.Remove(d.lock.Name())
	}
	d.lock.Close()
	return err
}

// Sweep removes what hosts that died left in runDir, and returns the directories it removed. It
// touches only names of our own making whose lock nobody holds.
func Sweep(runDir string) ([]string, error) {
	entries, err := os.ReadDir(runDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweep run directory: %w", err)
	}
	var removed []string
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, dirPrefix) || !strings.HasSuffix(name, lockSuffix) || !e.Type().IsRegular() {
			continue
		}
		lockPath := filepath.Join(runDir, name)
		f, err := os.OpenFile(lockPath, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue // gone meanwhile, or another user's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && isAt(f, lockPath) {
			d := &instanceDir{path: strings.TrimSuffix(lockPath, lockSuffix), lock: f}
			if err := d.remove(); err != nil {
				errs = append(errs, err)
			} else {
				removed = append(removed, d.path)
			}
			continue
		}
		f.Close()
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("sweep run directory: %w", err)
	}
	return removed, nil
}
