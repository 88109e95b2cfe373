// Package persona reads the agent files people write: .cotal/agents/<ref>.md, YAML front matter
// between two "---" lines, then the persona text. It only reads; it starts and mints nothing.
package persona

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// MaxSize bounds an agent file, in bytes.
const MaxSize = 256 << 10

// MaxName bounds a name, in bytes.
const MaxName = 128

// DefaultRef is the persona of a spawn that names none.
const DefaultRef = "default"

// Kinds of an *Error, found with errors.Is.
var (
	// ErrNotFound: there is no such file. The text starts "no persona".
	ErrNotFound = errors.New("no persona")
	// ErrSource: the reference or the file itself cannot be used: outside the agents directory, no
	// plain readable file, too large.
	ErrSource = errors.New("persona source")
	// ErrInvalid: the content breaks a rule.
	ErrInvalid = errors.New("persona content")
)

// Error is a persona that cannot be used. Its text starts "agent file <path>:", or for ErrNotFound
// "no persona".
type Error struct {
	Kind error // ErrNotFound, ErrSource or ErrInvalid
	Path string
	Line int    // 1-based line of the file, 0 when the whole file is meant
	Key  string // front matter key, or empty
	Msg  string
}

// Error names path, line and what is wrong.
func (e *Error) Error() string {
	if e.Kind == ErrNotFound {
		return e.Msg
	}
	if e.Line > 0 {
		return fmt.Sprintf("agent file %s: line %d: %s", e.Path, e.Line, e.Msg)
	}
	return fmt.Sprintf("agent file %s: %s", e.Path, e.Msg)
}

// Is matches the kind.
func (e *Error) Is(target error) bool { return target == e.Kind }

// Persona is one agent file. Empty means not said in the file.
type Persona struct {
	Path           string // absolute
	Ref            string // reference it was loaded by
	Name           string // identity on the mesh
	Kind           string // agent or endpoint
	Role           string
	Description    string
	Agent          string // connector pin
	Model          string
	Variant        string
	Cwd            string
	Owner          string
	Tags           []string
	Subscribe      []string
	AllowSubscribe []string
	AllowPublish   []string
	Quiet          []string
	Muted          []string
	Capabilities   []string
	LaunchOptions  map[string]any    // JSON values
	Meta           map[string]string // every other scalar key, verbatim
	Body           string            // trimmed
	Digest         string            // sha256:<hex> of the file as it was read
	Warnings       []string          // for the person who wrote it: keys that look misspelt
}

// Dir returns the directory of the agent files of a workspace.
func Dir(root string) string { return filepath.Join(root, ".cotal", "agents") }

// CheckName returns an error that states the rule when s cannot name a seat: 1 to 128 characters of
// [A-Za-z0-9_-], the first of them no dash: a name must not be taken for an option.
func CheckName(s string) error {
	if s == "" {
		return errors.New("a name is needed")
	}
	if len(s) > MaxName {
		return fmt.Errorf("the name has %d characters, at most %d are allowed", len(s), MaxName)
	}
	for i := range len(s) {
		if !nameChar(s[i]) {
			return fmt.Errorf("%q is not a name: only letters, digits, _ and - are allowed", s)
		}
	}
	if s[0] == '-' {
		return fmt.Errorf("%q is not a name: it must not begin with a dash", s)
	}
	return nil
}

