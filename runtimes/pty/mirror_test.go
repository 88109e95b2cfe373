//go:build linux

package pty

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/screen"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// askerEnv makes this test binary an agent that asks its terminal questions: "rounds file", see asker.
const askerEnv = "COTAL_PTY_TEST_ASKER"

// asker is an agent that asks one question after the other and notes what it is told: one line a question,
// "n milliseconds quoted-answer". After an answer it listens a little longer for a second one. It stops early
// once there is a file of that name with ".stop" behind it.
func asker(text string) {
	var rounds int
	var name string
	if _, err := fmt.Sscan(text, &rounds, &name); err != nil {
		os.Exit(1)
	}
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		os.Exit(2)
	}
	raw, _ := unix.IoctlGetTermios(0, unix.TCGETS)
	raw.Lflag &^= unix.ICANON | unix.ECHO | unix.ISIG
	raw.Iflag &^= unix.ICRNL
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 0, 0
	_ = unix.IoctlSetTermios(0, unix.TCSETS, raw)
	log, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		os.Exit(3)
	}
	questions := []string{"\x1b[6n", "\x1b[c", "\x1b[5n", "\x1b]11;?\x07", "\x1b[?u", "\x1b[18t"}
	read := func(wait time.Duration, enough int) (got []byte, first time.Duration) {
		began := time.Now()
		for time.Since(began) < wait {
			fds := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
			_, _ = unix.Poll(fds, max(1, int((wait-time.Since(began)).Milliseconds())))
			buf := make([]byte, 512)
			if n, _ := unix.Read(0, buf); n > 0 {
				got = append(got, buf[:n]...)
				if first = time.Since(began); len(got) >= enough {
					return got, first
				}
			}
		}
		return got, first
	}
	for i := range rounds {
		if _, err := os.Stat(name + ".stop"); err == nil {
			break
		}
		q := questions[i%len(questions)]
		_, _ = os.Stdout.WriteString("\x1b[" + strconv.Itoa(i%20+1) + ";" + strconv.Itoa(i%30+1) + "H" + q)
		// A question that nobody will answer costs the whole wait, so it is no longer than it has to be.
		got, took := read(min(busy.Limit(5*time.Second), 30*time.Second), 1)
		more, _ := read(4*time.Millisecond, 1<<20)
		fmt.Fprintf(log, "%d %d %q\n", i, took.Milliseconds(), append(got, more...))
	}
	late, _ := read(700*time.Millisecond, 1<<20)
	fmt.Fprintf(log, "end 0 %q\n", late)
	for {
		unix.Pause()
	}
}

// wantAnswer is what the asker's question number i is answered.
func wantAnswer(i int) string {
	return []string{
		fmt.Sprintf("\x1b[%d;%dR", i%20+1, i%30+1), "\x1b[?62;22c", "\x1b[0n", "\x1b]11;rgb:0000/0000/0000\x07", "\x1b[?0u", "\x1b[8;32;120t",
	}[i%6]
}

// ask runs an asker in a seat.
func (r *rig) ask(rounds int) (sdk.SpawnRequest, string) {
	r.t.Helper()
	q := r.spec("")
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	log := r.file("answers-" + q.SeatID[:6])
	q.Launch.Path, q.Launch.Args = self, nil
	q.Launch.Env = append(q.Launch.Env, fmt.Sprintf("%s=%d %s", askerEnv, rounds, log))
	r.spawn(q)
	r.adopt(q, true)
	return q, log
}

type answered struct {
	n    string
	ms   int
	text string
}

func readAnswers(t testing.TB, name string) (all []answered) {
	t.Helper()
	text, _ := os.ReadFile(name)
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		n, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		ms, quoted, _ := strings.Cut(rest, " ")
		a := answered{n: n}
		a.ms, _ = strconv.Atoi(ms)
		a.text, _ = strconv.Unquote(quoted)
		all = append(all, a)
	}
	return all
}

