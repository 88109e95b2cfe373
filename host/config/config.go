// Package config reads .cotal/config.toml, what the operator of one workspace has decided.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// DefaultMaxSeats bounds how many seats one host runs when nothing is configured: each is a whole
// agent program.
const DefaultMaxSeats = 50

// DefaultCooling is how long the place of a seat stays taken from its start, when the seat ends by itself
// before: it bounds the rate at which seats can be recycled.
const DefaultCooling = 10 * time.Second

// MaxCooling is the longest cooling that is accepted.
const MaxCooling = time.Hour

// minRetention is the shortest retention of results: whoever waits for one must find it.
const minRetention = time.Hour

// MaxMaxSeats is the largest ceiling that is accepted.
const MaxMaxSeats = 4096

// maxSize bounds the file, in bytes.
const maxSize = 256 << 10

// Config is the content of config.toml, defaults applied.
type Config struct {
	Path     string        // of the file, whether it exists or not
	MaxSeats int           // 1..4096
	Cooling  time.Duration // 0..1h; 0: places of short-lived seats are free at once
	// ResultRetention is how long the data of a goal's result is kept, 1h..2160h.
	ResultRetention time.Duration
	DefaultAgent    string // connector of a spawn for which nobody names one; empty: the built-in
	// EventsRequired: no seat is started without its event plane.
	EventsRequired bool
	SpawnEnv       []string // [spawn] env: names of host variables every agent gets
	// ModelPolicy is [modelPolicy.<role>]: what seats of a role may run on. Roles that are not in it may run
	// on anything.
	ModelPolicy map[string]ModelRule
	// MCPServers is [connectors.<connector>.mcpServers.<name>]: what the operator shares with seats of a connector, as
	// JSON in the shape of an .mcp.json, references to variables as they were written.
	MCPServers map[string]map[string]json.RawMessage
}

// ModelRule is what seats of one role may run on.
type ModelRule struct {
	Models   []string // ids, compared as a whole; never empty
	Variants []string // nil: any variant, or none
}

// file is the shape on disk.
type file struct {
	MaxSeats     *int    `toml:"maxSeats"`
	Cooling      *string `toml:"cooling"`
	DefaultAgent string  `toml:"defaultAgent"`
	Results      *string `toml:"resultRetention"`
	Events       bool    `toml:"eventsRequired"`
	Spawn        struct {
		Env []string `toml:"env"`
	} `toml:"spawn"`
	ModelPolicy map[string]struct {
		Models   *[]string `toml:"models"`
		Variants *[]string `toml:"variants"`
	} `toml:"modelPolicy"`
	Connectors map[string]struct {
		MCPServers map[string]map[string]any `toml:"mcpServers"`
	} `toml:"connectors"`
}

// Path returns where the configuration of a workspace is.
func Path(root string) string { return filepath.Join(root, ".cotal", "config.toml") }

