package private

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Dir makes a directory, 0700, and those above it. One that is there must be the user's own, closed to others, and no
// symbolic link. The error names the directory and the fix.
func Dir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make directory: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check directory: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir():
		return fmt.Errorf("%s is not a directory (a link is not followed there); remove it", dir)
	case ok && int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d; remove it, or set XDG_RUNTIME_DIR and COTAL_SEAT_ROOT to directories of your own", dir, sys.Uid)
	case st.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is open to other users (mode %04o); run: chmod 700 %s", dir, st.Mode().Perm(), dir)
	}
	return nil
}

// WriteFile writes a file, 0600: whoever reads it, and whoever comes after a crash of its writer, finds the old one or the
// whole new one. After a loss of power it may be empty: what a launch is told is worth nothing then, and is not waited for.
// Its directory must be there.
func WriteFile(path string, data []byte) error {
	return write(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// WriteJSON writes v as indented JSON, as WriteFile does.
func WriteJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return WriteFile(path, append(data, '\n'))
}

// CopyFile copies what is left to read of a file that is open, as WriteFile does, and makes its directory. The copy is
// as old as its source was when the copy began: what is written meanwhile is later than the copy. It is on the disk when
// CopyFile returns, since the source may be removed then.
func CopyFile(from *os.File, to string) error {
	st, err := from.Stat()
	if err != nil {
		return fmt.Errorf("copy to %s: %w", to, err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("copy to %s: %w", to, err)
	}
	return write(to, func(f *os.File) error {
		if _, err := io.Copy(f, from); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		return os.Chtimes(f.Name(), time.Time{}, st.ModTime())
	})
}

// Unfinished is the pattern of what files are called that are not in their place yet: a writer that is killed leaves one.
const Unfinished = ".new-*"

// write fills a file beside path and puts it in its place.
func write(path string, fill func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), Unfinished) // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	err = fill(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
