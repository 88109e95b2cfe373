// Package manifest reads, checks and writes plugins.toml, the list of plugins a host may execute.
//
// The whole file is checked before anything of it is used. A caller that reloads a file keeps what
// it has when Load fails.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
	"github.com/cotal-ai/cotal-host/sdk/describe"
)

// Schema is the version of the file format.
const Schema = 1

// FileName is the name of the file in every place it is looked for.
const FileName = "plugins.toml"

// maxFileBytes bounds what is read: a manifest has a few hundred bytes an entry.
const maxFileBytes = 256 << 10

// Entry is one [[plugin]] table. Name and Kind together are unique in a file.
type Entry struct {
	Name    string         // ^[a-z][a-z0-9-]{0,30}$, what personas and flags refer to
	Kind    describe.Kind  // connector or runtime
	Command string         // a bare file name, never a PATH search; see File
	Version string         // must equal what the plugin says of itself
	SHA256  string         // 64 lower-case hex digits of the file that may be executed
	Env     []string       // names of host variables to forward
	Enabled *bool          // nil: enabled
	Config  map[string]any // [plugin.config], handed to the plugin as JSON
	Source  string         // the manifest it stands in; empty for an entry that was not loaded
}

// On reports whether the entry is enabled.
func (e Entry) On() bool { return e.Enabled == nil || *e.Enabled }

// ConfigJSON returns Config as a JSON object, or nil when there is none.
func (e Entry) ConfigJSON() (json.RawMessage, error) {
	if len(e.Config) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(e.Config)
	if err != nil {
		return nil, fmt.Errorf("encode config of plugin %s: %w", e.Name, err)
	}
	return b, nil
}

// Manifest is what the host may execute: one file that passed every check, or several laid over each
// other (Resolve).
type Manifest struct {
	Path    string // of the file; of the strongest one when there are several
	Entries []Entry
}

// Find returns the entry of that name and kind.
func (m *Manifest) Find(kind describe.Kind, name string) (Entry, bool) {
	for _, e := range m.Entries {
		if e.Kind == kind && e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}

// Load reads and checks a manifest. Every error is one line that names the file, the line or entry,
// the field and what to do. A missing file is an error that wraps os.ErrNotExist. A file that others can
// write into or replace is refused: it decides what is executed.
func Load(path string) (*Manifest, error) {
	f, st, err := OpenRegular(path)
	if err != nil {
		return nil, fmt.Errorf("read plugin manifest: %w", err)
	}
	defer f.Close()
	if err := refuseOpen(path, st); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read plugin manifest: %w", err)
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("%s: larger than %d bytes: this is no plugin manifest", path, maxFileBytes)
	}
	entries, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i := range entries {
		entries[i].Source = path
	}
	return &Manifest{Path: path, Entries: entries}, nil
}

// Parse checks the text of a manifest; Load adds the file's name to its errors.
func Parse(text []byte) ([]Entry, error) {
	if err := CheckShape(text); err != nil {
		return nil, err
	}
	// Decoded by hand from plain values: the library matches keys whatever their case, and gives
	// no position for a value of the wrong type.
	var raw map[string]any
	if _, err := toml.Decode(string(text), &raw); err != nil {
		return nil, decodeError(err)
	}
	lines := scanLines(string(text))
	for _, key := range sortedKeys(raw) {
		if key != "schema" && key != "plugin" {
			return nil, fmt.Errorf("%sunknown key %s: remove it (the file has schema and [[plugin]] tables)", lines.top(key), quote(key))
		}
	}
	switch schema := raw["schema"].(type) {
	case nil:
		return nil, fmt.Errorf("schema is missing: begin the file with schema = %d", Schema)
	case int64:
		if schema != Schema {
			return nil, fmt.Errorf("%sschema %d is not known to this host, which reads schema %d: use the host the file was written for, or rewrite the file", lines.top("schema"), schema, Schema)
		}
	default:
		return nil, fmt.Errorf("%sschema: want the number %d", lines.top("schema"), Schema)
	}
	var tables []map[string]any
	switch v := raw["plugin"].(type) {
	case nil:
	case []map[string]any:
		tables = v
	default:
		return nil, fmt.Errorf("%splugin: want tables headed [[plugin]], with two brackets", lines.top("plugin"))
	}
	entries := make([]Entry, 0, len(tables))
	seen := map[string]int{}
	for i, table := range tables {
		e, field, err := decodeEntry(table)
		if err == nil {
			field = ""
			err = Check(e)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", lines.entry(i, e.Name, field), err)
		}
		key := string(e.Kind) + "/" + e.Name
		if first, dup := seen[key]; dup {
			return nil, fmt.Errorf("%s: %s %q is listed already in entry %d: remove one of the two", lines.entry(i, e.Name, ""), e.Kind, e.Name, first+1)
		}
		seen[key] = i
		entries = append(entries, e)
	}
	return entries, nil
}

