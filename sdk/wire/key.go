package wire

import (
	"fmt"
	"slices"
	"strings"
)

// Kinds of records, by the bucket they live in.
const (
	// Records bucket.
	KindService    = "svc"       // svc.<endpoint>.<instance>
	KindSigner     = "signer"    // signer.<key id>
	KindHandle     = "handle"    // handle.<issuer key id>.<id>
	KindContracts  = "contracts" // contracts.<endpoint>
	KindGoal       = "goal"      // goal.<endpoint>.<owner>.<actor>.<uid>.<goal id>
	KindCheckpoint = "cp"        // cp.<endpoint>.<token>
	KindLease      = "lease"     // lease.<endpoint>.<pool>.<owner>.<actor>.<uid>.<id>
	KindLifecycle  = "lifecycle" // lifecycle.<owner>.<actor>, and .<uid> for the audit detail
	KindUID        = "uid"       // uid.<uid>
	KindFrontier   = "frontier"  // frontier.<uid>
	KindGovern     = "govern"    // govern.<endpoint>
	KindPolicy     = "policy"    // policy.<endpoint>.<hex of its digest>
	KindObligation = "oblig"     // oblig.<uid or ep>.<endpoint>.<owner>.<actor>.<uid>.<id>
	KindGoalIndex  = "goalidx"   // goalidx.<endpoint>.<owner>.<actor>.<uid>.<goal id>
	KindGoalEffect = "goaleff"   // goaleff.<endpoint>.<owner>.<actor>.<uid>.<goal id>.<generation>
	KindNameClaim  = "epname"    // epname.<endpoint>.<name token>
	KindMigration  = "epmig"     // epmig.<endpoint>
	KindSlot       = "mgrslot"   // mgrslot.<owner>.<alias>

	// Auth bucket.
	KindGate             = "gate"     // gate.<uid>
	KindEndpointGate     = "epgate"   // epgate.<endpoint>.<instance>
	KindCredential       = "cred"     // cred.<uid>.<credential id>
	KindEndpointCred     = "epcred"   // epcred.<endpoint>.<instance>.<credential id>
	KindRepair           = "eprepair" // eprepair.<endpoint>.<instance>
	KindSourceGate       = "srcgate"  // srcgate.<issuer key id>.<id>
	KindCredentialSource = "bysrc"    // bysrc.<issuer key id>.<id>.<uid>.<credential id>
	KindSession          = "session"  // session.<session id>
	KindStage            = "stage"    // stage.<operation id>.<anything>
	KindPlane            = "plane"    // plane
)

// Parts of a split record: two keys with revisions of their own, so that two writers can be told apart.
const (
	PartSpec   = "spec"
	PartStatus = "status"
)

// Bucket is a key-value bucket of a space, by what it is for. Its name is BucketName.
type Bucket string

// Buckets that keys of this file live in.
const (
	BucketRecords Bucket = "records"
	BucketAuth    Bucket = "auth"
)

// qualifier is one token of a key behind its kind.
type qualifier struct {
	name  string
	valid func(string) bool
	why   string
	// endpoint: the token is an endpoint name with its dots as underscores. dotted: it takes the rest of
	// the key, one or more tokens.
	endpoint, dotted bool
}

var (
	qEndpoint = qualifier{name: "endpoint", valid: ValidEndpoint, why: whyEndpoint, endpoint: true}
	qUID      = qualifier{name: "uid", valid: ValidUID, why: whyUID}
	qInstance = qualifier{name: "instance id", valid: ValidUID, why: whyUID}
	qOwner    = qualifier{name: "owner", valid: ValidOwner, why: whyOwner}
	qActor    = qualifier{name: "actor", valid: ValidActor, why: whyActor}
	qID       = qualifier{name: "id", valid: ValidID, why: whyID}
	qAlias    = qualifier{name: "alias", valid: ValidToken, why: whyToken}
	qPool     = qualifier{name: "pool", valid: ValidPool, why: whyCommand}
	qHex      = qualifier{name: "digest", valid: ValidHex, why: whyHex}
	qGen      = qualifier{name: "generation", valid: validInteger, why: "is not an integer from 0 to 2^53-1"}
	qTarget   = qualifier{name: "target uid", valid: func(s string) bool { return s == SentinelTarget || ValidUID(s) }, why: whyUID}
	qCred     = qualifier{name: "credential id", valid: ValidCredentialID, why: "is not tokens of [A-Za-z0-9_-] joined by dots", dotted: true}
)

