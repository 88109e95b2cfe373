//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// relay stands between viewers and the socket of a seat, and can be cut.
type relay struct {
	t        *testing.T
	path, to string
	mu       sync.Mutex
	l        net.Listener
	conns    []net.Conn
}

// relay takes the place of the seat's socket.
func (s *stage) relay(seatID string) *relay {
	s.t.Helper()
	rec, err := record.ReadSeat(filepath.Join(s.SeatRoot, seatID))
	if err != nil {
		s.t.Fatal(err)
	}
	r := &relay{t: s.t, path: rec.Socket, to: rec.Socket + "r"}
	if err := os.Rename(r.path, r.to); err != nil {
		s.t.Fatal(err)
	}
	r.join()
	return r
}

func (r *relay) join() {
	r.t.Helper()
	l, err := net.Listen("unix", r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.l = l
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", r.to)
			if err != nil {
				from.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, from, to)
			r.mu.Unlock()
			pass := func(a, b net.Conn) { // ends, and ends the other way, when either side has
				_, _ = io.Copy(a, b)
				a.Close()
				b.Close()
			}
			go pass(from, to)
			go pass(to, from)
		}
	}()
}

func (r *relay) cut() {
	r.l.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// leave gives the seat its socket back.
func (r *relay) leave() {
	r.t.Helper()
	r.cut()
	if err := os.Rename(r.to, r.path); err != nil {
		r.t.Fatal(err)
	}
}

// children are the processes a process has started, whichever of its threads did.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // of a thread that ended meanwhile
		for _, f := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// What is typed while no link stands never reaches the agent: before the terminal is live, after its client
// was killed, and, where the client outlives the link, while it is joined again.
func TestFieldD6_KeysTypedWithoutALinkAreDropped(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		read := s.reader("keys", "")
		row := s.AwaitStatus("keys", "running")
		var link *relay
		if s.runtime == "pty" {
			link = s.relay(row.SeatID)
		}
		d := s.desk(30, 100)
		want := ""
		// press types a text at a terminal that may not be live yet, until it arrives; early counts as nothing.
		press := func(text string) {
			t.Helper()
			d.typed(text)
			want += text
			await(t, harness.DefaultWait, fmt.Sprintf("%q arrives", text), func() (bool, string) { return strings.HasSuffix(read(), text), read() })
			if got := read(); got != want {
				t.Fatalf("the agent has read %q, want %q", got, want)
			}
		}
		live := func() *seated {
			t.Helper()
			c := d.run("attach", "keys")
			await(t, harness.DefaultWait, "a terminal is attached", func() (bool, string) {
				n := s.Inspect("keys").Attached
				return n == 1, fmt.Sprintf("%d are; it was shown %q", n, c.shown())
			})
			c.see("ready")
			return c
		}
		d.typed("EARLY")
		c := live()
		press("one;")
		// The client is killed: by itself, and with the program that shows the terminal.
		kids := children(t, c.cmd.Process.Pid)
		_ = c.cmd.Process.Kill()
		for _, pid := range kids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // a child of the command that was started above
		}
		c.wait()
		await(t, harness.DefaultWait, "nobody is attached", func() (bool, string) {
			n := s.Inspect("keys").Attached
			return n == 0, fmt.Sprintf("%d are", n)
		})
		d.typed("LATE")
		c = live()
		press("two;")
		if link != nil {
			link.cut()
			c.see("reconnecting; what you type now is dropped")
			d.typed("XYZ")
			d.taken()
			link.join()
			c.see("reconnected")
			c.see("bytes typed meanwhile were dropped")
			press("three;")
		} else {
			// Here the program that shows the terminal holds no link it could join again: with its server it ends.
			if out := s.CLI("logs", "keys").OK().Stderr; !strings.Contains(out, "runtime tmux keeps no output") {
				t.Errorf("logs says %q", out)
			}
		}
		if code := c.leave(s.detach); code != 0 {
			t.Errorf("leaving ends with code %d; shown %q", code, c.shown())
		}
		if link != nil {
			link.leave()
		}
		s.arrives("keys", read, want)
	})
}

