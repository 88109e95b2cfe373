package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A program that watches a file of commands gets messages in it as a command, each whole and behind what was there.
func TestMessagesAreAddedToAFileThatTheProgramWatches(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "input.jsonl")
	s, err := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: p.bridge("mcp", "--wake", "file", "--wake-file", file)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p.sees("it joins", is(wire.StatusIdle))
	if _, err := p.client.SendDirect(t.Context(), p.id, "wake \"up\"\n"); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; <-time.After(20 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if err != nil && time.Since(begin) < patience {
			continue
		}
		var c submit
		if err := json.Unmarshal(text, &c); err != nil || c.Type != "submit" || !strings.Contains(c.Text, `wake \"up\"\n`) {
			t.Fatalf("the file holds %q (%v), want a command with the message", text, err)
		}
		return
	}
}

// A program that watches the file knows what it has read by all of its bytes, and reads a file that begins otherwise
// from its start: a hole in place of what it had read made every message but the first one a line that is no JSON.
func TestMessagesBehindTheFirstOneWereLostSinceWhatTheProgramHadReadWasAHole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "input.jsonl")
	w := fileWaker(file)
	want := ""
	for _, text := range []string{"one", "two", "three"} {
		if ok, err := w.Wake(context.Background(), bridge.Notice{Text: text}); err != nil || !ok {
			t.Fatalf("%s: %v, %v; want it taken", text, ok, err)
		}
		want += `{"type":"submit","text":"` + text + `"}` + "\n"
		if all, err := os.ReadFile(file); err != nil || string(all) != want {
			t.Fatalf("the file holds %q (%v), want %q: all that was there, and the line of %s", all, err, want, text)
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v; want it to be the user's alone", st, err)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the file are %v, %v", left, err)
	}
	if ok, err := fileWaker(filepath.Join(file, "not-a-directory")).Wake(context.Background(), bridge.Notice{}); ok || err == nil {
		t.Errorf("a file that cannot be: %v, %v; want the messages kept", ok, err)
	}
}

func TestAFileOfCommandsThatIsLargeBeginsAnew(t *testing.T) {
	for name, c := range map[string]struct {
		size, line int64
		quiet      time.Duration
		want       bool
	}{
		"a small one goes on":                                        {maxCommands, 100, time.Hour, false},
		"a large one that the program has read begins anew":          {maxCommands + 1, 100, time.Hour, true},
		"a large one that it may not have read goes on":              {maxCommands + 1, 100, time.Second, false},
		"a line as long as the file would pass for what it has read": {maxCommands + 1, maxCommands + 1, time.Hour, false},
		"a file of the future is one that it may not have read":      {maxCommands + 1, 100, -time.Hour, false},
	} {
		if got := begins(c.size, c.line, c.quiet); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	file := filepath.Join(t.TempDir(), "input.jsonl")
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), maxCommands+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := addLine(file, []byte("{}\n"), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadFile(file); err != nil || string(all) != "{}\n" {
		t.Errorf("the file holds %d bytes (%v), want the line alone", len(all), err)
	}
}
