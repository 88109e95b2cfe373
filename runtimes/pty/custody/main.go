//go:build linux

package custody

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// minRing leaves room for a viewer that is late but not stalled.
const minRing = 256 << 10

// lockThreadForGood binds the goroutine to its thread, which ends with it: whatever was changed on
// the thread is not found by anybody else.
func lockThreadForGood() { runtime.LockOSThread() }

// Main is cotal-seat. args are those of the process; it returns an exit code only when the seat could
// not be prepared.
//
// It reads one launch record from standard input and prints "prepared <pid> <start ticks> <boot id>"
// or "error <code> <text>". From then on it holds no descriptor of whoever started it.
func Main(args []string) int {
	if len(args) != 2 || !validID(args[1]) {
		_, _ = os.Stderr.WriteString("cotal-seat holds the terminal of one agent. It is started by a cotal runtime\n" +
			"with a custody id, and a launch record on standard input; not by hand.\n")
		return 2
	}
	// Never Ignore: an ignored signal is inherited through exec, by the agent and all it starts. The
	// stop signals are in the list because the runtime leaves an inherited "ignore" of theirs alone.
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT)
	runtime.GOMAXPROCS(2)
	setName("cotal-seat")
	dropInherited()
	_, _ = unix.Setsid() // already done when started as it should be
	l, err := seat.ReadLaunch(os.Stdin)
	if err != nil {
		return fail("invalid", err)
	}
	s := &server{
		id:      args[1],
		launch:  &l,
		outEnd:  make(chan struct{}),
		spillCh: make(chan struct{}, 1),
		typeCh:  make(chan struct{}, 1),
		state:   seat.StatePrepared,
		fence:   l.Fence,
		reaper:  reaper{wake: make(chan struct{}, 1)},
	}
	s.drained = sync.NewCond(&s.mu)
	if code, err := s.prepare(); err != nil {
		return fail(code, err)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		for range children {
			s.reaper.kick()
		}
	}()
	go s.reaper.loop(s)
	go s.spillLoop()
	time.AfterFunc(time.Duration(l.PrepareTimeoutMs)*time.Millisecond, s.prepareTimeout)
	go s.accept()
	if err := fpBeforePrint.Hit(); err != nil {
		_ = os.Remove(l.Socket)
		return fail("failpoint", err)
	}
	_, _ = os.Stdout.WriteString("prepared " + strconv.Itoa(s.self.PID) + " " + strconv.FormatUint(s.self.StartTicks, 10) + " " + s.self.BootID + "\n")
	if err := detach(); err != nil {
		s.log.say("detach: " + err.Error())
	}
	for sig := range caught {
		// The terminal of a host, its session or its service manager is not ours: seats are ended by
		// request, with a record, or by SIGKILL.
		if sig != syscall.SIGPIPE && sig != syscall.SIGCONT {
			s.log.say("signal " + sig.String() + " has no effect on a seat")
		}
	}
	return 0
}

func fail(code string, err error) int {
	_, _ = os.Stdout.WriteString("error " + code + " " + strings.ReplaceAll(err.Error(), "\n", " ") + "\n")
	return 1
}

func validID(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 32
}

// prepare makes everything the seat needs, the durable record last, so that a record never names
// something that does not exist. code is the word after "error".
func (s *server) prepare() (code string, err error) {
	l := s.launch
	l.Rows, l.Cols = orDefault(l.Rows, 32), orDefault(l.Cols, 120)
	l.RingBytes, l.SpillBytes = max(orDefault(l.RingBytes, 1<<20), minRing), max(orDefault(l.SpillBytes, 8<<20), minRing)
	l.PrepareTimeoutMs, l.ExitLingerMs = orDefault(l.PrepareTimeoutMs, 30_000), orDefault(l.ExitLingerMs, 24*3600*1000)
	s.rows, s.cols = l.Rows, l.Cols
	if s.log, err = openLog(l.Dir + "/seat.log"); errors.Is(err, errBusyDir) {
		return "exists", err
	} else if err != nil {
		return "directory", err
	}
	for _, name := range []string{"seat.json", "exit.json"} {
		if _, err := os.Lstat(l.Dir + "/" + name); err == nil {
			return "exists", errors.New(l.Dir + "/" + name + " exists: this custody id was used before")
		}
	}
	if err := os.Chdir("/"); err != nil {
		return "directory", err
	}
	if s.self, err = seat.SelfIdentity(); err != nil {
		return "identity", err
	}
	// Orphans of the agent's tree come to this process and not to init.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return "subreaper", err
	}
	if s.pty, err = openTerminal(s.rows, s.cols); err != nil {
		return "terminal", err
	}
	page := uint32(os.Getpagesize())
	if s.ring, err = newRing(int((l.RingBytes + page - 1) / page * page)); err != nil {
		return "memory", err
	}
	s.spill = newSpill(l.Dir+"/ring", uint64(l.SpillBytes), s.ring.size())
	if err := fpBeforeBind.Hit(); err != nil {
		return "failpoint", err
	}
	if s.listen, err = listen(l.Socket); err != nil {
		return "socket", err
	}
	if err := s.writeRecord(); err != nil {
		_ = os.Remove(l.Socket)
		return "record", err
	}
	return "", nil
}

func (s *server) writeRecord() error {
	if err := fpBeforeRecord.Hit(); err != nil {
		return err
	}
	text := seat.SeatJSON(s.id, s.launch, s.self, time.Now())
	if err := writeDurable(s.launch.Dir, "seat.json", text, func() error { return nil }); err != nil {
		return errors.New("write seat.json: " + err.Error())
	}
	return fpAfterRecord.Hit()
}

func orDefault[T uint16 | uint32](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// listen binds the socket, over one that a killed seat left behind but never over a live one.
func listen(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New("make socket: " + err.Error())
	}
	addr := &unix.SockaddrUnix{Name: path}
	mask := unix.Umask(0o177) // nothing else runs yet that makes files
	err = unix.Bind(fd, addr)
	if errors.Is(err, unix.EADDRINUSE) && errors.Is(unix.Connect(fd, addr), unix.ECONNREFUSED) {
		_ = os.Remove(path)
		err = unix.Bind(fd, addr)
	}
	unix.Umask(mask)
	if err == nil {
		err = unix.Listen(fd, 64)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, errors.New("bind " + path + ": " + err.Error())
	}
	return os.NewFile(uintptr(fd), path), nil
}

// setName makes the name that ps shows right even when the program was executed from a memfd.
func setName(name string) {
	if fd, err := unix.Open("/proc/self/comm", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		_, _ = unix.Write(fd, []byte(name))
		_ = unix.Close(fd)
	}
}

// dropInherited closes what whoever started us forgot to close and marks the rest, so that neither
// this process nor the agent holds a pipe of a plugin. Descriptors of the Go runtime are left alone.
func dropInherited() {
	_ = unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(-1)
	_ = d.Close()
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n < 3 {
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + name)
		if err == nil && (strings.HasPrefix(target, "pipe:") || strings.HasPrefix(target, "socket:") || strings.HasPrefix(target, "/memfd:")) {
			_ = unix.Close(n)
		}
	}
}

// detach gives back standard input and output. Standard error is the log already.
func detach() error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Dup3(fd, 0, 0); err != nil {
		return err
	}
	return unix.Dup3(fd, 1, 0)
}