func asksDone(t testing.TB, log string, rounds int) []answered {
	t.Helper()
	eventually(t, fmt.Sprintf("%d questions are answered", rounds), func() bool { return len(readAnswers(t, log)) > rounds })
	return readAnswers(t, log)
}

// judgeAnswers checks every answer. slow of them may be late: those that were asked while the mirror was
// dead.
func judgeAnswers(t *testing.T, all []answered, slow int) {
	t.Helper()
	late, limit := 0, busy.Limit(500*time.Millisecond)
	for i, a := range all[:len(all)-1] {
		if a.text != wantAnswer(i) {
			t.Errorf("question %d was answered %q, want %q once", i, a.text, wantAnswer(i))
		}
		if time.Duration(a.ms)*time.Millisecond > limit {
			late++
			t.Logf("question %d was answered after %d ms", i, a.ms)
		}
	}
	if late > slow {
		t.Errorf("%d answers took more than %s", late, limit)
	}
	if end := all[len(all)-1]; end.text != "" {
		t.Errorf("stray bytes after the last answer: %q", end.text)
	}
}

// proves: RT-5
func TestFieldD18_WithNobodyAttachedQuestionsAreAnswered(t *testing.T) {
	r := newRig(t)
	q, log := r.ask(60)
	judgeAnswers(t, asksDone(t, log, 60), 0)
	r.reap(q, sdk.StopNow)
}

