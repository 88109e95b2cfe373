package broker

import (
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// logger hands the server's log to hclog and, while the server starts, keeps what went wrong: the
// server reports a failed start and a damaged store in no other way.
type logger struct {
	log  hclog.Logger
	sick chan struct{} // a store could not be written, and refuses every write from then on

	mu     sync.Mutex
	up     bool
	fatal  string
	damage []string
}

func (l *logger) Noticef(format string, v ...any) { l.log.Debug(text(format, v)) }
func (l *logger) Debugf(format string, v ...any)  { l.log.Trace(text(format, v)) }
func (l *logger) Tracef(format string, v ...any)  { l.log.Trace(text(format, v)) }

func (l *logger) Errorf(format string, v ...any) {
	s := text(format, v)
	l.log.Error(s)
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
	l.log.Warn(s)
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
