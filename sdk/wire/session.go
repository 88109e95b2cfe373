package wire

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// SessionHolder is who may redeem a grant. ProcessEpoch is the holder's own; 0 for one that has none.
type SessionHolder struct {
	ID           string `json:"id"` // principal, dot form
	LifecycleUID string `json:"lifecycleUid"`
	ProcessEpoch uint64 `json:"processEpoch"`
}

// SessionServer is the incarnation that serves a session.
type SessionServer struct {
	InstanceID string `json:"instanceId"`
	Epoch      uint64 `json:"epoch"`
}

// SessionRails are the subjects of both directions.
type SessionRails struct {
	In  string `json:"in"`
	Out string `json:"out"`
}

// SessionIssuer names the key of a signature.
type SessionIssuer struct {
	KeyID string `json:"keyId"`
}

// SessionGrant is the offer of one session: one use, one holder, one serving incarnation. It is no secret
// and no bearer token: who holds it without being the holder can do nothing. In open mode it is bare,
// without Issuer and Sig; everywhere else it is signed. Times are epoch milliseconds. The schema is closed.
type SessionGrant struct {
	V         int            `json:"v"`
	SessionID string         `json:"sessionId"`
	Space     string         `json:"space"`
	Endpoint  string         `json:"endpoint"`
	Subjects  SessionRails   `json:"subjects"`
	Holder    SessionHolder  `json:"holder"`
	Serving   SessionServer  `json:"serving"`
	Target    *Target        `json:"target,omitempty"` // whose terminal, when the grant says so
	Window    int            `json:"window"`           // data frames in flight per direction
	IAT       int64          `json:"iat"`
	NBF       int64          `json:"nbf,omitempty"`
	Exp       int64          `json:"exp"`
	Nonce     string         `json:"nonce"`
	Issuer    *SessionIssuer `json:"issuer,omitempty"`
	Sig       string         `json:"sig,omitempty"` // unpadded base64url
}

// NewSessionID mints the id of a session: 192 random bits as 32 characters base64url.
func NewSessionID() string { return NewNonce() }

// NewSessionGrant fills in a bare grant: id, nonce, the subjects that follow from the rest, and the
// default window. It lasts from now for ttl.
func NewSessionGrant(space, endpoint string, holder SessionHolder, serving SessionServer, now time.Time, ttl time.Duration) (SessionGrant, error) {
	g := SessionGrant{
		V: Version, SessionID: NewSessionID(), Space: space, Endpoint: endpoint, Holder: holder, Serving: serving,
		Window: SessionWindow, IAT: now.UnixMilli(), Exp: now.Add(ttl).UnixMilli(), Nonce: NewNonce(),
	}
	var err error
	if g.Subjects, err = g.rails(); err != nil {
		return SessionGrant{}, fmt.Errorf("make session grant: %w", err)
	}
	if _, err := g.Encode(); err != nil {
		return SessionGrant{}, fmt.Errorf("make session grant: %w", err)
	}
	return g, nil
}

func (g SessionGrant) rails() (r SessionRails, err error) {
	s := SessionSubject{Space: g.Space, Endpoint: g.Endpoint, SessionID: g.SessionID, Epoch: g.Serving.Epoch, Dir: SessionIn}
	if r.In, err = s.Subject(); err != nil {
		return SessionRails{}, err
	}
	s.Dir = SessionOut
	r.Out, err = s.Subject()
	return r, err
}

// Signed reports whether the grant carries a signature. That it is a good one, Verify says.
func (g SessionGrant) Signed() bool { return g.Sig != "" }

// SigningBytes is what is signed: the canonical form without sig.
func (g SessionGrant) SigningBytes() ([]byte, error) {
	g.Sig = ""
	return CanonicalJSON(g)
}

// Sign returns the grant with the signature that sign makes of SigningBytes (Ed25519) with the key keyID.
func (g SessionGrant) Sign(keyID string, sign func([]byte) ([]byte, error)) (SessionGrant, error) {
	g.Issuer = &SessionIssuer{keyID}
	p, err := g.SigningBytes()
	if err == nil {
		var sig []byte
		if sig, err = sign(p); err == nil {
			g.Sig = base64.RawURLEncoding.EncodeToString(sig)
			_, err = g.Encode()
		}
	}
	if err != nil {
		return SessionGrant{}, fmt.Errorf("sign session grant: %w", err)
	}
	return g, nil
}

