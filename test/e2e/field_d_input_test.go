//go:build linux

package e2e

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

const pasteOn = "\x1b[?2004h"

// pasted is one text as a program reads it that asked for bracketed paste, submitted.
func pasted(text string) string { return "\x1b[200~" + text + "\x1b[201~\r" }

// The key that submits comes behind the end of the paste, and where no paste was asked for behind the text.
func TestFieldD1_TheReturnIsNoPartOfTheText(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		asked, plain := s.reader("asked", pasteOn), s.reader("plain", "")
		for _, name := range []string{"asked", "plain"} {
			s.CLI("input", name, "--text", "hello").OK()
		}
		s.arrives("asked", asked, pasted("hello"))
		s.arrives("plain", plain, "hello\r")
		if got := hex.EncodeToString([]byte(asked())); got != "1b5b3230307e68656c6c6f1b5b3230317e0d7e" {
			t.Errorf("it has read %s", got)
		}
	})
}

func TestFieldD2_ManyLinesAreOnePasteAndOneReturn(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		read := s.reader("lines", pasteOn)
		s.CLI("input", "lines", "--text", "one\n\ttwo\nthree").OK()
		s.CLI("input", "lines", "--text", "four\nfive").OK()
		s.arrives("lines", read, pasted("one\n\ttwo\nthree")+pasted("four\nfive"))
	})
}

// Sizes at which tmux drops text in silence, up to the largest there is.
func TestFieldD4_LongTextsArriveByteForByte(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		plain, asked := s.reader("plain", ""), s.reader("asked", pasteOn)
		var want, wantPasted strings.Builder
		for _, n := range []int{1023, 3000, 4097, 9995, 64 << 10} {
			const part = "0123456789 grüße 日本語 abcdefghijklmnopqrstuvwxyz "
			text := strings.Repeat(part, n/len(part)) + strings.Repeat("x", n%len(part))
			for _, name := range []string{"plain", "asked"} {
				s.CLI("input", name, "--text", text).OK()
			}
			want.WriteString(text + "\r")
			wantPasted.WriteString(pasted(text))
		}
		s.arrives("plain", plain, want.String())
		s.arrives("asked", asked, wantPasted.String())
		s.CLI("input", "plain", "--text", strings.Repeat("x", 64<<10+1)).Want(2) // said, and not cut
	})
}