// viewerTerminal attaches like a terminal, answers what it is asked like one, and leaves.
func (r *rig) viewerTerminal(ctx context.Context, q sdk.SpawnRequest, stay func(seen func() int)) {
	r.t.Helper()
	target, err := r.rt.Attach(ctx, sdk.AttachRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := seat.Dial(ctx, seat.DialConfig{
		Socket: target.Seat.Socket, Token: target.Seat.Token, From: seat.FromLive,
		Role: seat.RoleOutput | seat.RoleInput | seat.RoleTerminal,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	from := c.Welcome().Next
	var seen bytes.Buffer
	lock := make(chan struct{}, 1)
	answers := make(chan string, 64)
	done := make(chan struct{})
	answered := 0
	go func() {
		defer close(done)
		var tail []byte
		_ = c.Run(ctx, seat.Handler{Output: func(at uint64, p []byte) error {
			if at < from {
				p = p[min(uint64(len(p)), from-at):]
			}
			lock <- struct{}{}
			seen.Write(p)
			<-lock
			tail = append(tail, p...)
			for {
				n, reply := terminalReply(tail)
				if n == 0 {
					return nil
				}
				tail = tail[n:]
				if reply != "" {
					answers <- reply
				}
			}
		}})
		close(answers)
	}()
	typing := make(chan struct{})
	go func() {
		defer close(typing)
		for a := range answers {
			if _, err := c.Input(ctx, []byte(a)); err == nil {
				lock <- struct{}{}
				answered++
				<-lock
			}
		}
	}()
	stay(func() int { lock <- struct{}{}; defer func() { <-lock }(); return answered })
	c.Close()
	<-done
	<-typing
}

// terminalReply finds the first question of the asker in p, with the position before it: how much of p it
// took, and what a terminal answers.
func terminalReply(p []byte) (n int, reply string) {
	i := bytes.Index(p, []byte("\x1b["))
	if i < 0 {
		return 0, ""
	}
	rest := p[i:]
	h := bytes.IndexByte(rest, 'H')
	if h < 0 {
		return 0, ""
	}
	var row, col int
	if _, err := fmt.Sscanf(string(rest[:h+1]), "\x1b[%d;%dH", &row, &col); err != nil {
		return 0, ""
	}
	for q, a := range map[string]string{
		"\x1b[6n": fmt.Sprintf("\x1b[%d;%dR", row, col), "\x1b[c": "\x1b[?62;22c", "\x1b[5n": "\x1b[0n",
		"\x1b]11;?\x07": "\x1b]11;rgb:0000/0000/0000\x07", "\x1b[?u": "\x1b[?0u", "\x1b[18t": "\x1b[8;32;120t",
	} {
		if bytes.HasPrefix(rest[h+1:], []byte(q)) {
			return i + h + 1 + len(q), a
		}
	}
	return 0, ""
}

// TestFieldD19_EveryQuestionIsAnsweredOnceWhoeverComesAndGoes attaches and detaches fifty times while the
// agent asks; the mirror answers before, between and after, the terminal while it is there.
//
// proves: RT-5
func TestFieldD19_EveryQuestionIsAnsweredOnceWhoeverComesAndGoes(t *testing.T) {
	r := newRig(t)
	const rounds = 900
	q, log := r.ask(rounds)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	byTerminal := 0
	for i := range 50 {
		before := len(readAnswers(t, log))
		eventually(t, "the mirror answers between two viewers", func() bool { n := len(readAnswers(t, log)); return n > before || n > rounds })
		r.viewerTerminal(ctx, q, func(seen func() int) {
			if i%2 == 0 { // half of them leave at once, wherever the agent is
				return
			}
			before := len(readAnswers(t, log))
			eventually(t, "the terminal answers", func() bool { n := len(readAnswers(t, log)); return seen() > 1 || n > rounds || n > before+20 })
			byTerminal += seen()
		})
		if i%20 == 10 { // and the mirror dies now and then
			kill9(t, workerOf(t))
		}
	}
	judgeAnswers(t, asksDone(t, log, rounds), 3)
	if byTerminal < 20 {
		t.Errorf("terminals answered %d questions: the test has not tried what it should", byTerminal)
	}
	r.reap(q, sdk.StopNow)
}

// workerOf finds the mirror worker of this process.
func workerOf(t testing.TB) int {
	t.Helper()
	pid := 0
	eventually(t, "there is a mirror worker", func() bool {
		pid = 0
		for _, dir := range globProc() {
			p, _ := strconv.Atoi(filepath.Base(dir))
			st, err := seat.ReadProc(p)
			if err == nil && st.PPID == os.Getpid() && st.Comm == "cotal-mirror" && st.State != 'Z' {
				pid = p
			}
		}
		return pid > 0
	})
	return pid
}

func globProc() []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	return dirs
}

// TestAnswersSurviveTheDeathOfTheMirror kills the worker again and again while the agent asks: what was
// answered is not answered again, what was not is, late.
func TestAnswersSurviveTheDeathOfTheMirror(t *testing.T) {
	r := newRig(t)
	const rounds = 300
	q, log := r.ask(rounds)
	for range 5 {
		before := len(readAnswers(t, log))
		eventually(t, "questions are answered", func() bool { n := len(readAnswers(t, log)); return n > before+3 || n > rounds })
		kill9(t, workerOf(t))
	}
	judgeAnswers(t, asksDone(t, log, rounds), 5)
	r.reap(q, sdk.StopNow)
}

// shot waits for a clean snapshot that a check accepts.
func (r *rig) shot(rt *Runtime, q sdk.SpawnRequest, what string, ok func(sdk.Snapshot) bool) sdk.Snapshot {
	r.t.Helper()
	var snap sdk.Snapshot
	var err error
	last := ""
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the last snapshot: %s", last)
		}
	}()
	eventually(r.t, what, func() bool {
		snap, err = rt.Snapshot(context.Background(), sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID})
		last = fmt.Sprintf("%v, dirty %q, %d bytes at %d, %.600q", err, snap.Dirty, len(snap.Data), snap.Offset, snap.Data[max(0, len(snap.Data)-400):])
		return err == nil && snap.Dirty == "" && ok(snap)
	})
	return snap
}

const fullScreen = `[{"print":"on the main screen\r\n\u001b[?1049h\u001b[?25l\u001b[?2004h\u001b[2J\u001b[1;1H+-------+\u001b[2;1H| \u001b[31mbox\u001b[m   |\u001b[3;1H+-------+"},{"hang":true}]`

