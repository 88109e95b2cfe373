package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// Where a death hurts: the new text is on disk under another name, and the file is the new one.
var (
	fpEditTemp    = failpoint.New("ext.manifest.temp")
	fpEditWritten = failpoint.New("ext.manifest.written")
)

// ErrEditByHand is returned for a manifest that is sound and written in a way that Edit does not take apart,
// such as a key with an escape in it.
var ErrEditByHand = errors.New("it is written in a way that is not edited by a program: change it by hand")

// Edit is a change of one entry. What stands around it in a file, comments too, stays as it is.
type Edit struct {
	Kind   describe.Kind
	Name   string
	Remove bool  // the whole entry, with the comment right above it
	Put    Entry // command, version, sha256 and enabled of the entry; env and config only where it is new
}

// Apply changes the text of a manifest. Nothing else in it becomes different: that is checked against what both
// texts mean. An empty text is one without entries. Errors: ErrEditByHand, fs.ErrNotExist for a removal of
// what is not there, those of Parse.
func (ed Edit) Apply(text []byte) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		text = fmt.Appendf(nil, "schema = %d\n", Schema)
	}
	old, err := Parse(text)
	if err != nil {
		return nil, err
	}
	at := -1
	for i, e := range old {
		if e.Kind == ed.Kind && e.Name == ed.Name {
			at = i
		}
	}
	if ed.Remove && at < 0 {
		return nil, fmt.Errorf("%s %s: there is no such entry: %w", ed.Kind, ed.Name, fs.ErrNotExist)
	}
	if !ed.Remove {
		if err := Check(ed.Put); err != nil {
			return nil, err
		}
	}
	lines := splitLines(text)
	var want []Entry
	for i, e := range old {
		switch {
		case i != at:
			want = append(want, e)
		case !ed.Remove:
			e.Command, e.Version, e.SHA256, e.Enabled = ed.Put.Command, ed.Put.Version, ed.Put.SHA256, ed.Put.Enabled
			want = append(want, e)
		}
	}
	var out []byte
	switch {
	case at < 0:
		block, err := Format([]Entry{ed.Put})
		if err != nil {
			return nil, err
		}
		_, own, _ := bytes.Cut(block, []byte("\n\n")) // without its schema
		out = bytes.TrimRight(text, "\n")
		out = append(append(out, "\n\n"...), own...)
		want = append(want, ed.Put)
	default:
		blocks := findBlocks(lines)
		if len(blocks) != len(old) {
			return nil, ErrEditByHand
		}
		if ed.Remove {
			gone := ownLines(lines, blocks[at])
			out = join(lines[:gone.from], lines[gone.to:])
		} else {
			out = join(lines[:blocks[at].from], setFields(lines[blocks[at].from:blocks[at].to], want[at]), lines[blocks[at].to:])
		}
	}
	got, err := Parse(out)
	if err != nil || !same(got, want) {
		return nil, ErrEditByHand
	}
	return out, nil
}

func same(a, b []Entry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		if x.On() != y.On() {
			return false
		}
		x.Enabled, y.Enabled, x.Source, y.Source = nil, nil, "", ""
		if len(x.Env) == 0 && len(y.Env) == 0 {
			x.Env, y.Env = nil, nil
		}
		xc, errX := x.ConfigJSON() // numbers of a new entry may have another Go type than decoded ones
		yc, errY := y.ConfigJSON()
		x.Config, y.Config = nil, nil
		if errX != nil || errY != nil || !bytes.Equal(xc, yc) || !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

// splitLines cuts a text into lines with their ends; the lines of a string or array that goes over several are
// one.
func splitLines(text []byte) []string {
	var lines []string
	begin, depth := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case '"', '\'':
			i, _ = skipString(text, i)
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '\n':
			if depth <= 0 {
				lines, begin, depth = append(lines, string(text[begin:i+1])), i+1, 0
			}
		}
	}
	if begin < len(text) {
		lines = append(lines, string(text[begin:]))
	}
	return lines
}

func join(parts ...[]string) []byte {
	var b bytes.Buffer
	for _, lines := range parts {
		for _, l := range lines {
			b.WriteString(l)
		}
	}
	return b.Bytes()
}

type span struct{ from, to int }

// findBlocks finds the lines of each [[plugin]] table with its sub-tables. A comment right above a header belongs
// to it.
func findBlocks(lines []string) []span {
	var blocks []span
	open := false
	for i, l := range lines {
		trimmed := strings.TrimSpace(l)
		if !strings.HasPrefix(trimmed, "[") {
			continue
		}
		name := cleanKey(strings.TrimLeft(trimmed, "["))
		if strings.HasPrefix(name, "plugin.") {
			continue
		}
		from := i
		for from > 0 && strings.HasPrefix(strings.TrimSpace(lines[from-1]), "#") {
			from--
		}
		if open {
			blocks[len(blocks)-1].to = from
		}
		if open = name == "plugin"; open {
			blocks = append(blocks, span{from, len(lines)})
		}
	}
	return blocks
}

// ownLines is a block without the comments that stand apart behind it: those speak of something else.
func ownLines(lines []string, b span) span {
	end := b.to
	for end > b.from {
		if l := strings.TrimSpace(lines[end-1]); l != "" && l[0] != '#' {
			break
		}
		end--
	}
	blank := func(i int) bool { return strings.TrimSpace(lines[i]) == "" }
	for end < b.to && !blank(end) {
		end++
	}
	apart := end
	for apart < b.to && blank(apart) {
		apart++
	}
	switch {
	case apart == b.to:
		return b
	case b.from > 0 && !blank(b.from-1): // what is before stays apart from it too
		return span{b.from, end}
	}
	return span{b.from, apart}
}

