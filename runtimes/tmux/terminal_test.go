//go:build linux

package tmux

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// raw is an agent that takes n bytes as they come into a file, with the terminal in raw mode; more is
// printed first.
func (r *rig) raw(n int, more string) sdk.SpawnRequest {
	r.t.Helper()
	q := r.shell(fmt.Sprintf(`stty raw -echo; printf '%s'; echo ready > {work}/ready; head -c %d > {work}/got; echo done > {work}/done; exec sleep 600`, more, n))
	r.start(q)
	eventually(r.t, "the agent reads", func() bool { return r.read("ready") == "ready\n" })
	return q
}

// Whatever is typed arrives byte for byte: nothing in it is a key name, a flag, a separator or a format.
func TestFieldD4_D5_TypedTextArrivesByteForByte(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	big := bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"), 1024)
	for name, text := range map[string]string{
		"a key name":            "Enter",
		"a control key name":    "C-c",
		"a flag":                "-l",
		"the end of flags":      "--",
		"a separator":           ";",
		"a separator at an end": "echo a ;",
		"a quoted separator":    `\;`,
		"a variable":            "$HOME",
		"a tmux format":         "#{pid} #(touch /tmp/x) #S",
		"quotes":                `'"` + "`",
		"a backslash":           `\`,
		"lines":                 "one\ntwo\r\nthree\r",
		"no UTF-8":              "\xff\xfe\x80",
		"UTF-8":                 "grüße, 日本語 🙂",
		"escape bytes":          "\x1b[A\x1bOP\x1b[200~",
		"every byte there is":   string(every),
		"64 KiB":                string(big),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.raw(len(text), "")
			r.write(q, text, false)
			eventually(t, "all of it arrived", func() bool { return r.read("done") == "done\n" })
			if got := r.read("got"); got != text {
				t.Errorf("arrived %d bytes %.80q, typed %d bytes %.80q", len(got), got, len(text), text)
			}
			if out, err := r.tmux(q, "list-buffers"); err != nil || out != "" {
				t.Errorf("buffers left: %q, %v", out, err)
			}
		})
	}
}

// A paste goes between markers exactly where the program asked for them, and the submit key stays
// outside.
func TestFieldD1_D2_D15_PasteMarkersWhereTheyWereAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		mode, text, want string
	}{
		"a program that asked":        {`\033[?2004h`, "hello", "1b5b3230307e68656c6c6f1b5b3230317e0d"},
		"a program that did not":      {"", "hello", "68656c6c6f0d"},
		"lines are one paste":         {`\033[?2004h`, "a\nb\nc", "1b5b3230307e610a620a631b5b3230317e0d"},
		"a program that changed back": {`\033[?2004h\033[?2004l`, "hello", "68656c6c6f0d"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.raw(len(tc.want)/2, tc.mode)
			r.shows(q, "") // what was printed before the file is on the screen
			r.write(q, tc.text, true)
			r.write(q, "\r", false)
			eventually(t, "all of it arrived", func() bool { return r.read("done") == "done\n" })
			if got := hex.EncodeToString([]byte(r.read("got"))); got != tc.want {
				t.Errorf("arrived %s, want %s", got, tc.want)
			}
		})
	}
}

// The configuration of the user is not read, so it changes no byte and no key.
// proves: O8
func TestFieldD14_O8_TheUsersTmuxIsLeftAlone(t *testing.T) {
	home := t.TempDir()
	conf := "set -g extended-keys on\nset -s extended-keys-format csi-u\nset -g prefix C-a\nset -g base-index 1\nset -g remain-on-exit off\nset -g @mine kept\n"
	if err := os.WriteFile(home+"/.tmux.conf", []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	sockets, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(sockets)
	// The user's own server, where tmux looks for it by itself, with two sessions.
	t.Setenv("HOME", home)
	t.Setenv("TMUX_TMPDIR", sockets)
	t.Setenv("TMUX", "")
	user := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("tmux", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %v %s", args, err, out)
		}
		return string(out)
	}
	user("new-session", "-d", "-s", "work", "sleep", "600")
	defer func() { user("kill-server") }()
	user("new-session", "-d", "-s", "cotal", "sleep", "600")
	state := func() string {
		return user("list-panes", "-a", "-F", "#{session_name} #{pane_id} #{pane_pid} #{pane_dead}") + user("show-options", "-g") + user("show-options", "-s") + user("list-keys") + user("show-environment", "-g")
	}
	before := state()

	r := newRig(t)
	q := r.raw(18, `\033[?2004h`)
	r.write(q, "hello", true)
	r.write(q, "\r", false)
	eventually(t, "all of it arrived", func() bool { return r.read("done") == "done\n" })
	if got := hex.EncodeToString([]byte(r.read("got"))); got != "1b5b3230307e68656c6c6f1b5b3230317e0d" {
		t.Errorf("arrived %s", got)
	}
	out, err := r.tmux(q, "show-options", "-gv", "prefix", ";", "show-options", "-gqv", "@mine")
	if err != nil || strings.TrimSpace(out) != "C-b" {
		t.Errorf("our server has %q, %v", out, err)
	}
	r.killCustody(q)
	r.reap(q, sdk.StopNow)
	if after := state(); after != before {
		t.Errorf("the user's server changed:\n%s\nwas:\n%s", after, before)
	}
}

// What cannot be delivered whole is refused by name, and nothing of it is typed.
func TestWritesThatAreRefused(t *testing.T) {
	r := newRig(t)
	q := r.shell(`echo ready > {work}/ready; read line; printf %s "$line" > {work}/got; exec sleep 600`)
	r.spawn(q)
	if _, err := r.rt.Write(t.Context(), writeOf(q, "early\r", false)); !errors.Is(err, sdk.ErrGone) {
		t.Errorf("typed into a prepared seat: %v", err)
	}
	r.adopt(q, true)
	eventually(t, "the agent reads", func() bool { return r.read("ready") == "ready\n" })
	for name, tc := range map[string]struct {
		text  string
		paste bool
		want  error
		words string
	}{
		"a line the terminal would cut":   {strings.Repeat("x", seat.MaxLine+1) + "\r", false, sdk.ErrTooLarge, "4096 bytes"},
		"more than one write takes":       {strings.Repeat("x\n", sdk.MaxWrite/2) + "x", false, sdk.ErrTooLarge, "65537 bytes"},
		"a paste that would end too soon": {"a\x1b[201~\rrm -rf", true, sdk.ErrInvalid, "end of a paste"},
	} {
		if n, err := r.rt.Write(t.Context(), writeOf(q, tc.text, tc.paste)); n != 0 || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	other := writeOf(q, "x", false)
	other.InstanceID = "another"
	if _, err := r.rt.Write(t.Context(), other); !errors.Is(err, sdk.ErrNotOurs) {
		t.Errorf("another instance: %v", err)
	}
	r.write(q, strings.Repeat("y", seat.MaxLine)+"\r", false)
	eventually(t, "the line arrived", func() bool { return r.read("got") == strings.Repeat("y", seat.MaxLine) })
	r.killCustody(q)
	if _, err := r.rt.Write(t.Context(), writeOf(q, "late", false)); err == nil {
		t.Error("typed into a seat without custody")
	}
	r.adopt(q, false)
	if _, err := r.rt.Write(t.Context(), writeOf(q, "late", false)); !errors.Is(err, sdk.ErrGone) {
		t.Errorf("typed into an ended seat: %v", err)
	}
}

// client is a tmux client on a terminal of its own.
type client struct {
	cmd *exec.Cmd
	tty *os.File
}

func (r *rig) attach(q sdk.SpawnRequest, rows, cols uint16) *client {
	r.t.Helper()
	target, err := r.rt.Attach(context.Background(), sdk.AttachRequest{SeatID: q.SeatID, InstanceID: r.instance})
	if err != nil || target.Seat != nil || len(target.Argv) == 0 {
		r.t.Fatalf("attach: %+v, %v", target, err)
	}
	cmd := exec.Command(target.Argv[0], target.Argv[1:]...)
	cmd.Env = []string{"TERM=xterm-256color", "PATH=/usr/bin:/bin"}
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: cols})
	if err != nil {
		r.t.Fatal(err)
	}
	go func() { // a terminal reads
		buf := make([]byte, 4096)
		for {
			if _, err := tty.Read(buf); err != nil {
				return
			}
		}
	}()
	c := &client{cmd, tty}
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); tty.Close() })
	return c
}

func (r *rig) attached(q sdk.SpawnRequest, n int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d look", n), func() bool { return r.adopt(q, false).Attached == n })
}

// Several viewers at once; the last one that typed sets the size; leaving, by key or by SIGKILL, never
// ends the seat. Sizes nobody can use are not handed on.
// proves: RT-3
func TestFieldD17_ViewersComeAndGo(t *testing.T) {
	r := newRig(t)
	q := r.shell(`stty -echo; while read line; do stty size; done`)
	q.Rows, q.Cols = 65535, 0
	r.start(q)
	if st := r.adopt(q, false); st.Rows != maxSide || st.Cols != defaultCols {
		t.Errorf("size %d x %d", st.Rows, st.Cols)
	}
	a := r.attach(q, 30, 90)
	r.attached(q, 1)
	b := r.attach(q, 40, 100)
	r.attached(q, 2)
	type size struct{ rows, cols uint16 }
	sized := func(want size) {
		t.Helper()
		eventually(t, fmt.Sprintf("size %+v", want), func() bool { st := r.adopt(q, false); return size{st.Rows, st.Cols} == want })
	}
	if _, err := a.tty.WriteString("x\r"); err != nil {
		t.Fatal(err)
	}
	sized(size{30, 90})
	if _, err := b.tty.WriteString("x\r"); err != nil {
		t.Fatal(err)
	}
	sized(size{40, 100})
	for _, s := range []pty.Winsize{{}, {Rows: 25, Cols: 70}} {
		if err := pty.Setsize(b.tty, &s); err != nil {
			t.Fatal(err)
		}
	}
	sized(size{25, 70})
	// No key of a viewer ends the pane, opens another or a prompt.
	keys, err := r.tmux(q, "list-keys", "-T", "prefix")
	if err != nil || strings.Count(keys, "\n") != 5 || strings.Contains(keys, "kill") || strings.Contains(keys, "prompt") {
		t.Errorf("keys %q, %v", keys, err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if err := b.cmd.Wait(); err != nil {
			t.Errorf("the viewer that left: %v", err)
		}
	}()
	harness.PressUntil(b.tty, "\x02d", left, harness.DefaultWait)
	select {
	case <-left:
	default:
		t.Fatal("no key lets a viewer leave")
	}
	r.attached(q, 1)
	_ = a.cmd.Process.Kill()
	r.attached(q, 0)
	if st := r.adopt(q, false); st.State != sdk.SeatRunning {
		t.Errorf("%s (%s)", st.State, st.Reason)
	}
	if out, err := r.tmux(q, "list-panes", "-a", "-F", "#{pane_id}"); err != nil || strings.TrimSpace(out) != "%0" {
		t.Errorf("panes %q, %v", out, err)
	}
}

// A snapshot painted on an empty terminal of the same size is the same screen.
func TestFieldD8_SnapshotPaintsTheScreen(t *testing.T) {
	for name, tc := range map[string]struct {
		draw  string
		modes terminal.Modes
	}{
		"lines and colours":     {`printf 'plain\n\033[1;31mred\033[0m \033[44m  blue  \033[0m\n日本語 x\033[5;10Hhere'`, 0},
		"an alternate screen":   {`printf '\033[?1049h\033[2J\033[?25l\033[1;1H+----+\033[32;115Hcorner\033[3;3H\033[7mrev\033[0m'`, terminal.AltScreen | terminal.CursorHidden},
		"a full last row":       {`printf '\033[32;1H%s' "$(printf '%0120d' 7)"; printf '\033[2;2H'`, 0},
		"mouse and application": {`printf '\033[?1002h\033[?1006h\033[?1h\033=x'`, terminal.Mouse1002 | terminal.MouseSGR | terminal.AppCursor | terminal.AppKeypad},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.shell("stty -echo; " + tc.draw + `; echo drawn > {work}/drawn; exec sleep 600`)
			r.start(q)
			eventually(t, "it has drawn", func() bool { return r.read("drawn") == "drawn\n" })
			var snap sdk.Snapshot
			eventually(t, "its modes are there", func() bool {
				var err error
				snap, err = r.rt.Snapshot(t.Context(), sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: r.instance})
				return err == nil && terminal.Modes(snap.Modes) == tc.modes && len(strings.TrimSpace(r.screen(q))) > 0
			})
			if snap.Rows != 32 || snap.Cols != 120 || snap.Dirty != "" || snap.Offset != 0 {
				t.Errorf("%d x %d, dirty %q, offset %d", snap.Rows, snap.Cols, snap.Dirty, snap.Offset)
			}
			snap, err := r.rt.Snapshot(t.Context(), sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: r.instance})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(r.file("paint"), snap.Data, 0o600); err != nil {
				t.Fatal(err)
			}
			other := newRig(t)
			p := other.shell("stty raw -echo; cat " + r.file("paint") + `; echo drawn > {work}/drawn; exec sleep 600`)
			other.start(p)
			eventually(t, "it was painted", func() bool { return other.read("drawn") == "drawn\n" })
			same := func(a, b string) bool { return a == b }
			cells := func(r *rig, q sdk.SpawnRequest) string {
				out, err := r.tmux(q, "display-message", "-p", "-t", "%0", paneFormat, ";", "capture-pane", "-e", "-N", "-p", "-t", "%0")
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			want := cells(r, q)
			var got string
			for i := 0; i < 200 && !same(got, want); i++ { // tmux parses a moment after the write
				got = cells(other, p)
			}
			if !same(got, want) {
				t.Errorf("painted:\n%q\nwant:\n%q", got, want)
			}
		})
	}
}

// An interactive shell in the pane is usable: size, foreground group, job control, Ctrl-C and Ctrl-Z.
func TestInteractiveShell(t *testing.T) {
	r := newRig(t)
	q := r.shell("")
	q.Launch.Path, q.Launch.Args = "/bin/bash", []string{"--norc", "--noprofile", "-i"}
	q.Launch.Env = append(q.Launch.Env, "PS1=$ ", "HOME="+r.work)
	q.Rows, q.Cols = 40, 100
	st := r.start(q)
	r.shows(q, "$")
	r.write(q, "stty size\r", false)
	r.shows(q, "40 100")
	if s := r.screen(q); strings.Contains(s, "no job control") {
		t.Fatalf("no job control:\n%s", s)
	}
	r.write(q, "cat > {}\r", false) // a foreground job
	foreground := func() int {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(st.Agent.PID) + "/stat")
		f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		n, _ := strconv.Atoi(f[5])
		return n
	}
	// The shell's child takes no stop signal before it has become the program.
	eventually(t, "a job is in the foreground", func() bool {
		comm, _ := os.ReadFile("/proc/" + strconv.Itoa(foreground()) + "/comm")
		return string(comm) == "cat\n"
	})
	r.write(q, "\x1a", false)
	r.shows(q, "Stopped")
	r.write(q, "fg\r", false)
	eventually(t, "the job is in the foreground again", func() bool { return foreground() != st.Agent.PID })
	r.write(q, "\x03", false)
	eventually(t, "the shell has the terminal back", func() bool { return foreground() == st.Agent.PID })
	r.write(q, "echo code=$?\r", false)
	r.shows(q, "code=130")
	// A shell ignores TERM; it ends with its terminal.
	if rep := r.reap(q, sdk.StopGraceful); rep.Exit == nil || rep.Exit.Signal != "SIGHUP" {
		t.Errorf("%+v", rep.Exit)
	}
}
