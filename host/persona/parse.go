package persona

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxDepth bounds the nesting of launchOptions.
const maxDepth = 16

// Parse reads the text of an agent file. path is used in messages and kept. Errors are *Error of
// kind ErrInvalid, naming the line and the key.
func Parse(path string, raw []byte) (Persona, error) {
	p := &parser{path: path, out: Persona{Path: path}}
	if err := p.parse(raw); err != nil {
		return Persona{}, err
	}
	return p.out, nil
}

type parser struct {
	path string
	out  Persona
}

func (p *parser) fail(line int, key, format string, args ...any) error {
	return &Error{Kind: ErrInvalid, Path: p.path, Line: line, Key: key, Msg: fmt.Sprintf(format, args...)}
}

func (p *parser) parse(raw []byte) error {
	if len(raw) > MaxSize {
		return p.fail(0, "", "is larger than %d KiB", MaxSize>>10)
	}
	if !utf8.Valid(raw) || bytes.IndexByte(raw, 0) >= 0 {
		return p.fail(0, "", "is not UTF-8 text")
	}
	text := strings.TrimPrefix(string(raw), "\ufeff")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	front, body, ok := split(text)
	if !ok {
		if strings.TrimRight(firstLine(text), " \t") == "---" {
			return p.fail(1, "", "the front matter that starts here has no closing --- line")
		}
		return p.fail(1, "", "must start with front matter: a line ---, then name: <name>, then a line ---")
	}
	p.out.Body = strings.TrimSpace(body)

	// The blank first line stands for the opening ---, so that the lines YAML counts are the file's.
	var doc yaml.Node
	if err := decode("\n"+front, &doc); err != nil {
		return p.yamlError(err)
	}
	if len(doc.Content) == 0 {
		return p.fail(1, "name", "name is missing")
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return p.fail(top.Line, "", "the front matter must be a mapping of keys to values")
	}
	if err := p.mapping(top); err != nil {
		return err
	}
	return p.rules(top)
}

