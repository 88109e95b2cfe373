package claude

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Whoever can write into a workspace can put a transcript there, of any size.
func TestATranscriptOfOneEndlessLineIsNotReadIntoMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "session.jsonl")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const size = 256 << 20
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\n" + `{"cwd":"/there"}`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cwd, err := cwdOf(path)
	runtime.ReadMemStats(&after)
	if err != nil || cwd != "/there" {
		t.Errorf("it was held in %q, %v; want what the line behind says", cwd, err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > size/8 {
		t.Errorf("%d MiB were allocated for it", took>>20)
	}
}
