package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/describe"
)

// ErrKeep in the error of a swap says that the manifest stays changed: the host may have taken it, or takes it when
// it reads it again.
var ErrKeep = errors.New("the manifest stays as it is now")

// Users names what needs a plugin, such as the seats of a connector. What it cannot know it names too.
type Users func(ctx context.Context, kind describe.Kind, name string) ([]string, error)

// Change is one change of one manifest.
type Change struct {
	Manifest string // file to change
	Kind     describe.Kind
	Name     string
	Staged   *Staged // what goes into the store; nil: nothing

	// Decide says what to do, given the entry of the file as it is under the lock; nil: there is none. Without error
	// and edit nothing is done.
	Decide func(now *manifest.Entry) (*manifest.Edit, error)

	// Users is asked before an entry is removed or turned off: with an answer that is ErrNeeded. May be nil.
	Users Users

	// Swap has a host read the manifest. With an error that is not ErrKeep the manifest gets its old text back. May
	// be nil.
	Swap func(ctx context.Context) error
}

// Entered is what a change did.
type Entered struct {
	Changed  bool
	Was      *manifest.Entry // nil: there was none
	Now      *manifest.Entry // nil: there is none
	Swept    []string        // digests of binaries that nobody needed any more
	SweepErr error           // why nothing was swept; harmless
}

// Enter puts a binary into the store and changes the manifest, one change at a time: a second caller waits as long
// as ctx lasts. Errors: those of Decide, of Swap, and of the disk; after them everything is as it was, unless the
// error is ErrKeep.
func (s *Store) Enter(ctx context.Context, c Change) (out Entered, err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return out, err
	}
	defer unlock()
	var before, after []byte
	forget := func() {} // takes back what was remembered
	err = manifest.Update(ctx, c.Manifest, func(text []byte) ([]byte, error) {
		before = text
		entries, err := parse(text)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Kind == c.Kind && e.Name == c.Name {
				out.Was = &e
			}
		}
		ed, err := c.Decide(out.Was)
		if err != nil {
			return nil, err
		}
		if ed != nil {
			if after, err = ed.Apply(text); err != nil {
				return nil, err
			}
			if err := c.refuseNeeded(ctx, ed); err != nil {
				return nil, err
			}
		}
		if c.Staged != nil { // also where the entry stays as it is: the file may have been changed
			if err := s.put(c.Staged); err != nil {
				return nil, err
			}
		}
		if ed == nil {
			out.Now = out.Was
			if c.Staged != nil { // a manifest that the store does not know yet names nothing for the sweep
				if err := s.know(c.Manifest); err != nil {
					return nil, err
				}
			}
			return text, nil
		}
		if forget, err = s.remember(c, out.Was, ed); err != nil {
			return nil, err
		}
		if !ed.Remove {
			out.Now = &ed.Put
		}
		out.Changed = true
		return after, nil
	})
	if err == nil && c.Swap != nil {
		if err = c.Swap(ctx); errors.Is(err, ErrKeep) {
			return out, err
		}
	}
	if err != nil {
		back := s.takeBack(c.Manifest, before, after)
		if back == nil {
			forget()
		}
		return Entered{Was: out.Was, Now: out.Was}, errors.Join(err, back)
	}
	if c.Swap != nil {
		if err := fpSwapped.Hit(); err != nil {
			return out, err
		}
	}
	out.Swept, out.SweepErr = s.sweep(ctx)
	return out, nil
}

func (c *Change) refuseNeeded(ctx context.Context, ed *manifest.Edit) error {
	if c.Users == nil || !ed.Remove && ed.Put.On() {
		return nil
	}
	by, err := c.Users(ctx, c.Kind, c.Name)
	if err != nil {
		return fmt.Errorf("ask who needs %s %s: %w", c.Kind, c.Name, err)
	}
	if len(by) > 0 {
		return fmt.Errorf("%w: %s %s by %s; end those first", ErrNeeded, c.Kind, c.Name, some(by))
	}
	return nil
}

func parse(text []byte) ([]manifest.Entry, error) {
	if len(text) == 0 {
		return nil, nil
	}
	return manifest.Parse(text)
}

// takeBack gives a manifest its text from before, unless somebody has changed it since.
func (s *Store) takeBack(path string, before, after []byte) error {
	if after == nil {
		return nil
	}
	ctx := context.Background() // the error that led here may be that of a context
	err := manifest.Update(ctx, path, func(now []byte) ([]byte, error) {
		switch string(now) {
		case string(after):
			return before, nil
		case string(before): // it was not written
			return now, nil
		}
		return now, errors.New("somebody changed it meanwhile: it is left as it is now")
	})
	if err != nil {
		return fmt.Errorf("%w; and the change could not be taken back: %w", ErrKeep, err)
	}
	return nil
}

