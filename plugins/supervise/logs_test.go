package supervise

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

func TestLineSplitter(t *testing.T) {
	long := strings.Repeat("x", maxLogLine)
	cases := []struct {
		name   string
		writes []string
		want   []string
	}{
		{"lines in one write", []string{"a\nb\n"}, []string{"a", "b"}},
		{"a line over several writes", []string{"a", "b", "c\n"}, []string{"abc"}},
		{"an end without newline", []string{"a\nb"}, []string{"a", "b"}},
		{"empty lines are lines", []string{"\n\n"}, []string{"", ""}},
		{"carriage returns are dropped", []string{"a\r\nb"}, []string{"a", "b"}},
		{"a line of exactly the limit is whole", []string{long, "\n"}, []string{long}},
		{"one byte more is cut and said so", []string{long + "y\nz\n"}, []string{long + cutMarker, "z"}},
		{"a flood without newline is cut once", []string{long, long, long, "\nz"}, []string{long + cutMarker, "z"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			s := &lineSplitter{emit: func(b []byte) { got = append(got, string(b)) }}
			for _, w := range c.writes {
				if n, err := s.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatalf("Write: %d, %v", n, err)
				}
			}
			s.Close()
			if strings.Join(got, "|") != strings.Join(c.want, "|") {
				t.Errorf("got %d lines %.100q, want %.100q", len(got), got, c.want)
			}
		})
	}
}

func FuzzPluginOutput(f *testing.F) {
	f.Add([]byte("plain\n"), 3)
	f.Add([]byte(`{"@level":"error","@message":"m","k":{"a":[1,null]}}`+"\n"), 1)
	f.Add([]byte("panic: x\n\ngoroutine 1 [running]:\n"), 5)
	f.Add([]byte("{\n{}\n{\"@message\":1}\n\xff\x1b[0m\u2028"), 2)
	f.Fuzz(func(t *testing.T, data []byte, chunk int) {
		if chunk <= 0 {
			chunk = 1
		}
		var sink bytes.Buffer
		l := &pluginLog{log: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &sink, JSONFormat: true})}
		s := &lineSplitter{emit: l.stderrLine}
		lines := bytes.Count(data, []byte("\n")) + 1
		for rest := data; len(rest) > 0; {
			n := min(chunk, len(rest))
			if got, err := s.Write(rest[:n]); got != n || err != nil {
				t.Fatal(got, err)
			}
			rest = rest[n:]
		}
		s.Close()
		if got := strings.Count(sink.String(), "\n"); got > lines {
			t.Fatalf("%d lines became %d records", lines, got)
		}
		l.close()
		tail := l.lastLines(tailLines)
		if !utf8.ValidString(tail) || strings.ContainsAny(tail, "\x1b\r") {
			t.Fatalf("unclean tail %q", tail)
		}
	})
}

func TestCleanBoundsAndEscapes(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb":              "a b",
		"\x1b[31mred\x07":   "?[31mred?",
		"bad \xff byte":     "bad ? byte",
		"line\nbreak":       "line?break",
		"12345678901234567": "1234567890...",
	} {
		if got := clean([]byte(in), 10); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}
