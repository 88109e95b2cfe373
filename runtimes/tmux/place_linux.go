package tmux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// placeFile is the record of where in tmux a seat is, in its directory.
const placeFile = "tmux.json"

// tag is the option of a seat's server that says which seat it is for. It proves that a server at our
// socket is ours to end.
const tag = "@cotal_seat"

// place is tmux.json: the ids that tmux gave, and which process the server is.
type place struct {
	Version int          `json:"version"`
	Socket  string       `json:"socket"`
	Program string       `json:"program"` // the tmux that started the server
	Server  sdk.Identity `json:"server"`
	Session string       `json:"session"` // "$0"
	Window  string       `json:"window"`  // "@0"
	Pane    string       `json:"pane"`    // "%0"
	PanePID int          `json:"panePid"` // the custody process
	// Literal: paste-buffer of this server takes -S, without which it rewrites control characters.
	Literal bool `json:"literal,omitempty"`
}

func (p place) known() bool { return p.Pane != "" && p.Server.PID > 0 }

// text is the place as it stands in a handle.
func (p place) text() json.RawMessage {
	text, _ := json.Marshal(p) // strings and numbers: cannot fail
	return text
}

func (p place) write(dir string) error {
	p.Version = 1
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode %s: %w", placeFile, err)
	}
	f, err := os.CreateTemp(dir, ".tmux-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", placeFile, err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, placeFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", placeFile, err)
	}
	return nil
}