// ErrBadSignature is returned by SessionGrant.Verify.
var ErrBadSignature = errors.New("signature does not verify")

// Verify checks the signature against the public key of Issuer. Which key that is, whether it may sign
// sessions, and whether it was revoked, is the caller's to know. Errors: ErrBadSignature.
func (g SessionGrant) Verify(key ed25519.PublicKey) error {
	p, err := g.SigningBytes()
	if err != nil {
		return fmt.Errorf("verify session grant: %w", err)
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(g.Sig)
	if err != nil || len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, p, sig) {
		return fmt.Errorf("verify session grant: %w", ErrBadSignature)
	}
	return nil
}

// Current refuses (expired) a grant whose time has not come or is over.
func (g SessionGrant) Current(now time.Time) *Error {
	ms := now.UnixMilli()
	switch {
	case ms >= g.Exp:
		return Refuse(CodeExpired, "the session grant is over")
	case ms < g.NBF:
		return Refuse(CodeExpired, "the session grant does not count yet")
	}
	return nil
}

// DecodeSessionGrant decodes and validates a grant. Its subjects have to be those that follow from its
// space, endpoint, session and epoch.
func DecodeSessionGrant(p []byte) (SessionGrant, error) {
	return decode("session grant", p, func(f *fields, g *SessionGrant) {
		f.closed("v", "sessionId", "space", "endpoint", "subjects", "holder", "serving", "target", "window", "iat", "nbf", "exp", "nonce", "issuer", "sig")
		if n := len(f.n.appendCanonical(nil)); n > MaxSessionGrant && f.err == nil {
			f.err = &FieldError{"", fmt.Sprintf("is %d bytes, more than %d", n, MaxSessionGrant)}
		}
		f.version(&g.V)
		f.str("sessionId", true, ValidSessionID, whyNonce, &g.SessionID)
		f.str("space", true, ValidSpace, whySpace, &g.Space)
		f.str("endpoint", true, ValidEndpoint, whyEndpoint, &g.Endpoint)
		if s := f.object("holder", true); s != nil {
			s.closed("id", "lifecycleUid", "processEpoch")
			s.str("id", true, validPrincipal, whyPrincipal, &g.Holder.ID)
			s.str("lifecycleUid", true, ValidUID, whyUID, &g.Holder.LifecycleUID)
			s.uint("processEpoch", true, 0, &g.Holder.ProcessEpoch)
			f.done(s)
		}
		f.sessionServer(&g.Serving)
		g.Target = f.target(true)
		if s := f.object("subjects", true); s != nil {
			s.closed("in", "out")
			s.str("in", true, nil, "", &g.Subjects.In)
			s.str("out", true, nil, "", &g.Subjects.Out)
			f.done(s)
		}
		f.integer("window", true, 1, MaxSessionWindow, func(n int64) { g.Window = int(n) })
		f.millis("iat", true, 0, &g.IAT)
		f.millis("nbf", false, 0, &g.NBF)
		f.millis("exp", true, 0, &g.Exp)
		f.str("nonce", true, func(s string) bool { return len(s) >= 8 && ValidID(s) }, "is not 8..64 characters of [A-Za-z0-9_-]", &g.Nonce)
		if s := f.object("issuer", false); s != nil {
			g.Issuer = &SessionIssuer{}
			s.closed("keyId")
			s.str("keyId", true, ValidID, whyID, &g.Issuer.KeyID)
			f.done(s)
		}
		f.str("sig", false, isSet, "", &g.Sig)
		if f.err != nil {
			return
		}
		rails, err := g.rails()
		switch {
		case err != nil:
			f.fail("subjects", err.Error())
		case rails != g.Subjects:
			f.fail("subjects", "are not those of this session")
		case g.Exp <= g.IAT || g.Exp-g.IAT > MaxSessionTTL.Milliseconds():
			f.fail("exp", "is not within 24 h behind iat")
		case (g.Issuer == nil) != (g.Sig == ""):
			f.fail("sig", "and issuer go together")
		}
	})
}

func (f *fields) sessionServer(dst *SessionServer) {
	if s := f.object("serving", true); s != nil {
		s.closed("instanceId", "epoch")
		s.str("instanceId", true, ValidUID, whyUID, &dst.InstanceID)
		s.uint("epoch", true, 0, &dst.Epoch)
		f.done(s)
	}
}

// Encode returns the grant as JSON, after it was read back.
func (g SessionGrant) Encode() ([]byte, error) { return encode("session grant", g, DecodeSessionGrant) }