func nameChar(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// isPath reports whether a reference is a path rather than a name.
func isPath(ref string) bool {
	return filepath.IsAbs(ref) || strings.ContainsRune(ref, '/') || strings.HasSuffix(ref, ".md")
}

// Load reads a persona of the workspace by its reference: the name of a file in .cotal/agents
// without .md, or a path (absolute, or relative to root) that lies in that directory. Symbolic links
// are followed only within it: a reference comes from whoever may ask for a spawn, and must not make
// the host read other files.
//
// Errors are *Error: ErrNotFound, ErrSource, ErrInvalid.
func Load(root, ref string) (Persona, error) {
	dir := Dir(root)
	path := ref
	switch {
	case strings.ContainsRune(ref, 0) || !utf8.ValidString(ref):
		return Persona{}, &Error{Kind: ErrSource, Path: fmt.Sprintf("%q", ref), Msg: "the reference is not text"}
	case !isPath(ref):
		if err := CheckName(ref); err != nil {
			return Persona{}, &Error{Kind: ErrSource, Path: fmt.Sprintf("%q", ref), Msg: "the reference is no path, and as a name: " + err.Error()}
		}
		path = filepath.Join(dir, ref+".md")
	case !filepath.IsAbs(ref):
		path = filepath.Join(root, ref)
	}
	path = filepath.Clean(path)
	outside := &Error{Kind: ErrSource, Path: path, Msg: "lies outside " + dir + "; name a file in there, or pass the path with --config"}
	if !within(dir, path) {
		// Asked before the file system is: whether a foreign path exists is not to be learned here.
		// A path may still lead into the directory by another name.
		if real, err := filepath.EvalSymlinks(path); err != nil || !reallyWithin(dir, real) {
			return Persona{}, outside
		}
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Persona{}, NotFound(root, ref, path)
	}
	if err != nil {
		return Persona{}, &Error{Kind: ErrSource, Path: path, Msg: reason(err)}
	}
	if !reallyWithin(dir, real) {
		outside.Msg = "is a symbolic link that leaves " + dir
		return Persona{}, outside
	}
	return read(path, real, ref)
}

// LoadFile reads the agent file that --config names: any path, absolute or relative to root, or the
// name of a persona of the workspace. The directory is the caller's choice; every other check of
// Load holds.
func LoadFile(root, config string) (Persona, error) {
	if !isPath(config) {
		return Load(root, config)
	}
	if strings.ContainsRune(config, 0) || !utf8.ValidString(config) {
		return Persona{}, &Error{Kind: ErrSource, Path: fmt.Sprintf("%q", config), Msg: "the path is not text"}
	}
	path := config
	if !filepath.IsAbs(path) {
		path = filepath.Join(root, path)
	}
	path = filepath.Clean(path)
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Persona{}, NotFound(root, config, path)
	}
	if err != nil {
		return Persona{}, &Error{Kind: ErrSource, Path: path, Msg: reason(err)}
	}
	return read(path, real, config)
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// reallyWithin compares with links resolved on both sides.
func reallyWithin(dir, real string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	return err == nil && within(dir, real)
}

// NotFound is the error for a persona that is not there, or not for who asks: the two are told apart by nobody. It
// names those that there are, which everybody who may start seats may list.
func NotFound(root, ref, path string) *Error {
	name := strings.TrimSuffix(filepath.Base(ref), ".md")
	if CheckName(name) != nil {
		name = "<name>"
	}
	return &Error{Kind: ErrNotFound, Path: path, Msg: fmt.Sprintf(
		"no persona %q: there is no file %s; %s; create it, starting with the lines --- / name: %s / agent: <connector> / --- and then "+
			"the persona text, or spawn without one: cotal spawn --agent command --name %s -- <program> (a request says agent, and identity as well as name)",
		ref, path, there(root, ref), name, name)}
}

// maxNamed is how many personas an error names.
const maxNamed = 12

// there says which personas the workspace has beside ref.
func there(root, ref string) string {
	files, err := os.ReadDir(Dir(root)) // in the order of names
	if err != nil {
		return "the workspace has no personas"
	}
	var names []string
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".md"); ok && !f.IsDir() && name != ref && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	switch n := len(names); {
	case n == 0:
		return "the workspace has no other personas"
	case n == 1:
		return "there is " + names[0]
	case n > maxNamed:
		return fmt.Sprintf("there are %s and %d more", strings.Join(names[:maxNamed], ", "), n-maxNamed)
	}
	return "there are " + strings.Join(names, ", ")
}

// reason strips the path from an os error: the message has it already.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return "cannot be read: " + pe.Err.Error()
	}
	return "cannot be read: " + err.Error()
}

// read loads real and reports errors under the path the user knows.
func read(path, real, ref string) (Persona, error) {
	source := func(msg string) error { return &Error{Kind: ErrSource, Path: path, Msg: msg} }
	// Not blocking: a pipe would wait for a writer for ever.
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Persona{}, source(reason(err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Persona{}, source(reason(err))
	}
	if !st.Mode().IsRegular() {
		return Persona{}, source("is not a plain file")
	}
	raw, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return Persona{}, source(reason(err))
	}
	if len(raw) > MaxSize {
		return Persona{}, source(fmt.Sprintf("is larger than %d KiB", MaxSize>>10))
	}
	p, err := Parse(path, raw)
	if err != nil {
		return Persona{}, err
	}
	p.Ref, p.Digest = ref, wire.Digest(raw)
	return p, nil
}

// Entry is one file of the agents directory.
type Entry struct {
	Ref     string
	Persona Persona // zero when Err is set
	Err     error
}

// List reads every *.md file of the agents directory, in the order of references. A file that cannot
// be used is listed with its error. A workspace without the directory has no personas.
func List(root string) ([]Entry, error) {
	files, err := os.ReadDir(Dir(root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list personas: %w", err)
	}
	var list []Entry
	for _, f := range files {
		ref, ok := strings.CutSuffix(f.Name(), ".md")
		if !ok || ref == "" || f.IsDir() {
			continue
		}
		p, err := Load(root, ref)
		list = append(list, Entry{Ref: ref, Persona: p, Err: err})
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Ref, b.Ref) })
	return list, nil
}
