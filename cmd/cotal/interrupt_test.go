//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Ctrl-C was swallowed while a command read its text from the terminal: only the end of the input ended it.
func TestCtrlCEndsACommandThatReadsStandardInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []string{
		"personas define q --agent command --from -", "input r1 --text -", "invoke manager ps --args -", "send general -",
	} {
		t.Run(c, func(t *testing.T) {
			t.Parallel()
			s := r.typed("half\n", strings.Fields(c)...)
			s.see("half") // the terminal has it
			eventually(t, "the command reads", func() bool {
				n, err := unixInq(int(s.pts.Fd()))
				return err == nil && n == 0
			})
			s.send("\x03")
			if code, text := s.wait(); code != 130 || !strings.Contains(text, "interrupted; nothing was sent") {
				t.Errorf("exit code %d, %q", code, text)
			}
		})
	}
}

// The same of a named pipe, which is waited for when it is opened.
func TestCtrlCEndsTheWaitForANamedPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := readText(ctx, strings.NewReader(""), "--from", fifo); cli.CodeOf(err) != cli.Interrupted {
		t.Errorf("%v", err)
	}
	if f, err := os.OpenFile(fifo, os.O_RDWR|syscall.O_NONBLOCK, 0); err == nil { // lets the open end
		defer f.Close()
	}
}

// What a text is given by is named when it is too large, and not the flag of another command.
func TestATextThatIsTooLargeNamesItsFlag(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := strings.Repeat("x", textMax+1)
	for c, want := range map[string]string{
		"invoke manager ps --args -":                    "--args is read from standard input, which has more than 262144 bytes",
		"personas define q --agent command --from -":    "--from is read from standard input",
		"personas define q --agent command --from long": "--from is read from long",
		"send general -":                                "the text is read from standard input",
		"input r1 --text -":                             "--text is read from standard input, which has more than 65536 bytes",
	} {
		if err := os.WriteFile(filepath.Join(r.root, "long"), []byte(long), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, said := r.pipe(long, strings.Fields(c)...); code != 2 || !strings.Contains(said, want) {
			t.Errorf("%s: exit code %d, %q", c, code, said)
		}
	}
}

const someGoal = "3kTMd0c2rX9sVq1bYw8ZfA"

// Who interrupted the connect was told that the server is unreachable, exit code 3, and to look at its log.
func TestCtrlCWhileConnectingIsNoUnreachableServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []string{
		"ps", "ps --watch", "ps --all", "status", "roster", "models", "describe", "attach --mesh r1", "attach r1", "logs r1", "inspect r1",
		"stop r1", "stop r1 r2", "input r1 --text x", "goal " + someGoal + " --follow", "goal " + someGoal, "history general", "send general x",
		"personas list", "personas define q --agent command --prompt x", "purge --yes", "invoke manager ps", "ext list", "ext restart pty",
		"spawn --agent command --name x --detach -- true",
	} {
		t.Run(c, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections and never speaks
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s := r.run(append([]string{"--server", "nats://" + l.Addr().String(), "--timeout", "1m"}, strings.Fields(c)...)...)
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			s.interrupted(t)
		})
	}
}

// interrupted sends what Ctrl-C does, and holds what is said then to be the truth.
func (s *screen) interrupted(t *testing.T) string {
	t.Helper()
	_ = s.cmd.Process.Signal(os.Interrupt)
	eventually(t, "it says that it was interrupted: "+strings.Join(s.cmd.Args[1:], " "), func() bool { return strings.Contains(s.text(), "interrupted") })
	code, text := s.wait()
	if code != 130 {
		t.Errorf("exit code %d, %q; want 130", code, text)
	}
	for _, invented := range []string{"unreachable", "look at its log", "no host answers", "does not answer", "timeout"} {
		if strings.Contains(text, invented) {
			t.Errorf("it says %q, which nobody knows: %q", invented, text)
		}
	}
	return text
}

// actorToken is who calls, in the subject of a request.
var actorToken = regexp.MustCompile(`\bU[A-Z2-7]{55}\b`)

