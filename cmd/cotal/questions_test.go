//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// askedAt is a question of the scripted agent: where it puts the cursor, and that it asks where that is.
var askedAt = regexp.MustCompile(`\x1b\[(\d+);(\d+)H\x1b\[6n`)

// answering makes a terminal answer where its cursor is, like a terminal, once for each time it is shown the
// question. It returns how often it did.
func (s *screen) answering() (answered func() int) {
	stop, done := make(chan struct{}), make(chan int, 1)
	go func() {
		n, at := 0, 0
		defer func() { done <- n }()
		for {
			text := s.text()
			if m := askedAt.FindStringSubmatchIndex(text[at:]); m != nil {
				_, _ = s.ptm.WriteString("\x1b[" + text[at+m[2]:at+m[3]] + ";" + text[at+m[4]:at+m[5]] + "R")
				n, at = n+1, at+m[1]
				continue
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() int { close(stop); return <-done }
}

// answer is one line of what an asking agent notes.
type answer struct {
	what, told string
	row, col   int
}

func answersIn(t *testing.T, name string) (all []answer) {
	t.Helper()
	text, _ := os.ReadFile(name)
	for line := range strings.Lines(string(text)) {
		var a answer
		if !strings.HasSuffix(line, "\n") {
			break
		}
		if _, err := fmt.Sscanf(line, "%s %d %d %q\n", &a.what, &a.row, &a.col, &a.told); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, a)
	}
	return all
}

// TestFieldD19_AnAttachAnswersWhatIsAskedOfItAndNothingElse: a program asks without pause while terminals come,
// take over from each other and go. Each question is answered once, by the mirror or by the terminal that was
// there: what was asked between the picture an attach begins with and its own stream is not asked again.
//
// proves: RT-5
func TestFieldD19_AnAttachAnswersWhatIsAskedOfItAndNothingElse(t *testing.T) {
	t.Parallel()
	const rounds = 20
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	log, enough := w.Path("answers"), w.Path("enough")
	w.SpawnFake("asks", fmt.Sprintf(`[{"raw": true}, {"ask": {"everyMs": 2, "file": %q, "until": %q}}, {"hang": true}]`, log, enough))
	r := worldRig(t, w)
	told := func() int { return len(answersIn(t, log)) }
	byTerminals := 0
	leave := func(s *screen, answered func() int) {
		s.send("\x1d")
		if code, shown := s.wait(); code != 0 || !strings.Contains(shown, "detached from asks") {
			t.Errorf("exit code %d, shown %q", code, tail(shown))
		}
		byTerminals += answered()
	}
	for i := range rounds {
		before := told()
		eventually(t, "questions are answered with no terminal there", func() bool { return told() > before+1 })
		s := r.run("attach", "asks")
		answered := s.answering()
		eventually(t, "the terminal is asked", func() bool { return askedAt.MatchString(s.text()) })
		if i%5 == 4 { // another one takes the keyboard, and leaves last
			o := r.run("attach", "--take-over", "asks")
			others := o.answering()
			eventually(t, "the terminal that took over is asked", func() bool { return askedAt.MatchString(o.text()) })
			leave(s, answered)
			s, answered = o, others
		}
		if i%2 == 0 {
			before := told()
			eventually(t, "the terminal answers", func() bool { return told() > before+4 })
		}
		leave(s, answered)
	}
	if err := os.WriteFile(enough, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var all []answer
	eventually(t, "the agent has asked enough", func() bool {
		all = answersIn(t, log)
		return all[len(all)-1].what == "end"
	})
	t.Logf("%d questions, %d of them answered by terminals", len(all)-1, byTerminals)
	for _, a := range all[:len(all)-1] {
		if want := fmt.Sprintf("\x1b[%d;%dR", a.row, a.col); a.told != want {
			t.Errorf("question %s was answered %q, want %q once", a.what, a.told, want)
		}
	}
	if end := all[len(all)-1]; end.told != "" {
		t.Errorf("stray bytes after the last answer: %q", end.told)
	}
	if byTerminals < rounds {
		t.Errorf("terminals answered %d questions: the test has not tried what it should", byTerminals)
	}
	w.CLI("stop", "--now", "asks").OK()
}

// asker is a script that asks what the terminal is at once, and again for every line that is typed.
const asker = `stty raw -echo; n=0; while :; do n=$((n+1)); printf '<%s\033[c%s>' $n $n; head -c 1 >/dev/null; done`

// Without a host there is no picture: the output is replayed without its questions, whether or not anybody
// answered them, and so is what came while the connection was lost. What is asked later is the terminal's.
func TestAttach_WhatIsReplayedAsksNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("asks", asker)
	b := through(t, p)
	eventually(t, "it has asked", func() bool { return p.status().Next >= 7 })
	s := r.run("attach", "--no-nudge", "asks")
	s.see("<11>") // without what stands between the digits
	s.send("x")
	s.see("<2\x1b[c2>")
	b.cut()
	s.see("reconnecting")
	// A host types: the question comes while nobody is there.
	c := p.control()
	next := c.Welcome().Next
	c.Close()
	h, err := seat.Dial(t.Context(), seat.DialConfig{Socket: p.sock, Token: p.token, Role: seat.RoleControl | seat.RoleInput, Fence: 1, From: seat.FromLive})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Input(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	h.Close()
	eventually(t, "it has asked again", func() bool { return p.status().Next >= next+7 })
	b.restore(t)
	s.see("reconnected")
	s.see("<33>")
	s.send("x")
	s.see("<4\x1b[c4>")
	s.send("\x1d")
	if code, shown := s.wait(); code != 0 || strings.Count(shown, "\x1b[c") != 2 {
		t.Errorf("exit code %d, shown %q", code, tail(shown))
	}
}

// A terminal that only watches is not the one that is asked: that it answers, too, is not taken for a person
// who types.
func TestAttach_AWatcherThatAnswersIsNotTakenForAPerson(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := filepath.Join(r.root, "typed")
	r.start("asks", `stty raw -echo; printf 'begun'; head -c 1 >/dev/null; printf '\033[cfirst'; exec cat >`+log)
	writer := r.run("attach", "asks")
	writer.see("begun")
	watcher := r.run("attach", "--read-only", "asks")
	watcher.see("begun")
	writer.send("x")
	writer.see("\x1b[cfirst")
	watcher.see("first")
	watcher.send("\x1b[?1;2c")
	eventually(t, "its answer is read", func() bool { return unread(t, watcher) == 0 })
	writer.send("\x1b[?62;22c")
	eventually(t, "the agent has an answer", func() bool { got, _ := os.ReadFile(log); return string(got) == "\x1b[?62;22c" })
	watcher.send("\x1d")
	writer.send("\x1d")
	if code, shown := watcher.wait(); code != 0 || strings.Contains(shown, "you only watch") {
		t.Errorf("exit code %d, shown %q", code, tail(shown))
	}
	if _, shown := writer.wait(); !strings.Contains(shown, "detached") {
		t.Errorf("%q", tail(shown))
	}
	if got, _ := os.ReadFile(log); string(got) != "\x1b[?62;22c" {
		t.Errorf("the agent was told %s", strconv.Quote(string(got)))
	}
}