// decode guards against panics of the YAML parser on hostile input.
func decode(text string, doc *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return yaml.Unmarshal([]byte(text), doc)
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

func (p *parser) yamlError(err error) error {
	msg := err.Error()
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		line, _ := strconv.Atoi(m[1])
		return p.fail(line, "", "%s", msg[len(m[0]):])
	}
	return p.fail(0, "", "%s", strings.TrimPrefix(msg, "yaml: "))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// split separates front matter and body at the two --- lines.
func split(text string) (front, body string, ok bool) {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimRight(first, " \t") != "---" {
		return "", "", false
	}
	for at := 0; at <= len(rest); {
		line, after, more := strings.Cut(rest[at:], "\n")
		if strings.TrimRight(line, " \t") == "---" {
			return rest[:at], after, true
		}
		if !more {
			break
		}
		at += len(line) + 1
	}
	return "", "", false
}

// keys are the known keys in the order of the documentation.
var keys = []string{
	"name", "role", "kind", "description", "tags", "subscribe", "allowSubscribe", "allowPublish", "quiet", "muted",
	"model", "variant", "agent", "cwd", "launchOptions", "capabilities", "owner",
}

// renamed are keys of older files.
var renamed = map[string]string{
	"channels": "subscribe (what it reads) and allowSubscribe (what it may read)",
	"publish":  "allowPublish",
}

func (p *parser) mapping(top *yaml.Node) error {
	lines := map[string]int{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		k, v := top.Content[i], top.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" || k.Anchor != "" {
			return p.fail(k.Line, k.Value, "a key must be a plain word")
		}
		key := k.Value
		if key == "" || strings.ContainsFunc(key, control) {
			return p.fail(k.Line, key, "a key must be a plain word")
		}
		if first, dup := lines[key]; dup {
			return p.fail(k.Line, key, "%s stands here a second time, the first is in line %d", key, first)
		}
		lines[key] = k.Line
		if to, old := renamed[key]; old {
			return p.fail(k.Line, key, "%s is not used any more; write %s", key, to)
		}
		if err := p.field(key, k.Line, v); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) field(key string, line int, v *yaml.Node) error {
	var err error
	switch key {
	case "name":
		p.out.Name, err = p.scalar(key, v)
	case "role":
		p.out.Role, err = p.scalar(key, v)
	case "kind":
		p.out.Kind, err = p.scalar(key, v)
	case "description":
		p.out.Description, err = p.scalar(key, v)
	case "model":
		p.out.Model, err = p.scalar(key, v)
	case "variant":
		p.out.Variant, err = p.scalar(key, v)
	case "agent":
		p.out.Agent, err = p.scalar(key, v)
	case "cwd":
		p.out.Cwd, err = p.scalar(key, v)
	case "owner":
		p.out.Owner, err = p.scalar(key, v)
	case "tags":
		p.out.Tags, err = p.list(key, v, true)
	case "subscribe":
		p.out.Subscribe, err = p.list(key, v, false)
	case "allowSubscribe":
		p.out.AllowSubscribe, err = p.list(key, v, false)
	case "allowPublish":
		p.out.AllowPublish, err = p.list(key, v, false)
	case "quiet":
		p.out.Quiet, err = p.list(key, v, false)
	case "muted":
		p.out.Muted, err = p.list(key, v, false)
	case "capabilities":
		p.out.Capabilities, err = p.list(key, v, false)
	case "launchOptions":
		p.out.LaunchOptions, err = p.options(key, v)
	default:
		near := nearest(key)
		if v.Kind != yaml.ScalarNode {
			hint := ""
			if near != "" {
				hint = fmt.Sprintf("; did you mean %s?", near)
			}
			return p.fail(line, key, "%s is not a known key, and only a single value can be kept as metadata%s", key, hint)
		}
		var s string
		if s, err = p.scalar(key, v); err == nil {
			if p.out.Meta == nil {
				p.out.Meta = map[string]string{}
			}
			p.out.Meta[key] = s
			if near != "" {
				p.out.Warnings = append(p.out.Warnings,
					fmt.Sprintf("line %d: %s is kept as metadata; did you mean %s?", line, key, near))
			}
		}
	}
	return err
}

// scalar returns the text of a single value as it stands in the file; null is the empty string.
func (p *parser) scalar(key string, v *yaml.Node) (string, error) {
	if v.Kind == yaml.AliasNode || v.Anchor != "" {
		return "", p.fail(v.Line, key, "%s: anchors and aliases are not supported", key)
	}
	if v.Kind != yaml.ScalarNode || v.Tag == "!!binary" {
		return "", p.fail(v.Line, key, "%s must be a single value, not a %s", key, kindWord(v))
	}
	if v.Tag == "!!null" {
		return "", nil
	}
	if key != "description" && strings.ContainsFunc(v.Value, control) {
		return "", p.fail(v.Line, key, "%s must not contain control characters or line breaks", key)
	}
	return v.Value, nil
}

func control(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }

func kindWord(v *yaml.Node) string {
	switch v.Kind {
	case yaml.SequenceNode:
		return "list"
	case yaml.MappingNode:
		return "mapping"
	case yaml.AliasNode:
		return "alias"
	}
	return "binary value"
}

// list returns a list of texts. single also takes one scalar as a list of one.
func (p *parser) list(key string, v *yaml.Node, single bool) ([]string, error) {
	if v.Kind == yaml.ScalarNode && (single || v.Tag == "!!null") {
		s, err := p.scalar(key, v)
		if err != nil || s == "" {
			return nil, err
		}
		return []string{s}, nil
	}
	if v.Kind != yaml.SequenceNode || v.Anchor != "" {
		return nil, p.fail(v.Line, key, "%s must be a list", key)
	}
	out := make([]string, 0, len(v.Content))
	for _, item := range v.Content {
		s, err := p.scalar(key, item)
		if err != nil {
			return nil, err
		}
		if s == "" {
			return nil, p.fail(item.Line, key, "%s has an empty item", key)
		}
		out = append(out, s)
	}
	return out, nil
}

func (p *parser) options(key string, v *yaml.Node) (map[string]any, error) {
	if v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
		return nil, nil
	}
	if v.Kind != yaml.MappingNode {
		return nil, p.fail(v.Line, key, "%s must be a mapping of option names to values", key)
	}
	val, err := p.value(key, v, 0)
	if err != nil {
		return nil, err
	}
	return val.(map[string]any), nil
}

// value turns YAML into the JSON values of launch options.
func (p *parser) value(key string, v *yaml.Node, depth int) (any, error) {
	if depth > maxDepth {
		return nil, p.fail(v.Line, key, "%s is nested too deeply", key)
	}
	if v.Kind == yaml.AliasNode || v.Anchor != "" {
		return nil, p.fail(v.Line, key, "%s: anchors and aliases are not supported", key)
	}
	switch v.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(v.Content)/2)
		for i := 0; i+1 < len(v.Content); i += 2 {
			k := v.Content[i]
			if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" || k.Anchor != "" {
				return nil, p.fail(k.Line, key, "%s: an option name must be a plain word", key)
			}
			if _, dup := out[k.Value]; dup {
				return nil, p.fail(k.Line, key, "%s: %q stands here a second time", key, k.Value)
			}
			val, err := p.value(key, v.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			out[k.Value] = val
		}
		return out, nil
	case yaml.SequenceNode:
		out := make([]any, 0, len(v.Content))
		for _, item := range v.Content {
			val, err := p.value(key, item, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, val)
		}
		return out, nil
	}
	return p.jsonScalar(key, v)
}

func (p *parser) jsonScalar(key string, v *yaml.Node) (any, error) {
	switch v.Tag {
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		if err := v.Decode(&b); err != nil {
			return nil, p.fail(v.Line, key, "%s: %q is not true or false", key, v.Value)
		}
		return b, nil
	case "!!int", "!!float":
		var f float64
		// A number JSON readers would change is refused rather than changed.
		if err := v.Decode(&f); err != nil || math.IsNaN(f) || math.IsInf(f, 0) || v.Tag == "!!int" && math.Abs(f) > 1<<53-1 {
			return nil, p.fail(v.Line, key, "%s: the number %s cannot be carried exactly; write it in quotes", key, v.Value)
		}
		return f, nil
	case "!!binary":
		return nil, p.fail(v.Line, key, "%s: binary values are not supported", key)
	}
	return v.Value, nil // text, dates and whatever else looks like a word
}

