package seat

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Stat is what /proc/<pid>/stat says of a process.
type Stat struct {
	Comm       string
	State      byte // 'Z' and 'X' are dead
	PPID       int
	Session    int // the number of the session's leader; not reused while the session has a member
	TTY        int // device number of the controlling terminal, 0 for none
	StartTicks uint64
}

// bootID cannot change while a process runs, so it is read once.
var bootID = sync.OnceValues(func() (string, error) {
	p, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(p)), err
})

// ReadProc reads /proc/<pid>/stat. Errors: ErrProcessGone when there is no such process.
func ReadProc(pid int) (Stat, error) {
	// A small stack buffer and raw calls: this runs once per process of the machine in a tree walk.
	var buf [1024]byte
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		var n int
		n, err = unix.Read(fd, buf[:])
		_ = unix.Close(fd)
		if err == nil {
			return parseStat(string(buf[:n]))
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return Stat{}, ErrProcessGone
	}
	return Stat{}, errors.New("read /proc/" + strconv.Itoa(pid) + "/stat: " + err.Error())
}

// parseStat takes the command between the first "(" and the last ")": it may hold both, and spaces.
func parseStat(s string) (Stat, error) {
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return Stat{}, errors.New("parse stat: no command")
	}
	f := strings.Fields(s[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return Stat{}, errors.New("parse stat: too few fields")
	}
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		return Stat{}, errors.New("parse stat: parent is not a number")
	}
	session, err := strconv.Atoi(f[3])
	if err != nil {
		return Stat{}, errors.New("parse stat: session is not a number")
	}
	tty, err := strconv.Atoi(f[4])
	if err != nil {
		return Stat{}, errors.New("parse stat: terminal is not a number")
	}
	ticks, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return Stat{}, errors.New("parse stat: start time is not a number")
	}
	return Stat{Comm: s[open+1 : end], State: f[0][0], PPID: ppid, Session: session, TTY: tty, StartTicks: ticks}, nil
}

// SelfIdentity identifies this process.
func SelfIdentity() (Identity, error) { return IdentityOf(os.Getpid()) }

// IdentityOf identifies the process that has this number now.
// Errors: ErrProcessGone when there is none.
func IdentityOf(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, errors.New("read boot id: " + err.Error())
	}
	st, err := ReadProc(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: st.StartTicks, BootID: boot}, nil
}

// Check says whether exactly this process lives, and why it thinks so. A zombie is dead, and so is
// everything of another boot. What cannot be read is Unknown.
func Check(id Identity) (Liveness, string) {
	if id.PID <= 0 || id.StartTicks == 0 || id.BootID == "" {
		return Unknown, "identity is incomplete"
	}
	boot, err := bootID()
	if err != nil {
		return Unknown, "boot id unreadable: " + err.Error()
	}
	if boot != id.BootID {
		return Dead, "the machine has booted since"
	}
	st, err := ReadProc(id.PID)
	switch {
	case errors.Is(err, ErrProcessGone):
		// With hidepid a foreign process is invisible, not absent: signal 0 tells them apart.
		if e := unix.Kill(id.PID, 0); e == nil || errors.Is(e, unix.EPERM) {
			return Unknown, "process " + strconv.Itoa(id.PID) + " exists but cannot be read"
		}
		return Dead, "no process " + strconv.Itoa(id.PID)
	case err != nil:
		return Unknown, err.Error()
	case st.StartTicks != id.StartTicks:
		return Dead, "process number " + strconv.Itoa(id.PID) + " was reused"
	case st.State == 'Z' || st.State == 'X':
		return Dead, "process " + strconv.Itoa(id.PID) + " is a zombie"
	}
	return Alive, "process " + strconv.Itoa(id.PID) + " has the recorded start time"
}

