package persona

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Store is the agents directory of a workspace as callers of the mesh see and change it. Use one for a
// workspace.
type Store struct {
	root   string
	regime authz.Regime

	mu sync.Mutex // one definition at a time; held over file writes, which nobody else waits for
}

// NewStore is the store of the workspace at root. What a definition that was killed has left there is removed.
func NewStore(root string, r authz.Regime) *Store {
	sweep(Dir(root))
	return &Store{root: root, regime: r}
}

// Define writes the agent file of a persona: a new one, which belongs to the caller from then on, or what the
// caller says anew of its own. What is not said stays as it was. The text may be a whole agent file, whose keys
// count unless the arguments say otherwise. Nobody is given capabilities or another owner this way.
//
// The file is there whole or not at all, readable for the host's user alone; of two definitions of one new name by different callers one is refused.
//
// Errors are *wire.Error: failed-precondition (the name is none; the file is another's, nobody's,
// or cannot be read; front matter that breaks a rule), unavailable (it could not be written).
func (s *Store) Define(c wire.Caller, args wire.DefinePersonaArgs) (wire.DefinePersonaReply, error) {
	if err := CheckName(args.Name); err != nil {
		return wire.DefinePersonaReply{}, precondition("name: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(Dir(s.root), args.Name+".md")
	old, have, err := s.present(c, args.Name, path)
	if err != nil {
		return wire.DefinePersonaReply{}, err
	}
	p, err := merge(old, path, authz.OwnerOf(s.regime, c), args)
	if err != nil {
		return wire.DefinePersonaReply{}, precondition("%v", err)
	}
	raw, err := Encode(p)
	if err == nil {
		_, err = Parse(path, raw) // what is written can be read, and keeps every rule
	}
	if err != nil {
		return wire.DefinePersonaReply{}, precondition("%v", err)
	}
	err = write(path, raw, have)
	switch {
	case errors.Is(err, fs.ErrExist):
		return wire.DefinePersonaReply{}, precondition("persona %s was defined by somebody else in this moment; look at it, or choose another name", args.Name)
	case errors.As(err, new(unsynced)):
		return wire.DefinePersonaReply{}, wire.Fail(wire.CodeUnavailable, "write persona %s: %v", args.Name, err)
	case err != nil:
		return wire.DefinePersonaReply{}, wire.Refuse(wire.CodeUnavailable, "write persona %s: %v", args.Name, err)
	}
	return wire.DefinePersonaReply{Name: args.Name, Path: path}, nil
}

// present reads the file that is there already; a damaged one is its author's to mend, and never overwritten.
func (s *Store) present(c wire.Caller, name, path string) (old Persona, have bool, err error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Persona{}, false, nil
	case err != nil:
		return Persona{}, false, precondition("agent file %s: %s", path, reason(err))
	case !st.Mode().IsRegular():
		return Persona{}, false, precondition("agent file %s: is not a plain file, and stays as it is", path)
	}
	if old, err = Load(s.root, name); err != nil {
		return Persona{}, false, precondition("%v; it stays as it is", err)
	}
	if refused := authz.PersonaRedefine(s.regime, c, name, old.Owner); refused != nil {
		return Persona{}, false, refused
	}
	return old, true, nil
}

// merge puts together what stands in the file, in the front matter of the text, and in the arguments; the later
// one counts. It is a pure function.
func merge(old Persona, path, owner string, args wire.DefinePersonaArgs) (Persona, error) {
	p := old
	p.Name, p.Owner, p.Path = first(old.Name, args.Name), owner, path
	p.Body = strings.TrimSpace(args.Persona)
	if strings.TrimRight(firstLine(strings.TrimLeft(args.Persona, "\ufeff \t\r\n")), " \t\r") == "---" {
		said, err := Parse(path, named(strings.TrimLeft(args.Persona, "\ufeff \t\r\n"), args.Name))
		if err != nil {
			return Persona{}, fmt.Errorf("front matter of the text: %w", bare(err))
		}
		switch {
		case len(said.Capabilities) > 0:
			return Persona{}, errors.New("front matter of the text: capabilities are given by the operator alone, in the file; leave them out")
		case said.Owner != "":
			return Persona{}, errors.New("front matter of the text: the owner is whoever defines the persona; leave owner out")
		}
		p.take(said)
	}
	p.Role = first(args.Role, p.Role)
	p.Agent = first(args.Agent, p.Agent)
	if args.Model != nil && strings.TrimSpace(*args.Model) != "" {
		p.Model = *args.Model
	}
	for _, l := range []struct{ to, from *[]string }{
		{&p.Subscribe, &args.Subscribe}, {&p.AllowSubscribe, &args.AllowSubscribe}, {&p.AllowPublish, &args.AllowPublish},
	} {
		if *l.from != nil {
			*l.to = *l.from
		}
	}
	return p, nil
}

// take lays what a text says over a persona.
func (p *Persona) take(said Persona) {
	p.Name, p.Body = said.Name, said.Body
	for _, f := range []struct{ to, from *string }{
		{&p.Role, &said.Role},
		{&p.Description, &said.Description},
		{&p.Agent, &said.Agent},
		{&p.Model, &said.Model},
		{&p.Variant, &said.Variant},
		{&p.Cwd, &said.Cwd},
	} {
		*f.to = first(*f.from, *f.to)
	}
	if said.Kind != "agent" {
		p.Kind = said.Kind
	}
	for _, l := range []struct{ to, from *[]string }{
		{&p.Tags, &said.Tags},
		{&p.Subscribe, &said.Subscribe},
		{&p.AllowSubscribe, &said.AllowSubscribe},
		{&p.AllowPublish, &said.AllowPublish},
		{&p.Quiet, &said.Quiet},
		{&p.Muted, &said.Muted},
	} {
		if *l.from != nil {
			*l.to = *l.from
		}
	}
	if said.LaunchOptions != nil {
		p.LaunchOptions = said.LaunchOptions
	}
	if len(said.Meta) > 0 {
		p.Meta = said.Meta
	}
}

// named gives front matter that says no name the one that was asked for.
func named(text, name string) []byte {
	front, _, ok := split(strings.ReplaceAll(text, "\r\n", "\n"))
	if ok {
		for line := range strings.Lines(front) {
			if strings.HasPrefix(line, "name:") {
				return []byte(text)
			}
		}
		_, rest, _ := strings.Cut(text, "\n")
		return []byte("---\nname: " + name + "\n" + rest)
	}
	return []byte(text)
}

// bare is a content error without the path of a file that does not exist yet.
func bare(err error) error {
	var e *Error
	if errors.As(err, &e) {
		return errors.New(e.Msg)
	}
	return err
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// unsynced: the file is in place, and whether that survives a loss of power is not known.
type unsynced struct{ error }

// tempName is what a file is called until it is in place.
var tempName = regexp.MustCompile(`^\.define-[0-9]+$`)

// newTemp creates such a file, locked as long as its writer lives. A sweeper may come between its creation and the
// lock, and take it for a leftover: then there is another one.
func newTemp(dir string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(dir, ".define-*")
		if err != nil {
			return nil, err
		}
		switch err := lock(f); {
		case err == nil && isAt(f):
			return f, nil
		case err == nil, errors.Is(err, syscall.EWOULDBLOCK):
			f.Close()
			_ = os.Remove(f.Name()) // the sweeper's, and gone or about to be
		default: // a file system without locks: nothing is swept there, either
			return f, nil
		}
	}
}

// sweep removes the files of writers that are gone. What cannot be removed now is removed another time.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !tempName.MatchString(e.Name()) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if lock(f) == nil && isAt(f) {
			_ = os.Remove(f.Name())
		}
		f.Close()
	}
}

