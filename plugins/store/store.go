// Package store keeps installed plugin binaries by their digest, and enters them into the manifests that name what
// a host may execute.
//
// An installation has four steps: Stage copies a source and says its digest, and executes nothing; a person or an
// index accepts the digest; Accept asks the copy who it is, in an empty environment, and moves it into the store;
// Enter writes the manifest and has the host swap. Whoever dies anywhere between leaves what was there before, or
// what is there after. The store holds one file a plugin: what a host executes is a copy in memory, which has no
// neighbours.
//
//	<root>/sha256/<hex>/<command>     mode 0555, never changed
//	<root>/.staging/<random>/         locked by whoever works in it, swept when nobody does
//	<root>/previous/<manifest>.json   what the entries of a manifest were before the last change
package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// Places where a death must leave the old state or the new one.
var (
	fpStaging   = failpoint.New("ext.stage.made")
	fpCopied    = failpoint.New("ext.stage.copied")
	fpDescribed = failpoint.New("ext.accept.described")
	fpStored    = failpoint.New("ext.accept.stored")
	fpRecorded  = failpoint.New("ext.enter.recorded")
	fpSwapped   = failpoint.New("ext.enter.swapped")
	fpSwept     = failpoint.New("ext.sweep.removed")
)

// Errors of this package; each is wrapped in one line that says what to do.
var (
	ErrDigest    = errors.New("wrong digest")             // the source is not the one that was accepted
	ErrHostile   = errors.New("unsafe source")            // a link, an escape, a device, too much of something
	ErrDescribe  = errors.New("not what it should be")    // it does not say who it is, or says somebody else
	ErrTaken     = errors.New("name is taken")            // another plugin of that kind and name is there
	ErrNeeded    = errors.New("plugin is needed")         // seats depend on it
	ErrNone      = errors.New("no such plugin")           // no manifest that can be changed names it
	ErrNoWayBack = errors.New("no version to go back to") // nothing was there before
)

// Store is a directory of plugin binaries of one user. Its methods may be called from any goroutine and process.
type Store struct {
	root string
	caps caps
}

// Open gives the store at root, which need not exist yet. Empty: manifest.StoreRoot.
func Open(root string) (*Store, error) {
	if root == "" {
		root = manifest.StoreRoot()
	}
	if !filepath.IsAbs(root) {
		return nil, errors.New("open plugin store: neither XDG_DATA_HOME nor HOME says where it is")
	}
	return at(root), nil
}

func at(root string) *Store { return &Store{root, caps{MaxEntries, MaxTotal}} }

// Root is the directory.
func (s *Store) Root() string { return s.root }

// File is where the binary of a digest is or would be.
func (s *Store) File(digest, command string) string {
	return filepath.Join(s.root, "sha256", digest, command)
}

// dir makes a directory of the store, for its owner alone.
func (s *Store) dir(name string) (string, error) {
	path := filepath.Join(s.root, name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("make plugin store: %w", err)
	}
	st, err := os.Stat(s.root)
	if err != nil {
		return "", fmt.Errorf("make plugin store: %w", err)
	}
	if st.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("plugin store %s can be written by others, and what is in it is executed: chmod go-w %[1]s", s.root)
	}
	return path, nil
}

// lock is held while names in the store or a manifest change; it ends with the process.
func (s *Store) lock(ctx context.Context) (func(), error) {
	if _, err := s.dir("sha256"); err != nil {
		return nil, err
	}
	unlock, err := manifest.LockDir(ctx, s.root)
	if err != nil {
		return nil, fmt.Errorf("lock plugin store: %w", err)
	}
	return unlock, nil
}

// stagingDir makes a directory to work in, and locks it so that no sweep takes it. Error: also that of ctx.
func (s *Store) stagingDir(ctx context.Context) (path string, unlock func(), err error) {
	parent, err := s.dir(".staging")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(parent, strings.ToLower(rand.Text()))
	// Made under the lock of the parent, which a sweep holds: else it could come between the making and the lock.
	done, err := manifest.LockDir(ctx, parent)
	if err != nil {
		return "", nil, fmt.Errorf("stage plugin: %w", err)
	}
	defer done()
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", nil, fmt.Errorf("stage plugin: %w", err)
	}
	unlock, err = manifest.LockDir(ctx, path)
	if err != nil {
		_ = os.Remove(path)
		return "", nil, fmt.Errorf("stage plugin: %w", err)
	}
	return path, unlock, nil
}

// Sweep removes what nobody needs: staging directories of who died, and binaries that no known manifest names, as
// it is or as it was before. A manifest that cannot be read names everything. It returns the digests removed.
func (s *Store) Sweep(ctx context.Context) ([]string, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.sweep(ctx)
}