// setFields writes what an upgrade changes into the lines of one entry.
func setFields(block []string, e Entry) []string {
	fields := []struct{ key, value string }{
		{"command", strconv.Quote(e.Command)}, {"version", strconv.Quote(e.Version)}, {"sha256", strconv.Quote(e.SHA256)},
	}
	if e.Enabled != nil {
		fields = append(fields, struct{ key, value string }{"enabled", strconv.FormatBool(*e.Enabled)})
	}
	out := append([]string{}, block...)
	header, end := 0, len(out)
	for i, l := range out {
		if strings.HasPrefix(strings.TrimSpace(l), "[[") {
			header = i
			break
		}
	}
	for i := header + 1; i < len(out); i++ {
		if strings.HasPrefix(strings.TrimSpace(out[i]), "[") {
			end = i
			break
		}
	}
	last := header
	for i := header + 1; i < end; i++ {
		if t := strings.TrimSpace(out[i]); t != "" && t[0] != '#' {
			last = i
		}
	}
	var added []string
	for _, f := range fields {
		if i := fieldLine(out[header+1:end], f.key); i >= 0 {
			out[header+1+i] = setValue(out[header+1+i], f.value)
			continue
		}
		if f.key == "enabled" && e.On() {
			continue
		}
		added = append(added, f.key+" = "+f.value+"\n")
	}
	if e.Enabled == nil {
		if i := fieldLine(out[header+1:end], "enabled"); i >= 0 {
			out[header+1+i] = setValue(out[header+1+i], "true")
		}
	}
	if len(added) > 0 && !strings.HasSuffix(out[last], "\n") {
		out[last] += "\n"
	}
	return append(append(append([]string{}, out[:last+1]...), added...), out[last+1:]...)
}

func fieldLine(lines []string, key string) int {
	for i, l := range lines {
		if k, _, ok := strings.Cut(l, "="); ok && cleanKey(strings.TrimSpace(k)) == key {
			return i
		}
	}
	return -1
}

// setValue replaces the value of a line "key = value # comment".
func setValue(line, value string) string {
	eq := strings.IndexByte(line, '=')
	from := eq + 1
	for from < len(line) && (line[from] == ' ' || line[from] == '\t') {
		from++
	}
	to := from
	if to < len(line) && (line[to] == '"' || line[to] == '\'') {
		to, _ = skipString([]byte(line), from)
		to++
	} else {
		for to < len(line) && !strings.ContainsRune(" \t\r\n#", rune(line[to])) {
			to++
		}
	}
	return line[:from] + value + line[to:]
}

// Update changes the file at path by f, under a lock that everybody who uses Update takes, and atomically: who dies
// at any point leaves the old text or the new one. f gets nil where there is no file and returns the new text; to
// return what it got changes nothing, nil removes the file. A file that is a symbolic link is changed where it
// leads. Errors: those of f, and of ctx while it waits for the lock.
func Update(ctx context.Context, path string, f func(text []byte) ([]byte, error)) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("change plugin manifest: %w", err)
	}
	unlock, err := LockDir(ctx, dir)
	if err != nil {
		return fmt.Errorf("change plugin manifest %s: %w", path, err)
	}
	defer unlock()
	// Whoever died here left the text that it had not put in place.
	prefix := filepath.Join(dir, "."+filepath.Base(path)+".")
	if left, err := filepath.Glob(prefix + "*"); err == nil {
		for _, p := range left {
			// Its name ends in digits; that of what an editor keeps beside the file does not.
			if end := strings.TrimPrefix(p, prefix); end != "" && strings.Trim(end, "0123456789") == "" {
				os.Remove(p)
			}
		}
	}
	var text []byte
	file, st, err := OpenRegular(path)
	mode := fs.FileMode(0o644)
	switch {
	case err == nil:
		defer file.Close()
		if err := refuseOpen(path, st); err != nil {
			return err
		}
		mode = st.Mode().Perm()
		if st.Size() > maxFileBytes {
			return fmt.Errorf("%s: larger than %d bytes: this is no plugin manifest", path, maxFileBytes)
		}
		text = make([]byte, st.Size())
		n, err := file.ReadAt(text, 0)
		if n < len(text) {
			return fmt.Errorf("read plugin manifest %s: %w", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read plugin manifest: %w", err)
	}
	out, err := f(text)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case out == nil && text == nil, out != nil && text != nil && bytes.Equal(out, text):
		return nil
	case out == nil:
		err = os.Remove(path)
	default:
		err = replaceWith(path, out, mode, fpEditTemp)
	}
	if err != nil {
		return err
	}
	if err := SyncDir(dir); err != nil {
		return fmt.Errorf("change plugin manifest: %w", err)
	}
	return fpEditWritten.Hit()
}

// lockEvery is how often a lock that somebody else holds is asked for.
const lockEvery = 50 * time.Millisecond

// LockDir takes the lock of a directory, which leaves no file and ends with the process. Error: that of ctx.
func LockDir(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { d.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			d.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			d.Close()
			return nil, fmt.Errorf("another installation is at work on %s: %w", dir, ctx.Err())
		case <-tick.C:
		}
	}
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
