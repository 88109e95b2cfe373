package manifest

import (
	"runtime"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

func TestShape(t *testing.T) {
	deep := strings.Repeat("a.", 40) + "b"
	for _, c := range []struct{ name, text, want string }{
		{"what Write writes", "schema = 1\n\n[[plugin]]\nname = \"a\"\n[plugin.config.b.c]\nd = [[1.5, 2.5], [{ e.f = 1 }]]\n", ""},
		{"a key of many parts", "schema = 1\n" + deep + " = 1\n", "line 2: more than 16"},
		{"a key of many quoted parts", strings.Repeat(`"a". `, 40) + "b = 1\n", "line 1: more than 16"},
		{"a header of many parts", "[" + deep + "]\n", "more than 16"},
		{"tables within tables", "a = " + strings.Repeat("{a = ", 40), "more than 16"},
		{"arrays within arrays", "a = " + strings.Repeat("[", 40), "more than 16"},
		{"arrays within arrays, over lines", "a = " + strings.Repeat("[\n", 40), "line 17: more than 16"},
		{"some of each", "a.a.a.a.a.a.a = { a.a.a.a.a.a.a = { a.a.a.a = 1 } }", "more than 16"},
		{"side by side", "a = [" + strings.Repeat("{ a.b = [1.0] }, ", 100) + "]\n" + strings.Repeat("[a.b]\n", 100), ""},
		{"a long line", "a = \"" + strings.Repeat("x", maxLine) + "\"\nb = 1", "line 1: longer than 16384 bytes"},
		{"a long line that is the last", "a=1\n#" + strings.Repeat("x", maxLine), "line 2: longer than 16384 bytes"},
		{"dots and brackets in a string", `a = "` + deep + strings.Repeat("[", 40) + `"`, ""},
		{"in a string with quotes", `a = "\"` + deep + `" # ` + deep, ""},
		{"in a literal string", `a = '\` + deep + `'`, ""},
		{"in a string of many lines", "a = \"\"\"\n\" \"\" \\\"\"\" " + deep + "\n\"\"\"\n", ""},
		{"in a literal string of many lines", "a = '''\n'' " + deep + "\n'''''\n", ""},
		{"after a string of many lines", "a = \"\"\"\n\"\"\"\"\"\n" + deep + " = 1", "line 3: more than 16"},
		{"after an empty string", `a = ""` + "\n" + deep + " = 1", "line 2: more than 16"},
		{"after a string that has no end", "a = \"\n" + deep + " = 1", "line 2: more than 16"},
		{"after a comment with a quote", "# \"\"\"\n" + deep + " = 1", "line 2: more than 16"},
		{"after a comment that another reader may see end", "# \r" + deep + " = 1", "carriage return"},
		{"lines of another system", "a = 1\r\n# b\r\nc = 1\r\n", ""},
	} {
		got := ""
		if err := CheckShape([]byte(c.text)); err != nil {
			got = err.Error()
		}
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAManifestOf24KilobytesCostsNo2Gigabytes(t *testing.T) {
	for name, text := range map[string]string{
		"one deep key":       "schema = 1\n" + strings.Repeat("a.", 12000) + "b=1",
		"as deep as allowed": "schema = 1\n" + strings.Repeat(strings.Repeat("a.", maxDepth)+"b=1\n", 600),
		"many deep keys": func() string {
			var b strings.Builder
			for b.Len() < maxFileBytes-100 {
				b.WriteString("k" + strings.Repeat("x", b.Len()%7) + string(rune('a'+b.Len()%26)) + strings.Repeat(".a", maxDepth) + "=1\n")
			}
			return b.String()
		}(),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: is taken", name)
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 200 {
			t.Errorf("%s: took %d MiB", name, n)
		}
	}
}

// What the check lets pass must be what the decoder sees: no text may hide a deep key from the one only.
func FuzzShapeSeesWhatTheDecoderSees(f *testing.F) {
	deep := strings.Repeat("a.", 20) + "b=1"
	for _, s := range []string{"a=\"\"\"\n\"\"\"\n", "a='''x'''''\n", "a=\"\\\"\"\n", "#\"\n", "a=[1,{b='c'}]\n", "\"a#\".b=1 #'\n", "a=\"\"\"\\\"\"\"\"\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, begin string) {
		text := begin + "\n" + deep
		if CheckShape([]byte(text)) != nil || len(text) > 1000 {
			return
		}
		var raw map[string]any
		if _, err := toml.Decode(text, &raw); err == nil && depth(raw) > 2*maxDepth {
			t.Errorf("%q passes with depth %d", text, depth(raw))
		}
		if _, err := toml.Decode(begin, &raw); err == nil {
			if _, err := toml.Decode(text, &raw); err == nil {
				t.Errorf("%q hides a deep key", text)
			}
		}
	})
}

func depth(v any) int {
	most := 0
	switch v := v.(type) {
	case map[string]any:
		for _, item := range v {
			most = max(most, depth(item))
		}
	case []any:
		for _, item := range v {
			most = max(most, depth(item))
		}
	case []map[string]any:
		for _, item := range v {
			most = max(most, depth(item))
		}
	default:
		return 0
	}
	return most + 1
}
