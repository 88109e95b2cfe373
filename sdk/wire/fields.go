package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// FieldError says which field of an envelope or of arguments is wrong. Field is a path with dots.
type FieldError struct {
	Field string // "" for the whole text
	Why   string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Why
	}
	return e.Field + " " + e.Why
}

// fields reads the members of one object and keeps the first problem. Members nobody asks for are
// ignored: the envelope grows by addition.
type fields struct {
	path string
	n    *node
	err  error
}

func readFields(p []byte) (*fields, error) { return readFieldsBut(p, "") }

// readFieldsBut is readFields for an object of which one member is handed on as text (parseEnvelope).
func readFieldsBut(p []byte, carried string) (*fields, error) {
	n, err := parseEnvelope(p, carried)
	if err != nil {
		return nil, &FieldError{"", err.Error()}
	}
	if n.kind != kindObject {
		return nil, &FieldError{"", errNotObject.Error()}
	}
	return &fields{n: &n}, nil
}

func (f *fields) fail(name, why string) {
	if f.err == nil {
		f.err = &FieldError{f.path + name, why}
	}
}

// lookup returns a member of one of the kinds, nil when it is absent.
func (f *fields) lookup(name string, required bool, want ...kind) *node {
	if f.err != nil {
		return nil
	}
	v := f.n.get(name)
	if v == nil {
		if required {
			f.fail(name, "is missing")
		}
		return nil
	}
	for _, k := range want {
		if v.kind == k {
			return v
		}
	}
	f.fail(name, fmt.Sprintf("is %s, not %s", v.kind, want[0]))
	return nil
}

func (f *fields) str(name string, required bool, valid func(string) bool, why string, dst *string) {
	v := f.lookup(name, required, kindString)
	if v == nil {
		return
	}
	if valid != nil && !valid(v.str) {
		if v.str == "" {
			f.fail(name, "is empty")
		} else {
			f.fail(name, tokenProblem(v.str, why))
		}
		return
	}
	*dst = v.str
}

func (f *fields) boolean(name string, required bool, dst *bool) {
	if v := f.lookup(name, required, kindTrue, kindFalse); v != nil {
		*dst = v.kind == kindTrue
	}
}

func (f *fields) integer(name string, required bool, lo, hi int64, set func(int64)) {
	v := f.lookup(name, required, kindNumber)
	if v == nil {
		return
	}
	n := int64(v.num)
	if v.num < float64(lo) || v.num > float64(hi) || float64(n) != v.num {
		if lo == hi {
			f.fail(name, fmt.Sprintf("is not %d", lo))
		} else {
			f.fail(name, fmt.Sprintf("is not an integer from %d to %d", lo, hi))
		}
		return
	}
	set(n)
}

// object opens a member that is an object; nil when it is absent or there was a problem.
func (f *fields) object(name string, required bool) *fields {
	v := f.lookup(name, required, kindObject)
	if v == nil {
		return nil
	}
	return &fields{path: f.path + name + ".", n: v}
}

// done hands the problem of a nested object to its parent.
func (f *fields) done(sub *fields) {
	if sub.err != nil && f.err == nil {
		f.err = sub.err
	}
}

func (f *fields) raw(name string) json.RawMessage {
	if f.err != nil {
		return nil
	}
	if v := f.n.get(name); v != nil {
		return json.RawMessage(v.raw)
	}
	return nil
}

func (f *fields) correlation() *Correlation {
	s := f.object("correlation", false)
	if s == nil {
		return nil
	}
	var c Correlation
	s.str("traceparent", false, nil, "", &c.Traceparent)
	s.str("tracestate", false, nil, "", &c.Tracestate)
	s.str("baggage", false, nil, "", &c.Baggage)
	f.done(s)
	return &c
}

// closed refuses a member that is not in the list: for schemas where an unknown member means that
// somebody else wrote the row, or that its writer knew a rule this reader does not.
func (f *fields) closed(names ...string) {
	if f.err != nil {
		return
	}
	for i := range f.n.members {
		if name := f.n.members[i].name; !slices.Contains(names, name) {
			f.fail(name, "is not a member of this schema")
			return
		}
	}
}

// absent fails on a member that is present but has no place where it stands.
func (f *fields) absent(name, why string) {
	if f.err == nil && f.n.get(name) != nil {
		f.fail(name, why)
	}
}

