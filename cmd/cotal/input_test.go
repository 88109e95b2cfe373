//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

func TestInputRequest(t *testing.T) {
	yes, no := true, false
	long := strings.Repeat("x", wire.MaxText)
	for name, c := range map[string]struct {
		opt   inputOptions
		given string
		stdin string
		want  wire.InputArgs
		bad   string
	}{
		"a text":                                {opt: inputOptions{text: "hi"}, given: "text", want: wire.InputArgs{Text: "hi", Enter: &yes}},
		"without Return":                        {opt: inputOptions{text: "y", noEnter: true}, given: "text", want: wire.InputArgs{Text: "y", Enter: &no}},
		"standard input":                        {opt: inputOptions{text: "-"}, given: "text", stdin: "a\nb\n", want: wire.InputArgs{Text: "a\nb\n", Enter: &yes}},
		"standard input without Return":         {opt: inputOptions{text: "-", noEnter: true}, given: "text", stdin: "a\nb\n", want: wire.InputArgs{Text: "a\nb", Enter: &no}},
		"the largest text with a line end":      {opt: inputOptions{text: "-"}, given: "text", stdin: long + "\n", want: wire.InputArgs{Text: long, Enter: &yes}},
		"one byte more":                         {opt: inputOptions{text: "-"}, given: "text", stdin: long + "xy", bad: "more than 65536 bytes"},
		"keys":                                  {opt: inputOptions{keys: []string{"esc", "enter"}}, given: "keys", want: wire.InputArgs{Keys: []string{"esc", "enter"}}},
		"text that is no UTF-8":                 {opt: inputOptions{text: "-"}, given: "text", stdin: "a\x9b201~b", bad: "byte 1 of the text is 0x9b and no UTF-8; nothing was typed"},
		"text that ends in half a character":    {opt: inputOptions{text: "é\xc3"}, given: "text", bad: "byte 2 of the text is 0xc3"},
		"the replacement character is text":     {opt: inputOptions{text: "\ufffd"}, given: "text", want: wire.InputArgs{Text: "\ufffd", Enter: &yes}},
		"a key that does not exist":             {opt: inputOptions{keys: []string{"entr"}}, given: "keys", bad: "\"entr\" is no key"},
		"an editor's command":                   {opt: inputOptions{typeText: ":se nu"}, given: "type", want: wire.InputArgs{Keys: []string{":", "s", "e", "space", "n", "u", "enter"}}},
		"keys of a text without Return":         {opt: inputOptions{typeText: "é", noEnter: true}, given: "type", want: wire.InputArgs{Keys: []string{"é"}}},
		"more keys than can be pressed":         {opt: inputOptions{typeText: strings.Repeat("x", 64)}, given: "type", bad: "presses 65 keys; 1 to 64"},
		"a control that is no key":              {opt: inputOptions{typeText: "\x01"}, given: "type", bad: "is no key"},
		"a wait for nothing":                    {opt: inputOptions{text: "x"}, given: "text wait", bad: "--wait is for --wait-text"},
		"a text typed and pasted":               {opt: inputOptions{text: "x", typeText: "y"}, given: "text type", bad: "several inputs"},
		"keys and a text":                       {opt: inputOptions{keys: []string{"esc"}, text: "x"}, given: "keys text", bad: "two inputs"},
		"too many keys":                         {opt: inputOptions{keys: make([]string, 65)}, given: "keys", bad: "1 to 64"},
		"nothing":                               {bad: "say what to type"},
		"an empty text":                         {given: "text", bad: "text has 0 bytes"},
		"a text to wait for that is only space": {opt: inputOptions{text: "x", waitText: " \n"}, given: "text wait-text", bad: "nothing that could be waited for"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.opt.request(t.Context(), strings.NewReader(c.stdin), func(f string) bool {
				return strings.Contains(" "+c.given+" ", " "+f+" ")
			}, "seat")
			if c.bad != "" {
				if err == nil || cli.CodeOf(err) != cli.Usage || !strings.Contains(err.Error(), c.bad) {
					t.Errorf("%v, want %q", err, c.bad)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v %v, want %+v", got, err, c.want)
			}
		})
	}
}

