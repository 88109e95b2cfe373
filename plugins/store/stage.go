package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
)

// Caps of a source.
const (
	MaxFile    = 512 << 20 // bytes of a plugin, or of an archive
	MaxEntries = 10_000    // of an archive or a directory
	MaxTotal   = 1 << 30   // bytes of everything in an archive, unpacked
	maxName    = 512       // bytes of a name in an archive
	maxDeep    = 32        // directories within each other
)

// caps are those that tests make smaller.
type caps struct {
	entries int
	total   int64
}

// Source is what somebody wants installed.
type Source struct {
	Path    string // file, archive (tar.gz or zip) or directory
	Command string // file to take of an archive or a directory, and its name in the store; empty: the only one there can be

	// Progress is told how many bytes were copied, from one goroutine. May be nil.
	Progress func(done, total int64)
}

// Staged is a copy of a plugin that only we can write, and that nobody has executed. Exactly one of Accept and
// Discard ends it.
type Staged struct {
	Digest  string   // SHA-256 of the program, 64 hex digits: what a host will execute
	Archive string   // SHA-256 of the archive it came from; empty when it came from none
	Command string   // its file name
	Size    int64    // bytes
	Left    []string // what the source holds besides and is not kept: a plugin is one file

	store  *Store
	dir    string
	file   string
	unlock func()
}

// lazily compiles an expression when it is first needed: cotal links this, and is started for every keystroke of a
// script.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	pluginRE  = lazily(`^cotal-(connector|runtime)-[a-z0-9-]+$`)
	commandRE = lazily(`^[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}$`)
)

// Stage copies a source. What it copies and hashes is what is described and kept: a source that is exchanged
// meanwhile changes nothing. Nothing of an archive is written before all of it was looked at. Errors:
// ErrHostile, fs.ErrNotExist, those of the disk; nothing remains then.
func (s *Store) Stage(ctx context.Context, src Source) (_ *Staged, err error) {
	if src.Command != "" && !commandRE().MatchString(src.Command) {
		return nil, fmt.Errorf("stage plugin: command %q: want a bare file name of letters, digits and . _ + -", src.Command)
	}
	st, err := os.Stat(src.Path)
	if err != nil {
		return nil, fmt.Errorf("stage plugin: %w", err)
	}
	dir, unlock, err := s.stagingDir(ctx)
	if err != nil {
		return nil, err
	}
	out := &Staged{store: s, dir: dir, unlock: unlock}
	defer func() {
		if err != nil {
			out.Discard()
		}
	}()
	if err := fpStaging.Hit(); err != nil {
		return nil, err
	}
	if st.IsDir() {
		err = out.fromDir(ctx, src)
	} else {
		err = out.fromFile(ctx, src)
	}
	if err != nil {
		return nil, fmt.Errorf("stage %s: %w", src.Path, err)
	}
	if err := fpCopied.Hit(); err != nil {
		return nil, err
	}
	return out, nil
}

// Discard removes the copy.
func (st *Staged) Discard() {
	_ = removeAll(st.dir)
	st.unlock()
}

func (st *Staged) fromFile(ctx context.Context, src Source) error {
	f, info, err := manifest.OpenRegular(src.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	raw := filepath.Join(st.dir, "source")
	digest, size, err := copyNew(ctx, raw, f, MaxFile, info.Size(), src.Progress)
	if err != nil {
		return err
	}
	head := make([]byte, 4)
	if in, err := os.Open(raw); err == nil {
		n, _ := io.ReadFull(in, head)
		head = head[:n]
		in.Close()
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}), bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		st.Archive = digest
		return st.fromArchive(ctx, raw, src.Command, head[0] == 0x1f)
	case !isProgram(head):
		return fmt.Errorf("%w: it is no program (ELF, Mach-O or a script with #!), no tar.gz and no zip", ErrHostile)
	}
	name := src.Command
	if name == "" {
		name = filepath.Base(src.Path)
	}
	if !commandRE().MatchString(name) {
		return fmt.Errorf("the name %q cannot stand in a manifest: say another with --command", name)
	}
	return st.keep(raw, name, digest, size)
}

// keep gives the copy its name.
func (st *Staged) keep(raw, name, digest string, size int64) error {
	out := filepath.Join(st.dir, "out")
	if err := os.Mkdir(out, 0o700); err != nil {
		return err
	}
	st.file = filepath.Join(out, name)
	if err := os.Rename(raw, st.file); err != nil {
		return err
	}
	st.Command, st.Digest, st.Size = name, digest, size
	return nil
}