// uint reads an integer from lo to 2^53-1.
func (f *fields) uint(name string, required bool, lo int64, dst *uint64) {
	f.integer(name, required, lo, MaxInteger, func(n int64) { *dst = uint64(n) })
}

// millis reads a time or a duration in milliseconds, from lo to 2^53-1.
func (f *fields) millis(name string, required bool, lo int64, dst *int64) {
	f.integer(name, required, lo, MaxInteger, func(n int64) { *dst = n })
}

// oneOf reads a string of a closed set.
func (f *fields) oneOf(name string, required bool, set []string, dst *string) {
	f.str(name, required, func(s string) bool { return slices.Contains(set, s) }, "is not "+orList(set), dst)
}

// version reads v, which has to be 1.
func (f *fields) version(dst *int) {
	f.integer("v", true, Version, Version, func(n int64) { *dst = int(n) })
}

// strings reads an array of strings.
func (f *fields) strings(name string, required bool, valid func(string) bool, why string, dst *[]string) {
	v := f.lookup(name, required, kindArray)
	if v == nil {
		return
	}
	out := make([]string, 0, len(v.items))
	for i := range v.items {
		item := &v.items[i]
		at := fmt.Sprintf("%s.%d", name, i)
		switch {
		case item.kind != kindString:
			f.fail(at, fmt.Sprintf("is %s, not %s", item.kind, kindString))
			return
		case valid != nil && !valid(item.str):
			f.fail(at, tokenProblem(item.str, why))
			return
		}
		out = append(out, item.str)
	}
	*dst = out
}

// objects opens every element of an array of objects.
func (f *fields) objects(name string, required bool, each func(*fields)) {
	v := f.lookup(name, required, kindArray)
	if v == nil {
		return
	}
	for i := range v.items {
		at := fmt.Sprintf("%s.%d", name, i)
		if v.items[i].kind != kindObject {
			f.fail(at, fmt.Sprintf("is %s, not %s", v.items[i].kind, kindObject))
			return
		}
		sub := &fields{path: f.path + at + ".", n: &v.items[i]}
		each(sub)
		f.done(sub)
		if f.err != nil {
			return
		}
	}
}

// orList writes "a, b or c".
func orList(set []string) string {
	if len(set) == 1 {
		return set[0]
	}
	return strings.Join(set[:len(set)-1], ", ") + " or " + set[len(set)-1]
}

// decode reads one object with read. what stands in the error: "decode <what>: <field> <why>", a
// wrapped *FieldError.
func decode[T any](what string, p []byte, read func(*fields, *T)) (T, error) {
	var v, zero T
	f, err := readFields(p)
	if err != nil {
		return zero, fmt.Errorf("decode %s: %w", what, err)
	}
	read(f, &v)
	if f.err != nil {
		return zero, fmt.Errorf("decode %s: %w", what, f.err)
	}
	return v, nil
}

// encode writes v and reads it back with the decoder that every reader uses, so that nothing is
// written that a reader refuses.
func encode[T any](what string, v T, read func([]byte) (T, error)) ([]byte, error) {
	p, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", what, err)
	}
	if _, err := read(p); err != nil {
		return nil, fmt.Errorf("encode %s: %w", what, err)
	}
	return p, nil
}

// What is wrong with a value that breaks its grammar.
const (
	whyOwner     = "is not local or u_ with 26 characters base32-lower"
	whyActor     = "is not 1..64 characters of [A-Za-z0-9_]"
	whyPrincipal = "is not owner.actor"
	whyID        = "is not 1..64 characters of [A-Za-z0-9_-]"
	whyUID       = "is not 26..32 characters of [a-z0-9]"
	whyDigest    = "is not sha256: with 64 lowercase hex digits"
	whyHex       = "is not 64 lowercase hex digits"
	whySpace     = "is not 1..64 characters of [A-Za-z0-9_-]"
	whyEndpoint  = "is not an endpoint name"
	whyCommand   = "is not 1..32 characters of [a-z0-9-]"
	whyNonce     = "is not 22..64 characters of [A-Za-z0-9_-]"
	whyToken     = "is not a token of [A-Za-z0-9_-]"
	whyEpoch     = "is more than 2^53-1"
)
