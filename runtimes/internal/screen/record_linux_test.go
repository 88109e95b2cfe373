package screen

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// go test ./runtimes/internal/screen -run TestRecord -record vim,less,htop,tmux,opencode
// makes the recordings in testdata anew. COTAL_OPENCODE_BIN names OpenCode's binary, OPENCODE_CONFIG_DIR
// a configuration with a model that is not asked.
var recordNames = flag.String("record", "", "programs to record, separated by commas")

// recording is a program and the keys it is given, each after its output has been quiet for a moment.
type recording struct {
	name       string
	rows, cols int
	argv       []string
	keys       []string
	files      map[string]string
}

var someText = "package main\n\n// 漢字 and 🙂 are wide, é is not, e\u0301 is two runes.\nfunc main() {\n\tprintln(\"hello\\tworld\")\n}\n" +
	strings.Repeat("// a line that is longer than the screen is wide, so that it has to be wrapped by whoever shows it, twice even\n", 12) +
	strings.Repeat("\tfor i := range 10 { println(i) } // ─── box │ drawing ───\n", 60)

var recordings = []recording{
	{
		name: "vim", rows: 24, cols: 80, argv: []string{"vim", "-u", "NONE", "-N", "text.go"},
		keys:  []string{":set number hlsearch\r", ":syntax on\r", "\x06", "\x06", "/range\r", ":split\r", "gg", ":vsplit\r", "dd", "Ohello 漢字 wor\x1b", "\x04", "\x15", ":set nowrap\r", "u"},
		files: map[string]string{"text.go": someText},
	},
	{
		name: "less", rows: 24, cols: 80, argv: []string{"less", "-R", "-N", "text.go"},
		keys:  []string{" ", " ", "b", "/range\r", "n", "G", "g", "\x1b[C", "\x1b[D", "-S\r", "d", "u"},
		files: map[string]string{"text.go": "\x1b[1;33mcolours\x1b[0m and \x1b[7mreverse\x1b[0m\n" + someText},
	},
	{name: "htop", rows: 30, cols: 100, argv: []string{"sh", "-c", "sleep 1000 & exec htop -d 5 -p $!"}, keys: []string{"t", "\x1b[B", "I", "?", " ", "\x1bOQ", "\x1b[B", "\x1b"}},
	{
		name: "tmux", rows: 24, cols: 80,
		argv: []string{"tmux", "-L", "SOCKET", "-f", "/dev/null", "new-session", "-x", "80", "-y", "24", "sh", ";", "set", "status-right", ""},
		keys: []string{"seq 1 40\r", "\x02\"", "printf '\\033[1;35mpurple\\033[m 漢字 🙂\\n'\r", "\x02%", "seq 1 100\r", "\x02;", "cat text.go\r", "\x02z", "\x02z", "\x02[", "\x1b[A", "\x1b[A", "q"},
		files: map[string]string{
			"text.go": someText,
		},
	},
	{name: "opencode", rows: 30, cols: 100, argv: []string{"OPENCODE"}, keys: []string{"hello, 漢字", "\x1b[D\x1b[D", "\x10", "mod", "\x1b", "\x7f\x7f"}},
}

func TestRecord(t *testing.T) {
	if *recordNames == "" {
		t.Skip("for recording only: see -record")
	}
	for name := range strings.SplitSeq(*recordNames, ",") {
		for _, r := range recordings {
			if r.name == name {
				r.record(t)
			}
		}
	}
}

func (r recording) record(t *testing.T) {
	dir := "/tmp/cotal-recording-" + r.name
	if err := os.MkdirAll(filepath.Join(dir, "project"), 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	work := filepath.Join(dir, "project")
	for name, text := range r.files {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	master, slave := openPTY(t, r.rows, r.cols)
	defer master.Close()
	argv := r.argv
	socket := fmt.Sprintf("rec%d", os.Getpid())
	for i, a := range argv {
		argv[i] = strings.ReplaceAll(strings.ReplaceAll(a, "SOCKET", socket), "OPENCODE", os.Getenv("COTAL_OPENCODE_BIN"))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = work
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Env = []string{"TERM=xterm-256color", "COLORTERM=truecolor", "HOME=" + dir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "PS1=$ ", "HTOPRC=/dev/null", "LESSHISTFILE=-", "USER=user"}
	for _, name := range []string{"OPENCODE_CONFIG_DIR", "OPENCODE_CONFIG"} {
		if v := os.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	var mu sync.Mutex
	var stream []byte
	last := time.Now()
	s, err := New(Config{Rows: r.rows, Cols: r.cols, Answer: func(_ uint64, p []byte) { _, _ = master.Write(p) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 32<<10)
		for {
			n, err := master.Read(buf)
			if n > 0 {
				mu.Lock()
				s.Feed(uint64(len(stream)), buf[:n])
				stream = append(stream, buf[:n]...)
				for s.Step() == 0 {
				}
				last = time.Now()
				mu.Unlock()
			}
			if err != nil {
				return
			}
		}
	}()
	quiet := func(d time.Duration) {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			<-time.After(20 * time.Millisecond)
			mu.Lock()
			calm := time.Since(last) > d
			mu.Unlock()
			if calm {
				return
			}
		}
	}
	settle := 400 * time.Millisecond
	if r.name == "opencode" {
		<-time.After(8 * time.Second)
		settle = 700 * time.Millisecond
	}
	quiet(settle)
	for _, k := range r.keys {
		_, _ = master.Write([]byte(k))
		quiet(settle)
	}
	mu.Lock()
	out := append([]byte(nil), stream...)
	mu.Unlock()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
	if r.name == "tmux" {
		_ = exec.Command("tmux", "-L", socket, "kill-server").Run()
	}
	name := fmt.Sprintf("testdata/%s-%dx%d.rec", r.name, r.rows, r.cols)
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, out, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d bytes", name, len(out))
}

func openPTY(t *testing.T, rows, cols int) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(cols)}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}