// Nothing in a text is a key name, a flag, a separator, a format or a variable.
func TestFieldD5_ATextIsNeverACommand(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		read := s.reader("literal", "")
		touched := filepath.Join(s.Dir, "touched")
		want := ""
		for _, text := range []string{
			"Enter", "C-c", "-l", "--", ";", "a ;", `\;`, "$HOME", "~", "#{pid} #S", "#(touch " + touched + ")", "$(touch " + touched + ")",
			"`touch " + touched + "`", `'"`, `\`, "{left}", "%0", "!",
		} {
			s.CLI("input", "literal", "--text", text).OK()
			want += text + "\r"
		}
		// Keys are pressed by name. In a text they are bytes, or it is refused where nobody knows whether it
		// becomes a paste, which they could end.
		for _, text := range []string{"\x1b[A", "\x03"} {
			switch r := s.CLI("input", "literal", "--text", text); {
			case s.runtime == "pty":
				r.OK()
				want += text + "\r"
			case r.Code != 1 || !strings.Contains(r.Stderr, "a paste cannot hold") || !strings.Contains(r.Stderr, "--keys"):
				t.Errorf("a control character: %v", r)
			}
		}
		s.arrives("literal", read, want)
		if _, err := os.Stat(touched); err == nil {
			t.Error("a part of a text was run")
		}
	})
}

// A dialog is confirmed by what it says, from a script without a terminal; attach is not for that, and says
// what is.
func TestFieldD13_ADialogIsConfirmedOnceItIsShown(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		gate, log := filepath.Join(s.Dir, "gate"), filepath.Join(s.Dir, "log")
		s.Spawn("asks", "sh", "-c", `stty raw -echo; while [ ! -e `+gate+` ]; do sleep 0.02; done; `+
			`printf 'Do you \033[1mtrust\033[0m\r\n  this folder?'; dd bs=1 count=4 2>/dev/null >`+log+`; printf '\r\nconfirmed'; exec sleep 600`)
		cmd := exec.Command(filepath.Join(s.Bin, "cotal"), "attach", "asks")
		cmd.Dir, cmd.Env, cmd.Stdin = s.Root, s.Environ(), strings.NewReader("\n")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 2 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "cotal input asks") {
			t.Errorf("attach without a terminal: %v, stdout %q, stderr %q", err, stdout.String(), stderr.String())
		}
		confirm := []string{"input", "asks", "--wait-text", "Do you trust this folder?", "--keys", "down,enter"}
		if r := s.CLI(append(confirm, "--wait", "100ms")...).Want(1); !strings.Contains(r.Stderr, "nothing was typed") {
			t.Errorf("before it is shown: %v", r)
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.CLI(confirm...).OK()
		s.shows("asks", "confirmed")
		if got := read(t, log); got != "\x1b[B\r" {
			t.Errorf("it has read %q", got)
		}
	})
}

// What a person told their own tmux changes no byte.
func TestFieldD14_TheUsersTmuxConfigurationChangesNothing(t *testing.T) {
	t.Parallel()
	for _, r := range runtimes {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			conf := "set -g extended-keys on\nset -s extended-keys-format csi-u\nset -g prefix C-a\nset -g base-index 1\nset -g pane-base-index 1\n" +
				"set -g remain-on-exit off\nset -g mouse on\nset -g default-command 'touch " + filepath.Join(w.Dir, "touched") + "'\n"
			for _, name := range []string{".tmux.conf", ".config/tmux/tmux.conf"} {
				path := filepath.Join(w.Home, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := &stage{World: w, t: t, host: w.Start(harness.HostOptions{Args: r.args}), runtime: r.name, detach: r.detach}
			read := s.reader("lines", pasteOn)
			s.CLI("input", "lines", "--text", "one\ntwo\nthree").OK()
			s.CLI("input", "lines", "--keys", "enter,ctrl-a").OK()
			want := pasted("one\ntwo\nthree") + "\r\x01"
			// And what is typed at a terminal: the key of the user's prefix is a key like any other.
			term := s.desk(30, 100).run("attach", "lines")
			await(t, harness.DefaultWait, "a key of the terminal arrives", func() (bool, string) {
				got := read()
				if len(got) == len(want) {
					term.typed("\x01")
				}
				return len(got) > len(want), got
			})
			term.typed("\r")
			await(t, harness.DefaultWait, "the Return arrives", func() (bool, string) { return strings.HasSuffix(read(), "\x01\r"), read() })
			if got := strings.TrimRight(strings.TrimPrefix(read(), want), "\x01"); got != "\r" && strings.Trim(got, "\x01") != "\r" {
				t.Errorf("of the terminal it has read %q", got)
			}
			if code := term.leave(r.detach); code != 0 {
				t.Errorf("leaving ends with code %d; shown %q", code, term.shown())
			}
			if _, err := os.Stat(filepath.Join(w.Dir, "touched")); err == nil {
				t.Error("the user's configuration was read")
			}
		})
	}
}

func TestFieldD15_OneLineEndIsTheReturn(t *testing.T) {
	inEveryRuntime(t, func(t *testing.T, s *stage) {
		asked, plain := s.reader("asked", pasteOn), s.reader("plain", "")
		for _, text := range []string{"hi", "hi\n", "hi\r\n", "hi\r"} {
			for _, name := range []string{"asked", "plain"} {
				s.CLI("input", name, "--text", text).OK()
			}
		}
		s.arrives("asked", asked, strings.Repeat(pasted("hi"), 4))
		s.arrives("plain", plain, strings.Repeat("hi\r", 4))
	})
}
