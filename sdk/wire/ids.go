package wire

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// OwnerLocal is the owner of every principal outside user mode.
const OwnerLocal = "local"

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewUID mints a lifecycle UID or instance id: 130 random bits as 26 characters base32-lower.
// It is never reused.
func NewUID() string {
	// 17 bytes give 28 characters of which 26 are wholly random (26 * 5 = 130 bits).
	var b [17]byte
	rand.Read(b[:])
	return base32Lower.EncodeToString(b[:])[:26]
}

// NewID mints a request id (also used as a goal id): 132 random bits as 22 characters base64url.
func NewID() string {
	var b [17]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])[:22]
}

// NewNonce mints the secret of one outstanding call: 192 random bits as 32 characters base64url.
func NewNonce() string {
	var b [24]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// NewCustodyID mints a custody id: 128 random bits as 32 hex digits.
func NewCustodyID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// all reports whether s has between lo and hi bytes and ok holds for each of them.
func all(s string, lo, hi int, ok func(byte) bool) bool {
	if len(s) < lo || len(s) > hi {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isActorChar(c byte) bool { return isLower(c) || isUpper(c) || isDigit(c) || c == '_' }
func isTokenChar(c byte) bool { return isActorChar(c) || c == '-' }
func isUIDChar(c byte) bool   { return isLower(c) || isDigit(c) }
func isHexChar(c byte) bool   { return isDigit(c) || c >= 'a' && c <= 'f' }

// ValidUID reports whether s is a lifecycle UID or instance id: [a-z0-9]{26,32}.
func ValidUID(s string) bool { return all(s, 26, 32, isUIDChar) }

// ValidID reports whether s is a request, goal, timer or session id: [A-Za-z0-9_-]{1,64}.
func ValidID(s string) bool { return all(s, 1, MaxID, isTokenChar) }

// ValidNonce reports whether s is a call nonce: [A-Za-z0-9_-]{22,64}.
func ValidNonce(s string) bool { return all(s, 22, MaxID, isTokenChar) }

// ValidCustodyID reports whether s is a custody id: 32 lowercase hex digits.
func ValidCustodyID(s string) bool { return all(s, 32, 32, isHexChar) }

// ValidGeneration reports whether s is the generation of an issued credential: 32 lowercase hex digits.
func ValidGeneration(s string) bool { return all(s, 32, 32, isHexChar) }

// ValidSpace reports whether s names a space: [A-Za-z0-9_-]{1,64}.
func ValidSpace(s string) bool { return all(s, 1, MaxSpace, isTokenChar) }

// ValidCommand reports whether s is a command token: [a-z0-9-]{1,32}.
func ValidCommand(s string) bool {
	return all(s, 1, MaxCommand, func(c byte) bool { return isUIDChar(c) || c == '-' })
}

// ValidOwner reports whether s is an owner token: local, or u_ and 26 characters base32-lower.
func ValidOwner(s string) bool {
	if s == OwnerLocal {
		return true
	}
	rest, ok := strings.CutPrefix(s, "u_")
	return ok && all(rest, 26, 26, func(c byte) bool { return isLower(c) || c >= '2' && c <= '7' })
}

// ValidActor reports whether s is an actor token: [A-Za-z0-9_]{1,64}. The dash is not allowed,
// because it separates owner from actor in durable names.
func ValidActor(s string) bool { return all(s, 1, MaxActor, isActorChar) }

// ValidEndpoint reports whether s is an endpoint name: one or more labels
// [a-z0-9]([a-z0-9-]*[a-z0-9])? joined by dots, at most 64 bytes.
func ValidEndpoint(s string) bool {
	if s == "" || len(s) > MaxEndpoint {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !all(label, 1, MaxEndpoint, func(c byte) bool { return isUIDChar(c) || c == '-' }) {
			return false
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

// EndpointToken is the subject token of an endpoint name: dots become underscores.
func EndpointToken(name string) string { return strings.ReplaceAll(name, ".", "_") }

func endpointOfToken(tok string) (string, bool) {
	name := strings.ReplaceAll(tok, "_", ".")
	return name, ValidEndpoint(name)
}

// tokenProblem quotes at most 80 bytes of a foreign value and says what is wrong with it.
func tokenProblem(v, problem string) string {
	if v == "" {
		return "is missing"
	}
	if len(v) > 80 {
		return fmt.Sprintf("%q... (%d bytes) %s", v[:80], len(v), problem)
	}
	return fmt.Sprintf("%q %s", v, problem)
}