// proves: RT-5
func TestFieldD8_ALateViewerGetsTheScreenOfASilentProgram(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(fullScreen)
	holds := func(s sdk.Snapshot) bool { return bytes.Contains(s.Data, []byte("+-------+")) }
	first := r.shot(r.rt, q, "the box is on the screen", holds)
	m := terminal.Modes(first.Modes)
	if m&terminal.AltScreen == 0 || m&terminal.CursorHidden == 0 || m&terminal.BracketedPaste == 0 {
		t.Errorf("modes %#x lack what the program asked for", m)
	}
	for _, part := range []string{"on the main screen", "\x1b[0;31mbox", "\x1b[?2004h", "\x1b[?25l"} {
		if !bytes.Contains(first.Data, []byte(part)) {
			t.Errorf("the snapshot lacks %q: %q", part, first.Data)
		}
	}
	second := r.shot(r.rt, q, "a second look", holds)
	if !bytes.Equal(first.Data, second.Data) || first.Offset != second.Offset {
		t.Errorf("two looks differ:\n%q\n%q", first.Data, second.Data)
	}
	if st := r.adopt(q, false); st.Modes != first.Modes || st.Next != first.Offset {
		t.Errorf("status: modes %#x and output %d, snapshot %#x and %d", st.Modes, st.Next, first.Modes, first.Offset)
	}
	// A plugin that was started anew makes the same picture from the ring.
	other := r.fresh()
	third := r.shot(other, q, "the picture of a new plugin", holds)
	if !bytes.Equal(first.Data, third.Data) || first.Offset != third.Offset {
		t.Errorf("the picture of a new plugin differs:\n%q\n%q", first.Data, third.Data)
	}
	r.reap(q, sdk.StopNow)
	if _, err := r.rt.Snapshot(context.Background(), sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID}); !isGone(err) {
		t.Errorf("snapshot of a seat that has ended: %v", err)
	}
}

func isGone(err error) bool { return err != nil && strings.Contains(err.Error(), sdk.ErrGone.Error()) }

// A worker that is killed or stopped is replaced, and a snapshot asked for meanwhile comes, or is refused
// within its second.
func TestASnapshotOutlivesTheWorker(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(fullScreen)
	holds := func(s sdk.Snapshot) bool { return bytes.Contains(s.Data, []byte("+-------+")) }
	r.shot(r.rt, q, "the box is on the screen", holds)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGSEGV} {
		pid := workerOf(t)
		id, err := seat.IdentityOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		signalTo(t, id, sig)
		r.shot(r.rt, q, fmt.Sprintf("the box is on the screen again after %v", sig), holds)
		if now := workerOf(t); now == pid {
			t.Errorf("after %v worker %d goes on", sig, pid)
		}
	}
	r.reap(q, sdk.StopNow)
}

// A flood is dirty while it lasts and clean within a second of its end. It lasts until a snapshot was dirty, since
// one that is over before the mirror looks was never behind. The best of three counts, since the machine may be
// busy with something else.
func TestASnapshotOfAFloodSaysSo(t *testing.T) {
	r := newRig(t)
	best := time.Hour
	for i := 0; i < 3 && best > time.Second; i++ {
		seen := fmt.Sprintf("seen%d", i)
		q, _ := r.run(`[{"flood":{"mb":1,"until":"{work}/` + seen + `"}},{"print":"\r\nthe end"},{"write":{"file":"{work}/ended","text":"{pid}"}},{"hang":true}]`)
		agent := strconv.Itoa(r.adopt(q, false).Agent.PID)
		eventually(t, "a snapshot taken in the flood is dirty", func() bool {
			snap, err := r.rt.Snapshot(context.Background(), sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID})
			return err == nil && snap.Dirty != ""
		})
		if err := os.WriteFile(r.file(seen), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the flood is over", func() bool { return r.read("ended") == agent })
		over := time.Now()
		r.shot(r.rt, q, "the screen is clean again", func(s sdk.Snapshot) bool { return bytes.Contains(s.Data, []byte("the end")) })
		best = min(best, time.Since(over))
		r.reap(q, sdk.StopNow)
	}
	if best > time.Second {
		t.Errorf("clean %s after the end of the flood", best)
	}
}