// Whichever way an attach ends, the terminal is as it was.
func TestFieldD7_TheTerminalIsGivenBackOnEveryWayOut(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		row := s.Spawn("full", "sh", "-c", `stty raw -echo; printf '\033[?1000h\033[?1002h\033[?1003h\033[?1006h\033[?2004h\033[?25l\033[?1049hfull screen'; exec sleep 600`)
		s.shows("full", "full screen")
		d := s.desk(30, 100)
		attach := func() *seated {
			t.Helper()
			c := d.run("attach", "full")
			c.see("full screen")
			c.see("\x1b[?1049h")
			c.see("\x1b[?1006h")
			return c
		}
		c := attach()
		if code := c.leave(s.detach); code != 0 || !strings.Contains(c.shown(), "detached from full") {
			t.Errorf("detach ends with code %d", code)
		}
		c.atRest("detach")

		c = attach()
		if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := c.wait(); code != 130 || !strings.Contains(c.shown(), "goes on running") {
			t.Errorf("SIGTERM ends with code %d; shown %q", code, c.shown())
		}
		c.atRest("SIGTERM")

		c = attach()
		s.host.Kill() // nobody's terminal hangs on a host
		if code := c.leave(s.detach); code != 0 && s.runtime == "pty" {
			t.Errorf("detach without a host ends with code %d; shown %q", code, c.shown())
		}
		c.atRest("death of the host")
		s.host = s.Start(harness.HostOptions{})
		s.AwaitStatus("full", "running")

		c = attach()
		s.KillPID(row.PID)
		if code := c.wait(); code == 0 || !strings.Contains(c.shown(), "SIGKILL") {
			t.Errorf("the death of the agent ends with code %d; shown %q", code, c.shown())
		}
		c.atRest("death of the agent")
	})
}

// A program that has drawn and is silent is shown to the second viewer as to the first.
func TestFieldD8_ALateViewerSeesTheSameScreen(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		draw := filepath.Join(s.Dir, "draw")
		if err := os.WriteFile(draw, []byte("main screen\r\n\x1b[?1049h\x1b[2J\x1b[1;1H+----------+\x1b[2;1H| \x1b[1;31mbox\x1b[m \x1b[44m日本\x1b[m |\x1b[3;1H+----------+"+
			"\x1b[30;95Hcorner\x1b[12;40H\x1b[7mreverse\x1b[m\x1b[2;4H"), 0o600); err != nil {
			t.Fatal(err)
		}
		gate := filepath.Join(s.Dir, "gate")
		s.Spawn("box", "sh", "-c", `stty raw -echo; while [ ! -e `+gate+` ]; do sleep 0.02; done; cat `+draw+`; exec sleep 600`)
		command := "exec " + filepath.Join(s.Bin, "cotal") + " attach box"
		// The first viewer is there when it draws.
		first := s.emulator("first", 30, 100, command)
		await(t, harness.DefaultWait, "a terminal is attached", func() (bool, string) { return s.Inspect("box").Attached == 1, first.drawn() })
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		first.see("reverse")
		want := first.drawn()
		for _, text := range []string{"+----------+", "box", "日本", "corner", "reverse", "cursor 3,1 1"} {
			if !strings.Contains(want, text) {
				t.Errorf("the first viewer lacks %q:\n%s", text, want)
			}
		}
		same := func(who string, e *emulator) {
			t.Helper()
			ok, got := harness.Poll(harness.DefaultWait, func() (bool, string) { got := e.drawn(); return got == want, got })
			if !ok {
				t.Errorf("%s sees:\n%q\nwant:\n%q", who, got, want)
			}
		}
		first.end()
		for i := range 3 {
			e := s.emulator(fmt.Sprintf("late%d", i), 30, 100, command)
			e.see("reverse")
			same(fmt.Sprintf("late viewer %d", i), e)
			e.end()
		}
	})
}