func readPlace(dir string) (place, error) {
	var p place
	f, err := os.OpenFile(filepath.Join(dir, placeFile), os.O_RDONLY|unix.O_NONBLOCK, 0) // an ordinary open of a FIFO waits
	if err != nil {
		return p, fmt.Errorf("read %s: %w", placeFile, err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return p, fmt.Errorf("read %s: no regular file: %w", filepath.Join(dir, placeFile), record.ErrBroken)
	}
	text, err := io.ReadAll(io.LimitReader(f, 64<<10)) // a place has some hundred bytes; what is cut is broken
	if err != nil {
		return p, fmt.Errorf("read %s: %w", placeFile, err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("read %s: %w: %w", filepath.Join(dir, placeFile), record.ErrBroken, err)
	}
	if p.Version != 1 || !p.known() || !filepath.IsAbs(p.Socket) || p.Pane[0] != '%' || p.Window == "" || p.Window[0] != '@' {
		return place{}, fmt.Errorf("read %s: no place in tmux: %w", filepath.Join(dir, placeFile), record.ErrBroken)
	}
	return p, nil
}

// options are what every server gets before its pane exists. Nobody's configuration file is read.
// -q: an option that this tmux does not know yet, or any more, is left out.
var options = [][]string{
	{"set", "-g", "remain-on-exit", "on"}, // the dead pane is the second witness of the exit
	{"set", "-gq", "remain-on-exit-format", ""},
	{"set", "-g", "status", "off"}, // every row is the agent's
	{"set", "-g", "history-limit", "2000"},
	{"set", "-g", "window-size", "latest"}, // of several viewers the one that typed last
	{"set", "-g", "destroy-unattached", "off"},
	{"set", "-g", "detach-on-destroy", "on"},
	{"set", "-g", "update-environment", ""}, // a viewer's environment stays with the viewer
	{"set", "-g", "mouse", "off"},
	{"set", "-g", "set-titles", "off"},
	{"set", "-g", "visual-activity", "off"},
	{"set", "-g", "bell-action", "any"},
	{"set", "-g", "prefix", "C-b"},
	{"set", "-g", "prefix2", "None"},
	{"set", "-gq", "automatic-rename", "off"},
	{"set", "-gq", "allow-rename", "off"},
	{"set", "-gq", "allow-passthrough", "off"},
	{"set", "-g", "default-command", ""},
	{"set", "-g", "default-shell", "/bin/sh"},
	{"set", "-sq", "extended-keys", "off"},
	{"set", "-sq", "set-clipboard", "off"}, // the agent does not write a viewer's clipboard
	{"set", "-s", "escape-time", "10"},
	{"set", "-sq", "focus-events", "on"},
	{"set", "-s", "exit-unattached", "off"},
	{"set", "-s", "exit-empty", "on"},
	// What a viewer may do by key: detach, look back, and send the prefix itself. No key ends or splits
	// the pane, and none opens a prompt.
	{"unbind-key", "-a", "-T", "root"},
	{"unbind-key", "-a", "-T", "prefix"},
	{"bind-key", "-T", "prefix", "d", "detach-client"},
	{"bind-key", "-T", "prefix", "C-b", "send-prefix"},
	{"bind-key", "-T", "prefix", "[", "copy-mode"},
	{"bind-key", "-T", "prefix", "PPage", "copy-mode", "-u"},
	{"bind-key", "-T", "prefix", "r", "refresh-client"},
}

const startFormat = "place #{pid} #{session_id} #{window_id} #{pane_id} #{pane_pid}"

// start starts a server with one pane, in which argv runs. Nothing in it was chosen by a person, and it
// holds no secret.
func (sv server) start(ctx context.Context, id string, rows, cols uint16, argv []string) (place, error) {
	// From standard input, so that the server's command line stays one that a person can read.
	set := "set -s " + tag + " " + id + "\n"
	for _, o := range options {
		set += "'" + strings.Join(o, "' '") + "'\n"
	}
	out, err := sv.callFor(ctx, startTimeout, []byte(set), append([]string{
		"start-server", ";", "source-file", "-", ";", "list-commands", "paste-buffer", ";",
		"new-session", "-d", "-x", strconv.Itoa(int(cols)), "-y", strconv.Itoa(int(rows)), "-c", "/", "-P", "-F", startFormat,
	}, argv...)...)
	if err != nil {
		return place{}, err
	}
	return parseStart(sv, out)
}

func parseStart(sv server, out string) (place, error) {
	p := place{Version: 1, Socket: sv.socket, Program: sv.program}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "paste-buffer") && len(f) > 2 {
			p.Literal = literalFlag(line)
		}
		if len(f) != 6 || f[0] != "place" {
			continue
		}
		pid, err1 := strconv.Atoi(f[1])
		pane, err2 := strconv.Atoi(f[5])
		if err := errors.Join(err1, err2); err != nil {
			return p, fmt.Errorf("tmux said %.100q: %w", line, err)
		}
		id, err := seat.IdentityOf(pid)
		if err != nil {
			return p, fmt.Errorf("tmux server %d: %w", pid, err)
		}
		p.Server, p.Session, p.Window, p.Pane, p.PanePID = identityOf(id), f[2], f[3], f[4], pane
		return p, nil
	}
	return p, fmt.Errorf("tmux said %.200q and not where the pane is", out)
}

// literalFlag reads from the usage line of paste-buffer whether it has the flag S.
func literalFlag(usage string) bool {
	_, rest, _ := strings.Cut(usage, "[-")
	flags, _, _ := strings.Cut(rest, "]")
	return strings.Contains(flags, "S") && !strings.Contains(flags, " ")
}

// tagged asks the server at a socket whose it is. Errors are those of call.
func (sv server) tagged(ctx context.Context) (id string, pid int, err error) {
	out, err := sv.call(ctx, nil, "show-options", "-sqv", tag, ";", "display-message", "-p", "pid #{pid}")
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if n, ok := strings.CutPrefix(line, "pid "); ok {
			pid, _ = strconv.Atoi(n)
		} else if line != "" {
			id = line
		}
	}
	return id, pid, nil
}

// pane is what tmux says of a seat's pane.
type pane struct {
	dead       bool
	status     *int   // exit code; nil: not told
	signal     int    // that ended its process; 0: none, or not told
	attached   int    // viewers
	rows, cols uint16 // of the screen
	modes      terminal.Modes
	cursorX    int
	cursorY    int
}

