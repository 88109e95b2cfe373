package mirror

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newPage makes the shared page and the file to hand on.
func newPage() (page, *os.File, error) {
	fd, err := unix.MemfdCreate("cotal-mirror", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("make shared page: %w", err)
	}
	f := os.NewFile(uintptr(fd), "cotal-mirror")
	if err := f.Truncate(pageSize); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("make shared page: %w", err)
	}
	p, err := mapPage(fd)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return p, f, nil
}

func mapPage(fd int) (page, error) {
	p, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared page: %w", err)
	}
	return p, nil
}

func (p page) close() {
	if p != nil {
		_ = unix.Munmap(p)
	}
}

// threadClock is the clock of one thread's CPU time. Every thread of the process can read it.
type threadClock int32

// thisThread is the clock of the calling thread, to which the goroutine must be locked.
func thisThread() threadClock {
	const perThread, scheduler = 4, 2 // see clock_getcpuclockid(3) and linux/posix-timers.h
	return threadClock(int32(^unix.Gettid())<<3 | perThread | scheduler)
}

func (c threadClock) now() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(int32(c), &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// running says whether a process is stopped, and how much CPU time it has used.
func running(pid int) (stopped bool, used time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false, 0
	}
	var state string
	var skip, user, system int64
	rest := text[bytes.LastIndexByte(text, ')')+1:]
	if _, err := fmt.Sscan(string(rest), &state, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &user, &system); err != nil {
		return false, 0
	}
	return state == "T" || state == "t", time.Duration(user+system) * 10 * time.Millisecond
}

// residentKB is the resident memory of a process.
func residentKB(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, resident int
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * os.Getpagesize() / 1024
}
