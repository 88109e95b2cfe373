package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Vacant refuses a path where there is something.
func Vacant(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return Fail(Refused, "write %s: there is something already; move it away or name another file with --output", path)
	}
	return nil
}

// WriteNew writes a file for this user alone, whole or not at all, and never over another one.
func WriteNew(path string, data []byte) error {
	if err := Vacant(path); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".cotal-new-") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if serr := tmp.Sync(); err == nil {
		err = serr
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Link(tmp.Name(), path) // refuses what came in between
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
