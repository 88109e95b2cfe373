package diskfull

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// howEnv says in the child how its disks are made. Set to "pretend" by hand, none are.
const howEnv = "COTAL_TEST_DISK"

// Private runs the calling test once more in a process with mounts of its own, so that it can have
// small disks (Small) that nobody else sees and that are gone with the process. In that process it
// returns how that was possible, and true; the caller goes on. In the parent it returns false, and the
// test has its result.
//
// Root gets a mount namespace, others a user namespace with it. Where neither is allowed the test goes
// on at once, with Injected: there is no small disk, and a full one can only be pretended by failpoints.
// The process gets the variables env, K=V, in addition.
func Private(t *testing.T, env ...string) (how string, here bool) {
	t.Helper()
	if how := os.Getenv(howEnv); how != "" && os.Getenv(mark) == t.Name() {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatalf("make mounts private: %v", err)
		}
		return how, true
	}
	if os.Getenv(howEnv) == "pretend" {
		return Injected, true
	}
	p := possible()
	if p == nil {
		return Injected, true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run="+exactly(t.Name()), "-test.count=1", "-test.v")
	cmd.Env = append(append(os.Environ(), mark+"="+t.Name(), howEnv+"="+p.how), env...)
	cmd.SysProcAttr = p.attrs()
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in a process of its own (%s): %v\n%s", p.how, err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()) && !strings.Contains(string(out), "--- SKIP: "+t.Name()):
		t.Errorf("the process of its own (%s) did not run the test:\n%s", p.how, out)
	default:
		t.Logf("in a process of its own (%s):\n%s", p.how, out)
	}
	return p.how, false
}

// way is one way to have mounts of one's own.
type way struct {
	how   string
	attrs func() *syscall.SysProcAttr
}

var ways = []way{
	{"tmpfs in a mount namespace", func() *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	}},
	{"tmpfs in a user namespace", func() *syscall.SysProcAttr {
		return &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
	}},
}

// possible is the first way that this process may go, or nil. The namespace may be allowed and mounting
// not, so both are tried by a program that ends at once.
var possible = sync.OnceValue(func() *way {
	for _, w := range ways {
		probe := exec.Command("/proc/self/exe", "-test.run=^$")
		probe.Env, probe.SysProcAttr = append(os.Environ(), probeEnv+"=1"), w.attrs()
		if probe.Run() == nil {
			return &w
		}
	}
	return nil
})

// probeEnv makes a copy of the test binary try a mount and end.
const probeEnv = "COTAL_TEST_DISK_PROBE"

func init() {
	if os.Getenv(probeEnv) == "" {
		return
	}
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("tmpfs", os.TempDir(), "tmpfs", 0, "size=64k")
	}
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// exactly is the pattern of -run for one test and nothing else.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// Disk is a small disk: a tmpfs of a few MiB.
type Disk struct {
	at   string   // where it is mounted
	dirs []string // directories that are on it
}

// Small makes a disk of size bytes, mounted at a new directory at, and puts the directories on it,
// which may be there already and must be empty. Only in a process that Private made.
func Small(at string, size int, dirs ...string) (*Disk, error) {
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		return nil, fmt.Errorf("mount tmpfs: %w", err)
	}
	d := &Disk{at: at}
	for i, dir := range dirs {
		inside := fmt.Sprintf("%s/%d", at, i)
		if err := errors.Join(os.Mkdir(inside, 0o700), os.MkdirAll(dir, 0o700)); err != nil {
			return d, err
		}
		if err := unix.Mount(inside, dir, "", unix.MS_BIND, ""); err != nil {
			return d, fmt.Errorf("mount %s: %w", dir, err)
		}
		d.dirs = append(d.dirs, dir)
	}
	return d, nil
}

// Fill takes every byte that is left. The file that takes them is outside of the directories.
func (d *Disk) Fill() error {
	f, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("fill disk: %w", err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) >= 4096; {
		switch _, err := f.Write(block); {
		case errors.Is(err, unix.ENOSPC):
			block = block[:len(block)/2]
		case err != nil:
			return fmt.Errorf("fill disk: %w", err)
		}
	}
	return nil
}

// Free gives the space of Fill back.
func (d *Disk) Free() error {
	if err := os.Remove(d.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("free disk: %w", err)
	}
	return nil
}

func (d *Disk) filler() string { return d.at + "/full" }

// Unmount takes the disk away, with what is on it.
func (d *Disk) Unmount() error {
	var errs []error
	for _, dir := range append(d.dirs, d.at) {
		errs = append(errs, unix.Unmount(dir, unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}
