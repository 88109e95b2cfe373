package holder

import (
	"bufio"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodian"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// The three descriptors of the pane's terminal. launchFD is the connection to the runtime, kept through
// the second exec.
const (
	terminalFD = 0
	launchFD   = 3
)

// launchWait bounds the time from the start of the pane to the launch record: a plugin that was killed
// in between closes the connection, one that was stopped does not.
const launchWait = 30 * time.Second

// Main is cotal-tmux-seat. args are those of the process: a custody id and the socket of the runtime that
// started it. It does not return for a seat whose agent ran: it ends as the agent did.
//
// From the runtime it reads one line of environment strings, separated by zero bytes, executes itself
// with exactly those (so that it carries the nonce), reads one launch record (sdk/seat.Launch), and
// answers "prepared <pid> <start ticks> <boot id>" or "error <code> <text>".
func Main(args []string) int {
	switch {
	case len(args) == 3 && validID(args[1]) && strings.HasPrefix(args[2], "/"):
		return first(args[1], args[2])
	case len(args) == 2 && validID(args[1]) && os.Getenv(seat.NonceVar) != "":
		return second(args[1])
	}
	_, _ = os.Stderr.WriteString("cotal-tmux-seat holds one agent in a pane of tmux. It is started by the tmux runtime\n" +
		"of cotal-host; not by hand.\n")
	return 2
}

func validID(id string) bool { return len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" }

// first fetches the environment and becomes second. Nothing of the environment that tmux gives is kept.
func first(id, socket string) int {
	conn, err := dial(socket)
	if err != nil {
		return complain("reach the runtime: " + err.Error())
	}
	line, err := readLine(conn)
	if err != nil {
		return complain("read the environment: " + err.Error())
	}
	if err := unix.Dup3(conn, launchFD, 0); conn != launchFD && err != nil {
		return complain(err.Error())
	}
	if conn == launchFD {
		_, _ = unix.FcntlInt(launchFD, unix.F_SETFD, 0)
	}
	env := strings.FieldsFunc(line, func(r rune) bool { return r == 0 })
	err = syscall.Exec("/proc/self/exe", []string{"cotal-tmux-seat", id}, env)
	return complain("execute itself: " + err.Error())
}

func complain(text string) int {
	_, _ = os.Stderr.WriteString("cotal-tmux-seat: " + text + "\n")
	return 1
}

func dial(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return -1, err
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && int(cred.Uid) != os.Geteuid() {
		err = errors.New("it belongs to user " + strconv.Itoa(int(cred.Uid)))
	}
	return fd, err
}

// readLine reads byte by byte: what follows the line is for the next program.
func readLine(fd int) (string, error) {
	tv := unix.NsecToTimeval(int64(launchWait))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return "", err
		case n == 0:
			return "", errors.New("the runtime closed the connection")
		case b[0] == '\n':
			return string(line), nil
		case len(line) > 64<<10:
			return "", errors.New("a line over 64 KiB")
		default:
			line = append(line, b[0])
		}
	}
}

func second(id string) int {
	// The agent gets the signal mask of the thread that forks: this one, and an empty mask.
	runtime.LockOSThread()
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
	// Caught, and not ignored: an ignored signal is inherited through exec by the agent. What is typed
	// before the commit is not for this process either.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGINT,
		syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT)
	runtime.GOMAXPROCS(2)
	_ = os.WriteFile("/proc/self/comm", []byte("cotal-tmux-seat"), 0)
	_ = unix.CloseRange(4, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	unix.CloseOnExec(launchFD)
	tv := unix.NsecToTimeval(int64(launchWait))
	_ = unix.SetsockoptTimeval(launchFD, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	conn := os.NewFile(launchFD, "runtime")
	l, err := seat.ReadLaunch(bufio.NewReader(conn))
	if err != nil {
		return refuse(conn, "invalid", err)
	}
	s := newServer(id, &l)
	if code, err := s.prepare(); err != nil {
		return refuse(conn, code, err)
	}
	signal.Notify(s.children, syscall.SIGCHLD)
	go custodian.Accept(s.listen, s.say, s.serve)
	go s.watchTerminal()
	_, _ = conn.WriteString("prepared " + strconv.Itoa(s.self.PID) + " " + strconv.FormatUint(s.self.StartTicks, 10) + " " + s.self.BootID + "\n")
	_ = conn.Close()
	x := s.live()
	if !x.CodeKnown {
		return 1
	}
	if x.Signal != "" {
		dieBy(x.Code - 128)
	}
	return x.Code
}

func refuse(conn *os.File, code string, err error) int {
	_, _ = conn.WriteString("error " + code + " " + strings.ReplaceAll(err.Error(), "\n", " ") + "\n")
	return 1
}

// dieBy ends this process by a signal and without a core file. The handlers of the Go runtime are in
// the way, so the kernel is asked directly.
func dieBy(sig int) {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	var action [64]byte // struct sigaction: all zero is SIG_DFL
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), unix.Signal(sig))
	time.Sleep(100 * time.Millisecond) // the signal is on its way to some thread
}
