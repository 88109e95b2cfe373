//go:build linux

package main

import (
	"strings"
	"testing"
)

// In a full-screen program, too, a terminal is told that it only watches, and when it loses the keyboard.
func TestAViewerOfAFullScreenProgramIsToldThatItOnlyWatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("full", `printf '\033[?1049h\033[2Jfull screen'; exec cat`)
	a := r.run("attach", "full")
	a.see("full screen")
	b := r.run("attach", "full")
	b.see("\x1b7\x1b[0;7m")
	b.see("another terminal has the keyboard: you only watch; to take it: cotal attach")
	b.send("x")
	b.see("what you type is dropped; Ctrl-] detaches")
	c := r.run("attach", "--take-over", "full")
	a.see("another terminal took the keyboard: you only watch now")
	for _, s := range []*screen{a, b, c} {
		s.send("\x1d")
		s.wait()
	}
	got := string(overlay(24, 10, "0123456789abc"))
	if want := "\x1b7\x1b[0;7m\x1b[23;1H\x1b[2K0123456789\x1b[24;1H\x1b[2Kabc\x1b[0m\x1b8"; got != want {
		t.Errorf("drawn %q, want %q", got, want)
	}
	if n := strings.Count(string(overlay(2, 5, "0123456789")), "\x1b[2K"); n != 1 {
		t.Errorf("%d lines of a terminal of two", n)
	}
}