func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// isAt says whether the name of a file still names it.
func isAt(f *os.File) bool {
	here, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(here, there)
}

// write puts a file in place, whole. A new one takes the place of none: whoever is second gets fs.ErrExist.
func write(path string, raw []byte, replace bool) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	sweep(dir)
	tmp, err := newTemp(dir)
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := tmp.Write(raw); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if replace {
		err = os.Rename(tmp.Name(), path)
	} else {
		err = os.Link(tmp.Name(), path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return unsynced{err}
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return unsynced{err}
	}
	return nil
}

func precondition(format string, args ...any) *wire.Error {
	return wire.Refuse(wire.CodeFailedPrecondition, format, args...)
}

// Rows lists the personas of the workspace as c may see them: what it may read in words, of the rest the name.
// One that cannot be read is left out, but in an open space, where everybody is an operator: there it says why.
func (s *Store) Rows(c wire.Caller) ([]wire.PersonaRow, error) {
	list, err := List(s.root)
	if err != nil {
		return nil, wire.Fail(wire.CodeUnavailable, "%v", err)
	}
	rows := []wire.PersonaRow{}
	for _, e := range list {
		switch {
		case e.Err != nil && s.regime == authz.Open:
			rows = append(rows, wire.PersonaRow{Name: e.Ref, Error: e.Err.Error()})
		case e.Err != nil:
		case !authz.PersonaVisible(s.regime, c, e.Persona.Owner):
			rows = append(rows, wire.PersonaRow{Name: e.Ref})
		default:
			rows = append(rows, rowOf(e.Ref, e.Persona))
		}
	}
	return rows, nil
}

// Row is one persona with its text, composed and not as the file stands: nothing of what its seats are granted
// or how they are started. One that does not exist, cannot be read, or is not for c is not-found alike.
func (s *Store) Row(c wire.Caller, name string) (wire.PersonaRow, error) {
	err := CheckName(name)
	var p Persona
	if err == nil {
		p, err = Load(s.root, name)
	}
	if err != nil || !authz.PersonaVisible(s.regime, c, p.Owner) {
		return wire.PersonaRow{}, wire.Refuse(wire.CodeNotFound, "no persona %q for you: there is none, it cannot be read, or it belongs to somebody else", name)
	}
	row := rowOf(name, p)
	row.Persona = p.Body
	return row, nil
}

func rowOf(ref string, p Persona) wire.PersonaRow {
	return wire.PersonaRow{Name: ref, Role: p.Role, Model: p.Model, Description: p.Description, Owner: p.Owner}
}
