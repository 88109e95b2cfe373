package store

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func attrs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Bounds of a program that is asked who it is, in bytes; what it starts has the same.
const (
	describeMemory = 2 << 30 // of memory it can write; what an interpreter only reserves does not count
	describeFile   = MaxFile // of one file: some programs unpack themselves
)

// restrict bounds a process that has just been started. It helps against what runs away, and does no harm where it
// is too late.
func restrict(pid int) {
	for resource, most := range map[int]uint64{unix.RLIMIT_DATA: describeMemory, unix.RLIMIT_FSIZE: describeFile, unix.RLIMIT_CORE: 0} {
		_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
	}
}
