package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

// Schema is a JSON Schema (draft 2020-12) of a payload: its document in canonical form, its digests, and the
// compiled form that payloads are checked with. It may be used from any number of goroutines.
type Schema struct {
	doc      []byte
	artifact string
	closure  string
	manifest []byte
	void     bool
	// compile is done at the first payload: of the schemas of a program few are used.
	compile func() (compiled, error)
}

type compiled struct {
	schema *jsonschema.Resolved
	empty  bool // the empty object passes, or the payload is void
}

// Limit bounds one member of a payload beyond its Go type. Min and Max count the characters of a string, the
// items of an array, or are the value of an integer; 0 is no bound.
type Limit struct {
	Min, Max int64
	Pattern  string   // of a string: a regular expression
	OneOf    []string // of a string
	Type     string   // of a json.RawMessage: object, array, …; without it anything goes
	Doc      string   // what the member is, for people
}

// Shape is what a Go type does not say about a payload.
type Shape struct {
	// Limits by path: "text", "supervise.restarts", "keys.*" for the items of an array.
	Limits map[string]Limit
	// ExactlyOne names members of the payload one of which has to be there, and no other of them.
	ExactlyOne []string
}

// anyTypes are the types whose JSON is not what reflection says.
var anyTypes = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[json.RawMessage](): {},
	reflect.TypeFor[[]byte]():          {Type: "string"}, // base64
	reflect.TypeFor[Detail](): {
		Type: "object", Required: []string{"kind"},
		Properties: map[string]*jsonschema.Schema{"kind": {Type: "string"}},
	},
}

// SchemaFor makes the schema of a Go type: a closed object whose members are required unless they are
// omitempty, or an array or scalar. A member is absent or has a value; null is none. A nil type, and a struct
// without members, has the void schema: such a payload is absent or null.
func SchemaFor(t reflect.Type, shape Shape) (*Schema, error) {
	if t == nil || t.Kind() == reflect.Struct && t.NumField() == 0 {
		return NewSchema([]byte(VoidSchema))
	}
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: anyTypes})
	if err != nil {
		return nil, fmt.Errorf("make schema: %w", err)
	}
	dropNull(s)
	for path, l := range shape.Limits {
		if err := l.apply(s, path); err != nil {
			return nil, fmt.Errorf("make schema of %s: %w", t, err)
		}
	}
	for _, name := range shape.ExactlyOne {
		if s.Properties[name] == nil {
			return nil, fmt.Errorf("make schema of %s: no member %q", t, name)
		}
		s.Required = slices.DeleteFunc(s.Required, func(r string) bool { return r == name })
		s.OneOf = append(s.OneOf, &jsonschema.Schema{Required: []string{name}})
	}
	p, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("make schema of %s: %w", t, err)
	}
	return newSchema(p, func() (*jsonschema.Schema, error) { return s, nil })
}

// dropNull takes null out of every type: pointers and slices have it because Go has, not because the wire does.
func dropNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Types = slices.DeleteFunc(s.Types, func(t string) bool { return t == "null" }); len(s.Types) == 1 {
		s.Type, s.Types = s.Types[0], nil
	}
	for _, p := range s.Properties {
		dropNull(p)
	}
	dropNull(s.Items)
	dropNull(s.AdditionalProperties)
}

func (l Limit) apply(s *jsonschema.Schema, path string) error {
	for _, part := range strings.Split(path, ".") {
		if s == nil {
			break
		}
		if part == "*" {
			s = s.Items
		} else {
			s = s.Properties[part]
		}
	}
	if s == nil {
		return fmt.Errorf("no member %q", path)
	}
	if l.Type != "" {
		s.Type = l.Type
	}
	for _, v := range l.OneOf {
		s.Enum = append(s.Enum, v)
	}
	s.Pattern, s.Description = l.Pattern, l.Doc
	low, high := int(l.Min), int(l.Max)
	switch s.Type {
	case "string":
		s.MinLength, s.MaxLength = bound(low), bound(high)
	case "array":
		s.MinItems, s.MaxItems = bound(low), bound(high)
	case "integer":
		if l.Min != 0 {
			s.Minimum = jsonschema.Ptr(float64(l.Min))
		}
		if l.Max != 0 {
			s.Maximum = jsonschema.Ptr(float64(l.Max))
		}
	}
	return nil
}