// foreignKinds are kinds that are parsed here, and that nothing of this project writes: its goals are
// executed where they are accepted, so they claim no effect and no name on the mesh
// (docs/wire-decisions.md, A17).
var foreignKinds = []string{KindGoalEffect, KindNameClaim, KindMigration}

// Foreign reports whether nothing of this project may write a key of this kind.
func (k Key) Foreign() bool { return slices.Contains(foreignKinds, k.Kind) }

// SentinelTarget stands for the target of an obligation that has none.
const SentinelTarget = "ep"

func validInteger(s string) bool {
	_, err := parseEpoch("", s)
	return err == nil
}

// ValidCredentialID reports whether s is the id of a credential: tokens of [A-Za-z0-9_-] joined by dots,
// at most 256 bytes.
func ValidCredentialID(s string) bool { return len(s) <= 256 && ValidChannel(s) }

// keyForm is the grammar of the keys of one kind.
type keyForm struct {
	kind       string
	bucket     Bucket
	split      bool
	qualifiers []qualifier
}

func caller4(q ...qualifier) []qualifier {
	return append(q, qOwner, qActor, qUID, qID)
}

// keyForms lists every key grammar once. lifecycle has two: the head, unsplit, and its audit detail.
var keyForms = []keyForm{
	{KindService, BucketRecords, true, []qualifier{qEndpoint, qInstance}},
	{KindSigner, BucketRecords, true, []qualifier{qID}},
	{KindHandle, BucketRecords, true, []qualifier{qID, qID}},
	{KindContracts, BucketRecords, true, []qualifier{qEndpoint}},
	{KindGoal, BucketRecords, true, caller4(qEndpoint)},
	{KindCheckpoint, BucketRecords, true, []qualifier{qEndpoint, qID}},
	{KindLease, BucketRecords, true, caller4(qEndpoint, qPool)},
	{KindLifecycle, BucketRecords, false, []qualifier{qOwner, qActor}},
	{KindLifecycle, BucketRecords, true, []qualifier{qOwner, qActor, qUID}},
	{KindUID, BucketRecords, false, []qualifier{qUID}},
	{KindFrontier, BucketRecords, false, []qualifier{qUID}},
	{KindGovern, BucketRecords, false, []qualifier{qEndpoint}},
	{KindPolicy, BucketRecords, false, []qualifier{qEndpoint, qHex}},
	{KindObligation, BucketRecords, false, caller4(qTarget, qEndpoint)},
	{KindGoalIndex, BucketRecords, false, caller4(qEndpoint)},
	{KindGoalEffect, BucketRecords, false, append(caller4(qEndpoint), qGen)},
	{KindNameClaim, BucketRecords, false, []qualifier{qEndpoint, qID}},
	{KindMigration, BucketRecords, false, []qualifier{qEndpoint}},
	{KindSlot, BucketRecords, false, []qualifier{qOwner, qAlias}},

	{KindGate, BucketAuth, false, []qualifier{qUID}},
	{KindEndpointGate, BucketAuth, false, []qualifier{qEndpoint, qInstance}},
	{KindCredential, BucketAuth, false, []qualifier{qUID, qCred}},
	{KindEndpointCred, BucketAuth, false, []qualifier{qEndpoint, qInstance, qCred}},
	{KindRepair, BucketAuth, false, []qualifier{qEndpoint, qInstance}},
	{KindSourceGate, BucketAuth, false, []qualifier{qID, qID}},
	{KindCredentialSource, BucketAuth, false, []qualifier{qID, qID, qUID, qCred}},
	{KindSession, BucketAuth, false, []qualifier{qID}},
	{KindStage, BucketAuth, false, []qualifier{qUID, qCred}},
	{KindPlane, BucketAuth, false, nil},
}