// Load reads the configuration of a workspace. A missing file gives the defaults. Every error names
// the file, the line or key, and what is expected; an unknown key is an error.
func Load(root string) (Config, error) {
	path := Path(root)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{Path: path, MaxSeats: DefaultMaxSeats, Cooling: DefaultCooling, ResultRetention: wire.ResultRetention}, nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return Config{}, fmt.Errorf("%s: is not a plain file", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	if len(raw) > maxSize {
		return Config{}, fmt.Errorf("%s: is larger than %d KiB", path, maxSize>>10)
	}
	return Parse(path, raw)
}

// Parse reads the text of a config.toml.
func Parse(path string, raw []byte) (Config, error) {
	if err := manifest.CheckShape(raw); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	var in file
	md, err := toml.Decode(string(raw), &in)
	if err != nil {
		var pe toml.ParseError
		if errors.As(err, &pe) {
			return Config{}, fmt.Errorf("%s: line %d: %s", path, pe.Position.Line, pe.Message)
		}
		return Config{}, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "toml: "))
	}
	if unknown := slices.DeleteFunc(md.Undecoded(), ofServer); len(unknown) > 0 {
		return Config{}, fmt.Errorf("%s: line %d: %s is not a known key; there are maxSeats, cooling, resultRetention, defaultAgent, eventsRequired, [spawn] env, [modelPolicy.<role>] models and variants, and [connectors.<name>.mcpServers.<server>]",
			path, lineOf(string(raw), unknown[0]), unknown[0])
	}
	out := Config{Path: path, MaxSeats: DefaultMaxSeats, Cooling: DefaultCooling, ResultRetention: wire.ResultRetention, DefaultAgent: in.DefaultAgent, EventsRequired: in.Events, SpawnEnv: in.Spawn.Env}
	if in.MaxSeats != nil {
		if out.MaxSeats = *in.MaxSeats; out.MaxSeats < 1 || out.MaxSeats > MaxMaxSeats {
			return Config{}, fmt.Errorf("%s: maxSeats: %d is not within 1..%d", path, out.MaxSeats, MaxMaxSeats)
		}
	}
	if in.Cooling != nil {
		if out.Cooling, err = ParseCooling(*in.Cooling); err != nil {
			return Config{}, fmt.Errorf("%s: line %d: cooling: %w", path, lineOf(string(raw), toml.Key{"cooling"}), err)
		}
	}
	if in.Results != nil {
		if out.ResultRetention, err = parseRetention(*in.Results); err != nil {
			return Config{}, fmt.Errorf("%s: line %d: resultRetention: %w", path, lineOf(string(raw), toml.Key{"resultRetention"}), err)
		}
	}
	if a := out.DefaultAgent; md.IsDefined("defaultAgent") && !connectorName(a) {
		return Config{}, fmt.Errorf("%s: defaultAgent: %q is not the name of a connector", path, a)
	}
	for _, n := range out.SpawnEnv {
		if err := checkEnvName(n); err != nil {
			return Config{}, fmt.Errorf("%s: spawn.env: %w", path, err)
		}
	}
	if out.ModelPolicy, err = in.policy(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	if out.MCPServers, err = in.servers(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

func parseRetention(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 24h", text)
	}
	if d < minRetention || d > wire.ReceiptRetention {
		return 0, fmt.Errorf("%s is not within 1h..2160h", text)
	}
	return d, nil
}

// ParseCooling reads a cooling such as 10s or 1m30s; "0s" is none.
func ParseCooling(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 10s or 1m30s", text)
	}
	if d < 0 || d > MaxCooling {
		return 0, fmt.Errorf("%s is not within 0s..%s", text, "1h")
	}
	return d, nil
}

// policy checks the model policy: a rule without a model would turn every spawn down, which nobody means.
func (in *file) policy() (map[string]ModelRule, error) {
	if len(in.ModelPolicy) == 0 {
		return nil, nil
	}
	out := make(map[string]ModelRule, len(in.ModelPolicy))
	for role, r := range in.ModelPolicy {
		rule := ModelRule{}
		for _, l := range []struct {
			name string
			from *[]string
			to   *[]string
			need bool
		}{{"models", r.Models, &rule.Models, true}, {"variants", r.Variants, &rule.Variants, false}} {
			if l.from == nil && !l.need {
				continue
			}
			if l.from == nil || len(*l.from) == 0 {
				return nil, fmt.Errorf("modelPolicy.%s: %s: a list with at least one id is needed", role, l.name)
			}
			for _, id := range *l.from {
				if strings.TrimSpace(id) == "" {
					return nil, fmt.Errorf("modelPolicy.%s: %s: there is an empty id", role, l.name)
				}
			}
			*l.to = *l.from
		}
		out[role] = rule
	}
	return out, nil
}

// lineOf finds the line where a key is set; the TOML reader does not keep it.
func lineOf(text string, key toml.Key) int {
	last := key[len(key)-1]
	is := func(name string) bool {
		parts := strings.Split(strings.TrimSpace(name), ".")
		return strings.Trim(parts[len(parts)-1], `"' `) == last
	}
	for i, line := range strings.Split(text, "\n") {
		if name, _, ok := strings.Cut(line, "="); ok && is(name) {
			return i + 1
		}
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") && is(strings.Trim(line, "[]")) {
			return i + 1
		}
	}
	return 1
}

func connectorName(s string) bool {
	if s == "" || len(s) > 31 || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func checkEnvName(n string) error {
	ok := n != "" && (n[0] < '0' || n[0] > '9')
	for i := 0; ok && i < len(n); i++ {
		c := n[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
	}
	if !ok {
		return fmt.Errorf("%q is not the name of a variable", n)
	}
	// Said here, because the launch drops it without a word.
	if strings.HasPrefix(strings.ToUpper(n), "COTAL_") {
		return fmt.Errorf("%s cannot be handed on: COTAL_ names are the host's own, and those an agent may have it gets anyway", n)
	}
	return nil
}
