package host

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
)

// problemMark begins every line on standard error that needs a person. Routine facts are told there without it.
const problemMark = "! "

// maxProblem bounds a line: what an agent or a plugin printed may be a part of it. The log file has all of it.
const maxProblem = 4096

// problems is the part of the log that is also on standard error: one line for each problem, whatever was put into it.
type problems struct {
	mu    sync.Mutex
	out   io.Writer
	level hclog.Level // from here on
	now   func() time.Time
}

// Accept implements hclog.SinkAdapter.
func (p *problems) Accept(name string, level hclog.Level, msg string, args ...any) {
	if level < p.level {
		return
	}
	line := problemLine(p.now(), name, msg, args)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.out, line) // a standard error that is gone stops nothing
}

// problemLine is the line of one record: "! <time> <part of the host>: <message>: <key>=<value> …".
func problemLine(at time.Time, name, msg string, args []any) string {
	b := []byte(problemMark + at.Format(time.DateTime) + " ")
	if _, part, ok := strings.Cut(name, "."); ok { // "host.seat"; the host itself goes without saying
		b = append(b, part+": "...)
	}
	b = append(b, plain(msg)...)
	for i := 0; i < len(args); i += 2 {
		if b = append(b, ' '); i == 0 {
			b[len(b)-1] = ':'
			b = append(b, ' ')
		}
		if i+1 == len(args) { // a key is missing: what there is, is told
			b = append(b, plain(fmt.Sprint(args[i]))...)
			break
		}
		b = append(b, plain(fmt.Sprint(args[i]))...)
		b = append(append(b, '='), word(fmt.Sprint(args[i+1]))...)
	}
	if len(b) > maxProblem {
		b = append([]byte(strings.ToValidUTF8(string(b[:maxProblem]), "")), "…"...)
	}
	return string(append(b, '\n'))
}

// plain is a text as a part of a line: nothing in it ends the line or tells a terminal what to do.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// word is a value, in quotes where it would not be one word.
func word(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' || r == '"' || r == '=' }) {
		return strconv.Quote(s)
	}
	return s
}
