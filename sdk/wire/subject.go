package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// Mode is the route of a request: which instances of an endpoint get it.
type Mode string

// Routes.
const (
	ModeOne      Mode = "one"  // any one instance of the class
	ModeAll      Mode = "all"  // every instance
	ModeInstance Mode = "inst" // the instance named in the subject
)

// Authz is the authorization mode of a targeted request. The empty value is untargeted.
type Authz string

// Authorization modes. AuthzExact belongs to the set although one sentence of the contract leaves
// it out (docs/wire-decisions.md, A1).
const (
	AuthzNone   Authz = ""
	AuthzSelf   Authz = "self"
	AuthzOwner  Authz = "owner"
	AuthzAny    Authz = "any"
	AuthzChild  Authz = "child"
	AuthzLedger Authz = "ledger"
	AuthzHandle Authz = "handle"
	AuthzExact  Authz = "exact"
)

// targetTokens is how many target tokens follow the mode word; -1 when a is no mode word.
func (a Authz) targetTokens() int {
	switch a {
	case AuthzSelf:
		return 0
	case AuthzOwner, AuthzAny, AuthzChild, AuthzLedger:
		return 1
	case AuthzHandle, AuthzExact:
		return 3
	default:
		return -1
	}
}

// Target is the seat a targeted request acts on, as its body carries it.
type Target struct {
	Owner           string  `json:"owner"`
	Actor           string  `json:"actor"`
	LifecycleUID    string  `json:"lifecycleUid"`
	MappingRevision *uint64 `json:"mappingRevision,omitempty"`
}

// Principal is the dot form, owner.actor.
func (t Target) Principal() string { return t.Owner + "." + t.Actor }

// RequestSubject is a request subject taken apart:
//
//	cotal.<space>.ep.<one|all>.<endpoint>.<command>[.<authz>[.<target>]].<owner>.<actor>.<uid>.<nonce>
//	cotal.<space>.ep.inst.<endpoint>.<instance>.<command>[.<authz>[.<target>]].<owner>.<actor>.<uid>.<nonce>
//
// With a Generation it is on the versioned rail: ep.v1.<mode>... and <uid>.<generation>.<nonce>.
type RequestSubject struct {
	Space       string
	Mode        Mode
	Endpoint    string // the name, with dots
	InstanceID  string // ModeInstance only
	Command     string
	Authz       Authz
	TargetOwner string // every mode but none and self
	TargetActor string // handle and exact only
	TargetUID   string // handle and exact only
	Caller      Caller
	Generation  string // of an issued credential; empty on the unversioned rail
	Nonce       string
}

// SubjectError says which part of a subject breaks its grammar.
type SubjectError struct {
	Op    string // "build request subject", ...
	Field string
	Why   string
}

func (e *SubjectError) Error() string { return e.Op + ": " + e.Field + " " + e.Why }

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (r RequestSubject) Subject() (string, error) {
	if err := r.check("build request subject"); err != nil {
		return "", err
	}
	tok := make([]string, 0, 17)
	tok = append(tok, "cotal", r.Space, "ep")
	if r.Generation != "" {
		tok = append(tok, "v1")
	}
	tok = append(tok, string(r.Mode), EndpointToken(r.Endpoint))
	if r.Mode == ModeInstance {
		tok = append(tok, r.InstanceID)
	}
	tok = append(tok, r.Command)
	if r.Authz != AuthzNone {
		tok = append(tok, string(r.Authz))
		tok = append(tok, []string{r.TargetOwner, r.TargetActor, r.TargetUID}[:r.Authz.targetTokens()]...)
	}
	tok = append(tok, r.Caller.Owner, r.Caller.Actor, r.Caller.UID)
	if r.Generation != "" {
		tok = append(tok, r.Generation)
	}
	return join("build request subject", append(tok, r.Nonce))
}

func join(op string, tok []string) (string, error) {
	s := strings.Join(tok, ".")
	if len(s) > MaxSubject {
		return "", &SubjectError{op, "subject", fmt.Sprintf("is %d bytes, more than %d", len(s), MaxSubject)}
	}
	return s, nil
}

func (r RequestSubject) check(op string) error {
	bad := func(field, value, problem string) error {
		return &SubjectError{op, field, tokenProblem(value, problem)}
	}
	switch {
	case !ValidSpace(r.Space):
		return bad("space", r.Space, whySpace)
	case r.Mode != ModeOne && r.Mode != ModeAll && r.Mode != ModeInstance:
		return bad("mode", string(r.Mode), "is not one, all or inst")
	case !ValidEndpoint(r.Endpoint):
		return bad("endpoint", r.Endpoint, whyEndpoint)
	case r.Mode == ModeInstance && !ValidUID(r.InstanceID):
		return bad("instance id", r.InstanceID, whyUID)
	case r.Mode != ModeInstance && r.InstanceID != "":
		return bad("instance id", r.InstanceID, "has no place in this mode")
	case !ValidCommand(r.Command):
		return bad("command", r.Command, whyCommand)
	case r.Generation != "" && !ValidGeneration(r.Generation):
		return bad("generation", r.Generation, "is not 32 hex digits")
	case !ValidNonce(r.Nonce):
		return bad("nonce", r.Nonce, whyNonce)
	}
	n := r.Authz.targetTokens()
	if r.Authz != AuthzNone && n < 0 {
		return bad("authorization mode", string(r.Authz), "is not known")
	}
	if err := checkTargetTokens(bad, max(n, 0), r.TargetOwner, r.TargetActor, r.TargetUID); err != nil {
		return err
	}
	return checkCaller(bad, r.Caller)
}