// Key is a key of the records or the auth bucket taken apart. Qualifiers are values, not tokens: an
// endpoint stands with its dots.
type Key struct {
	Kind       string
	Qualifiers []string
	Part       string // PartSpec or PartStatus of a split kind, else empty
}

// KeyError says which part of a key breaks its grammar.
type KeyError struct {
	Kind  string
	Field string
	Why   string
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("key of kind %q: %s %s", e.Kind, e.Field, e.Why)
}

func (k Key) form() (keyForm, error) {
	known := false
	for _, f := range keyForms {
		if f.kind != k.Kind {
			continue
		}
		known = true
		if len(f.qualifiers) == len(k.Qualifiers) {
			return f, nil
		}
	}
	if !known {
		return keyForm{}, &KeyError{k.Kind, "kind", "is not known"}
	}
	return keyForm{}, &KeyError{k.Kind, "key", fmt.Sprintf("has %d qualifiers, which no form of this kind has", len(k.Qualifiers))}
}

func (k Key) tokens() ([]string, error) {
	f, err := k.form()
	if err != nil {
		return nil, err
	}
	tok := append(make([]string, 0, len(k.Qualifiers)+2), k.Kind)
	for i, q := range f.qualifiers {
		v := k.Qualifiers[i]
		switch {
		case !q.valid(v):
			return nil, &KeyError{k.Kind, q.name, tokenProblem(v, q.why)}
		case q.endpoint:
			v = EndpointToken(v)
		}
		tok = append(tok, v)
	}
	switch {
	case !f.split && k.Part != "":
		return nil, &KeyError{k.Kind, "part", "has no place in this kind"}
	case f.split && k.Part != PartSpec && k.Part != PartStatus:
		return nil, &KeyError{k.Kind, "part", tokenProblem(k.Part, "is not spec or status")}
	case f.split:
		tok = append(tok, k.Part)
	}
	return tok, nil
}

// Encode builds the key. It refuses (a *KeyError naming the field) rather than mangles.
func (k Key) Encode() (string, error) {
	tok, err := k.tokens()
	if err != nil {
		return "", fmt.Errorf("build key: %w", err)
	}
	return strings.Join(tok, "."), nil
}

// Bucket is where keys of this kind live; empty for an unknown kind or form.
func (k Key) Bucket() Bucket {
	f, err := k.form()
	if err != nil {
		return ""
	}
	return f.bucket
}

// Split reports whether the record has two keys, spec and status.
func (k Key) Split() bool {
	f, err := k.form()
	return err == nil && f.split
}

// Spec and Status are the two keys of a split record.
func (k Key) Spec() Key { k.Part = PartSpec; return k }

// Status is the other one.
func (k Key) Status() Key { k.Part = PartStatus; return k }

// Endpoint is the endpoint among the qualifiers, with dots; empty when the kind has none.
func (k Key) Endpoint() string {
	f, err := k.form()
	if err != nil {
		return ""
	}
	for i, q := range f.qualifiers {
		if q.endpoint {
			return k.Qualifiers[i]
		}
	}
	return ""
}

// ParseKey takes a key of the records or the auth bucket apart. It refuses (a *KeyError) unknown kinds,
// another number of tokens, and a split kind without its part.
func ParseKey(s string) (Key, error) {
	if len(s) > MaxSubject {
		return Key{}, fmt.Errorf("parse key: %w", &KeyError{"", "key", fmt.Sprintf("is %d bytes, more than %d", len(s), MaxSubject)})
	}
	k, err := parseKey(strings.Split(s, "."))
	if err != nil {
		return Key{}, fmt.Errorf("parse key: %w", err)
	}
	return k, nil
}

