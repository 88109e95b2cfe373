package supervise

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	maxLogLine  = 64 << 10 // of one line; the rest is read and dropped
	cutMarker   = " [cut: the line is longer than 65536 bytes]"
	tailLines   = 200     // kept for the crash report
	tailLineMax = 1 << 10 // of each
)

// What one plugin process may write into the host's log. A plugin that spams must not fill the log with
// itself, nor take the host's time; what is dropped is counted and said, and the last lines are kept anyway.
const (
	logWindow   = time.Second
	windowLines = 500
	windowBytes = 1 << 20
)

// lineSplitter is a Writer that hands on whole lines. It never fails and never stops taking: a
// reader that gives up on a long line leaves the writer of the pipe hanging.
type lineSplitter struct {
	mu   sync.Mutex
	buf  []byte
	cut  bool
	keys keyLines
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
	s.emit(s.keys.hide(bytes.TrimSuffix(s.buf, []byte("\r"))))
	s.cut = false
	if cap(s.buf) > 4<<10 {
		s.buf = nil // one long line must not be paid for ever
	} else {
		s.buf = s.buf[:0]
	}
}

// pluginLog turns lines of one plugin process into records of the host's log and keeps the last ones. It
// drains whatever comes, at any rate.
type pluginLog struct {
	log    hclog.Logger
	redact *Redactor

	mu      sync.Mutex
	inPanic bool
	tail    []tailLine // a ring
	next    int        // where the next line goes, once the ring is full
	window  logBudget
	flush   *time.Timer // says what a window dropped, at its end
	dropped int         // over the life of the process
	closed  bool
}

// tailLine is kept as it came: nearly all of them are never looked at.
type tailLine struct {
	at     time.Time
	stdout bool
	cut    bool
	text   []byte
}

// logBudget is what may still be logged in a window of time.
type logBudget struct {
	begin        time.Time
	lines, bytes int
	dropped      int // lines
	droppedBytes int
}

// take reports whether a line of n bytes may be logged at that time. The first line of a window always may.
func (b *logBudget) take(now time.Time, n int) bool {
	if now.Sub(b.begin) >= logWindow {
		b.begin, b.lines, b.bytes = now, 0, 0
	}
	if b.lines >= windowLines || b.lines > 0 && b.bytes+n > windowBytes {
		b.dropped++
		b.droppedBytes += n
		return false
	}
	b.lines++
	b.bytes += n
	return true
}

func (l *pluginLog) stderrLine(line []byte) { l.line(line, false) }

// stdoutLine takes what a plugin prints on standard output after the handshake; nothing belongs there.
func (l *pluginLog) stdoutLine(line []byte) { l.line(line, true) }

func (l *pluginLog) line(line []byte, stdout bool) {
	if len(line) == 0 {
		return
	}
	now := time.Now()
	l.mu.Lock()
	l.keep(now, line, stdout)
	plain := hclog.Info
	if !stdout {
		plain = l.plainLevel(line)
	}
	pass := l.window.take(now, len(line))
	if !pass {
		l.dropped++
		if l.flush == nil && !l.closed {
			l.flush = time.AfterFunc(l.window.begin.Add(logWindow).Sub(now), l.flushDropped)
		}
	}
	l.mu.Unlock()
	if !pass {
		return
	}
	if stdout {
		l.log.Debug(l.text(line), "stream", "stdout")
		return
	}
	if level, msg, kv, ok := parseRecord(line, l.redact); ok {
		l.log.Log(level, msg, kv...)
		return
	}
	l.log.Log(plain, l.text(line))
}

func (l *pluginLog) text(line []byte) string {
	s := clean(line, maxLogLine+len(cutMarker))
	if begin, cut := strings.CutSuffix(s, cutMarker); cut {
		return l.redact.Cut(begin) + cutMarker
	}
	return l.redact.Text(s)
}