func checkTargetTokens(bad func(field, value, problem string) error, n int, owner, actor, uid string) error {
	switch {
	case n >= 1 && !ValidOwner(owner):
		return bad("target owner", owner, whyOwner)
	case n >= 3 && !ValidActor(actor):
		return bad("target actor", actor, whyActor)
	case n >= 3 && !ValidUID(uid):
		return bad("target uid", uid, whyUID)
	case n < 1 && owner != "":
		return bad("target owner", owner, "has no place in this authorization mode")
	case n < 3 && actor != "":
		return bad("target actor", actor, "has no place in this authorization mode")
	case n < 3 && uid != "":
		return bad("target uid", uid, "has no place in this authorization mode")
	}
	return nil
}

func checkCaller(bad func(field, value, problem string) error, c Caller) error {
	switch {
	case !ValidOwner(c.Owner):
		return bad("caller owner", c.Owner, whyOwner)
	case !ValidActor(c.Actor):
		return bad("caller actor", c.Actor, whyActor)
	case !ValidUID(c.UID):
		return bad("caller uid", c.UID, whyUID)
	}
	return nil
}

// cursor walks the tokens of a subject.
type cursor struct {
	tok []string
	i   int
}

func (c *cursor) next() string {
	if c.i >= len(c.tok) {
		return ""
	}
	c.i++
	return c.tok[c.i-1]
}

func (c *cursor) left() int { return len(c.tok) - c.i }

// aim reads the mode word, if the next token is one, and the target tokens that belong to it.
func (c *cursor) aim() (a Authz, owner, actor, uid string) {
	if c.left() == 0 || Authz(c.tok[c.i]).targetTokens() < 0 {
		return AuthzNone, "", "", ""
	}
	a = Authz(c.next())
	n := a.targetTokens()
	for i, dst := range []*string{&owner, &actor, &uid} {
		if i < n {
			*dst = c.next()
		}
	}
	return a, owner, actor, uid
}

// split returns a cursor behind cotal.<space>.<kind>, with the space.
func split(op, subject, kind string) (*cursor, string, error) {
	if len(subject) > MaxSubject {
		return nil, "", &SubjectError{op, "subject", fmt.Sprintf("is %d bytes, more than %d", len(subject), MaxSubject)}
	}
	c := &cursor{tok: strings.Split(subject, ".")}
	if c.next() != "cotal" {
		return nil, "", &SubjectError{op, "prefix", "is not cotal"}
	}
	space := c.next()
	if got := c.next(); got != kind {
		return nil, "", &SubjectError{op, "kind", tokenProblem(got, "is not "+kind)}
	}
	return c, space, nil
}

// ParseRequestSubject takes a request subject apart. The token after the command decides the form
// (a mode word, else the caller's owner); the number of tokens never does. Anything it refuses
// has no authenticated sender and is to be ignored, not answered.
func ParseRequestSubject(subject string) (RequestSubject, error) {
	const op = "parse request subject"
	c, space, err := split(op, subject, "ep")
	if err != nil {
		return RequestSubject{}, err
	}
	r := RequestSubject{Space: space}
	mode := c.next()
	versioned := mode == "v1"
	if versioned {
		mode = c.next()
	}
	r.Mode = Mode(mode)
	var ok bool
	if r.Endpoint, ok = endpointOfToken(c.next()); !ok {
		return RequestSubject{}, &SubjectError{op, "endpoint", "is not an endpoint token"}
	}
	if r.Mode == ModeInstance {
		r.InstanceID = c.next()
	}
	r.Command = c.next()
	r.Authz, r.TargetOwner, r.TargetActor, r.TargetUID = c.aim()
	want := 4
	if versioned {
		want = 5
	}
	if c.left() != want {
		return RequestSubject{}, &SubjectError{op, "subject", fmt.Sprintf("has %d tokens behind its target, not %d", c.left(), want)}
	}
	r.Caller = Caller{Owner: c.next(), Actor: c.next(), UID: c.next()}
	if versioned {
		if r.Generation = c.next(); r.Generation == "" {
			return RequestSubject{}, &SubjectError{op, "generation", "is missing"}
		}
	}
	r.Nonce = c.next()
	if err := r.check(op); err != nil {
		return RequestSubject{}, err
	}
	return r, nil
}

// ReplySubject is the subject of one reply:
//
//	cotal.<space>.ep.reply.<endpoint>.<instance>.<epoch>.<owner>.<actor>.<uid>.<nonce>
type ReplySubject struct {
	Space      string
	Endpoint   string
	InstanceID string
	Epoch      uint64
	Caller     Caller
	Generation string // copied from the request; versioned rail only
	Nonce      string
}