// A dialog is confirmed by what it says, from a script without a terminal: no delay is guessed.
func TestFieldD13_ADialogIsConfirmedOnceItIsShown(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	gate, log := w.Path("gate"), w.Path("log")
	w.Spawn("asks", "sh", "-c", `while [ ! -e `+gate+` ]; do sleep 0.02; done; stty raw -echo; printf 'Do you \033[1mtrust\033[0m\r\n  this folder?'; dd bs=1 count=4 2>/dev/null >`+log+`; echo; echo confirmed; exec sleep 600`)
	r := w.CLI("input", "asks", "--wait-text", "Do you trust this folder?", "--wait", "100ms", "--keys", "down,enter").Want(1)
	if !strings.Contains(r.Stderr, "nothing was typed") {
		t.Errorf("%v", r)
	}
	// Who ended the wait was told that it was interrupted, and not whether anything was typed.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel) // however far it is by then
	err := awaitText(ctx, appOf(w), w.Inspect("asks"), inputOptions{waitText: "never", wait: time.Minute})
	if cli.CodeOf(err) != cli.Interrupted || !strings.Contains(err.Error(), "nothing was typed") {
		t.Errorf("interrupted, it says %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.CLI("input", "asks", "--wait-text", "Do you trust this folder?", "--keys", "down,enter").OK()
	harness.Eventually(t, harness.DefaultWait, "it was confirmed", func() (bool, string) {
		out := w.CLI("logs", "asks").Stdout
		return strings.Contains(out, "confirmed"), out
	})
	if got, _ := os.ReadFile(log); string(got) != "\x1b[B\r" {
		t.Errorf("the program read %q", got)
	}
	w.CLI("input", "asks", "--keys", "hyper").Want(2)
}

// What a program does to the clipboard is not shown, and what it shows is; with the flag it is passed.
func TestFieldO3_AnAttachedTerminalKeepsItsClipboard(t *testing.T) {
	t.Parallel()
	secret := base64.StdEncoding.EncodeToString([]byte("stolen"))
	for flag, want := range map[string]bool{"--read-only": false, "--clipboard": true} {
		r := newRig(t)
		p := r.start("copy", `stty raw -echo; echo begun; read x; printf 'one\033]52;c;`+secret+`\007two\033]0;title\007three\033]52;c;?\033\\end'; exec sleep 600`)
		s := r.run("attach", "--no-nudge", flag, "copy")
		s.see("begun")
		c, err := seat.Dial(t.Context(), seat.DialConfig{Socket: p.sock, Token: p.token, Role: seat.RoleInput | seat.RoleControl, Fence: 1, From: seat.FromLive})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Input(t.Context(), []byte("go\n")); err != nil {
			t.Fatal(err)
		}
		c.Close()
		s.see("end")
		if got := s.text(); strings.Contains(got, "]52;") != want || !strings.Contains(got, "\x1b]0;title") {
			t.Errorf("%s: shown %q", flag, tail(got))
		}
		s.send("\x1d")
		s.wait()
	}
}

func TestAScreenIsPaintedWhenItFits(t *testing.T) {
	st := seat.Status{First: 100, Next: 200}
	fits := wire.TerminalSnapshot{Offset: 150, Rows: 24, Cols: 80, Data: []byte("x")}
	edit := func(f func(*wire.TerminalSnapshot)) *wire.TerminalSnapshot { s := fits; f(&s); return &s }
	for name, c := range map[string]struct {
		s    *wire.TerminalSnapshot
		want bool
	}{
		"of the same size":                       {&fits, true},
		"there is none":                          {nil, false},
		"one that may be wrong":                  {edit(func(s *wire.TerminalSnapshot) { s.Dirty = "flood" }), false},
		"higher than this terminal":              {edit(func(s *wire.TerminalSnapshot) { s.Rows = 25 }), false},
		"wider than this terminal":               {edit(func(s *wire.TerminalSnapshot) { s.Cols = 81 }), false},
		"smaller than this terminal":             {edit(func(s *wire.TerminalSnapshot) { s.Rows, s.Cols = 10, 10 }), true},
		"what follows it is not kept any more":   {edit(func(s *wire.TerminalSnapshot) { s.Offset = 99 }), false},
		"from the future, of another life of it": {edit(func(s *wire.TerminalSnapshot) { s.Offset = 201 }), false},
	} {
		if got := usable(c.s, st, 24, 80); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	asks := edit(func(s *wire.TerminalSnapshot) {
		s.Data, s.Modes = []byte("a\x1b[6nb\x1b]52;c;?\x07c"), uint32(terminal.AltScreen)
	})
	if got := string(paintScreen(asks, 24)); got != "\x1b[?1049habc" {
		t.Errorf("painted %q: a terminal would answer", got)
	}
}

// The program of a runtime that shows its terminals itself has the terminal, and what it leaves of it is put
// right; then comes how it is with the seat.
func TestTheProgramOfARuntimeIsRunInTheForeground(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("mux", "sh", "-c", "exec sleep 600")
	r := worldRig(t, w)
	client := []string{"sh", "-c", `stty raw -echo; printf 'client %s' "${TMUX-none}"; read x; [ $x = bad ] && exit 3; exit 0`}
	for typed, want := range map[string]struct {
		code int
		says string
	}{
		"good\n": {0, "detached from mux; it is running. Attach again: cotal attach mux"},
		"bad\n":  {1, "the program that shows the terminal of mux failed: exit status 3; the seat is running"},
	} {
		s := r.runEnv([]string{asClient + "=1", "TMUX=/tmp/x,1,0"}, append([]string{"mux"}, client...)...)
		s.see("client none")
		s.send(typed)
		code, shown := s.wait()
		if code != want.code || !strings.Contains(shown, want.says) {
			t.Errorf("%q: exit code %d, shown %q", typed, code, tail(shown))
		}
		if want.code != 0 && s.termios() != s.before {
			t.Errorf("%q: the terminal is left as the program left it", typed)
		}
	}
	s := r.runEnv([]string{asClient + "=1"}, append([]string{"mux"}, client...)...)
	s.see("client none")
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, shown := s.wait(); code != 130 || !strings.Contains(shown, "mux goes on running") || s.termios() != s.before {
		t.Errorf("a signal: exit code %d, shown %q", code, tail(shown))
	}
}