// Sequences that keep an emulator busy for seconds cost nobody anything.
func TestRepeatBombsHarmNoOtherSeat(t *testing.T) {
	r := newRig(t)
	bombs := strings.Repeat(`x\u001b[2000000000b\u001b[2000000000X\u001b[2000000000I\u001b[2000000000Z\u001b[2000000000@`, 50)
	bad, _ := r.run(`[{"print":"` + bombs + `done"},{"hang":true}]`)
	good, log := r.ask(30)
	judgeAnswers(t, asksDone(t, log, 30), 0)
	r.shot(r.rt, bad, "the screen of the bombs", func(s sdk.Snapshot) bool { return bytes.Contains(s.Data, []byte("done")) })
	r.reap(bad, sdk.StopNow)
	r.reap(good, sdk.StopNow)
}

// After a snapshot the stream goes on exactly where it ends, so that nothing is cut in the middle: shown
// together they make the screen that the whole stream makes.
//
// proves: RT-5
func TestFieldD10_TheStreamGoesOnWhereTheSnapshotEnds(t *testing.T) {
	r := newRig(t)
	// Coloured lines in small pieces, over and over, of which a size in bytes never meets a border.
	q, _ := r.run(`[{"print":"\u001b[?1049h\u001b[2J"},{"tick":{"everyMs":1,"count":1500,"text":"\u001b[7;1H\u001b[38;2;10;200;30mcolour\u001b[0m \u001b[1;4m漢字\u001b[m"}},{"print":"\u001b[9;1Hall told"},{"hang":true}]`)
	whole := r.view(q, 0)
	var snaps []sdk.Snapshot
	for i := range 6 {
		whole.await(t, fmt.Sprintf("%012d", i*200+1))
		snaps = append(snaps, r.shot(r.rt, q, "a clean snapshot in the middle", func(sdk.Snapshot) bool { return true }))
	}
	part := r.view(q, snaps[0].Offset)
	part.await(t, "all told")
	whole.await(t, "all told")
	all := whole.text()
	if got := part.text(); got != all[snaps[0].Offset:] {
		t.Fatalf("the stream from %d on is another one", snaps[0].Offset)
	}
	want := drawn(t, snaps[0], all)
	for _, snap := range snaps {
		// A terminal that begins with the snapshot is within no sequence when the stream takes over.
		var m terminal.ModeScanner
		m.Write([]byte(all[:snap.Offset]))
		if !m.Ground() {
			t.Errorf("a snapshot ends at %d, within a sequence", snap.Offset)
		}
		if got := drawn(t, snap, string(snap.Data)+all[snap.Offset:]); got != want {
			t.Errorf("snapshot and stream from %d on draw\n%q\nthe whole stream\n%q", snap.Offset, got, want)
		}
	}
	r.reap(q, sdk.StopNow)
}

// drawn is what bytes draw on a screen of a snapshot's size.
func drawn(t *testing.T, size sdk.Snapshot, text string) string {
	t.Helper()
	// By a clock that stands still while it draws: a picture that is behind is left out on a busy machine.
	now := time.Now()
	scr, err := screen.New(screen.Config{Rows: int(size.Rows), Cols: int(size.Cols), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer scr.Close()
	scr.Feed(0, []byte(text))
	for wait := scr.Step(); wait >= 0; wait = scr.Step() {
		now = now.Add(wait)
	}
	snap := scr.Snapshot()
	if snap.Dirty != "" {
		t.Fatalf("dirty: %s", snap.Dirty)
	}
	return string(snap.Data)
}