// AttachReply answers attach.
type AttachReply struct {
	Grant json.RawMessage `json:"grant"` // SessionGrant
	// Role is what the session may do (an addition of this host): AttachObserver when somebody else types and
	// no role was asked for.
	Role        string       `json:"role,omitempty"`
	ResumedFrom *ResumedFrom `json:"resumedFrom,omitempty"`
}

// ResumedFrom says whose session a seat goes on with.
type ResumedFrom struct {
	Host   string `json:"host"`
	Source string `json:"source"`
}

// States of a session's ledger row.
const (
	SessionIssuing    = "issuing" // confers nothing
	SessionActive     = "active"
	SessionClosed     = "closed"
	SessionExpired    = "expired"
	SessionSuperseded = "superseded"
	SessionRetired    = "retired"
)

var sessionStates = []string{SessionIssuing, SessionActive, SessionClosed, SessionExpired, SessionSuperseded, SessionRetired}

// SessionMove decides whether the row of a session may go from one state to another; from "" is its
// creation, which is the one use of its grant.
func SessionMove(from, to string) bool {
	switch from {
	case "":
		return to == SessionIssuing
	case SessionIssuing:
		return to != SessionIssuing && slices.Contains(sessionStates, to)
	case SessionActive:
		return to != SessionIssuing && to != SessionActive && slices.Contains(sessionStates, to)
	}
	return false
}

// SessionRow is the ledger row of a session that was redeemed for credentials. It names both from its first
// write, so that whatever happens afterwards, a sweep knows what to revoke.
type SessionRow struct {
	SessionID   string         `json:"sessionId"`
	Endpoint    string         `json:"endpoint"`
	Serving     SessionServer  `json:"serving"`
	Holder      SessionParty   `json:"holder"`
	CredCaller  string         `json:"credCaller"`
	CredServing string         `json:"credServing"`
	Revoked     SessionRevoked `json:"revoked"`
	State       string         `json:"state"`
	Exp         int64          `json:"exp"` // epoch milliseconds
}

// SessionParty is the holder as the row has it.
type SessionParty struct {
	Principal    string `json:"principal"`
	LifecycleUID string `json:"lifecycleUid"`
}

// SessionRevoked marks the credentials whose revocation is done.
type SessionRevoked struct {
	Caller  bool `json:"caller"`
	Serving bool `json:"serving"`
}

// DecodeSessionRow decodes and validates the row of a session. The schema is closed.
func DecodeSessionRow(sessionID string, p []byte) (SessionRow, error) {
	r, err := decodeSessionRow(p)
	if err == nil && r.SessionID != sessionID {
		return SessionRow{}, fmt.Errorf("decode session row: %w", &FieldError{"sessionId", "is not that of its key"})
	}
	return r, err
}

func decodeSessionRow(p []byte) (SessionRow, error) {
	return decode("session row", p, func(f *fields, r *SessionRow) {
		f.closed("sessionId", "endpoint", "serving", "holder", "credCaller", "credServing", "revoked", "state", "exp")
		f.str("sessionId", true, ValidSessionID, whyNonce, &r.SessionID)
		f.str("endpoint", true, ValidEndpoint, whyEndpoint, &r.Endpoint)
		f.sessionServer(&r.Serving)
		if s := f.object("holder", true); s != nil {
			s.closed("principal", "lifecycleUid")
			s.str("principal", true, validPrincipal, whyPrincipal, &r.Holder.Principal)
			s.str("lifecycleUid", true, ValidUID, whyUID, &r.Holder.LifecycleUID)
			f.done(s)
		}
		f.str("credCaller", true, ValidCredentialID, "is no credential id", &r.CredCaller)
		f.str("credServing", true, ValidCredentialID, "is no credential id", &r.CredServing)
		if f.err == nil && r.CredCaller == r.CredServing {
			f.fail("credServing", "is the caller's")
		}
		if s := f.object("revoked", true); s != nil {
			s.closed("caller", "serving")
			s.boolean("caller", true, &r.Revoked.Caller)
			s.boolean("serving", true, &r.Revoked.Serving)
			f.done(s)
		}
		f.oneOf("state", true, sessionStates, &r.State)
		f.millis("exp", true, 0, &r.Exp)
	})
}

// Encode returns the row as JSON, after it was read back.
func (r SessionRow) Encode() ([]byte, error) { return encode("session row", r, decodeSessionRow) }
