package terminal

import "testing"

func TestIsReport(t *testing.T) {
	for in, want := range map[string]bool{
		"\x1b[?62;4c": true, "\x1b[12;40R": true, "\x1b]11;rgb:0/0/0\x07": true, "\x1bP1$r0m\x1b\\": true, "\x1b[<35;1;1M": true, "\x1b[I": true, "\x1b[0n": true,
		"a": false, "": false, "\x1b": false, "\x1b[A": false, "\x1b[1;5C": false, "\x1b[3~": false, "\x1b[97;5u": false, "\x1b[200~x\x1b[201~": false, "Rc": false, "\r": false,
	} {
		if got := IsReport([]byte(in)); got != want {
			t.Errorf("%q: %v", in, got)
		}
	}
}