// Reply derives the reply subject of a request for one responder incarnation. The reply address
// never comes from the payload or from the transport's reply field.
func (r RequestSubject) Reply(instanceID string, epoch uint64) ReplySubject {
	return ReplySubject{
		Space: r.Space, Endpoint: r.Endpoint, InstanceID: instanceID, Epoch: epoch,
		Caller: r.Caller, Generation: r.Generation, Nonce: r.Nonce,
	}
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (r ReplySubject) Subject() (string, error) {
	const op = "build reply subject"
	if err := r.check(op); err != nil {
		return "", err
	}
	return join(op, r.tokens(r.InstanceID, strconv.FormatUint(r.Epoch, 10)))
}

func (r ReplySubject) tokens(instance, epoch string) []string {
	tok := make([]string, 0, 13)
	tok = append(tok, "cotal", r.Space, "ep")
	if r.Generation != "" {
		tok = append(tok, "v1")
	}
	tok = append(tok, "reply", EndpointToken(r.Endpoint), instance, epoch, r.Caller.Owner, r.Caller.Actor, r.Caller.UID)
	if r.Generation != "" {
		tok = append(tok, r.Generation)
	}
	return append(tok, r.Nonce)
}

// ReplyFilter is what a caller subscribes for one request before it publishes: the reply subject of
// any incarnation of the endpoint, with this exact nonce.
func (r RequestSubject) ReplyFilter() (string, error) {
	if err := r.check("build reply filter"); err != nil {
		return "", err
	}
	return join("build reply filter", r.Reply("", 0).tokens("*", "*"))
}

// sentinelInstance stands where no instance id can: it is too short to be one.
const sentinelInstance = "no-responders"

// NoRespondersSubject is the transport reply address of a request: a subject that ReplyFilter
// matches and that no responder can own, so that the broker's own no-responders status, and only
// that, is believed when it arrives there (docs/wire-decisions.md, A15).
func (r RequestSubject) NoRespondersSubject() (string, error) {
	if err := r.check("build no-responders subject"); err != nil {
		return "", err
	}
	return join("build no-responders subject", r.Reply("", 0).tokens(sentinelInstance, "0"))
}

func (r ReplySubject) check(op string) error {
	bad := func(field, value, problem string) error {
		return &SubjectError{op, field, tokenProblem(value, problem)}
	}
	switch {
	case !ValidSpace(r.Space):
		return bad("space", r.Space, whySpace)
	case !ValidEndpoint(r.Endpoint):
		return bad("endpoint", r.Endpoint, whyEndpoint)
	case !ValidUID(r.InstanceID):
		return bad("instance id", r.InstanceID, whyUID)
	case r.Epoch > MaxInteger:
		return bad("epoch", strconv.FormatUint(r.Epoch, 10), whyEpoch)
	case r.Generation != "" && !ValidGeneration(r.Generation):
		return bad("generation", r.Generation, "is not 32 hex digits")
	case !ValidNonce(r.Nonce):
		return bad("nonce", r.Nonce, whyNonce)
	}
	return checkCaller(bad, r.Caller)
}

// ParseReplySubject takes a reply subject apart.
func ParseReplySubject(subject string) (ReplySubject, error) {
	const op = "parse reply subject"
	c, space, err := split(op, subject, "ep")
	if err != nil {
		return ReplySubject{}, err
	}
	mode := c.next()
	versioned := mode == "v1"
	if versioned {
		mode = c.next()
	}
	if mode != "reply" {
		return ReplySubject{}, &SubjectError{op, "mode", tokenProblem(mode, "is not reply")}
	}
	want := 7
	if versioned {
		want = 8
	}
	if c.left() != want {
		return ReplySubject{}, &SubjectError{op, "subject", fmt.Sprintf("has %d tokens behind its mode, not %d", c.left(), want)}
	}
	r := ReplySubject{Space: space}
	var ok bool
	if r.Endpoint, ok = endpointOfToken(c.next()); !ok {
		return ReplySubject{}, &SubjectError{op, "endpoint", "is not an endpoint token"}
	}
	r.InstanceID = c.next()
	if r.Epoch, err = parseEpoch(op, c.next()); err != nil {
		return ReplySubject{}, err
	}
	r.Caller = Caller{Owner: c.next(), Actor: c.next(), UID: c.next()}
	if versioned {
		if r.Generation = c.next(); r.Generation == "" {
			return ReplySubject{}, &SubjectError{op, "generation", "is missing"}
		}
	}
	r.Nonce = c.next()
	if err := r.check(op); err != nil {
		return ReplySubject{}, err
	}
	return r, nil
}

// parseEpoch reads an epoch token: decimal, no sign, no leading zero, at most 2^53-1.
func parseEpoch(op, tok string) (uint64, error) {
	n, err := strconv.ParseUint(tok, 10, 64)
	if err != nil || n > MaxInteger || strconv.FormatUint(n, 10) != tok {
		return 0, &SubjectError{op, "epoch", tokenProblem(tok, "is not an integer from 0 to 2^53-1")}
	}
	return n, nil
}
