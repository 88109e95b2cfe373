package supervise

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// Private keys have several lines, and what plugins print is looked at by the line.
const (
	// keyRun is the least length of a run of base64 that is taken for the middle of a key: its lines have 64
	// or 70 letters of it, whatever else stands in them.
	keyRun = 32
	// keyGap is how many lines that hold no such run may stand in a key: the head of an encrypted one has
	// three, the last line of data may be short. After more it was only a mention of a key, as in "want
	// -----BEGIN PRIVATE KEY-----", and hiding everything behind it would hide why a plugin died.
	keyGap = 6
)

var (
	keyBegin = regexp.MustCompile(`-{4,5} ?BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}`)
	keyEnd   = regexp.MustCompile(`-{4,5} ?END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}`)
	// A private key from its begin to its end, or to the end of the text.
	pemKey  = regexp.MustCompile(`(?s)` + keyBegin.String() + `.*?(?:` + keyEnd.String() + `|$)`)
	keyData = regexp.MustCompile(`[A-Za-z0-9+/_=-]{` + strconv.Itoa(keyRun) + `,}`)
)

// pem hides the private keys in a text of any number of lines.
func pem(s string) string {
	if !strings.Contains(s, "PRIVATE KEY") {
		return s
	}
	return pemKey.ReplaceAllString(s, redacted)
}

// keyLines hides private keys in a stream of lines. The zero value is ready for use, by one stream.
type keyLines struct {
	inside bool
	gap    int // lines without data since the last one with data
}

// hide is the line without what it has of a private key.
func (k *keyLines) hide(line []byte) []byte {
	mentioned := bytes.Contains(line, []byte("PRIVATE KEY"))
	if !k.inside && !mentioned {
		return line // nearly all
	}
	if k.inside {
		if m := keyEnd.FindIndex(line); mentioned && m != nil {
			k.inside = false
			line = append([]byte(redacted), line[m[1]:]...)
		} else if mentioned && keyBegin.Match(line) {
			k.inside = false // another one
		} else if keyData.Match(line) {
			k.gap = 0
			return []byte(redacted)
		} else if k.gap++; k.gap <= keyGap {
			return []byte(redacted)
		} else {
			k.inside = false
			return line
		}
	}
	if all := keyBegin.FindAllIndex(line, -1); all != nil && !keyEnd.Match(line[all[len(all)-1][1]:]) {
		k.inside, k.gap = true, 0
	}
	return []byte(pem(string(line)))
}