// A viewer that could not keep up, and one that came in the middle, end with the screen of one that saw it all,
// and are never shown a piece of a sequence.
func TestFieldD10_NoSequenceIsCut(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		// Coloured lines of which no size in bytes meets a border, more of them than anything keeps.
		lines := filepath.Join(s.Dir, "lines")
		var b strings.Builder
		for i := range 40000 {
			fmt.Fprintf(&b, "\x1b[38;2;%d;%d;30mcolour\x1b[0m \x1b[1;4m漢字\x1b[m %06d \x1b[48;5;%dmxxxxxxxxxxxx\x1b[m\r\n", i%250, i%120, i, i%200)
		}
		if err := os.WriteFile(lines, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		gate, half := filepath.Join(s.Dir, "gate"), filepath.Join(s.Dir, "half")
		s.Spawn("many", "sh", "-c", `stty raw -echo; printf 'begun\r\n'; while [ ! -e `+gate+` ]; do sleep 0.02; done; cat `+lines+`; echo >`+half+
			`; i=0; while [ $i -lt 20 ]; do head -n 100 `+lines+`; sleep 0.05; i=$((i+1)); done; printf '\033[2J\033[H'; tail -n 20 `+lines+`; printf 'all told'; exec sleep 600`)
		command := "exec " + filepath.Join(s.Bin, "cotal") + " attach many"
		whole := s.emulator("whole", 30, 100, command)
		await(t, harness.DefaultWait, "a terminal is attached", func() (bool, string) { return s.Inspect("many").Attached == 1, whole.drawn() })
		slow := s.emulator("slow", 30, 100, command)
		slow.see("begun")
		var pid int
		if _, err := fmt.Sscan(slow.call("display-message", "-p", "#{pid}"), &pid); err != nil || pid <= 1 {
			t.Fatalf("pid %d of the slow terminal: %v", pid, err)
		}
		// It takes no output while the whole flood comes.
		stop := func(sig syscall.Signal) {
			err := syscall.Kill(pid, sig) // the server started above
			if err == nil && sig == syscall.SIGSTOP {
				err = harness.AwaitStopped(pid)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		stop(syscall.SIGSTOP)
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			stop(syscall.SIGCONT)
			t.Fatal(err)
		}
		ok, _ := harness.Poll(harness.DefaultWait, func() (bool, string) { text, _ := os.ReadFile(half); return string(text) == "\n", "" })
		stop(syscall.SIGCONT)
		if !ok {
			t.Fatal("a terminal that takes no output holds up the agent")
		}
		late := s.emulator("late", 30, 100, command)
		for _, e := range []*emulator{whole, late, slow} {
			e.see("all told")
		}
		want := whole.drawn()
		for name, e := range map[string]*emulator{"the late viewer": late, "the slow viewer": slow} {
			ok, got := harness.Poll(harness.DefaultWait, func() (bool, string) { got := e.drawn(); return got == want, got })
			if !ok {
				t.Errorf("%s sees:\n%q\nwant:\n%q", name, got, want)
			}
			// What scrolled by holds whole lines of the agent and lines of ours, and no rest of a sequence.
			for line := range strings.Lines(e.call("capture-pane", "-p", "-S", "-")) {
				for _, rest := range []string{"38;2", "48;5", "[1;4m", "[0m", "[m", ";30m"} {
					if strings.Contains(line, rest) {
						t.Errorf("%s was shown a piece of a sequence: %q", name, line)
					}
				}
			}
		}
		if r := s.CLI("logs", "--raw", "many"); s.runtime == "tmux" {
			// It keeps no output that could be followed from a byte on: the screen is what there is.
			if f := s.CLI("logs", "-f", "many").Want(1); !strings.Contains(f.Stderr, "runtime tmux keeps no output that could be followed") {
				t.Errorf("%v", f)
			}
			if !strings.Contains(r.OK().Stdout, "all told") {
				t.Errorf("%v", r)
			}
		}
	})
}

// What an agent prints is data, whatever it looks like: frames of the seat's protocol, words of a multiplexer,
// orders to a terminal.
func TestFieldD16_OutputIsNeverTakenForControl(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		forged := seat.AppendExit(seat.AppendRequest(nil, seat.TypeResize, 1, seat.AppendSize(nil, 5, 5)), seat.Status{State: seat.StateExited}, seat.ExitRecord{Code: 7})
		forged = append(forged, seat.AppendRequest(nil, seat.TypeSignal, 2, []byte{byte(seat.ActionKill)})...)
		touched := filepath.Join(s.Dir, "touched")
		orders := "%exit\r\n%begin 1 1 1\r\n\x1bPtmux;\x1b\x1b]52;c;c3RvbGVu\x07\x1b\\\x1bP1000pkill-server\x1b\\\x1bktitle #(touch " + touched + ")\x1b\\" +
			"\x1b]2;#{q:pane_pid} #(touch " + touched + ")\x07\x1b[8;5;5t\x1b]52;c;c3RvbGVu\x07"
		file := filepath.Join(s.Dir, "forged")
		if err := os.WriteFile(file, append(append([]byte("\x18"), forged...), ("\x18"+orders)...), 0o600); err != nil {
			t.Fatal(err)
		}
		gate := filepath.Join(s.Dir, "gate")
		row := s.Spawn("forger", "sh", "-c", `stty raw -echo; printf 'before\r\n'; while [ ! -e `+gate+` ]; do sleep 0.02; done; cat `+file+
			`; printf '\033[mafter\r\n'; stty size; head -c 3 >`+file+`.got; printf 'typed'; exec sleep 600`)
		term := s.desk(30, 100).run("attach", "forger")
		term.see("before")
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		term.see("after")
		term.see("30 100")
		if shown := term.shown(); strings.Contains(shown, "]52;") {
			t.Errorf("the clipboard of the terminal was written: %q", shown)
		}
		if s.runtime == "pty" { // there every byte is kept
			if out := s.CLI("logs", "--raw", "forger").OK().Stdout; !strings.Contains(out, string(forged)) || !strings.Contains(out, orders) {
				t.Errorf("what was printed is not what is kept: %q", out)
			}
		}
		if got := s.Inspect("forger"); got.Status != "running" || got.PID != row.PID || got.Exit != nil {
			t.Errorf("it is %+v", got)
		}
		await(t, harness.DefaultWait, "the terminal is attached", func() (bool, string) {
			n := s.Inspect("forger").Attached
			return n == 1, fmt.Sprintf("%d are", n)
		})
		if code := term.leave(s.detach); code != 0 {
			t.Errorf("leaving ends with code %d; shown %q", code, term.shown())
		}
		await(t, harness.DefaultWait, "it takes input", func() (bool, string) {
			r := s.CLI("input", "forger", "--text", "ok")
			return r.Code == 0, r.String()
		})
		s.shows("forger", "typed")
		if got := read(t, file+".got"); got != "ok\r" {
			t.Errorf("it has read %q", got)
		}
		if _, err := os.Stat(touched); err == nil {
			t.Error("a part of the output was run")
		}
	})
}

