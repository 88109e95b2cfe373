package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/private"
)

// submit is what a program takes from a file that it watches, to begin a turn with it.
type submit struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// fileWaker gives messages to a program that watches a file of commands, one JSON object a line, and reads what has
// been added to it. The file is replaced by a longer one, which begins with all that was there: a program that looks in
// the middle of a write would read half a line, one that finds another beginning starts again from it, and one that has
// not looked for a while reads all that came meanwhile.
func fileWaker(path string) bridge.Waker {
	return bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) {
		line, err := json.Marshal(submit{Type: "submit", Text: n.Text})
		if err != nil {
			return false, fmt.Errorf("encode messages: %w", err)
		}
		if err := addLine(path, append(line, '\n'), time.Now()); err != nil {
			return false, fmt.Errorf("give messages to the program: %w", err)
		}
		return true, nil
	})
}

const (
	maxCommands = 1 << 20     // a file of commands that is larger begins anew,
	unreadFor   = time.Minute // unless the program may not have looked yet
)

// addLine puts a line behind what is in the file, or in its place.
func addLine(path string, line []byte, now time.Time) error {
	var before []byte
	if st, err := os.Stat(path); err == nil {
		if !begins(st.Size(), int64(len(line)), now.Sub(st.ModTime())) {
			if before, err = os.ReadFile(path); err != nil {
				return err
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return private.WriteFile(path, append(before, line...))
}

// begins reports whether a file of so many bytes begins anew with a line. It has to be shorter then: that is how a
// program knows, and does not take the line for what it has read.
func begins(size, line int64, quiet time.Duration) bool {
	return size > maxCommands && line < size && quiet > unreadFor
}
