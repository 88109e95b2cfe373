package wire

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
)

// lookedAt are texts of a payload, right and wrong.
var lookedAt = []string{
	`null`, `true`, `-0`, `1e400`, `01`, `1.5`, `123456789012345`, `1234567890123456`, `-7`, `"a"`, `"\u00e9\n"`, `"\ud800"`, "\"\xff\"", `"`, `[`, `[1,]`, `[1 2]`, `{`,
	`{}`, `[]`, `[[],{}]`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"a":{"a":1},"b":{"a":1}}`, `{"a":{"b":1,"b":2}}`, `{"a" 1}`, `{a:1}`, `{"a":1,}`,
	`{"":1,"":2}`, ` [ 1 , "x" , { "y" : null } ] `, `{"e\u0301":1,"é":2}`, "{\"a\":\"\t\"}", `nul`, ``, `[1]]`,
	strings.Repeat("[", 126) + strings.Repeat("]", 126), strings.Repeat("[", 127) + strings.Repeat("]", 127), strings.Repeat("[", 128) + strings.Repeat("]", 128),
	strings.Repeat("[", 200) + strings.Repeat("]", 200), strings.Repeat(`{"a":`, 130) + "1" + strings.Repeat("}", 130),
	manyMembers(40, ""), manyMembers(40, `,"m3":1`), manyMembers(40, `,"m39":1`), `[` + manyMembers(40, "") + `,` + manyMembers(40, `,"m0":1`) + `]`,
}

func manyMembers(n int, more string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"m` + strconv.Itoa(i) + `":` + strconv.Itoa(i))
	}
	return "{" + b.String()[1:] + more + "}"
}

// What is only looked at is held to the same rules as what is kept, word for word.
func TestAPayloadIsHeldToTheSameRules(t *testing.T) {
	for _, payload := range lookedAt {
		sameVerdict(t, payload)
	}
}

func sameVerdict(t *testing.T, payload string) {
	t.Helper()
	text := []byte(`{"v":1,"data":` + payload + `,"ok":true}`)
	kept, err := parseJSON(text)
	looked, lookErr := parseEnvelope(text, "data")
	switch {
	case (err == nil) != (lookErr == nil), err != nil && err.Error() != lookErr.Error():
		t.Fatalf("%s: %v, looked at only: %v", text, err, lookErr)
	case err != nil:
		return
	}
	a, b := kept.get("data"), looked.get("data")
	if a.kind != b.kind || !bytes.Equal(a.raw, b.raw) || len(kept.members) != len(looked.members) {
		t.Fatalf("%s: %s %q, looked at only: %s %q", text, a.kind, a.raw, b.kind, b.raw)
	}
}

func FuzzPayload(f *testing.F) {
	for _, payload := range lookedAt {
		f.Add(payload)
	}
	f.Fuzz(sameVerdict)
}

func BenchmarkDecodeReply(b *testing.B) {
	row := `{"name":"reviewer_12","id":"local.` + strings.Repeat("U", 56) + `","agent":"claude","space":"main","mode":"pty","status":"running","uptimeMs":123456,"mesh":"working","cwd":"/srv/project","pid":4711}`
	text := []byte(`{"v":1,"id":"r1","ok":true,"data":[` + row + strings.Repeat(","+row, 31) + `]}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeReply(text); err != nil {
			b.Fatal(err)
		}
	}
}