// The last size that a terminal can have counts; none of zero reaches the program, and none it would need
// gigabytes for.
func TestFieldD17_AbsurdSizesDoNotReachTheProgram(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		file := filepath.Join(s.Dir, "sizes")
		s.Spawn("sized", "sh", "-c", `stty -echo; trap 'stty size >>`+file+`' WINCH; echo ready; while :; do sleep 0.02; done`)
		s.shows("sized", "ready")
		d := s.desk(30, 100)
		term := d.run("attach", "sized")
		sizes := func() []string {
			text, _ := os.ReadFile(file)
			return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		}
		last := func(want string) {
			t.Helper()
			await(t, harness.DefaultWait, "the program has size "+want, func() (bool, string) {
				all := sizes()
				return all[len(all)-1] == want, fmt.Sprint(all)
			})
		}
		last("30 100")
		before := s.resident()
		for _, step := range []struct {
			rows, cols uint16
			want       string
		}{
			{0, 0, ""}, {1, 1, "1 1"}, {0, 0, ""}, {40, 120, "40 120"}, {1000, 1000, "1000 1000"}, {65535, 65535, "1000 1000"}, {0, 0, ""}, {0, 7, ""}, {50, 200, "50 200"},
		} {
			if step.rows > 1000 && s.runtime == "tmux" {
				continue // see below
			}
			d.size(step.rows, step.cols)
			if step.want != "" {
				last(step.want)
			}
		}
		if grown := s.resident() - before; grown > 256<<20 { // a screen of a million cells is one of them
			t.Errorf("the sizes cost %d MiB", grown>>20)
		}
		for _, size := range sizes() {
			var rows, cols int
			if n, _ := fmt.Sscan(size, &rows, &cols); n != 2 || rows < 1 || cols < 1 || rows > 1000 || cols > 1000 {
				t.Errorf("the program was given the size %q", size)
			}
		}
		if code := term.leave(s.detach); code != 0 {
			t.Errorf("leaving ends with code %d; shown %q", code, term.shown())
		}
		// A terminal that begins with such a size: its seat is not given it. tmux draws all of it, which takes
		// minutes, so its client is not started there.
		d.size(65535, 65535)
		term = d.run("attach", "sized")
		if s.runtime == "pty" {
			last("1000 1000")
			d.size(50, 200)
			last("50 200")
			if code := term.leave(s.detach); code != 0 {
				t.Errorf("leaving ends with code %d; shown %q", code, term.shown())
			}
		} else if code := term.wait(); code != 1 || !strings.Contains(term.shown(), "65535 x 65535") {
			t.Errorf("a terminal of 65535 x 65535: code %d, shown %q", code, term.shown())
		}
		if row := s.AwaitStatus("sized", "running"); row.Exit != nil {
			t.Errorf("it is %+v", row)
		}
	})
}

// resident is the memory of everything that runs in a world, in bytes.
func (s *stage) resident() (sum int) {
	s.t.Helper()
	for _, p := range s.Procs() {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
		for line := range strings.Lines(string(text)) {
			var kib int
			if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
				sum += kib << 10
			}
		}
	}
	return sum
}
