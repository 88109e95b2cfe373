package broker

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// logger hands the server's log to hclog and, while the server starts, keeps what went wrong: the
// server reports a failed start and a damaged store in no other way.
type logger struct {
	log  hclog.Logger
	sick chan struct{} // a store could not be written, and refuses every write from then on

	now func() time.Time // nil: time.Now

	mu     sync.Mutex
	up     bool
	fatal  string
	damage []string
	// Of lines about what clients do: since when they are counted, how many were passed on, and how many were not.
	since         time.Time
	passed, spare int
}

// Bounds of what is said about clients: whatever one of them is refused is a line, and it can be refused as often as it
// likes.
const (
	clientLines = 10 // within clientEvery
	clientEvery = time.Minute
)

// admit reports whether a line is passed on, and how many were not since the last one that was.
func (l *logger) admit(s string) (pass bool, spared int) {
	if !strings.Contains(s, "- cid:") {
		return true, 0
	}
	now := time.Now
	if l.now != nil {
		now = l.now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := now(); at.Sub(l.since) >= clientEvery {
		l.since, l.passed = at, 0
	}
	if l.passed >= clientLines {
		l.spare++
		return false, 0
	}
	l.passed++
	spared, l.spare = l.spare, 0
	return true, spared
}

// say passes a line on by log, unless there were too many of its kind.
func (l *logger) say(log func(string, ...any), s string) {
	pass, spared := l.admit(s)
	switch {
	case !pass:
	case spared > 0:
		log(s, "suppressed", spared)
	default:
		log(s)
	}
}

func (l *logger) Noticef(format string, v ...any) { l.log.Debug(text(format, v)) }
func (l *logger) Debugf(format string, v ...any)  { l.log.Trace(text(format, v)) }
func (l *logger) Tracef(format string, v ...any)  { l.log.Trace(text(format, v)) }

func (l *logger) Errorf(format string, v ...any) {
	s := text(format, v)
	l.say(l.log.Error, s)
	if strings.Contains(s, "ritical write error") {
		select {
		case l.sick <- struct{}{}:
		default: // known already
		}
	}
}

func (l *logger) Warnf(format string, v ...any) {
	s := text(format, v)
	l.mu.Lock()
	if !l.up && isDamage(s) {
		l.damage = append(l.damage, s)
	}
	repaired := !l.up && isRepair(s)
	l.mu.Unlock()
	if repaired {
		l.log.Info(s)
		return
	}
	l.say(l.log.Warn, s)
}

// Fatalf must return: the server stops its start by itself, and only the host may end the process.
func (l *logger) Fatalf(format string, v ...any) {
	s := text(format, v)
	l.mu.Lock()
	if l.fatal == "" {
		l.fatal = s
	}
	l.mu.Unlock()
	l.log.Debug(s)
}

func text(format string, v []any) string { return strings.TrimSpace(fmt.Sprintf(format, v...)) }

func (l *logger) failure() (string, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal, l.damage
}

func (l *logger) started() {
	l.mu.Lock()
	l.up = true
	l.mu.Unlock()
}

// isRepair picks, among the warnings of a recovery, those about an index that is older than the messages, as every
// crash leaves it. The server reads the messages instead: nothing is lost, and nobody is needed.
func isRepair(s string) bool {
	for _, sign := range []string{"Stream state ", "state from index errored", "state is outdated"} {
		if strings.Contains(s, sign) {
			return true
		}
	}
	return false
}

// isDamage picks, among the warnings of a recovery, those that mean lost data. A missing file is not
// one: a crash between making a directory and writing its first file leaves just that, and
// nobody was told that the stream exists.
func isDamage(s string) bool {
	for _, sign := range []string{
		"checksums do not match", "Error unmarshalling stream metafile", "Error unmarshalling consumer metafile",
		"Error reading metafile", "Error reading consumer metafile", "Error reading Stream metafile checksum",
		"Error recreating stream",
	} {
		if strings.Contains(s, sign) {
			return true
		}
	}
	return false
}