func (s *Store) sweep(ctx context.Context) ([]string, error) {
	if err := s.sweepStaging(ctx); err != nil {
		return nil, err
	}
	needed, err := s.needed(time.Now())
	if err != nil {
		return nil, fmt.Errorf("nothing was removed from the plugin store: %w", err)
	}
	found, err := os.ReadDir(filepath.Join(s.root, "sha256"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read plugin store: %w", err)
	}
	var gone []string
	for _, d := range found {
		if needed[d.Name()] {
			continue
		}
		if err := removeAll(filepath.Join(s.root, "sha256", d.Name())); err != nil {
			return gone, fmt.Errorf("remove from plugin store: %w", err)
		}
		gone = append(gone, d.Name())
		if err := fpSwept.Hit(); err != nil {
			return gone, err
		}
	}
	return gone, nil
}

func (s *Store) sweepStaging(ctx context.Context) error {
	parent, err := s.dir(".staging")
	if err != nil {
		return err
	}
	unlock, err := manifest.LockDir(ctx, parent)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("read plugin store: %w", err)
	}
	for _, d := range found {
		path := filepath.Join(parent, d.Name())
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = removeAll(path) // the next sweep tries again
		}
		f.Close()
	}
	return nil
}

// removeAll removes directories that cannot be written, too.
func removeAll(path string) error {
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}

// past is what the store knows of one manifest.
type past struct {
	Manifest string                      `json:"manifest"`
	Before   map[string][]manifest.Entry `json:"before"` // by kind/name: what an entry was before its last change, the latest first
	Named    []string                    `json:"named"`  // digests that it named when it was looked at last
	Missed   time.Time                   `json:"missed"` // since when there is no such file; zero: there was one
}

// missedFor is how long what a manifest named is kept after it is gone: it may be on a disk that is not there now.
const missedFor = 90 * 24 * time.Hour

func entryKey(kind describe.Kind, name string) string { return string(kind) + "/" + name }

func (s *Store) pastFile(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(s.root, "previous", hex.EncodeToString(sum[:16])+".json")
}

// pastOf reads what is known of a manifest; one that is not known yet is empty.
func (s *Store) pastOf(path string) (past, error) {
	p := past{Manifest: path, Before: map[string][]manifest.Entry{}}
	text, err := os.ReadFile(s.pastFile(path))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && p.Before == nil {
		p.Before = map[string][]manifest.Entry{}
	}
	if err != nil {
		return p, fmt.Errorf("read %s: %w", s.pastFile(path), err)
	}
	return p, nil
}

func (s *Store) keepPast(p past) error {
	if _, err := s.dir("previous"); err != nil {
		return err
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("keep the version before: %w", err)
	}
	if err := manifest.ReplaceFile(s.pastFile(p.Manifest), text, 0o600); err != nil {
		return fmt.Errorf("keep the version before: %w", err)
	}
	return nil
}

// needed lists the digests that a known manifest names, or named before its last change. A manifest that is not there
// names what it named, for missedFor.
func (s *Store) needed(now time.Time) (map[string]bool, error) {
	found, err := filepath.Glob(filepath.Join(s.root, "previous", "*.json"))
	if err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, file := range found {
		text, err := os.ReadFile(file)
		var p past
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		keep, err := s.look(&p, now)
		if err != nil {
			return nil, err
		}
		if !keep {
			if err := os.Remove(file); err != nil {
				return nil, fmt.Errorf("forget %s: %w", p.Manifest, err)
			}
			continue
		}
		for _, before := range p.Before {
			for _, e := range before {
				needed[e.SHA256] = true
			}
		}
		for _, digest := range p.Named {
			needed[digest] = true
		}
	}
	return needed, nil
}

// look brings what is known of a manifest up to date, and says whether to know it any longer.
func (s *Store) look(p *past, now time.Time) (keep bool, err error) {
	next := past{Manifest: p.Manifest, Before: p.Before, Named: p.Named, Missed: p.Missed}
	m, err := manifest.Load(p.Manifest)
	switch {
	case err == nil:
		next.Named, next.Missed, next.Before = nil, time.Time{}, map[string][]manifest.Entry{}
		for _, e := range m.Entries {
			next.Named = append(next.Named, e.SHA256)
		}
		for key, before := range p.Before {
			kind, name, _ := strings.Cut(key, "/")
			if e := lastBefore(before, m, describe.Kind(kind), name); e != nil {
				next.Before[key] = []manifest.Entry{*e}
			}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return true, err
	case p.Missed.IsZero():
		next.Missed = now
	case now.Sub(p.Missed) > missedFor:
		return false, nil
	}
	if reflect.DeepEqual(next, *p) {
		return true, nil
	}
	*p = next
	return true, s.keepPast(next)
}