// tap hears every request to a manager that a server carries. What it returns waits for one of a caller that it has not
// waited for before: what another repeated comes late, perhaps.
func tap(t *testing.T, b *harness.Broker) (command func(name string)) {
	t.Helper()
	token, err := os.ReadFile(b.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.URL, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"auth_token\":%q}\r\nSUB > 1\r\nPING\r\n", strings.TrimSpace(string(token)))
	in := bufio.NewReader(conn)
	lines := make(chan string, 4096)
	ready := make(chan struct{})
	go func() {
		for {
			line, err := in.ReadString('\n')
			switch {
			case err != nil:
				return
			case strings.HasPrefix(line, "PONG"):
				close(ready)
			case strings.HasPrefix(line, "PING"):
				fmt.Fprint(conn, "PONG\r\n")
			case strings.HasPrefix(line, "MSG "):
				select {
				case lines <- line:
				default:
				}
			}
		}
	}()
	<-ready
	known := map[string]bool{}
	return func(name string) {
		t.Helper()
		limit := time.After(waitFor)
		for {
			select {
			case line := <-lines:
				if strings.Contains(line, ".manager.") && strings.Contains(line, "."+name+".") && !known[actorToken.FindString(line)] {
					known[actorToken.FindString(line)] = true
					return
				}
			case <-limit:
				t.Fatalf("nobody asked for %s", name)
			}
		}
	}
}

// A host that hangs is asked, and the wait is interrupted.
func TestCtrlCWhileTheHostIsSilentIsNoUnreachableHost(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	b := w.StartBroker()
	h := w.Start(harness.HostOptions{})
	w.Spawn("deaf", "sh", "-c", "trap '' TERM HUP; while :; do sleep 600; done")
	r := worldRig(t, w)
	asked := tap(t, b)

	s := r.run("stop", "deaf")
	asked("despawn")
	if text := s.interrupted(t); !strings.Contains(text, "deaf is being ended") || !strings.Contains(text, "cotal inspect deaf") {
		t.Errorf("%q", text)
	}

	h.Signal(syscall.SIGSTOP)
	defer h.Signal(syscall.SIGCONT)
	for _, c := range []string{
		"ps", "ps --watch", "ps --all", "status", "models", "describe", "attach --mesh deaf", "attach deaf", "logs deaf", "inspect deaf", "stop deaf",
		"input deaf --text x", "goal " + someGoal, "goal " + someGoal + " --follow", "personas list", "personas define q --agent command --prompt x",
		"purge --yes", "invoke manager ps", "invoke manager ps --all", "ext list", "ext restart pty", "send @deaf x",
		"spawn --agent command --name x --detach -- true",
	} {
		s := r.runEnv([]string{"XDG_STATE_HOME=" + t.TempDir()}, strings.Fields(c)...) // each is another caller
		asked("describe")
		if text := s.interrupted(t); strings.Contains(text, "may have been") {
			t.Errorf("%s: only what it serves was asked, and it says %q", c, text)
		}
	}
}

// What is said of who is not there was invented: a host that does not answer, a goal that goes on.
func TestWhatNobodyKnowsIsNotSaid(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	for _, args := range [][]string{{"invoke", "nosuch", "ps"}, {"describe", "--endpoint", "nosuch"}} {
		if r := w.CLI(args...).Want(4); !strings.Contains(r.Stderr, "serves an endpoint nosuch; the host is the endpoint manager") {
			t.Errorf("%v", r)
		}
	}
	if r := w.CLI("--server", w.Endpoint().URL, "ps").Want(1); !strings.Contains(r.Stderr, "no token was sent: name ") {
		t.Errorf("%v", r)
	}
	for command, want := range map[string]string{"ps": "no host serves space other at ", "status": "nobody in space other at "} {
		r := w.CLI("--space", "other", command).Want(3)
		if !strings.Contains(r.Stderr, want) || strings.Contains(r.Stderr, "does not answer") || strings.Contains(r.Stderr, w.Endpoint().InstanceID) {
			t.Errorf("%v", r)
		}
	}
	if r := w.CLI("stop", "").Want(2); !strings.Contains(r.Stderr, "<seat> is empty") {
		t.Errorf("%v", r)
	}
	s := worldRig(t, w).run("goal", someGoal, "--follow")
	s.see("the host knows nothing of goal")
	if text := s.interrupted(t); strings.Contains(text, "the goal goes on") || !strings.Contains(text, "nothing is known of goal") {
		t.Errorf("%q", text)
	}
}
