//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// questions are what a program asks its terminal, with the answers that may come; none: no answer is due.
var questions = map[string]struct {
	ask     string
	answers []string
}{
	"position":   {"\x1b[6n", nil}, // where the question was asked
	"status":     {"\x1b[5n", []string{"\x1b[0n"}},
	"device":     {"\x1b[c", []string{"\x1b[?62;22c", "\x1b[?1;2c"}},         // of the mirror, of a tmux
	"size":       {"\x1b[18t", []string{"\x1b[8;32;120t", "\x1b[8;120;32t"}}, // a tmux before 3.4 names the columns first
	"background": {"\x1b]11;?\x07", []string{"\x1b]11;rgb:0000/0000/0000\x07"}},
	"keyboard":   {"\x1b[?u", []string{"\x1b[?0u"}},
}

// askerArg makes this test program an agent that asks: askerArg LOG QUESTION,... . Every question is asked at
// a place of its own; its log holds "N NAME MILLISECONDS ANSWER" a line, with everything that came until a
// moment after the answer. Once LOG.stop exists it reads on for a while, logs what came as "end", and stays.
const askerArg = "field-d-asker"

func init() {
	if len(os.Args) == 4 && os.Args[1] == askerArg {
		if err := askAll(os.Args[2], strings.Split(os.Args[3], ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(125)
		}
	}
}

func askAll(log string, names []string) error {
	if _, err := term.MakeRaw(0); err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// read takes what comes within d, at most until an answer is complete.
	read := func(d time.Duration, whole bool) (got []byte, err error) {
		buf := make([]byte, 4096)
		for until := time.Now().Add(d); ; {
			left := time.Until(until)
			if left <= 0 || whole && len(got) > 2 && strings.IndexByte("Rncut\x07", got[len(got)-1]) >= 0 {
				return got, nil
			}
			n, err := unix.Poll([]unix.PollFd{{Fd: 0, Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if n <= 0 || err != nil {
				if err != nil && !errors.Is(err, unix.EINTR) {
					return got, err
				}
				continue
			}
			if n, err = unix.Read(0, buf); err != nil || n == 0 {
				return got, fmt.Errorf("the terminal is gone: %w", err)
			}
			got = append(got, buf[:n]...)
		}
	}
	for i := 0; ; i++ {
		if _, err := os.Stat(log + ".stop"); err == nil {
			break
		}
		name := names[i%len(names)]
		q := questions[name]
		if _, err := fmt.Fprintf(os.Stdout, "\x1b[%d;%dH%s", i%20+1, i%30+1, q.ask); err != nil {
			return err
		}
		begun := time.Now()
		got, err := read(30*time.Second, true)
		if err != nil {
			return err
		}
		took := time.Since(begun)
		more, err := read(4*time.Millisecond, false)
		if err != nil {
			return err
		}
		fmt.Fprintf(f, "%d %s %d %q\n", i, name, took.Milliseconds(), append(got, more...))
	}
	late, err := read(700*time.Millisecond, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(f, "end end 0 %q\n", late)
	for {
		_ = unix.Pause()
	}
}

// asker is a seat with an agent that asks.
type asker struct {
	t         *testing.T
	name, log string
}

func (s *stage) asker(name string, names ...string) *asker {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	a := &asker{s.t, name, filepath.Join(s.Dir, name+".log")}
	s.Spawn(name, self, askerArg, a.log, strings.Join(names, ","))
	return a
}

type answer struct {
	n, name string
	ms      int
	text    string
}

func (a *asker) answers() (all []answer) {
	text, _ := os.ReadFile(a.log)
	for line := range bytes.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), " ", 4)
		if len(f) != 4 || !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		one := answer{n: f[0], name: f[1]}
		one.ms, _ = strconv.Atoi(f[2])
		one.text, _ = strconv.Unquote(f[3])
		all = append(all, one)
	}
	return all
}

// more waits until some more questions are answered.
func (a *asker) more(n int) {
	a.t.Helper()
	from := len(a.answers())
	await(a.t, harness.DefaultWait, fmt.Sprintf("%d more questions are answered", n), func() (bool, string) {
		now := len(a.answers())
		return now >= from+n, fmt.Sprintf("%d are, %d were", now, from)
	})
}

// end ends the asking and returns every answer, judged: one for each question, the right one, and nothing
// behind the last. most is how long one may take.
func (a *asker) end(most time.Duration) []answer {
	a.t.Helper()
	if err := os.WriteFile(a.log+".stop", nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
	var all []answer
	await(a.t, harness.DefaultWait, "the asker has ended", func() (bool, string) {
		all = a.answers()
		return len(all) > 0 && all[len(all)-1].n == "end", fmt.Sprintf("%d answers", len(all))
	})
	if late := all[len(all)-1].text; late != "" {
		a.t.Errorf("after the last answer came %q", late)
	}
	all = all[:len(all)-1]
	for i, one := range all {
		right := questions[one.name].answers
		if one.name == "position" {
			right = []string{fmt.Sprintf("\x1b[%d;%dR", i%20+1, i%30+1)}
		}
		ok := false
		for _, want := range right {
			ok = ok || one.text == want
		}
		if !ok {
			a.t.Errorf("question %d (%s) was answered %q, want one of %q once", i, one.name, one.text, right)
		}
		if time.Duration(one.ms)*time.Millisecond > busy.Limit(most) {
			a.t.Errorf("question %d (%s) took %d ms", i, one.name, one.ms)
		}
	}
	return all
}

// With nobody attached the seat answers by itself, in order, also after the death of everybody but the seat.
func TestFieldD18_WithNobodyAttachedQuestionsAreAnswered(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		names := []string{"position", "device", "status", "size"}
		if s.runtime == "pty" {
			names = append(names, "background", "keyboard")
		} else {
			// tmux answers no question about colours with nobody attached, and none about a keyboard it has
			// not; a program asks for its device behind them, and that answer comes first and alone.
			questions := filepath.Join(s.Dir, "silent")
			s.Spawn("silent", "sh", "-c", `stty raw -echo; printf '\033]11;?\007\033]10;?\007\033[?u\033[c'; head -c 7 >`+questions+`; printf '\033[6n'; head -c 6 >>`+questions+`; printf 'answered'; exec sleep 600`)
			s.shows("silent", "answered")
			if got := read(t, questions); got != "\x1b[?1;2c\x1b[1;1R" {
				t.Errorf("answered %q", got)
			}
		}
		a := s.asker("asks", names...)
		a.more(12)
		s.host.Kill()
		if s.runtime == "tmux" { // the pty runtime answers by a plugin, which ends with the host
			a.more(12)
		}
		s.Start(harness.HostOptions{})
		a.more(24)
		most := 5 * time.Second
		if got := a.end(most); len(got) < 36 {
			t.Errorf("%d questions were asked", len(got))
		}
	})
}

// Twenty terminals that answer by themselves come and go while the agent asks; some leave, some are
// closed. Every question has one answer, and none is left in a terminal for the user's shell.
func TestFieldD19_EveryQuestionIsAnsweredOnceWhoeverComesAndGoes(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		a := s.asker("asks", "position", "device", "status")
		a.more(3)
		// The viewer before may not be missed yet, and who comes while it holds the keyboard only watches.
		over := map[string]string{"pty": "--take-over ", "tmux": ""}[s.runtime]
		attach := filepath.Join(s.Bin, "cotal") + " attach " + over + "asks; printf 'the shell\\n'; exec cat"
		for i := range 20 {
			e := s.emulator(fmt.Sprintf("viewer%d", i), 32, 120, attach)
			if i%2 == 0 { // the others leave wherever the agent, and they themselves, are just then
				await(t, harness.DefaultWait, "a terminal is attached", func() (bool, string) {
					n := s.Inspect("asks").Attached
					return n == 1, fmt.Sprintf("%d are; it shows %s", n, e.drawn())
				})
				a.more(4)
			}
			if i%4 == 0 {
				if s.runtime == "tmux" {
					s.detached("asks", e)
				} else {
					e.keys("C-]")
				}
				e.see("the shell")
				// What came late would stand before this.
				e.keys("l", "a", "s", "t", "Enter")
				e.see("last\nlast")
				if shell := e.call("capture-pane", "-p"); strings.Contains(shell, "^[") || strings.Contains(shell, ";2c") {
					t.Errorf("an answer is left for the shell:\n%s", shell)
				}
			}
			e.end()
		}
		await(t, harness.DefaultWait, "nobody is attached", func() (bool, string) { return s.Inspect("asks").Attached == 0, "" })
		a.more(3)
		by := map[string]int{}
		for _, one := range a.end(5 * time.Second) {
			if one.name == "device" {
				by[one.text]++
			}
		}
		if s.runtime == "pty" && (by["\x1b[?62;22c"] < 10 || by["\x1b[?1;2c"] < 10) {
			t.Errorf("seat and terminals answered %v: the test has not tried what it should", by)
		}
	})
}