func bound(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

// NewSchema compiles a schema document without references. One that breaks the bounds of a document or is no
// schema is refused with contract-invalid.
func NewSchema(doc []byte) (*Schema, error) {
	s, err := newSchema(doc, func() (*jsonschema.Schema, error) {
		var parsed jsonschema.Schema
		err := json.Unmarshal(doc, &parsed)
		return &parsed, err
	})
	if err == nil {
		_, err = s.compile()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func newSchema(doc []byte, parse func() (*jsonschema.Schema, error)) (*Schema, error) {
	canonical, err := CanonicalJSON(json.RawMessage(doc))
	if err != nil {
		return nil, fmt.Errorf("compile schema: %w", Refuse(CodeContractInvalid, "%s", err))
	}
	m, err := Close(canonical, func(string) ([]byte, error) { return nil, errors.New("the schema refers to other documents") })
	if err != nil {
		return nil, fmt.Errorf("compile schema: %w", err)
	}
	s := &Schema{doc: canonical, artifact: m.Root, void: string(canonical) == VoidSchema}
	if s.manifest, err = m.Encode(); err != nil {
		return nil, fmt.Errorf("compile schema: %w", err)
	}
	s.closure = Digest(s.manifest)
	void := s.void
	s.compile = sync.OnceValues(func() (compiled, error) {
		parsed, err := parse()
		var c compiled
		if err == nil {
			c.schema, err = parsed.Resolve(nil)
		}
		if err != nil {
			return c, fmt.Errorf("compile schema: %w", Refuse(CodeContractInvalid, "%s", err))
		}
		c.empty = void || c.schema.Validate(map[string]any{}) == nil
		return c, nil
	})
	return s, nil
}

// Digest is the closure digest: what inputDigest and outputDigest hold.
func (s *Schema) Digest() string { return s.closure }

// Document is the schema in canonical form. It must not be changed.
func (s *Schema) Document() []byte { return s.doc }

// Void reports whether payloads of this schema are absent.
func (s *Schema) Void() bool { return s.void }

// Artifacts adds the documents of the contract store that this schema needs, by their digests.
func (s *Schema) Artifacts(to map[string][]byte) {
	to[s.artifact], to[s.closure] = s.doc, s.manifest
}

// Check says what is wrong with a payload, or nil. An absent one is the empty object; of a void schema, an
// absent one, null and the empty object are the same.
func (s *Schema) Check(raw json.RawMessage) error {
	c, err := s.compile()
	if err != nil {
		return err
	}
	if len(raw) == 0 || string(raw) == "{}" {
		if c.empty {
			return nil
		}
		raw = json.RawMessage("{}")
	}
	n, err := parseJSON(raw)
	if err != nil {
		return err
	}
	v := n.goValue()
	if err := c.schema.Validate(v); err != nil {
		if why := memberProblem(c.schema.Schema(), v, ""); why != "" {
			return errors.New(why)
		}
		return errors.New(schemaProblem(err))
	}
	return nil
}

// memberProblem says which member of a payload has no place in it, or which has to be there, and what would do: the
// validator tells of both in the words of the schema. Empty when it is neither. path is that of the payload, with a
// dot behind it.
func memberProblem(s *jsonschema.Schema, v any, path string) string {
	m, ok := v.(map[string]any)
	if !ok || s == nil {
		return ""
	}
	wanted := exactlyOne(s)
	if s.AdditionalProperties != nil && s.AdditionalProperties.Not != nil { // the schema false
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if s.Properties[name] != nil {
				continue
			}
			text := fmt.Sprintf("unknown member %q", clip(path+name))
			if len(s.Properties) > 0 {
				text += "; known are " + strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ")
			}
			if len(wanted) > 0 {
				text += ", and exactly one of " + strings.Join(wanted, ", ") + " is needed"
			}
			return text
		}
	}
	given := 0
	for _, name := range wanted {
		if _, ok := m[name]; ok {
			given++
		}
	}
	if len(wanted) > 0 && given != 1 {
		return fmt.Sprintf("exactly one of %s is needed, and %d are there", strings.Join(wanted, ", "), given)
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if why := memberProblem(s.Properties[name], m[name], path+name+"."); why != "" {
			return why
		}
	}
	return ""
}

// exactlyOne are the members of which a schema wants exactly one (Shape.ExactlyOne); nil without such.
func exactlyOne(s *jsonschema.Schema) []string {
	var out []string
	for _, alt := range s.OneOf {
		if len(alt.Required) != 1 || len(alt.Properties) > 0 {
			return nil
		}
		out = append(out, alt.Required[0])
	}
	return out
}

// schemaProblem takes the trail of keywords off a validator's message: it leads through the schema, which
// whoever reads the refusal does not have open.
func schemaProblem(err error) string {
	text := textOf(err)
	for {
		rest, ok := strings.CutPrefix(text, "validating ")
		if !ok {
			break
		}
		_, inner, ok := strings.Cut(rest, ": ")
		if !ok {
			break
		}
		text = inner
	}
	const most = 160 // values are quoted in it, and may be of any size
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// goValue is the value as encoding/json decodes it into an any.
func (n *node) goValue() any {
	switch n.kind {
	case kindString:
		return n.str
	case kindNumber:
		return n.num
	case kindTrue:
		return true
	case kindFalse:
		return false
	case kindArray:
		a := make([]any, len(n.items))
		for i := range n.items {
			a[i] = n.items[i].goValue()
		}
		return a
	case kindObject:
		m := make(map[string]any, len(n.members))
		for i := range n.members {
			m[n.members[i].name] = n.members[i].value.goValue()
		}
		return m
	}
	return nil
}