// remember keeps what an entry was, and that the manifest names binaries of the store. forget takes it back. What it
// was before that is kept too until the change is done: whoever is killed in between has changed nothing, and can
// still go back to it.
func (s *Store) remember(c Change, was *manifest.Entry, ed *manifest.Edit) (forget func(), err error) {
	forget = func() {}
	old, err := s.pastOf(c.Manifest)
	if err != nil {
		return forget, err
	}
	p := old
	p.Before = maps.Clone(old.Before)
	key := entryKey(c.Kind, c.Name)
	if was != nil && (ed.Remove || was.SHA256 != ed.Put.SHA256) {
		p.Before[key] = append([]manifest.Entry{*was}, p.Before[key]...)
	}
	if err := s.keepPast(p); err != nil {
		return forget, err
	}
	forget = func() { _ = s.keepPast(old) } // what cannot be written is one version more that is kept
	return forget, fpRecorded.Hit()
}

// know makes a manifest one of those whose binaries are kept.
func (s *Store) know(path string) error {
	p, err := s.pastOf(path)
	if err != nil {
		return err
	}
	return s.keepPast(p)
}

// Previous is the entry that a manifest had before its last change. Error: ErrNoWayBack.
func (s *Store) Previous(path string, kind describe.Kind, name string) (manifest.Entry, error) {
	p, err := s.pastOf(path)
	if err != nil {
		return manifest.Entry{}, err
	}
	m, err := manifest.Load(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return manifest.Entry{}, err
	}
	if e := lastBefore(p.Before[entryKey(kind, name)], m, kind, name); e != nil {
		return *e, nil
	}
	return manifest.Entry{}, fmt.Errorf("%s %s in %s: %w", kind, name, path, ErrNoWayBack)
}

// lastBefore finds the latest of some entries, the newest first, that is another than the one of the manifest, which
// may be nil.
func lastBefore(before []manifest.Entry, m *manifest.Manifest, kind describe.Kind, name string) *manifest.Entry {
	var now manifest.Entry
	if m != nil {
		now, _ = m.Find(kind, name)
	}
	for i, e := range before {
		if e.SHA256 != now.SHA256 {
			return &before[i]
		}
	}
	return nil
}

// put moves a copy into the store, under the lock. One that is there and sound stays; one that is not is replaced, and
// nothing beside it is touched.
func (s *Store) put(st *Staged) error {
	if err := s.verify(st.Digest, st.Command); err == nil {
		return nil
	}
	if err := s.place(st); err != nil {
		return fmt.Errorf("put plugin into the store: %w", err)
	}
	// It was executed since it was hashed, and could write where it lay.
	if err := s.verify(st.Digest, st.Command); err != nil {
		final := s.File(st.Digest, st.Command)
		_ = removeAll(final)
		_ = os.Remove(filepath.Dir(final)) // unless another name of it is there
		return fmt.Errorf("put plugin into the store: it is another file since it was asked who it is: %w", err)
	}
	return fpStored.Hit()
}

func (s *Store) place(st *Staged) error {
	parent, err := s.dir("sha256")
	if err != nil {
		return err
	}
	dir := filepath.Join(parent, st.Digest)
	if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	final := filepath.Join(dir, st.Command)
	if info, err := os.Lstat(final); err == nil && info.IsDir() { // a file does not replace it
		if err := removeAll(final); err != nil {
			return err
		}
	}
	if err := os.Rename(st.file, final); err != nil {
		return err
	}
	if err := manifest.SyncDir(dir); err != nil {
		return err
	}
	return manifest.SyncDir(parent)
}

// verify says what is wrong with a binary of the store.
func (s *Store) verify(digest, command string) error {
	path := s.File(digest, command)
	st, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is %s", path, typeName(st.Mode().Type()))
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others: chmod go-w %[1]s", path)
	}
	got, err := manifest.HashFile(path)
	if err == nil && got != digest {
		err = fmt.Errorf("%w: %s: expected sha256 %s, actual %s", ErrDigest, path, digest, got)
	}
	return err
}

// Verify says whether the binary of an entry is the one it names, wherever it is: path is what a host would
// execute. Errors: ErrDigest, fs.ErrNotExist, or what is wrong with the file.
func (s *Store) Verify(e manifest.Entry, bundleDir string) (path string, err error) {
	path = e.File(bundleDir)
	if path == s.File(e.SHA256, e.Command) {
		return path, s.verify(e.SHA256, e.Command)
	}
	got, err := manifest.HashFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	case err == nil && got != e.SHA256:
		err = fmt.Errorf("%w: %s: expected sha256 %s, actual %s", ErrDigest, path, e.SHA256, got)
	}
	return path, err
}