func parseKey(tok []string) (Key, error) {
	kind := tok[0]
	known := false
	for _, f := range keyForms {
		if f.kind != kind {
			continue
		}
		known = true
		if k, ok := f.match(tok[1:]); ok {
			if _, err := k.tokens(); err != nil {
				return Key{}, err
			}
			return k, nil
		}
	}
	if !known {
		return Key{}, &KeyError{kind, "kind", "is not known"}
	}
	return Key{}, &KeyError{kind, "key", "has a number of tokens that no form of this kind has"}
}

// match distributes tokens over the qualifiers of a form; the values are not looked at yet.
func (f keyForm) match(tok []string) (Key, bool) {
	k := Key{Kind: f.kind}
	if f.split {
		if len(tok) == 0 {
			return Key{}, false
		}
		k.Part = tok[len(tok)-1]
		tok = tok[:len(tok)-1]
	}
	dotted := len(f.qualifiers) > 0 && f.qualifiers[len(f.qualifiers)-1].dotted
	if len(tok) != len(f.qualifiers) && (!dotted || len(tok) < len(f.qualifiers)) {
		return Key{}, false
	}
	for i, q := range f.qualifiers {
		v := tok[i]
		switch {
		case q.dotted:
			v = strings.Join(tok[i:], ".")
		case q.endpoint:
			v = strings.ReplaceAll(v, "_", ".")
		}
		k.Qualifiers = append(k.Qualifiers, v)
	}
	return k, true
}

// KeyFilter matches all keys of a kind that begin with the given qualifiers: goalidx.manager.> for one.
func KeyFilter(kind string, qualifiers ...string) (string, error) {
	i := slices.IndexFunc(keyForms, func(f keyForm) bool { return f.kind == kind && len(f.qualifiers) >= len(qualifiers) })
	if i < 0 {
		return "", fmt.Errorf("build key filter: %w", &KeyError{kind, "kind", "is not known or has fewer qualifiers"})
	}
	tok := []string{kind}
	for j, v := range qualifiers {
		q := keyForms[i].qualifiers[j]
		switch {
		case !q.valid(v):
			return "", fmt.Errorf("build key filter: %w", &KeyError{kind, q.name, tokenProblem(v, q.why)})
		case q.endpoint:
			v = EndpointToken(v)
		}
		tok = append(tok, v)
	}
	return strings.Join(append(tok, ">"), "."), nil
}

// ServiceKey is the record of one instance of an endpoint.
func ServiceKey(endpoint, instanceID string) Key {
	return Key{Kind: KindService, Qualifiers: []string{endpoint, instanceID}}
}

// EndpointGateKey is the gate of one instance of an endpoint.
func EndpointGateKey(endpoint, instanceID string) Key {
	return Key{Kind: KindEndpointGate, Qualifiers: []string{endpoint, instanceID}}
}

// GovernKey is the head on which registrations of an endpoint contend.
func GovernKey(endpoint string) Key { return Key{Kind: KindGovern, Qualifiers: []string{endpoint}} }

// GateKey is the gate of one life.
func GateKey(uid string) Key { return Key{Kind: KindGate, Qualifiers: []string{uid}} }

// UIDKey reserves a UID for ever.
func UIDKey(uid string) Key { return Key{Kind: KindUID, Qualifiers: []string{uid}} }

// LifecycleKey is the head of a principal.
func LifecycleKey(p Principal) Key {
	return Key{Kind: KindLifecycle, Qualifiers: []string{p.Owner, p.Actor}}
}

// SessionKey is the ledger row of a session.
func SessionKey(sessionID string) Key { return Key{Kind: KindSession, Qualifiers: []string{sessionID}} }

// Kinds lists the kinds of keys that live in a bucket, each once.
func Kinds(b Bucket) []string {
	var out []string
	for _, f := range keyForms {
		if f.bucket == b && !slices.Contains(out, f.kind) {
			out = append(out, f.kind)
		}
	}
	return out
}
