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

func TestWhatAProgramHasReadOfTheFileIsAsLongAsBefore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "input.jsonl")
	w := fileWaker(file)
	var read int
	for _, text := range []string{"one", "two", "three"} {
		if ok, err := w.Wake(context.Background(), bridge.Notice{Text: text}); err != nil || !ok {
			t.Fatalf("%s: %v, %v; want it taken", text, ok, err)
		}
		all, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(all[read:]); got != `{"type":"submit","text":"`+text+`"}`+"\n" {
			t.Errorf("behind what was read stands %q, want the line of %s", got, text)
		}
		if n := len(bytes.Trim(all[:read], "\x00")); n > 0 {
			t.Errorf("%d bytes of what was read are kept", n)
		}
		read = len(all)
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
