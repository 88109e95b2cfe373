//go:build linux

package custody

import (
	"cmp"
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

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodian"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// minRing leaves room for a viewer that is late but not stalled.
const minRing = 256 << 10

// Main is cotal-seat. args are those of the process; it returns the exit code.
//
// It reads one launch record from standard input and prints "prepared <pid> <start ticks> <boot id>"
// or "error <code> <text>". From then on it holds no descriptor of whoever started it.
func Main(args []string) int {
	if len(args) != 2 || len(args[1]) != 32 || strings.Trim(args[1], "0123456789abcdef") != "" {
		_, _ = os.Stderr.WriteString("cotal-seat holds the terminal of one agent. It is started by a cotal runtime\n" +
			"with a custody id, and a launch record on standard input; not by hand.\n")
		return 2
	}
	// The agent gets the signal mask of the thread that forks: this one, and an empty mask.
	runtime.LockOSThread()
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
	// The terminal of a host, its session or its service manager is not ours: seats are ended by request,
	// with a record, or by SIGKILL. Caught, and not ignored: an ignored signal is inherited through exec,
	// by the agent and all it starts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGINT,
		syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT)
	runtime.GOMAXPROCS(2)
	// The name that ps shows, also when the program was executed from a memfd.
	_ = os.WriteFile("/proc/self/comm", []byte("cotal-seat"), 0)
	dropInherited()
	_, _ = unix.Setsid() // already done when started as it should be
	l, err := seat.ReadLaunch(os.Stdin)
	if err != nil {
		return fail("invalid", err)
	}
	s := newServer(args[1], &l)
	if code, err := s.prepare(); err != nil {
		return fail(code, err)
	}
	signal.Notify(s.children, syscall.SIGCHLD)
	go func() {
		for range s.spillCh {
			s.spillOut()
		}
	}()
	go custodian.Accept(s.listen, s.log.say, s.serve)
	if err := fpBeforePrint.Hit(); err != nil {
		_ = os.Remove(l.Socket)
		return fail("failpoint", err)
	}
	_, _ = os.Stdout.WriteString("prepared " + strconv.Itoa(s.self.PID) + " " + strconv.FormatUint(s.self.StartTicks, 10) + " " + s.self.BootID + "\n")
	if err := detach(); err != nil {
		s.log.say("detach: " + err.Error())
	}
	s.live()
	return 0
}

func fail(code string, err error) int {
	_, _ = os.Stdout.WriteString("error " + code + " " + strings.ReplaceAll(err.Error(), "\n", " ") + "\n")
	return 1
}

func newServer(id string, l *seat.Launch) *server {
	l.Rows, l.Cols = cmp.Or(l.Rows, 32), cmp.Or(l.Cols, 120)
	l.RingBytes, l.SpillBytes = max(cmp.Or(l.RingBytes, 1<<20), minRing), max(cmp.Or(l.SpillBytes, 8<<20), minRing)
	l.PrepareTimeoutMs, l.ExitLingerMs = cmp.Or(l.PrepareTimeoutMs, 30_000), cmp.Or(l.ExitLingerMs, 24*3600*1000)
	s := &server{
		id: id, launch: l,
		log:      &logFile{path: l.Dir + "/seat.log"},
		children: make(chan os.Signal, 1), asks: make(chan ask),
		begun: make(chan struct{}), outEnd: make(chan struct{}), acked: make(chan struct{}, 1),
		spillCh: make(chan struct{}, 1), typeCh: make(chan struct{}, 1),
		state: seat.StatePrepared,
		spill: &spill{path: l.Dir + "/ring", cap: uint64(l.SpillBytes)},
		fence: l.Fence, rows: l.Rows, cols: l.Cols,
	}
	s.drained = sync.NewCond(&s.mu)
	return s
}

// prepare makes everything the seat needs, the durable record last, so that a record never names
// something that does not exist. code is the word after "error".
func (s *server) prepare() (code string, err error) {
	l := s.launch
	for _, step := range []struct {
		code string
		do   func() error
	}{
		{"directory", s.log.open},
		{"exists", func() error { return custodian.Claim(l.Dir) }},
		{"directory", func() error { return os.Chdir("/") }},
		{"identity", func() (err error) { s.self, err = seat.SelfIdentity(); return err }},
		// Orphans of the agent's tree come to this process and not to init.
		{"subreaper", func() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }},
		{"terminal", func() (err error) { s.pty, err = openTerminal(s.rows, s.cols); return err }},
		{"memory", func() (err error) { s.ring, err = newRing(int(l.RingBytes)); return err }},
		{"failpoint", fpBeforeBind.Hit},
		{"socket", func() (err error) { s.listen, err = custodian.Listen(l.Socket); return err }},
		{"record", func() error {
			return custodian.WriteDurable(l.Dir, "seat.json", seat.SeatJSON(s.id, l, s.self, time.Now()), fpBeforeRecord.Hit)
		}},
		{"record", fpAfterRecord.Hit},
	} {
		if err := step.do(); err != nil {
			if s.listen > 0 {
				_ = os.Remove(l.Socket)
			}
			return step.code, err
		}
	}
	return "", nil
}

// dropInherited closes what whoever started us forgot to close and marks the rest, so that neither
// this process nor the agent holds a pipe of a plugin. Descriptors of the Go runtime are left alone.
func dropInherited() {
	_ = unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	open, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range open {
		target, _ := os.Readlink("/proc/self/fd/" + entry.Name())
		kind, _, _ := strings.Cut(target, ":")
		if n, err := strconv.Atoi(entry.Name()); err == nil && n > 2 && (kind == "pipe" || kind == "socket" || kind == "/memfd") {
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
	return errors.Join(unix.Dup3(fd, 0, 0), unix.Dup3(fd, 1, 0))
}
