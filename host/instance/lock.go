package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// ErrLocked says that another host holds the workspace.
var ErrLocked = errors.New("another host runs here")

// LockedError names the holder as far as it is known.
type LockedError struct {
	Root   string
	Holder Running
}

// Error names the holder and the fix.
func (e *LockedError) Error() string {
	if e.Holder.Verified {
		return fmt.Sprintf("%v: process %d serves %s; stop it with: cotal-host stop --root %s, or choose another --root",
			ErrLocked, e.Holder.PID, e.Root, e.Root)
	}
	return fmt.Sprintf("%v: %s is locked by a process that cannot be identified from here (another container or user?); stop it, or choose another --root",
		ErrLocked, filepath.Join(DirOf(e.Root), lockName))
}

// Is reports ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Running is what the lock of a workspace says.
type Running struct {
	Held       bool // some process holds the lock: a host runs
	PID        int  // as the holder wrote it; 0 when unreadable
	StartTicks uint64
	BootID     string
	// Verified: the process of that pid, start time and boot lives and so is the holder.
	Verified bool
}

// lockPatience is how long Open waits for a lock whose holder does not identify itself. A Probe holds
// it for microseconds, and a host that has just taken it has not yet written its name.
const lockPatience = time.Second

// lockPoll is the pause between two tries.
const lockPoll = 5 * time.Millisecond

// takeLock takes host.lock or says who has it.
func takeLock(ctx context.Context, root, dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := openLock(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockPatience)
	for {
		err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		holder := readHolder(f)
		holder.Held = true
		if holder.Verified || time.Now().After(deadline) {
			f.Close()
			return nil, &LockedError{Root: root, Holder: holder}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
	if err := writeHolder(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func openLock(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, &FileError{Path: path, Err: errors.New("is a symbolic link"), Fix: "remove the link"}
	}
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &FileError{Path: path, Err: errors.New("is not a regular file"), Fix: "move it away"}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// holder is the content of host.lock: one line of JSON.
type holder struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootId"`
}

func writeHolder(f *os.File) error {
	self, err := seat.SelfIdentity()
	if errors.Is(err, seat.ErrUnsupported) {
		self = seat.Identity{PID: os.Getpid()} // readers then never take the number for proof
	} else if err != nil {
		return fmt.Errorf("identify this process: %w", err)
	}
	raw, err := json.Marshal(holder{PID: self.PID, StartTicks: self.StartTicks, BootID: self.BootID})
	if err != nil {
		return fmt.Errorf("encode lock: %w", err)
	}
	raw = append(raw, '\n')
	// One write, then the cut: a reader in between sees a whole first line.
	if _, err := f.WriteAt(raw, 0); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	if err := f.Truncate(int64(len(raw))); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	return nil
}

func readHolder(f *os.File) Running {
	buf := make([]byte, 4096)
	n, _ := f.ReadAt(buf, 0)
	for i, c := range buf[:n] {
		if c != '\n' {
			continue
		}
		var h holder
		if json.Unmarshal(buf[:i], &h) != nil || h.PID <= 0 {
			break
		}
		live, _ := seat.Check(seat.Identity{PID: h.PID, StartTicks: h.StartTicks, BootID: h.BootID})
		return Running{PID: h.PID, StartTicks: h.StartTicks, BootID: h.BootID, Verified: live == seat.Alive}
	}
	return Running{}
}

// Probe says whether a host runs for a workspace root. It asks the lock, which the kernel holds for
// exactly as long as that process lives, and not files that may be missing or stale. It changes
// nothing, and a workspace that never had a host is simply not running.
func Probe(root string) (Running, error) {
	path := filepath.Join(DirOf(root), lockName)
	f, err := openLock(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return Running{}, nil
	}
	if err != nil {
		return Running{}, fmt.Errorf("probe host: %w", err)
	}
	defer f.Close()
	err = flock(f, syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return Running{}, nil // closing the file lets go
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return Running{}, fmt.Errorf("probe host: lock %s: %w", path, err)
	}
	r := readHolder(f)
	r.Held = true
	return r, nil
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
