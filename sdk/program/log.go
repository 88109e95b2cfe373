package program

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// lastBytes is what a Log keeps in memory, for the message about a failure.
const lastBytes = 2 << 10

// Log is a file that takes the first bytes that are written and drops the rest, so that a talkative program fills no
// disk and is never held up.
type Log struct {
	mu   sync.Mutex
	f    *os.File
	left int
	last []byte // at most lastBytes
}

// OpenLog opens the file anew, 0600, for at most limit bytes.
func OpenLog(path string, limit int) (*Log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return &Log{f: f, left: limit}, nil
}

// Write takes p and never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = append(l.last, p...)
	l.last = l.last[max(0, len(l.last)-lastBytes):]
	if n := min(len(p), l.left); n > 0 {
		_, _ = l.f.Write(p[:n]) // a full disk must not end the program
		l.left -= n
	}
	return len(p), nil
}

// Tail is the end of the output, at most 2 KiB, safe for a terminal in raw mode.
func (l *Log) Tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	clean := strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(l.last), ""))
	return strings.ReplaceAll(strings.TrimSpace(clean), "\n", "\r\n")
}

// Close closes the file.
func (l *Log) Close() { _ = l.f.Close() }
