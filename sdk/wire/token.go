package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Sanitize makes a routing token of any text: every character outside [A-Za-z0-9_-] becomes an
// underscore. It loses what it replaces and is never undone; two texts may share a token. Owners,
// actors and everything of the endpoint planes are never sanitised but refused.
func Sanitize(s string) string {
	if all(s, 0, len(s), isTokenChar) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		if r < utf8.RuneSelf && isTokenChar(byte(r)) {
			b.WriteByte(byte(r))
		} else {
			b.WriteByte('_')
		}
	}
	return b.String()
}

// ValidToken reports whether s is a routing token of the messaging plane: [A-Za-z0-9_-]+, as Sanitize
// makes them of anything but the empty text.
func ValidToken(s string) bool { return all(s, 1, MaxChannel, isTokenChar) }

// ValidName reports whether s is a display name: 1 to 128 characters of UTF-8. Nothing else is asked of it.
func ValidName(s string) bool {
	return s != "" && utf8.ValidString(s) && utf8.RuneCountInString(s) <= MaxName
}

// ValidPool reports whether s names a work pool: [a-z0-9-]{1,32}.
func ValidPool(s string) bool { return ValidCommand(s) }

// ValidHex reports whether s is the hex part of a digest: 64 lowercase hex digits.
func ValidHex(s string) bool { return all(s, 64, 64, isHexChar) }

// ValidSessionID reports whether s is the id of a session: [A-Za-z0-9_-]{22,64}, long enough that
// nobody guesses it.
func ValidSessionID(s string) bool { return ValidNonce(s) }

// ValidOpID reports whether s is the id of a barrier operation; it has the grammar of a UID.
func ValidOpID(s string) bool { return ValidUID(s) }

// ValidURN reports whether s is a reverse-DNS name of the contract (clusters, traits, detail kinds):
// 2 to 16 labels [a-z0-9][a-z0-9-]{0,62}.
func ValidURN(s string) bool {
	n := 0
	for label := range strings.SplitSeq(s, ".") {
		n++
		if !all(label, 1, 63, func(c byte) bool { return isUIDChar(c) || c == '-' }) || label[0] == '-' {
			return false
		}
	}
	return n >= 2 && n <= 16
}

// ValidPartKind reports whether s is the kind of an extension part: [A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+.
func ValidPartKind(s string) bool {
	n := 0
	for label := range strings.SplitSeq(s, ".") {
		n++
		if !all(label, 1, len(s), func(c byte) bool { return isTokenChar(c) && c != '_' }) {
			return false
		}
	}
	return n >= 2
}

// ValidChannel reports whether s names a channel: tokens of [A-Za-z0-9_-] joined by dots, at most
// 4096 bytes, no wildcard. Only such a name can be published to.
func ValidChannel(s string) bool {
	if s == "" || len(s) > MaxChannel {
		return false
	}
	for seg := range strings.SplitSeq(s, ".") {
		if !ValidToken(seg) {
			return false
		}
	}
	return true
}

// ValidChannelPattern reports whether s may stand in a subscription or an access list: as
// ValidChannel, but a whole segment may be *, and the last may be >. The pattern team.> does not match
// the channel team.
func ValidChannelPattern(s string) bool {
	if s == "" || len(s) > MaxChannel {
		return false
	}
	seg := strings.Split(s, ".")
	for i, t := range seg {
		if t != "*" && (t != ">" || i != len(seg)-1) && !ValidToken(t) {
			return false
		}
	}
	return true
}

// SanitizeChannel sanitises every segment of a channel name or pattern and keeps whole wildcards. It
// refuses what cannot be repaired: an empty name or segment, a misplaced >, a name that is too long.
func SanitizeChannel(s string) (string, error) {
	seg := strings.Split(s, ".")
	for i, t := range seg {
		if t != "*" && t != ">" {
			seg[i] = Sanitize(t)
		}
	}
	out := strings.Join(seg, ".")
	if !ValidChannelPattern(out) {
		return "", fmt.Errorf("sanitize channel %s", tokenProblem(s, "has an empty segment, a misplaced > or more than 4096 bytes"))
	}
	return out, nil
}

// ChannelMatches reports whether a pattern covers a channel, as the broker would.
func ChannelMatches(pattern, channel string) bool {
	p, c := strings.Split(pattern, "."), strings.Split(channel, ".")
	for i, t := range p {
		switch {
		case t == ">" && i == len(p)-1:
			return len(c) > i
		case i >= len(c):
			return false
		case t != "*" && t != c[i]:
			return false
		}
	}
	return len(p) == len(c)
}

// ReservedSubject reports whether a subject begins with a prefix that no application may publish to.
func ReservedSubject(subject string) bool {
	for _, prefix := range []string{"$JS.", "$KV.", "$SYS.", "$O.", "_INBOX."} {
		if strings.HasPrefix(subject, prefix) {
			return true
		}
	}
	return false
}

// InboxPrefix is the prefix a connection sets for its own inboxes before it requests anything. connID
// is the connection's nkey, or in user mode a nonce of its own; nothing else is keyed by it.
func InboxPrefix(connID string) string { return "_INBOX_" + connID }