// decodeEntry reads one [[plugin]] table; field is the key an error is about.
func decodeEntry(table map[string]any) (e Entry, field string, err error) {
	e.Name, _ = table["name"].(string) // first, so that every message can name the entry
	for _, key := range sortedKeys(table) {
		v, ok := table[key], true
		want := "a string"
		switch key {
		case "name":
			e.Name, ok = v.(string)
		case "kind":
			var kind string
			kind, ok = v.(string)
			e.Kind = describe.Kind(kind)
		case "command":
			e.Command, ok = v.(string)
		case "version":
			e.Version, ok = v.(string)
		case "sha256":
			e.SHA256, ok = v.(string)
		case "env":
			want = "an array of strings"
			e.Env, ok = stringList(v)
		case "enabled":
			want = "true or false"
			var on bool
			on, ok = v.(bool)
			e.Enabled = &on
		case "config":
			want = "a table, [plugin.config]"
			e.Config, ok = v.(map[string]any)
		default:
			return e, key, fmt.Errorf("unknown key %s: remove it, or correct its name (known are name, kind, command, version, sha256, env, enabled and config)", quote(key))
		}
		if !ok {
			return e, key, fmt.Errorf("%s: want %s", key, want)
		}
	}
	return e, "", nil
}

func stringList(v any) ([]string, bool) {
	list, ok := v.([]any)
	if !ok {
		return nil, false
	}
	var out []string
	for _, item := range list {
		s, ok := item.(string)
		if !ok {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// lazily compiles an expression when it is first needed: cotal links this, and is started for every keystroke of a
// script.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	nameRE    = lazily(`^[a-z][a-z0-9-]{0,30}$`)
	commandRE = lazily(`^[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}$`)
	versionRE = lazily(`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$`)
	digestRE  = lazily(`^[0-9a-f]{64}$`)
	envRE     = lazily(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// Check says what is wrong with one entry by itself: the field, and how it should look.
func Check(e Entry) error {
	if !nameRE().MatchString(e.Name) {
		return fmt.Errorf("name %s: want a lower-case letter, then at most 30 of a-z, 0-9 and -", quote(e.Name))
	}
	if e.Kind != describe.Connector && e.Kind != describe.Runtime {
		return fmt.Errorf("kind %s: want connector or runtime", quote(string(e.Kind)))
	}
	if !commandRE().MatchString(e.Command) {
		return fmt.Errorf("command %s: want the bare name of a file in the bundle directory (no slash, no leading dot)", quote(e.Command))
	}
	if !versionRE().MatchString(e.Version) {
		return fmt.Errorf("version %s: want the version the plugin prints with %s", quote(e.Version), describe.Flag)
	}
	if !digestRE().MatchString(e.SHA256) {
		return fmt.Errorf("sha256 %s: want 64 lower-case hex digits, as printed by sha256sum %s", quote(e.SHA256), e.Command)
	}
	for i, name := range e.Env {
		if err := checkEnv(name); err != nil {
			return fmt.Errorf("env[%d] %s: %w", i, quote(name), err)
		}
	}
	if _, err := e.ConfigJSON(); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// checkEnv refuses what a manifest must not forward: what the host itself sets for a plugin, and
// everything named COTAL_*, among which are the tokens of the mesh.
func checkEnv(name string) error {
	if !envRE().MatchString(name) {
		return errors.New("want the name of an environment variable (letters, digits, _), not a value or a pattern")
	}
	upper := strings.ToUpper(name)
	if strings.HasPrefix(upper, "COTAL_") || strings.HasPrefix(upper, "PLUGIN_") {
		return errors.New("variables of the host itself are not forwarded: remove it")
	}
	return nil
}

func quote(s string) string { return strconv.Quote(shorten(s)) }

func shorten(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
