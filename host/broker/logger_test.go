package broker

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// What a host shows as a problem is what its log has as a warning: an index that is built again after a crash is none,
// unless the server runs already.
func TestAnIndexThatACrashLeftBehindIsNoProblem(t *testing.T) {
	for name, tc := range map[string]struct {
		text   string
		up     bool
		level  string
		damage int
	}{
		"an index older than its messages":        {"Filestore [KV_a] Stream state outdated, last block has additional entries, will rebuild", false, "[INFO]", 0},
		"and what the server says after it":       {"Filestore [KV_a] Recovering stream state from index errored: prior state file", false, "[INFO]", 0},
		"the same while the server runs":          {"Filestore [KV_a] Stream state outdated, last block has additional entries, will rebuild", true, "[WARN]", 0},
		"a block whose checksums are not its own": {"Stream metafile for '/x' checksums do not match \"a\" vs \"b\"", false, "[WARN]", 1},
		"a block that cannot be read":             {"Filestore [KV_a] loadBlock error: input/output error", false, "[WARN]", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			l := &logger{log: hclog.New(&hclog.LoggerOptions{Output: &out})}
			if tc.up {
				l.started()
			}
			l.Warnf("%s", tc.text)
			if !strings.Contains(out.String(), tc.level) {
				t.Errorf("want %s: %s", tc.level, out.String())
			}
			if _, damage := l.failure(); len(damage) != tc.damage {
				t.Errorf("damage %v", damage)
			}
		})
	}
}

// Whatever a client is refused the server says in a line of its own, and the client decides how often. What a host shows as
// a problem, and writes to its log, is bounded all the same, and nothing that is no client's is left out.
func TestAClientThatIsRefusedAllTheTimeDoesNotFillTheLog(t *testing.T) {
	var out bytes.Buffer
	at := time.Unix(1000, 0)
	l := &logger{log: hclog.New(&hclog.LoggerOptions{Output: &out}), now: func() time.Time { return at }}
	l.started()
	refused := func(n int) {
		for range n {
			l.Errorf("%s", `127.0.0.1:4000 - cid:9 - "v1.50.0" - "cotal agent" - Publish Violation - Subject "$JS.API.INFO"`)
		}
	}
	refused(10_000)
	l.Errorf("%s", "the disk is full")
	if n := strings.Count(out.String(), "Violation"); n != clientLines {
		t.Errorf("%d lines say what a client was refused, want %d", n, clientLines)
	}
	if !strings.Contains(out.String(), "the disk is full") {
		t.Error("what is no client's is not said")
	}
	out.Reset()
	at = at.Add(clientEvery)
	refused(2)
	if text := out.String(); strings.Count(text, "Violation") != 2 || !strings.Contains(text, "suppressed=9990") {
		t.Errorf("a minute later: %s", text)
	}
}
