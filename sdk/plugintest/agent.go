package plugintest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// The scripted agent is the program that the suite runs in seats: this program itself, executed again with
// agentArg and a script in agentVar. So a third party needs no other binary. It runs before main, and
// before the flags of a test are read.
const (
	agentArg = "plugintest-agent"
	agentVar = "COTAL_PLUGINTEST_AGENT"
)

// agentFailed is the exit code of an agent whose script could not be run.
const agentFailed = 125

func init() {
	if len(os.Args) == 2 && os.Args[1] == agentArg && os.Getenv(agentVar) != "" {
		os.Exit(agent(os.Getenv(agentVar)))
	}
}

// step is a word and its operands:
//
//	append FILE TEXT   append TEXT, {pid} replaced, and a newline
//	print TEXT         write to the terminal
//	numbers FIRST N    print N lines of twelve digits from FIRST on, and a newline
//	ticks FILE         print numbered lines, one a millisecond, until FILE exists
//	burst BYTES        write so much to the terminal, in lines
//	size FILE          append "ROWSxCOLS" now and whenever it changes
//	input FILE N       raw mode; write N input bytes to FILE, then go on
//	env FILE           write the environment to FILE as JSON
//	polite FILE        on TERM, HUP or INT: append the name of the signal, and exit with 0
//	ignore             ignore TERM, HUP and INT
//	daemon FILE        start a process that forks twice, leads a session of its own and appends its pid
//	wait FILE          until FILE exists
//	hang               for ever
//	exit CODE
//	die SIGNAL         KILL or TERM
type step []string

func script(steps ...step) string {
	text, _ := json.Marshal(steps)
	return string(text)
}

func agent(text string) int {
	var steps []step
	if err := json.Unmarshal([]byte(text), &steps); err != nil {
		fmt.Fprintln(os.Stderr, "read script:", err)
		return agentFailed
	}
	for _, s := range steps {
		if err := s.run(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", s[0], err)
			return agentFailed
		}
	}
	return 0
}

func (s step) arg(i int) string {
	if i < len(s) {
		return s[i]
	}
	return ""
}

func (s step) run() error {
	switch s[0] {
	case "append":
		return appendLine(s.arg(1), strings.ReplaceAll(s.arg(2), "{pid}", strconv.Itoa(os.Getpid())))
	case "print":
		return say([]byte(s.arg(1)))
	case "numbers":
		first, _ := strconv.Atoi(s.arg(1))
		n, _ := strconv.Atoi(s.arg(2))
		for i := range n {
			if err := say(fmt.Appendf(nil, "%012d\n", first+i)); err != nil {
				return err
			}
		}
	case "ticks":
		for i := 0; !exists(s.arg(1)); i++ {
			if err := say(fmt.Appendf(nil, "%012d\n", i)); err != nil {
				return err
			}
			<-time.After(time.Millisecond)
		}
		return say([]byte("last\n"))
	case "burst":
		n, _ := strconv.Atoi(s.arg(1))
		line := append(bytes.Repeat([]byte("x"), 99), '\n')
		chunk := bytes.Repeat(line, 64)
		for ; n > 0; n -= len(chunk) {
			if err := say(chunk[:min(n, len(chunk))]); err != nil {
				return err
			}
		}
	case "size":
		return tellSize(s.arg(1))
	case "input":
		return readInput(s.arg(1), s.arg(2))
	case "env":
		data, _ := json.Marshal(os.Environ())
		return writeWhole(s.arg(1), data)
	case "polite":
		polite(s.arg(1))
	case "ignore":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	case "daemon":
		return daemon(s.arg(1))
	case "wait":
		for !exists(s.arg(1)) {
			<-time.After(2 * time.Millisecond)
		}
	case "hang":
		for {
			<-time.After(time.Hour)
		}
	case "exit":
		code, _ := strconv.Atoi(s.arg(1))
		os.Exit(code)
	case "die":
		sig := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM}[s.arg(1)]
		signal.Reset(sig)
		_ = syscall.Kill(os.Getpid(), sig)
		<-time.After(time.Minute)
	default:
		return fmt.Errorf("there is no such step")
	}
	return nil
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func say(p []byte) error { _, err := os.Stdout.Write(p); return err }

func appendLine(file, text string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	_ = f.Close()
	return err
}

// writeWhole makes a file appear with its whole content.
func writeWhole(file string, data []byte) error {
	if err := os.WriteFile(file+".part", data, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".part", file)
}

func tellSize(file string) error {
	show := func() error {
		ws, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		if err != nil {
			return err
		}
		return appendLine(file, fmt.Sprintf("%dx%d", ws.Row, ws.Col))
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for range changed {
			_ = show()
		}
	}()
	return show()
}

func readInput(file, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	if err := rawMode(0); err != nil {
		return err
	}
	if err := appendLine(file+".ready", "ready"); err != nil {
		return err
	}
	var got []byte
	buf := make([]byte, 4096)
	for len(got) < n {
		k, err := os.Stdin.Read(buf)
		if err != nil {
			return err
		}
		got = append(got, buf[:k]...)
	}
	return writeWhole(file, got)
}

func polite(file string) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	go func() {
		sig := <-asked
		_ = appendLine(file, sig.String())
		os.Exit(0)
	}()
}

// daemon starts an intermediate process that starts the last one and ends: nothing of descent, session,
// terminal or nonce ties it to the seat.
func daemon(file string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bare := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, agentVar+"=") || strings.HasPrefix(kv, seat.NonceVar+"=")
	})
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	last := script(step{"ignore"}, step{"append", file, "{pid}"}, step{"hang"})
	if os.Getenv(agentVar+"_AGAIN") == "" {
		cmd := exec.Command(self, agentArg)
		cmd.Env = append(bare, agentVar+"_AGAIN=1", agentVar+"="+script(step{"daemon", file}))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, null
		return cmd.Run()
	}
	cmd := exec.Command(self, agentArg)
	cmd.Env = append(bare, agentVar+"="+last)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, null
	return cmd.Start()
}

func rawMode(fd int) error {
	t, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, setTermios, t)
}
