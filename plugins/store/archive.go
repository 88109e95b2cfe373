package store

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// item is one entry of an archive, whatever its format.
type item struct {
	name string
	mode fs.FileMode // with its type bits
	size int64
	bad  string // why it is refused whatever its name is
	body io.Reader
}

// fromArchive looks at all of an archive, then takes one file of it. Both passes read our own copy.
func (st *Staged) fromArchive(ctx context.Context, raw, command string, gz bool) error {
	read := readZip
	if gz {
		read = readTar
	}
	caps := st.store.caps
	var c chooser
	names, n, total := map[string]string{}, 0, int64(0)
	err := read(raw, caps, func(it item) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if n++; n > caps.entries {
			return fmt.Errorf("%w: more than %d entries", ErrHostile, caps.entries)
		}
		name, why := checkName(it.name)
		switch {
		case why == "" && it.bad != "":
			why = it.bad
		case why == "" && it.mode&(fs.ModeSetuid|fs.ModeSetgid) != 0:
			why = "it is set-user-ID or set-group-ID"
		case why == "" && !it.mode.IsDir() && !it.mode.IsRegular():
			why = "it is " + typeName(it.mode)
		}
		if why != "" {
			return fmt.Errorf("%w: entry %q: %s", ErrHostile, short(it.name), why)
		}
		if name == "." {
			return nil
		}
		folded := strings.ToLower(name)
		if was, ok := names[folded]; ok && !(was == name && it.mode.IsDir()) {
			return fmt.Errorf("%w: entry %q stands in it as %q already", ErrHostile, short(name), short(was))
		}
		names[folded] = name
		if it.mode.IsDir() {
			return nil
		}
		// What is said of the size is not believed.
		k, err := io.Copy(io.Discard, io.LimitReader(it.body, caps.total-total+1))
		if err != nil {
			return fmt.Errorf("entry %q: %w", short(name), err)
		}
		if total += k; total > caps.total {
			return caps.tooMuch()
		}
		c.add(name, it.mode.Perm()&0o111 != 0)
		return nil
	})
	if err != nil {
		return err
	}
	chosen, err := c.choose(command)
	if err != nil {
		return err
	}
	st.Left = c.others(chosen)
	errTaken := errors.New("taken")
	err = read(raw, caps, func(it item) error {
		if name, _ := checkName(it.name); name != chosen || it.mode.IsDir() {
			return nil
		}
		out := filepath.Join(st.dir, "program")
		digest, size, err := copyNew(ctx, out, it.body, MaxFile, it.size, nil)
		if err != nil {
			return err
		}
		if err := st.keep(out, filepath.Base(chosen), digest, size); err != nil {
			return err
		}
		return errTaken
	})
	if !errors.Is(err, errTaken) {
		if err == nil {
			err = fmt.Errorf("entry %q: %w", short(chosen), fs.ErrNotExist)
		}
		return err
	}
	return os.Remove(raw)
}

// checkName gives the name of an entry without what means nothing, or why it is refused.
func checkName(raw string) (name, why string) {
	name = strings.TrimSuffix(raw, "/")
	for strings.HasPrefix(name, "./") {
		name = name[2:]
	}
	if name == "" && raw == "./" {
		name = "."
	}
	switch {
	case len(name) > maxName:
		return "", fmt.Sprintf("its name has more than %d bytes", maxName)
	case strings.HasPrefix(raw, "/"):
		return "", "its name is absolute"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' || r == ':' }):
		return "", "its name holds a control character, a backslash or a colon"
	case !fs.ValidPath(name):
		return "", "its name leads elsewhere, or is no path"
	case strings.Count(name, "/") > maxDeep:
		return "", fmt.Sprintf("it is more than %d directories deep", maxDeep)
	}
	return name, ""
}

func short(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}

func (c caps) tooMuch() error {
	return fmt.Errorf("%w: more than %d MiB unpacked", ErrHostile, c.total>>20)
}

func readTar(path string, caps caps, each func(item) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("%w: no sound gzip: %w", ErrHostile, err)
	}
	// Headers count too: an archive of nothing but long ones must end.
	limit := &io.LimitedReader{R: gz, N: caps.total + int64(caps.entries)*4096}
	tr := tar.NewReader(limit)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			// The end of the gzip, which says whether all of it was right, is behind the end of the tar.
			if _, err = io.Copy(io.Discard, limit); err == nil && limit.N > 0 {
				return nil
			}
		}
		if err != nil || limit.N <= 0 {
			if limit.N <= 0 {
				return caps.tooMuch()
			}
			return fmt.Errorf("%w: no sound tar in the gzip: %w", ErrHostile, err)
		}
		it := item{name: h.Name, mode: h.FileInfo().Mode(), size: h.Size, body: tr}
		switch h.Typeflag {
		case tar.TypeXGlobalHeader: // a comment of the whole, as git archive writes one
			continue
		case tar.TypeReg, tar.TypeDir:
		case tar.TypeLink:
			it.bad = "it is a hard link"
		case tar.TypeSymlink:
			it.bad = "it is a symbolic link"
		default:
			it.bad = fmt.Sprintf("it is of type %q, no file and no directory", h.Typeflag)
		}
		if err := each(it); err != nil {
			return err
		}
	}
}

// errDirectory is that of a zip whose directory is longer than any that would be taken.
var errDirectory = errors.New("its directory is too long")

// metered reads a file, and no more than left bytes of it while it counts.
type metered struct {
	io.ReaderAt
	left  int64
	count bool
}

func (m *metered) ReadAt(p []byte, at int64) (int, error) {
	if m.count {
		if m.left -= int64(len(p)); m.left < 0 {
			return 0, errDirectory
		}
	}
	return m.ReaderAt.ReadAt(p, at)
}

func readZip(path string, caps caps, each func(item) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// All of the directory is in memory before its entries can be counted, so its length is what is bounded first.
	in := &metered{f, 1<<20 + int64(caps.entries)<<10, true}
	zr, err := zip.NewReader(in, info.Size())
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return fmt.Errorf("%w: no sound zip: %w", ErrHostile, err)
	}
	in.count = false
	for _, f := range zr.File {
		it := item{name: f.Name, mode: f.Mode(), size: int64(min(f.UncompressedSize64, uint64(caps.total)))}
		if !it.mode.IsRegular() {
			if err := each(it); err != nil {
				return err
			}
			continue
		}
		body, err := f.Open()
		if err != nil {
			return fmt.Errorf("%w: entry %q: %w", ErrHostile, short(f.Name), err)
		}
		it.body = body
		err = each(it)
		body.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
