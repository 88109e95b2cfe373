package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
)

// submit is what a program takes from a file that it watches, to begin a turn with it.
type submit struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// fileWaker gives messages to a program that watches a file of commands, one JSON object a line, and reads what has
// been added to it. The file is replaced by a longer one: a program that looks at a file in the middle of a write
// would read half a line. What stood there before was read and comes back as a hole of that length.
func fileWaker(path string) bridge.Waker {
	return bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) {
		line, err := json.Marshal(submit{Type: "submit", Text: n.Text})
		if err != nil {
			return false, fmt.Errorf("encode messages: %w", err)
		}
		if err := addLine(path, append(line, '\n')); err != nil {
			return false, fmt.Errorf("give messages to the program: %w", err)
		}
		return true, nil
	})
}

func addLine(path string, line []byte) error {
	var size int64
	if st, err := os.Stat(path); err == nil {
		size = st.Size()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*") // 0600
	if err != nil {
		return err
	}
	_, err = next.WriteAt(line, size)
	if cerr := next.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		_ = os.Remove(next.Name())
	}
	return err
}
