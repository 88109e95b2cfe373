package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// detachEnv names the variable that chooses another detach key, as ctrl-<character>.
const detachEnv = "COTAL_DETACH_KEY"

// holdMax bounds a key sequence that is held back until it is complete. No key is longer.
const holdMax = 64

// detachKey is a control character that ends an attach.
type detachKey struct {
	char byte // as the key is labelled: ] or a..z or one of @ [ \ ^ _
	ctrl byte // what a terminal sends for it without extended keys
}

// parseDetachKey reads ctrl-<c>; empty is the default, ctrl-].
func parseDetachKey(text string) (detachKey, error) {
	if text == "" {
		text = "ctrl-]"
	}
	lower := strings.ToLower(text)
	rest, ok := strings.CutPrefix(lower, "ctrl-")
	if !ok || len(rest) != 1 || !(rest[0] >= 'a' && rest[0] <= 'z' || strings.IndexByte("@[\\]^_", rest[0]) >= 0) {
		return detachKey{}, fmt.Errorf("%s=%q: write ctrl- and one of a..z @ [ \\ ] ^ _, for example ctrl-]", detachEnv, text)
	}
	if rest == "[" || rest == "m" || rest == "i" {
		return detachKey{}, fmt.Errorf("%s=%q is the Escape, Return or Tab key; choose another, for example ctrl-]", detachEnv, text)
	}
	return detachKey{char: rest[0], ctrl: rest[0] & 0x1f}, nil
}

func detachKeyFromEnv() (detachKey, error) { return parseDetachKey(os.Getenv(detachEnv)) }

func (k detachKey) String() string { return "Ctrl-" + strings.ToUpper(string(k.char)) }

// keyScanner looks for the detach key in what a terminal sends. The key counts in all three forms a
// terminal may use (control character, kitty CSI u, modifyOtherKeys), and not inside a paste. A
// sequence that was cut by a read is held back; Flush releases it when nothing follows.
type keyScanner struct {
	key   detachKey
	paste bool
	held  []byte
}

// Feed returns what to pass on and whether the detach key came; what follows the key is dropped.
func (s *keyScanner) Feed(p []byte) (pass []byte, detach bool) {
	if len(s.held) > 0 {
		p = append(s.held, p...)
		s.held = nil
	}
	for i := 0; i < len(p); i++ {
		switch {
		case p[i] == s.key.ctrl && !s.paste:
			return p[:i], true
		case p[i] == 0x1b && i+1 < len(p) && p[i+1] == '[':
			n, whole := csiLen(p[i:])
			if !whole {
				if n > holdMax {
					return p, false // no key; not worth holding
				}
				s.held = bytes.Clone(p[i:])
				return p[:i], false
			}
			switch body := string(p[i+2 : i+n]); {
			case body == "200~":
				s.paste = true
			case body == "201~":
				s.paste = false
			case !s.paste && s.isKey(body):
				return p[:i], true
			}
			i += n - 1
		}
	}
	return p, false
}

// Pending reports whether something is held back.
func (s *keyScanner) Pending() bool { return len(s.held) > 0 }

// Flush returns what is held back.
func (s *keyScanner) Flush() []byte {
	p := s.held
	s.held = nil
	return p
}

// csiLen is the length of the control sequence at the start of p, and whether it is complete. A byte
// that cannot stand in one ends it.
func csiLen(p []byte) (n int, whole bool) {
	for i := 2; i < len(p); i++ {
		if p[i] < 0x20 || p[i] >= 0x40 {
			return i + 1, true
		}
	}
	return len(p), false
}

// isKey says whether the text of a control sequence, after its introducer, is the detach key pressed.
func (s *keyScanner) isKey(body string) bool {
	if len(body) < 2 {
		return false
	}
	fields := strings.Split(body[:len(body)-1], ";")
	switch {
	case body[len(body)-1] == 'u' && len(fields) >= 2: // key[:shifted[:base]] ; mods[:event] [; text]
		keys := strings.Split(fields[0], ":")
		mods, event, _ := strings.Cut(fields[1], ":")
		if event == "3" { // released
			return false
		}
		return isCtrl(mods) && (s.isChar(keys[0]) || len(keys) == 3 && s.isChar(keys[2]))
	case body[len(body)-1] == '~' && len(fields) == 3 && fields[0] == "27": // 27 ; mods ; key
		return isCtrl(fields[1]) && s.isChar(fields[2])
	}
	return false
}

func (s *keyScanner) isChar(code string) bool {
	n := small(code)
	if n >= 'A' && n <= 'Z' {
		n += 'a' - 'A'
	}
	return n == int(s.key.char) || n == int(s.key.ctrl)
}

// isCtrl says whether a modifier field is Control alone; caps lock and num lock do not count.
func isCtrl(field string) bool {
	n := small(field) - 1
	return n >= 0 && n&^(64|128) == 4
}

// small parses a short decimal number; anything else is -1.
func small(text string) int {
	if text == "" || len(text) > 7 {
		return -1
	}
	n := 0
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}