// paneFormat asks for one line of fields; what a tmux does not know is empty.
const paneFormat = "pane|#{pane_dead}|#{pane_dead_status}|#{pane_dead_signal}|#{session_attached}|#{pane_height}|#{pane_width}" +
	"|#{cursor_x}|#{cursor_y}|#{cursor_flag}|#{alternate_on}|#{keypad_cursor_flag}|#{keypad_flag}|#{insert_flag}|#{wrap_flag}" +
	"|#{origin_flag}|#{mouse_standard_flag}|#{mouse_button_flag}|#{mouse_all_flag}|#{mouse_sgr_flag}|#{mouse_utf8_flag}|#{bracket_paste_flag}"

// told reports whether tmux says how the process of the pane ended.
func (p pane) told() bool { return p.status != nil || p.signal != 0 }

func parsePane(line string) (pane, error) {
	f := strings.Split(strings.TrimSpace(line), "|")
	if len(f) != 22 || f[0] != "pane" {
		return pane{}, fmt.Errorf("tmux said %.200q of the pane", line)
	}
	var p pane
	p.dead = f[1] == "1"
	if n, err := strconv.Atoi(f[2]); err == nil && p.dead {
		p.status = &n
	}
	if p.dead {
		p.signal = signalOf(f[3])
	}
	if p.signal != 0 {
		p.status = nil // some versions print 0 beside a signal
	}
	n := func(i int) int { v, _ := strconv.Atoi(f[i]); return v }
	p.attached, p.rows, p.cols, p.cursorX, p.cursorY = n(4), uint16(n(5)), uint16(n(6)), n(7), n(8)
	for i, m := range map[int]terminal.Modes{
		10: terminal.AltScreen, 11: terminal.AppCursor, 12: terminal.AppKeypad, 13: terminal.InsertMode, 15: terminal.OriginMode,
		16: terminal.Mouse1000, 17: terminal.Mouse1002, 18: terminal.Mouse1003, 19: terminal.MouseSGR, 20: terminal.MouseUTF8,
		21: terminal.BracketedPaste,
	} {
		if f[i] == "1" {
			p.modes |= m
		}
	}
	if f[9] == "0" {
		p.modes |= terminal.CursorHidden
	}
	if f[14] == "0" {
		p.modes |= terminal.NoAutowrap
	}
	return p, nil
}

// signalOf reads a signal as tmux prints it: a number, "KILL" or "SIGKILL". 0 is none.
func signalOf(text string) int {
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	if text == "" {
		return 0
	}
	return int(unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")))
}

// look asks tmux for the pane.
func (sv server) look(ctx context.Context, id string) (pane, error) {
	out, err := sv.call(ctx, nil, "display-message", "-p", "-t", id, paneFormat)
	if err != nil {
		return pane{}, err
	}
	return parsePane(out)
}

// witness compares the exit record with the dead pane. What it returns is a sentence for the record's
// detail when they differ, and nothing when they agree or when tmux does not tell. The record is the
// truth: it is written by the parent of the agent.
func witness(x record.Exit, p pane) string {
	if !p.dead || x.Code == nil || !p.told() {
		return ""
	}
	said := fmt.Sprintf("tmux says the pane ended with code %d", deref(p.status))
	if p.signal != 0 {
		said = fmt.Sprintf("tmux says the pane ended by %s", nameOf(p.signal))
	}
	switch {
	case x.Signal != "" && p.signal != 0 && *x.Code == 128+p.signal:
		return ""
	case x.Signal == "" && p.signal == 0 && *p.status == *x.Code:
		return ""
	}
	return said + ", which is not what custody recorded"
}

func nameOf(sig int) string {
	if name := unix.SignalName(unix.Signal(sig)); name != "" {
		return name
	}
	return "signal " + strconv.Itoa(sig)
}

func deref(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

var (
	identityOf   = custodied.IdentityOf
	seatIdentity = custodied.SeatIdentity
)

// cutLine cuts the first line off.
func cutLine(text string) (first, rest string) {
	first, rest, _ = strings.Cut(text, "\n")
	return first, rest
}
