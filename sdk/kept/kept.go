// Package kept bounds what connectors keep of seats that are gone: the sessions of their programs, which somebody may
// want to resume.
//
// A session's time is when it was last written to, or else when it was last put among the kept or taken up from there
// (Renew). Past a number and an age the oldest go, but none that is needed, and none within a day of its time: a seat
// whose program has just ended may be about to go on with it.
package kept

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/private"
)

// Defaults of Bounds.
const (
	DefaultSessions = 1000
	DefaultDays     = 90
)

// settled is how long every session stays.
const settled = 24 * time.Hour

// Bounds are how much is kept in one workspace, as [plugin.config] of a connector says it: embed them in what is
// decoded from there.
type Bounds struct {
	// Sessions is how many; absent: DefaultSessions, 0: any number.
	Sessions *int `json:"keep_sessions"`
	// Days is how long after its time; absent: DefaultDays, 0: for ever.
	Days *int `json:"keep_days"`
}

// Check refuses bounds that mean nothing; the error names the key and the fix.
func (b Bounds) Check() error {
	for _, f := range []struct {
		key string
		n   *int
	}{{"keep_sessions", b.Sessions}, {"keep_days", b.Days}} {
		if f.n != nil && *f.n < 0 {
			return fmt.Errorf("%s is %d; it takes 0, for no bound, or more", f.key, *f.n)
		}
	}
	return nil
}

func (b Bounds) sessions() int { return or(b.Sessions, DefaultSessions) }

func (b Bounds) age() time.Duration { return time.Duration(or(b.Days, DefaultDays)) * 24 * time.Hour }

func or(given *int, otherwise int) int {
	if given == nil {
		return otherwise
	}
	return *given
}

// Session is one that is kept.
type Session struct {
	Path string
	Time time.Time // see the package
}

// Surplus are those of all sessions that are to go, oldest first. needed says of a session that it is not to; nil: of
// none.
func (b Bounds) Surplus(all []Session, now time.Time, needed func(path string) bool) []Session {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Session) int { return a.Time.Compare(b.Time) })
	over := 0
	if most := b.sessions(); most > 0 {
		over = len(all) - most
	}
	var out []Session
	for _, s := range all {
		age := now.Sub(s.Time)
		old := b.age() > 0 && age > b.age()
		if age < settled || !old && len(out) >= over || needed != nil && needed(s.Path) {
			continue
		}
		out = append(out, s)
	}
	return out
}

// Prune removes what Surplus names of the sessions in a store, a directory below the workspace such as
// .cotal/demo/sessions, copies beside them that were cut short more than a day ago, and directories that are empty then.
// elem are patterns of filepath.Glob, one for each level of the store. A link there leads to what is somebody else's, and
// nothing behind it is removed.
//
// needed is asked after the sessions were listed, and one that was taken up meanwhile stays. It returns the sessions that it
// removed.
// Errors are those of the file system; the rest is pruned all the same.
func (b Bounds) Prune(workspace, store string, now time.Time, needed func(path string) bool, elem ...string) (removed []string, err error) {
	base, err := filepath.EvalSymlinks(workspace)
	if err != nil {
		return nil, fmt.Errorf("prune sessions: %w", err)
	}
	root := filepath.Join(base, store)
	all, err := list(root, elem)
	if err != nil {
		return nil, fmt.Errorf("prune sessions: %w", err)
	}
	cut, err := list(root, append(slices.Clone(elem[:len(elem)-1]), private.Unfinished))
	if err != nil {
		return nil, fmt.Errorf("prune sessions: %w", err)
	}
	cut = slices.DeleteFunc(cut, func(s Session) bool { return now.Sub(s.Time) < settled })
	var errs []error
	remove := func(s Session) bool {
		if at, ok := timeOf(s.Path); !ok || !at.Equal(s.Time) {
			return false
		}
		if err := os.Remove(s.Path); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			return false
		}
		for dir := filepath.Dir(s.Path); within(root, dir); dir = filepath.Dir(dir) {
			if os.Remove(dir) != nil { // there is something in it
				break
			}
		}
		return true
	}
	for _, s := range cut {
		remove(s)
	}
	for _, s := range b.Surplus(all, now, needed) {
		if remove(s) {
			removed = append(removed, s.Path)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("prune sessions: %w", err)
	}
	return removed, nil
}

// list is what there is below root that is a file and behind no link.
func list(root string, elem []string) ([]Session, error) {
	paths, err := filepath.Glob(Pattern(root, elem...))
	if err != nil {
		return nil, err
	}
	var all []Session
	for _, path := range paths {
		if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err != nil || dir != filepath.Dir(path) {
			continue
		}
		if at, ok := timeOf(path); ok {
			all = append(all, Session{path, at})
		}
	}
	return all, nil
}

func within(root, dir string) bool {
	rel, err := filepath.Rel(root, dir)
	return err == nil && rel != "." && filepath.IsLocal(rel)
}

// timeOf is the time of a session that is a file; a link is none.
func timeOf(path string) (time.Time, bool) {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() {
		return time.Time{}, false
	}
	at := st.ModTime()
	if changed := changeTime(st); changed.After(at) {
		at = changed
	}
	return at, true
}

// Renew begins the time of a session anew, and closes it to others. When it was last written to stays: of several of
// one session that says which is the latest.
func Renew(path string) error {
	if err := os.Chmod(path, 0o600); err != nil { // also a change to the mode that it has is one
		return fmt.Errorf("renew session: %w", err)
	}
	return nil
}

// Pattern is a pattern of filepath.Glob below a directory that stands for itself, whatever it is called.
func Pattern(dir string, elem ...string) string {
	return filepath.Join(append([]string{Literal(dir)}, elem...)...)
}

// Literal is a pattern of filepath.Glob that a path or a name alone matches.
func Literal(path string) string { return escape.Replace(path) }

var escape = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// Ignore makes a directory, 0700, that git passes over: of conversations, which may hold secrets. A .gitignore that is
// there is the user's.
func Ignore(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for sessions: %w", err)
	}
	path := filepath.Join(dir, ".gitignore")
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	return private.WriteFile(path, []byte("*\n"))
}
