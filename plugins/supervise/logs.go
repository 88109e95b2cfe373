package supervise

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
)

const (
	maxLogLine  = 64 << 10 // of one line; the rest is read and dropped
	cutMarker   = " [cut: the line is longer than 65536 bytes]"
	tailLines   = 20
	tailLineMax = 400
)

// lineSplitter is a Writer that hands on whole lines. It never fails and never stops taking: a
// reader that gives up on a long line leaves the writer of the pipe hanging.
type lineSplitter struct {
	mu   sync.Mutex
	buf  []byte
	cut  bool
	emit func(line []byte)
}

func (s *lineSplitter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			s.take(p)
			return n, nil
		}
		s.take(p[:i])
		s.flush()
		p = p[i+1:]
	}
}

// Close hands on what has no end of line.
func (s *lineSplitter) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.buf) > 0 {
		s.flush()
	}
	return nil
}

func (s *lineSplitter) take(p []byte) {
	if room := maxLogLine - len(s.buf); len(p) > room {
		p, s.cut = p[:room], true
	}
	s.buf = append(s.buf, p...)
}

func (s *lineSplitter) flush() {
	if s.cut {
		s.buf = append(s.buf, cutMarker...)
	}
	s.emit(bytes.TrimSuffix(s.buf, []byte("\r")))
	s.cut = false
	if cap(s.buf) > 4<<10 {
		s.buf = nil // one long line must not be paid for ever
	} else {
		s.buf = s.buf[:0]
	}
}

// pluginLog turns lines of one plugin process into records of the host's log and keeps the last few.
type pluginLog struct {
	log hclog.Logger

	mu      sync.Mutex
	inPanic bool
	tail    []string
}

func (l *pluginLog) stderrLine(line []byte) {
	if len(line) == 0 {
		return
	}
	level, msg, kv, ok := parseRecord(line)
	if !ok {
		msg = clean(line, maxLogLine+len(cutMarker))
		level = l.plainLevel(msg)
	}
	l.keep(msg)
	l.log.Log(level, msg, kv...)
}

// stdoutLine takes what a plugin prints on standard output after the handshake; nothing belongs there.
func (l *pluginLog) stdoutLine(line []byte) {
	if len(line) > 0 {
		l.log.Debug(clean(line, maxLogLine+len(cutMarker)), "stream", "stdout")
	}
}

// plainLevel gives a level to a line that is no record: a stack that follows a panic is an error.
func (l *pluginLog) plainLevel(msg string) hclog.Level {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.HasPrefix(msg, "panic: ") || strings.HasPrefix(msg, "fatal error: ") {
		l.inPanic = true
	}
	if l.inPanic {
		return hclog.Error
	}
	return hclog.Info
}

func (l *pluginLog) keep(msg string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tail) == tailLines {
		l.tail = append(l.tail[:0], l.tail[1:]...)
	}
	l.tail = append(l.tail, clean([]byte(msg), tailLineMax))
}

// lastLines returns the last n lines of standard error, for a message.
func (l *pluginLog) lastLines(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.tail[max(0, len(l.tail)-n):], "\n")
}

// parseRecord reads a line in hclog's JSON format.
func parseRecord(line []byte) (hclog.Level, string, []any, bool) {
	if line[0] != '{' {
		return 0, "", nil, false
	}
	var rec map[string]any
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	if err := dec.Decode(&rec); err != nil {
		return 0, "", nil, false
	}
	msg, ok := rec["@message"].(string)
	if !ok {
		return 0, "", nil, false
	}
	levelName, _ := rec["@level"].(string)
	level := hclog.LevelFromString(levelName)
	if level == hclog.NoLevel || level == hclog.Off {
		level = hclog.Info
	}
	keys := make([]string, 0, len(rec))
	for k := range rec {
		// plugin, pid and attempt are the host's to say.
		if !strings.HasPrefix(k, "@") && k != "plugin" && k != "pid" && k != "attempt" {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	var kv []any
	for _, k := range keys {
		kv = append(kv, clean([]byte(k), 64), logValue(rec[k]))
	}
	return level, clean([]byte(msg), maxLogLine), kv, true
}

func logValue(v any) any {
	switch v := v.(type) {
	case string:
		return clean([]byte(v), maxLogLine)
	case json.Number, bool, nil:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return clean(b, maxLogLine)
}