// flushDropped says how much was dropped since it was said last.
func (l *pluginLog) flushDropped() {
	l.mu.Lock()
	n, size := l.window.dropped, l.window.droppedBytes
	l.window.dropped, l.window.droppedBytes, l.flush = 0, 0, nil
	l.mu.Unlock()
	if n > 0 {
		l.log.Warn(fmt.Sprintf("%d lines dropped: the plugin writes more than %d lines or %d bytes a second", n, windowLines, windowBytes),
			"dropped", n, "bytes", size)
	}
}

// close says what is left to say. Lines that come later are kept, and counted when they are dropped.
func (l *pluginLog) close() {
	l.mu.Lock()
	l.closed = true
	if l.flush != nil {
		l.flush.Stop()
	}
	l.mu.Unlock()
	l.flushDropped()
}

// plainLevel gives a level to a line that is no record: a stack that follows a panic is an error. l.mu is held.
func (l *pluginLog) plainLevel(line []byte) hclog.Level {
	if bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) {
		l.inPanic = true
	}
	if l.inPanic {
		return hclog.Error
	}
	return hclog.Info
}

// keep puts a line into the ring; l.mu is held.
func (l *pluginLog) keep(now time.Time, line []byte, stdout bool) {
	cut := len(line) > tailLineMax
	if cut {
		line = line[:tailLineMax]
	}
	if len(l.tail) < tailLines {
		l.tail = append(l.tail, tailLine{now, stdout, cut, bytes.Clone(line)})
		return
	}
	t := &l.tail[l.next]
	t.at, t.stdout, t.cut, t.text = now, stdout, cut, append(t.text[:0], line...)
	l.next = (l.next + 1) % tailLines
}

// lastLines returns the last n lines, fit for a message: cleaned, redacted, of bounded length.
func (l *pluginLog) lastLines(n int) string {
	lines, _ := l.last(n)
	for i, t := range lines {
		lines[i].text = []byte(clean([]byte(l.render(t)), 400))
	}
	return joinLines(lines)
}

// last returns the last n lines in order, and how many lines the host's log did not get.
func (l *pluginLog) last(n int) ([]tailLine, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]tailLine, 0, len(l.tail))
	for i := range l.tail {
		t := l.tail[(l.next+i)%len(l.tail)]
		t.text = bytes.Clone(t.text)
		out = append(out, t)
	}
	return out[max(0, len(out)-n):], l.dropped
}

// render is a kept line as people read it.
func (l *pluginLog) render(t tailLine) string {
	if level, msg, kv, ok := parseRecord(t.text, l.redact); ok && !t.stdout {
		var b strings.Builder
		fmt.Fprintf(&b, "[%s] %s", level, msg)
		for i := 0; i+1 < len(kv); i += 2 {
			fmt.Fprintf(&b, " %v=%v", kv[i], kv[i+1])
		}
		return b.String()
	}
	s := clean(t.text, tailLineMax)
	if t.cut {
		return l.redact.Cut(s) + " [cut]"
	}
	return l.redact.Text(s)
}

func joinLines(lines []tailLine) string {
	var b strings.Builder
	for i, t := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.Write(t.text)
	}
	return b.String()
}

// parseRecord reads a line in hclog's JSON format and hides the secrets in it.
func parseRecord(line []byte, redact *Redactor) (hclog.Level, string, []any, bool) {
	if len(line) == 0 || line[0] != '{' {
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
		kv = append(kv, clean([]byte(k), 64), logValue(k, rec[k], redact))
	}
	return level, redact.Text(clean([]byte(msg), maxLogLine)), kv, true
}

func logValue(name string, v any, redact *Redactor) any {
	switch v := v.(type) {
	case string:
		return redact.value(name, clean([]byte(v), maxLogLine))
	case json.Number:
		if SecretName(name) {
			return redacted
		}
		return v
	case bool, nil:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return redact.value(name, fmt.Sprint(v))
	}
	return redact.value(name, clean(b, maxLogLine))
}