func isProgram(head []byte) bool {
	for _, magic := range []string{"\x7fELF", "#!", "\xcf\xfa\xed\xfe", "\xce\xfa\xed\xfe", "\xca\xfe\xba\xbe"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return false
}

// fromDir takes one file of a directory. A link anywhere in it is refused, as it is in an archive: what is looked
// at must be what is there.
func (st *Staged) fromDir(ctx context.Context, src Source) error {
	root, err := os.OpenRoot(src.Path)
	if err != nil {
		return err
	}
	defer root.Close()
	var c chooser
	n := 0
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case path == ".":
			return nil
		case path == ".git" && d.IsDir():
			return fs.SkipDir
		case path == ".git": // a file in a worktree and in a submodule
			return nil
		}
		if n++; n > st.store.caps.entries {
			return fmt.Errorf("%w: more than %d files", ErrHostile, st.store.caps.entries)
		}
		if d.IsDir() {
			return nil
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%w: %q is %s: only files and directories are taken", ErrHostile, path, typeName(d.Type()))
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		c.add(path, info.Mode().Perm()&0o111 != 0)
		return nil
	})
	if err != nil {
		return err
	}
	path, err := c.choose(src.Command)
	if err != nil {
		return err
	}
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a FIFO, which would keep us
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %q is not a regular file any more", ErrHostile, path)
	}
	raw := filepath.Join(st.dir, "source")
	digest, size, err := copyNew(ctx, raw, f, MaxFile, info.Size(), src.Progress)
	if err != nil {
		return err
	}
	st.Left = c.others(path)
	return st.keep(raw, filepath.Base(path), digest, size)
}

func typeName(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "no regular file"
}

// chooser finds the one file of several that is the plugin.
type chooser struct {
	all, named, executable []string
}

func (c *chooser) add(path string, executable bool) {
	c.all = append(c.all, path)
	if pluginRE().MatchString(filepath.Base(path)) {
		c.named = append(c.named, path)
	}
	if executable {
		c.executable = append(c.executable, path)
	}
}

func (c *chooser) choose(command string) (string, error) {
	if command != "" {
		var hits []string
		for _, p := range c.all {
			if filepath.Base(p) == command {
				hits = append(hits, p)
			}
		}
		switch len(hits) {
		case 1:
			return hits[0], nil
		case 0:
			return "", fmt.Errorf("there is no file %q in it: %w", command, fs.ErrNotExist)
		}
		return "", fmt.Errorf("there are %d files %q in it: %s", len(hits), command, some(hits))
	}
	for _, list := range [][]string{c.named, c.executable} {
		switch {
		case len(list) == 1 && commandRE().MatchString(filepath.Base(list[0])):
			return list[0], nil
		case len(list) > 1:
			return "", fmt.Errorf("several files of it may be the plugin, say which with --command: %s", some(list))
		}
	}
	return "", errors.New("nothing in it is a plugin: want one file named cotal-connector-NAME or cotal-runtime-NAME, or --command FILE")
}

func (c *chooser) others(path string) []string {
	var out []string
	for _, p := range c.all {
		if p != path {
			out = append(out, p)
		}
	}
	return out
}

func some(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// copyNew copies at most limit bytes into a new file, and syncs it.
func copyNew(ctx context.Context, path string, src io.Reader, limit, total int64, progress func(done, total int64)) (digest string, n int64, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h, buf := sha256.New(), make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return "", n, err
		}
		k, rerr := src.Read(buf)
		if n += int64(k); n > limit {
			return "", n, fmt.Errorf("%w: more than %d MiB", ErrHostile, limit>>20)
		}
		h.Write(buf[:k])
		if _, err := f.Write(buf[:k]); err != nil {
			return "", n, err
		}
		if progress != nil {
			progress(n, total)
		}
		if rerr == io.EOF {
			break
		}
		if rerr != nil {
			return "", n, rerr
		}
	}
	if n == 0 {
		return "", 0, fmt.Errorf("%w: it is empty", ErrHostile)
	}
	if err := f.Chmod(0o555); err != nil {
		return "", n, err
	}
	if err := f.Sync(); err != nil {
		return "", n, err
	}
	return hex.EncodeToString(h.Sum(nil)), n, f.Close()
}