// SignalExact sends sig to exactly this process: it takes a pidfd, proves the identity while holding
// it, and signals through it, so that a reused number is never hit.
// Errors: ErrProcessGone when it is proven dead.
func SignalExact(id Identity, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrProcessGone
	}
	if err != nil {
		return errors.New("open pidfd of " + strconv.Itoa(id.PID) + ": " + err.Error())
	}
	defer func() { _ = unix.Close(fd) }()
	switch live, why := Check(id); live {
	case Dead:
		return ErrProcessGone
	case Unknown:
		return errors.New("prove identity of " + strconv.Itoa(id.PID) + ": " + why)
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); errors.Is(err, unix.ESRCH) {
		return ErrProcessGone
	} else if err != nil {
		return errors.New("signal " + strconv.Itoa(id.PID) + ": " + err.Error())
	}
	return nil
}

// FindByNonce lists processes of this user whose environment holds COTAL_SEAT_NONCE=nonce, this
// process excepted. A program can erase its environment or hide it: absence here proves nothing.
func FindByNonce(nonce string) ([]Proc, error) {
	found, _, err := SearchNonce(nonce)
	return found, err
}

// SearchNonce is FindByNonce that also returns the living processes of this user whose environment may
// not be read (they switched PR_SET_DUMPABLE off, or run a program that does): they may carry the nonce.
func SearchNonce(nonce string) (found, hidden []Proc, err error) {
	boot, err := bootID()
	if err != nil {
		return nil, nil, errors.New("read boot id: " + err.Error())
	}
	pids, err := Processes()
	if err != nil {
		return nil, nil, err
	}
	want := NonceVar + "=" + nonce + "\x00"
	self, uid := os.Getpid(), os.Geteuid()
	for _, pid := range pids {
		if pid == self {
			continue
		}
		env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		secret := err != nil
		switch {
		case secret && (errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || !ofUser(pid, uid)):
			continue
		case !secret && !strings.Contains("\x00"+string(env)+"\x00", "\x00"+want):
			continue
		}
		st, err := ReadProc(pid)
		if err != nil || st.State == 'Z' || st.State == 'X' {
			continue
		}
		p := Proc{
			Identity: Identity{PID: pid, StartTicks: st.StartTicks, BootID: boot},
			PPID:     st.PPID, Session: st.Session, TTY: st.TTY, Comm: st.Comm,
		}
		if secret {
			hidden = append(hidden, p)
		} else {
			found = append(found, p)
		}
	}
	return found, hidden, nil
}

// ofUser reports whether a process runs for the user, by its real or its effective id. The owner of its
// files in /proc does not tell: they are root's when the process is not dumpable.
func ofUser(pid, uid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			f := strings.Fields(ids)
			want := strconv.Itoa(uid)
			return len(f) >= 2 && (f[0] == want || f[1] == want)
		}
	}
	return false
}

// Processes lists the numbers of all processes visible in /proc.
func Processes() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, errors.New("list /proc: " + err.Error())
	}
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if n[0] >= '1' && n[0] <= '9' {
			if pid, err := strconv.Atoi(n); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Descendants lists the living processes below pid, parents first. A zombie is no longer a process,
// but what it left may still hang below it.
func Descendants(pid int) ([]Proc, error) {
	boot, err := bootID()
	if err != nil {
		return nil, errors.New("read boot id: " + err.Error())
	}
	pids, err := Processes()
	if err != nil {
		return nil, err
	}
	children := map[int][]Proc{}
	dead := map[int]bool{}
	for _, p := range pids {
		if st, err := ReadProc(p); err == nil {
			dead[p] = st.State == 'Z' || st.State == 'X'
			id := Identity{PID: p, StartTicks: st.StartTicks, BootID: boot}
			children[st.PPID] = append(children[st.PPID], Proc{Identity: id, PPID: st.PPID, Comm: st.Comm})
		}
	}
	var out []Proc
	for queue := children[pid]; len(queue) > 0; {
		p := queue[0]
		queue = append(queue[1:len(queue):len(queue)], children[p.PID]...)
		if !dead[p.PID] {
			out = append(out, p)
		}
	}
	return out, nil
}
