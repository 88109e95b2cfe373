package wire

import (
	"strconv"
)

// builder puts tokens together and keeps the first problem. The parsers of the planes and of the keys fill
// in their struct, build it again and compare: so a grammar stands in one place, its builder, and no
// parser can accept what the builder would not make.
type builder struct {
	op  string
	tok []string
	err error
}

func build(op, space, plane string) *builder {
	b := &builder{op: op, tok: make([]string, 0, 12)}
	b.word("cotal")
	b.add("space", space, ValidSpace, whySpace)
	b.word(plane)
	return b
}

func (b *builder) fail(field, value, why string) {
	if b.err == nil {
		b.err = &SubjectError{b.op, field, tokenProblem(value, why)}
	}
}

func (b *builder) word(s string) { b.tok = append(b.tok, s) }

func (b *builder) add(field, v string, valid func(string) bool, why string) {
	if !valid(v) {
		b.fail(field, v, why)
	}
	b.tok = append(b.tok, v)
}

func (b *builder) endpoint(name string) {
	if !ValidEndpoint(name) {
		b.fail("endpoint", name, whyEndpoint)
	}
	b.tok = append(b.tok, EndpointToken(name))
}

func (b *builder) caller(c Caller) {
	b.add("caller owner", c.Owner, ValidOwner, whyOwner)
	b.add("caller actor", c.Actor, ValidActor, whyActor)
	b.add("caller uid", c.UID, ValidUID, whyUID)
}

func (b *builder) integer(field string, n uint64) {
	s := strconv.FormatUint(n, 10)
	if n > MaxInteger {
		b.fail(field, s, whyEpoch)
	}
	b.tok = append(b.tok, s)
}

// absent refuses a field that this form has no token for: it would be lost.
func (b *builder) absent(field string, set bool) {
	if set && b.err == nil {
		b.err = &SubjectError{b.op, field, "has no place in this form"}
	}
}

func (b *builder) join() (string, error) {
	if b.err != nil {
		return "", b.err
	}
	return join(b.op, b.tok)
}

// integer reads a decimal token without sign or leading zero. What is not one gives a value that cannot
// be built again, so that the comparison refuses it.
func (c *cursor) integer() uint64 {
	n, err := strconv.ParseUint(c.next(), 10, 64)
	if err != nil {
		return MaxInteger + 1
	}
	return n
}

// endpoint reads an endpoint token; an empty name when it is none.
func (c *cursor) endpoint() string {
	name, ok := endpointOfToken(c.next())
	if !ok {
		return ""
	}
	return name
}

func (c *cursor) caller() Caller { return Caller{Owner: c.next(), Actor: c.next(), UID: c.next()} }

// open splits a subject of a plane; arity is the number of tokens behind cotal.<space>.<plane>, or with
// atLeast its minimum.
func open(op, subject, plane string, arity int, atLeast bool) (*cursor, string, error) {
	c, space, err := split(op, subject, plane)
	if err != nil {
		return nil, "", err
	}
	if n := c.left(); n != arity && (!atLeast || n < arity) {
		return nil, "", &SubjectError{op, "subject", "has " + strconv.Itoa(n) + " tokens behind its plane, not " + strconv.Itoa(arity)}
	}
	return c, space, nil
}

// rebuilt is the second half of a parser: v, when it builds exactly the subject it was read from.
func rebuilt[T any](op, subject string, v T, made string, err error) (T, error) {
	var zero T
	switch {
	case err != nil:
		if se, ok := err.(*SubjectError); ok {
			return zero, &SubjectError{op, se.Field, se.Why}
		}
		return zero, err
	case made != subject:
		return zero, &SubjectError{op, "subject", "is not in its one spelling"}
	}
	return v, nil
}
