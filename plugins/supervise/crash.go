package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
)

// maxCrash bounds a crash report: 200 lines of 1 KiB, rendered, and what stands above them.
const maxCrash = 512 << 10

// crash is everything a report on a death says.
type crash struct {
	entry    manifest.Entry
	path     string
	pid      int
	attempt  int
	begin    time.Time
	end      time.Time
	wasReady bool
	how      string // one sentence
	dropped  int
	left     []leftover
	lines    []string
}

// CrashFile is the name of the report on the latest death of a plugin. The one before it has .1 behind it.
func CrashFile(kind sdk.Kind, name string) string {
	return fmt.Sprintf("plugin-%s-%s-crash.log", kind, name)
}

// text is the report, without control characters and secrets.
func (c crash) text() []byte {
	var b bytes.Buffer
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s %s\n", name, clean(fmt.Appendf(nil, format, args...), 4<<10))
	}
	line("plugin", "%s (%s, version %s in the manifest)", c.entry.Name, c.entry.Kind, c.entry.Version)
	line("file", "%s", c.path)
	line("sha256", "%s", c.entry.SHA256)
	line("process", "pid %d, start number %d of this host", c.pid, c.attempt)
	line("started", "%s", c.begin.UTC().Format(time.RFC3339Nano))
	line("ended", "%s, after %s", c.end.UTC().Format(time.RFC3339Nano), c.end.Sub(c.begin).Round(time.Millisecond))
	if c.wasReady {
		line("state", "it was ready")
	} else {
		line("state", "it was being started")
	}
	line("cause", "%s", c.how)
	for _, l := range c.left {
		line("left", "process %s", l)
	}
	if c.dropped > 0 {
		line("dropped", "%d lines are not in the log of the host: it wrote too fast", c.dropped)
	}
	fmt.Fprintf(&b, "\nits last %d lines of output:\n", len(c.lines))
	for _, l := range c.lines {
		if b.Len()+len(l) > maxCrash {
			fmt.Fprintln(&b, "[cut: the report is too long]")
			break
		}
		b.WriteString(l + "\n")
	}
	return b.Bytes()
}

// report writes the report on a process that is gone and returns its path; empty where none could be written.
func (s *Supervisor) report(p *process, attempt int, wasReady bool, how string) string {
	if s.cfg.CrashDir == "" {
		return ""
	}
	var left []leftover
	select {
	case <-p.exited: // its last words are the point
		left = p.left
	case <-s.ctx.Done():
	case <-time.After(stopKill): // it does not end, which must not keep us too
	}
	kept, dropped := p.out.last(tailLines)
	c := crash{
		entry: p.entry, path: p.path, pid: p.cmd.Process.Pid, attempt: attempt, begin: p.begin, end: time.Now(),
		wasReady: wasReady, how: how, dropped: dropped, left: left,
	}
	for _, t := range kept {
		stream := ""
		if t.stdout {
			stream = "stdout: "
		}
		c.lines = append(c.lines, t.at.UTC().Format("15:04:05.000")+" "+stream+p.out.render(t))
	}
	s.reportMu.Lock()
	defer s.reportMu.Unlock()
	path := filepath.Join(s.cfg.CrashDir, CrashFile(p.entry.Kind, p.entry.Name))
	if err := writeReport(path, c.text()); err != nil {
		s.log.Warn("crash report not written", "err", err)
		return ""
	}
	return path
}

// writeReport replaces a report in one step and keeps the one before it.
func writeReport(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write crash report: %w", err)
	}
	// Always a file of our own: what stands there may be a FIFO, which would keep us, or another name of
	// somebody's file, which would be emptied.
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write crash report: %w", err)
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write crash report: %w", err)
	}
	_, err = f.Write(text)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		_ = os.Remove(path + ".1")
		_ = os.Link(path, path+".1") // none yet is fine
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new") // a full disk leaves an empty one
		return fmt.Errorf("write crash report: %w", err)
	}
	return nil
}
