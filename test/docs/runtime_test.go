package docs

import (
	"crypto/sha256"
	"encoding/hex"
	"runtime"
	"testing"
)

// Somebody who follows the page has a runtime that keeps every rule (its generated test is the suite) and runs a seat in
// a real host: a suite is no host. It once kept the rules and could not start a seat, because a host executes a copy in
// memory, and the page looked for its holder by os.Executable.
func TestWritingARuntime_AReaderWhoFollowsItArrives(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the example holds seats the way Linux lets it")
	}
	t.Parallel()
	r := newReader(t)
	r.follow("writing-a-runtime.md")
	w := r.w
	w.CLI("spawn", "--agent", "command", "--name", "two", "--detach", "--", "sleep", "600").OK()
	before := w.Inspect("two")
	w.CLI("ext", "restart", "plain").OK()
	if row := w.Inspect("two"); row.PID == 0 || row.PID != before.PID || row.Status != "running" || row.Mode != "plain" {
		t.Errorf("the seat after its runtime was replaced: %+v, before: %+v", row, before)
	}
	w.CLI("stop", "two").OK()
	w.AwaitGone(before.PID)
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
