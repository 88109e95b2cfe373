package wire

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// CanonicalJSON returns the RFC 8785 form of v: member names in order of their UTF-16 code units,
// numbers as ECMAScript prints a double, minimal escapes, no white space. A json.RawMessage or
// []byte is taken as JSON text, anything else is marshalled first. It refuses what I-JSON does
// not allow: invalid UTF-8, lone surrogates, duplicate names, numbers out of range.
func CanonicalJSON(v any) ([]byte, error) {
	var text []byte
	switch v := v.(type) {
	case json.RawMessage:
		text = v
	case []byte:
		text = v
	default:
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return nil, fmt.Errorf("canonicalize JSON: %w", err)
		}
		text = buf.Bytes()
	}
	n, err := parseJSON(text)
	if err != nil {
		return nil, fmt.Errorf("canonicalize JSON: %w", err)
	}
	return n.appendCanonical(make([]byte, 0, len(text))), nil
}

func (n *node) appendCanonical(dst []byte) []byte {
	switch n.kind {
	case kindNull:
		return append(dst, "null"...)
	case kindFalse:
		return append(dst, "false"...)
	case kindTrue:
		return append(dst, "true"...)
	case kindNumber:
		return appendNumber(dst, n.num)
	case kindString:
		return appendString(dst, n.str)
	case kindArray:
		dst = append(dst, '[')
		for i := range n.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = n.items[i].appendCanonical(dst)
		}
		return append(dst, ']')
	default:
		order := make([]int, len(n.members))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int {
			return compareUTF16(n.members[a].name, n.members[b].name)
		})
		dst = append(dst, '{')
		for i, m := range order {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendString(dst, n.members[m].name)
			dst = append(dst, ':')
			dst = n.members[m].value.appendCanonical(dst)
		}
		return append(dst, '}')
	}
}

// compareUTF16 orders by UTF-16 code units, which differs from byte order only where a character
// beyond the basic plane meets one from U+E000 to U+FFFF.
func compareUTF16(a, b string) int {
	for a != "" && b != "" {
		ra, na := utf8.DecodeRuneInString(a)
		rb, nb := utf8.DecodeRuneInString(b)
		if ra != rb {
			ha, hb := ra, rb
			if ra > 0xffff {
				ha, _ = utf16.EncodeRune(ra)
			}
			if rb > 0xffff {
				hb, _ = utf16.EncodeRune(rb)
			}
			if ha != hb {
				return cmp.Compare(ha, hb)
			}
			return cmp.Compare(ra, rb)
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

// appendNumber prints a finite double as ECMAScript Number::toString does.
func appendNumber(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0') // also for negative zero
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go writes at least two exponent digits, ECMAScript as few as it can: e-07 becomes e-7.
	if e := bytes.IndexByte(dst[start:], 'e') + start; e+3 < len(dst) && dst[e+2] == '0' {
		dst = append(dst[:e+2], dst[e+3:]...)
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= 0x20:
			dst = append(dst, c)
		case c == '\b':
			dst = append(dst, '\\', 'b')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\f':
			dst = append(dst, '\\', 'f')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(dst, '"')
}

// DigestPrefix is in front of the hex digits of a digest scalar.
const DigestPrefix = "sha256:"

// DigestHex is the hex part of a digest scalar, as it stands in subjects and keys.
func DigestHex(digest string) (string, bool) {
	if !ValidDigest(digest) {
		return "", false
	}
	return digest[len(DigestPrefix):], true
}

// Digest is "sha256:" and 64 lowercase hex digits over the bytes as they are.
func Digest(p []byte) string {
	sum := sha256.Sum256(p)
	return DigestPrefix + hex.EncodeToString(sum[:])
}

// DigestJSON is the digest of the canonical form of v.
func DigestJSON(v any) (string, error) {
	p, err := CanonicalJSON(v)
	if err != nil {
		return "", err
	}
	return Digest(p), nil
}

// ValidDigest reports whether s is a digest scalar.
func ValidDigest(s string) bool {
	return len(s) == 71 && s[:7] == DigestPrefix && all(s[7:], 64, 64, isHexChar)
}

// Fingerprint identifies what a request asks for, whoever carries it: the digest of the canonical
// JSON of endpoint, command, class, authorization mode, target, contract digests, args, auth
// digest, caller, goal id and id; what is absent is omitted, never null. The same id with the
// same fingerprint is the same request; with another one it is a conflict.
func Fingerprint(s RequestSubject, e EndpointRequest) (string, error) {
	m := map[string]any{
		"endpoint": e.Op.Endpoint,
		"command":  e.Op.Command,
		"class":    e.Class,
		"caller":   map[string]any{"id": s.Caller.Principal(), "lifecycleUid": s.Caller.UID},
		"id":       e.ID,
	}
	if s.Authz != AuthzNone {
		m["authz"] = s.Authz
	}
	if e.Target != nil {
		m["target"] = e.Target
	}
	if e.Op.InputDigest != "" {
		m["inputDigest"] = e.Op.InputDigest
	}
	if e.Op.OutputDigest != "" {
		m["outputDigest"] = e.Op.OutputDigest
	}
	if len(e.Args) > 0 {
		m["args"] = e.Args
	}
	if e.Auth != "" {
		m["authDigest"] = Digest([]byte(e.Auth))
	}
	if e.GoalID != "" {
		m["goalId"] = e.GoalID
	}
	p, err := CanonicalJSON(m)
	if err != nil {
		return "", fmt.Errorf("fingerprint request: %w", err)
	}
	return Digest(p), nil
}