// held counts what a process holds open, and its threads that wait for a terminal, or for a file that was closed
// under them. Who may not look at its threads counts none.
func held(t *testing.T, pid int) (fds, stuck int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	open, err := os.ReadDir(dir + "fd")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir(dir + "task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		var call int
		var fd uint64
		text, _ := os.ReadFile(dir + "task/" + thread.Name() + "/syscall")
		if n, _ := fmt.Sscanf(string(text), "%d 0x%x", &call, &fd); n != 2 || call != unix.SYS_READ {
			continue
		}
		file, err := os.Readlink(fmt.Sprintf("%sfd/%d", dir, fd))
		if err != nil || strings.HasPrefix(file, "/dev/ptmx") || strings.HasPrefix(file, "/dev/pts/") {
			stuck++
		}
	}
	return len(open), stuck
}

// Nothing of a seat waits for its terminal to be closed: neither by a descendant that left its session, nor by
// somebody who is none of its processes and goes on holding it.
func TestFieldD12_AHeldTerminalHoldsNobody(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		const seats = 6
		name := func(i int) string { return fmt.Sprintf("held%d", i) }
		// start starts a seat whose terminal a daemon holds, and holds it from outside.
		start := func(i int) (custody int, tty *os.File) {
			t.Helper()
			file := filepath.Join(s.Dir, name(i))
			row := s.Spawn(name(i), "sh", "-c", `setsid sh -c 'trap "" HUP; echo $$ >`+file+`.pid; exec sleep 600' <>/dev/tty & tty >`+file+`.tty; exec sleep 600`)
			var path string
			await(t, harness.DefaultWait, "the terminal is held", func() (bool, string) {
				daemon, _ := os.ReadFile(file + ".pid")
				text, _ := os.ReadFile(file + ".tty")
				path = strings.TrimSuffix(string(text), "\n")
				return strings.HasSuffix(string(daemon), "\n") && strings.HasSuffix(string(text), "\n"), string(text)
			})
			tty, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { tty.Close() })
			return row.SeatPID, tty
		}
		watched := map[string]int{"host": s.host.PID, s.runtime: s.PluginPID(s.runtime)}
		// One seat stays: what follows the screens does, too. Another makes what is made once.
		start(seats)
		if s.runtime == "pty" {
			await(t, harness.DefaultWait, "the screen is followed", func() (bool, string) {
				for _, pid := range children(t, watched["pty"]) {
					watched["mirror"] = pid
				}
				return watched["mirror"] != 0, ""
			})
		}
		_, tty := start(seats + 1)
		s.CLI("stop", name(seats+1)).OK()
		tty.Close()
		base := map[string]int{}
		for who, pid := range watched {
			base[who], _ = held(t, pid)
		}
		settled := func() (bool, string) {
			ok, all := true, ""
			for who, pid := range watched {
				fds, stuck := held(t, pid)
				all += fmt.Sprintf(" %s: %d files are open, %d were, %d threads wait for a terminal;", who, fds, base[who], stuck)
				ok = ok && fds <= base[who]+2 && stuck == 0
			}
			return ok, all
		}
		kept := len(s.ProcsLike("sleep 600")) // of the seat that stays
		var custodies []int
		for i := range seats {
			pid, _ := start(i)
			custodies = append(custodies, pid)
		}
		for i := range seats {
			begun := time.Now()
			s.CLI("stop", name(i)).OK()
			if took := time.Since(begun); took > busy.Limit(10*time.Second) {
				t.Errorf("stop took %v", took)
			}
		}
		ok, state := harness.Poll(busy.Limit(3*time.Second), func() (bool, string) {
			for _, pid := range custodies {
				if s.Alive(pid) {
					return false, fmt.Sprintf("custody %d lives", pid)
				}
			}
			if left := s.ProcsLike("sleep 600"); len(left) > kept {
				return false, fmt.Sprint(left)
			}
			return settled()
		})
		if !ok {
			t.Errorf("3 s after the stops:%s", state)
		}
	})
}
