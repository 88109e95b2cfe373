package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// keptMax is how much output of a seat that ended by itself its host keeps.
const keptMax = 256 << 10

// keptDir is where a host keeps the last output of seats that ended by themselves.
func keptDir(root string) string { return filepath.Join(root, ".cotal", "host", "ended") }

// findKept looks for the kept output of a seat by its custody id, or the beginning of one. It returns
// nil when there is none, or more than one.
func findKept(root, ref string) *local {
	if root == "" || len(ref) < 8 {
		return nil
	}
	files, err := os.ReadDir(keptDir(root))
	if err != nil {
		return nil
	}
	var found *local
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), ".log")
		if !ok || !record.ValidID(id) || !strings.HasPrefix(id, ref) {
			continue
		}
		if found != nil {
			return nil
		}
		found = &local{Alias: id, CustodyID: id, root: root}
	}
	return found
}

// printKept prints the output that the host kept of a seat that has ended. It reports os.ErrNotExist
// when there is none.
func printKept(s *local, opt logsOptions, out, errw io.Writer) error {
	if s.root == "" || !record.ValidID(s.CustodyID) {
		return os.ErrNotExist
	}
	path := filepath.Join(keptDir(s.root), s.CustodyID+".log")
	// Not blocking, no links: it is a plain file or not what the host wrote.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read kept output: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("read kept output: %w", err)
	case !st.Mode().IsRegular():
		return fmt.Errorf("read kept output: %s is not a plain file", path)
	}
	n := min(uint64(st.Size()), keptMax, opt.bytes)
	text := make([]byte, n)
	if _, err := f.ReadAt(text, st.Size()-int64(n)); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read kept output: %w", err)
	}
	p := &logPrinter{w: bufio.NewWriter(out), raw: opt.raw, cut: uint64(st.Size()) > n || n == keptMax}
	p.print(text)
	if err := p.close(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	ended := "has ended"
	if s.exit != nil {
		ended += ", " + cli.HowEnded(s.exit)
	}
	more := ""
	if opt.follow {
		more = "; nothing more will come"
	}
	fmt.Fprintf(errw, "note: %s %s; this is the end of its output, as the host kept it%s\n", s.Alias, ended, more)
	if p.fullScreen {
		fmt.Fprintln(errw, "note: this was a full-screen program: its output is a drawing, not lines of text")
	}
	return nil
}
