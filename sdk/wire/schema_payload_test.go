package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

type payload struct {
	Name  string         `json:"name"`
	Count uint16         `json:"count,omitempty"`
	List  []string       `json:"list,omitempty"`
	Maybe *bool          `json:"maybe,omitempty"`
	Open  map[string]any `json:"open,omitempty"`
	Raw   []byte         `json:"raw,omitempty"`
	Text  string         `json:"text,omitempty"`
	Keys  []string       `json:"keys,omitempty"`
	Inner *struct {
		N int `json:"n"`
	} `json:"inner,omitempty"`
	Doc json.RawMessage `json:"doc,omitempty"`
}

func TestSchemaFor(t *testing.T) {
	s, err := SchemaFor(reflect.TypeFor[payload](), Shape{
		Limits: map[string]Limit{
			"name": {Min: 1, Max: 4}, "list": {Max: 2}, "list.*": {OneOf: []string{"a", "b"}}, "inner.n": {Min: 1, Max: 9},
			"count": {Min: 2}, "doc": {Type: "object"}, "keys.*": {Pattern: "^[a-z]+$"},
		},
		ExactlyOne: []string{"text", "keys"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, in string
		ok       bool
	}{
		{"what is required is enough", `{"name":"x","text":"t"}`, true},
		{"everything", `{"name":"x","count":2,"list":["a","b"],"maybe":false,"open":{"x":[1,null]},"keys":["up"],"inner":{"n":9},"doc":{},"raw":"AAECAw=="}`, true},
		{"a required member is missing", `{"text":"t"}`, false},
		{"a member nobody knows", `{"name":"x","text":"t","shiny":1}`, false},
		{"an inner member nobody knows", `{"name":"x","text":"t","inner":{"n":1,"m":2}}`, false},
		{"null is no value", `{"name":"x","text":"t","maybe":null}`, false},
		{"null is no list", `{"name":"x","text":"t","list":null}`, false},
		{"a string that is too short", `{"name":"","text":"t"}`, false},
		{"a string that is too long", `{"name":"xxxxx","text":"t"}`, false},
		{"characters are counted, not bytes", `{"name":"éééé","text":"t"}`, true},
		{"too many items", `{"name":"x","text":"t","list":["a","a","a"]}`, false},
		{"an item that is none of the words", `{"name":"x","text":"t","list":["c"]}`, false},
		{"a number that is too large for its type", `{"name":"x","text":"t","count":65536}`, false},
		{"a number that is too small", `{"name":"x","text":"t","count":1}`, false},
		{"a fraction", `{"name":"x","text":"t","inner":{"n":1.5}}`, false},
		{"an integer in another spelling", `{"name":"x","text":"t","inner":{"n":1.0}}`, true},
		{"a pattern that does not match", `{"name":"x","keys":["UP"]}`, false},
		{"both of two that exclude each other", `{"name":"x","text":"t","keys":["up"]}`, false},
		{"none of two of which one has to be there", `{"name":"x"}`, false},
		{"a document that is no object", `{"name":"x","text":"t","doc":[]}`, false},
		{"a name that stands twice", `{"name":"x","name":"y","text":"t"}`, false},
		{"no object", `[]`, false},
		{"no JSON", `{`, false},
		{"nothing", ``, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := s.Check(json.RawMessage(c.in)); (err == nil) != c.ok {
				t.Errorf("Check(%s) = %v", c.in, err)
			}
		})
	}
	again, err := NewSchema(s.Document())
	if err != nil || again.Digest() != s.Digest() {
		t.Errorf("the document compiles to %v, %v", again, err)
	}
	if want, err := ClosureDigest(json.RawMessage(s.Document())); err != nil || want != s.Digest() {
		t.Errorf("digest %s, want %s (%v)", s.Digest(), want, err)
	}
	store := map[string][]byte{}
	s.Artifacts(store)
	for digest, doc := range store {
		if _, err := VerifyArtifact(doc, digest); err != nil {
			t.Error(err)
		}
	}
	if _, err := SchemaFor(reflect.TypeFor[payload](), Shape{Limits: map[string]Limit{"nome": {Min: 1}}}); err == nil {
		t.Error("a bound of a member that there is not is taken")
	}
}

func TestAPayloadThatDoesNotFitIsToldByItsMembers(t *testing.T) {
	s, err := SchemaFor(reflect.TypeFor[InputArgs](), Shape{ExactlyOne: []string{"text", "keys"}})
	if err != nil {
		t.Fatal(err)
	}
	nested, err := SchemaFor(reflect.TypeFor[payload](), Shape{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s        *Schema
		in, want string
	}{
		"a member nobody knows":       {s, `{"txt":"x"}`, `unknown member "txt"; known are enter, keys, text, and exactly one of text, keys is needed`},
		"beside one that is needed":   {s, `{"text":"x","txt":"x"}`, `unknown member "txt"; known are enter, keys, text, and`},
		"none of two":                 {s, `{"enter":false}`, `exactly one of text, keys is needed, and 0 are there`},
		"both of two":                 {s, `{"text":"x","keys":["up"]}`, `exactly one of text, keys is needed, and 2 are there`},
		"a member within a member":    {nested, `{"name":"x","inner":{"n":1,"m":2}}`, `unknown member "inner.m"; known are n`},
		"a name of any length is cut": {s, `{"` + strings.Repeat("x", 5000) + `":1}`, `xxx..."; known are enter`},
		"what is neither":             {s, `{"text":1}`, `type: 1 has type "integer"`},
	} {
		err := c.s.Check(json.RawMessage(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400 {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestSchemaOfAbsentPayloads(t *testing.T) {
	void, err := SchemaFor(reflect.TypeFor[struct{}](), Shape{})
	if err != nil || !void.Void() || void.Digest() != VoidDigest || string(void.Document()) != VoidSchema {
		t.Fatalf("%+v, %v", void, err)
	}
	some, err := SchemaFor(reflect.TypeFor[struct {
		A string `json:"a,omitempty"`
	}](), Shape{})
	if err != nil {
		t.Fatal(err)
	}
	for in, ok := range map[string][2]bool{"": {true, true}, "{}": {true, true}, "null": {true, false}, `{"a":"x"}`: {false, true}, `""`: {false, false}} {
		if got := void.Check(json.RawMessage(in)) == nil; got != ok[0] {
			t.Errorf("void takes %q: %v", in, got)
		}
		if got := some.Check(json.RawMessage(in)) == nil; got != ok[1] {
			t.Errorf("an object takes %q: %v", in, got)
		}
	}
}

func TestSchemasOutOfBoundsAreRefused(t *testing.T) {
	for name, doc := range map[string]string{
		"no JSON":                `{`,
		"a reference to a store": `{"$ref":"cotal:` + VoidDigest + `"}`,
		"a pattern that is none": `{"type":"string","pattern":"("}`,
		"nested too deep":        strings.Repeat(`{"not":`, 40) + `{}` + strings.Repeat(`}`, 40),
	} {
		_, err := NewSchema([]byte(doc))
		var e *Error
		if err == nil || name != "a reference to a store" && (!errors.As(err, &e) || e.Code != CodeContractInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