// nearest returns the known key that differs from key by at most two edits, or "".
func nearest(key string) string {
	best, bestD := "", 3
	for _, k := range keys {
		if d := distance(strings.ToLower(key), strings.ToLower(k)); d < bestD && d*2 < len(k) {
			best, bestD = k, d
		}
	}
	return best
}

// distance counts the edits between two words: a letter more, less or another, or two neighbours in each other's
// place, which is the commonest slip of all.
func distance(a, b string) int {
	if len(a) > 32 {
		return len(a)
	}
	before, prev := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(prev[j+1]+1, row[j]+1, prev[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}

// rules checks what holds between fields.
func (p *parser) rules(top *yaml.Node) error {
	o := &p.out
	at := func(key string) int {
		for i := 0; i+1 < len(top.Content); i += 2 {
			if top.Content[i].Value == key {
				return top.Content[i].Line
			}
		}
		return 1
	}
	if o.Name == "" {
		return p.fail(at("name"), "name", "name is missing")
	}
	if err := CheckName(o.Name); err != nil {
		return p.fail(at("name"), "name", "name: %v", err)
	}
	switch o.Kind {
	case "":
		o.Kind = "agent"
	case "agent", "endpoint":
	default:
		return p.fail(at("kind"), "kind", "kind must be agent or endpoint, not %q", o.Kind)
	}
	for _, c := range o.Capabilities {
		if err := checkCapability(c); err != nil {
			return p.fail(at("capabilities"), "capabilities", "capabilities: %v", err)
		}
	}
	return p.channels(at)
}

func checkCapability(c string) error {
	switch {
	case c == "spawn" || c == "run":
		return nil
	case c == "admin":
		return errors.New("admin is never given by a file")
	case strings.HasPrefix(c, "role:"):
		if err := CheckName(strings.TrimPrefix(c, "role:")); err != nil {
			return fmt.Errorf("%q: %w", c, err)
		}
		return nil
	}
	return fmt.Errorf("%q is not known; there are spawn, run and role:<role>", c)
}

// MaxChannels is how many channels each list of a persona, and of a spawn, may name. Each is held against each that
// may be read, and is a permission of the seat's on the mesh.
const MaxChannels = 256

func (p *parser) channels(at func(string) int) error {
	o := &p.out
	lists := []struct {
		key  string
		list []string
		wild bool
	}{
		{"subscribe", o.Subscribe, true},
		{"allowSubscribe", o.AllowSubscribe, true},
		{"allowPublish", o.AllowPublish, true},
		{"quiet", o.Quiet, false},
		{"muted", o.Muted, false},
	}
	for _, l := range lists {
		if len(l.list) > MaxChannels {
			return p.fail(at(l.key), l.key, "%s: %d channels, at most %d; name several by a wildcard", l.key, len(l.list), MaxChannels)
		}
		for _, c := range l.list {
			if err := checkChannel(c, l.wild); err != nil {
				return p.fail(at(l.key), l.key, "%s: %v", l.key, err)
			}
		}
	}
	acl := o.AllowSubscribe
	if len(acl) == 0 {
		acl = o.Subscribe
	}
	for _, l := range lists {
		if l.key != "subscribe" && l.key != "quiet" && l.key != "muted" {
			continue
		}
		for _, c := range l.list {
			if !slices.ContainsFunc(acl, func(pattern string) bool { return Covers(pattern, c) }) {
				return p.fail(at(l.key), l.key, "%s: %q is not within allowSubscribe", l.key, c)
			}
		}
	}
	for _, c := range o.Quiet {
		if slices.Contains(o.Muted, c) {
			return p.fail(at("muted"), "muted", "%q is both quiet and muted", c)
		}
	}
	return nil
}

// checkChannel accepts dot-separated tokens; with wild, * as a token and > as the last one.
func checkChannel(c string, wild bool) error {
	tokens := strings.Split(c, ".")
	for i, t := range tokens {
		switch {
		case t == "":
			return fmt.Errorf("%q has an empty part", c)
		case t == "*" || t == ">" && i == len(tokens)-1:
			if !wild {
				return fmt.Errorf("%q must name one channel, without wildcards", c)
			}
		case CheckName(t) != nil:
			return fmt.Errorf("%q is not a channel: parts are letters, digits, _ and -, joined by dots", c)
		}
	}
	return nil
}

// Covers reports whether every channel of name is one of pattern.
func Covers(pattern, name string) bool {
	ps, ns := strings.Split(pattern, "."), strings.Split(name, ".")
	for i, t := range ps {
		if t == ">" {
			return len(ns) > i
		}
		if i >= len(ns) || ns[i] == ">" || t != "*" && t != ns[i] {
			return false
		}
	}
	return len(ps) == len(ns)
}
