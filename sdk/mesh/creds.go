package mesh

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrCredsFile: the credentials file is missing, readable by others, or holds no credential (Connect,
// ReadCredential). The text names the file and, where there is one, the fix.
var ErrCredsFile = errors.New("credential is unusable")

// ErrCredentialEnded: the credential is past its end. It comes with ErrUnauthorized, and is not shown to a server.
var ErrCredentialEnded = errors.New("credential has ended")

// Credential is what a credentials file says of itself. Nothing here believes it: the server verifies it.
type Credential struct {
	Key string // public key of its connection
	// Holder is whom it was minted for; zero when it does not say, as one that another tool made.
	Holder  wire.Caller
	Expires time.Time // zero: never
}

// Ended reports whether it is past its end.
func (c Credential) Ended(now time.Time) bool { return !c.Expires.IsZero() && !now.Before(c.Expires) }

// ReadCredential reads what a credentials file says of its holder. Error: ErrCredsFile.
func ReadCredential(path string) (Credential, error) {
	s, err := readCreds(path)
	if err != nil {
		return Credential{}, err
	}
	clear(s.seed)
	return s.Credential, nil
}

// maxCreds bounds a credentials file, in bytes: a token of wire.MaxCredentialJWT, and a key.
const maxCreds = 64 << 10

// secret is a credentials file with what nobody prints.
type secret struct {
	Credential
	token string
	seed  []byte
}

// claims is what of a credential's token is looked at.
type claims struct {
	Subject string `json:"sub"`
	Name    string `json:"name"`
	Expires int64  `json:"exp"` // epoch seconds; 0: never
	NATS    struct {
		Tags []string `json:"tags"`
	} `json:"nats"`
}

// lifeTag is the tag of a credential that says of which life it is.
const lifeTag = "life:"

// readCreds reads a credentials file that its user alone can read.
func readCreds(path string) (secret, error) {
	text, err := readOwn(path, maxCreds, ErrCredsFile)
	if err != nil {
		return secret{}, err
	}
	defer clear(text)
	bad := func(what string) (secret, error) {
		return secret{}, fmt.Errorf("%w: %s holds no %s of a NATS credentials file", ErrCredsFile, path, what)
	}
	token, err := nkeys.ParseDecoratedJWT(text)
	if err != nil {
		return bad("token")
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return bad("token")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return bad("token")
	}
	var c claims
	if err := json.Unmarshal(raw, &c); err != nil || !nkeys.IsValidPublicUserKey(c.Subject) {
		return bad("token of a user")
	}
	kp, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return bad("key")
	}
	defer kp.Wipe()
	seed, err := kp.Seed()
	if err != nil {
		return bad("key")
	}
	if pub, err := kp.PublicKey(); err != nil || pub != c.Subject {
		return bad("key that is that of its token")
	}
	s := secret{Credential: Credential{Key: c.Subject}, token: token, seed: append([]byte(nil), seed...)}
	s.Holder, _ = c.holder()
	if c.Expires != 0 {
		s.Expires = time.Unix(c.Expires, 0)
	}
	return s, nil
}

// holder is who a credential is minted for; false when it does not say.
func (c claims) holder() (wire.Caller, bool) {
	p, err := wire.PrincipalOf(c.Name)
	if err != nil {
		return wire.Caller{}, false
	}
	for _, tag := range c.NATS.Tags {
		if uid, ok := strings.CutPrefix(tag, lifeTag); ok && wire.ValidUID(uid) {
			return wire.Caller{Owner: p.Owner, Actor: p.Actor, UID: uid}, true
		}
	}
	return wire.Caller{}, false
}

// ended is the error of a credential that is not shown to a server any more; nil before.
func (s secret) ended(path string) error {
	if !s.Ended(time.Now()) {
		return nil
	}
	return fmt.Errorf("%w: %w: that of %s at %s; whoever gave it renews it",
		ErrUnauthorized, ErrCredentialEnded, path, s.Expires.UTC().Format(time.RFC3339))
}

// holding is the credentials file of a connection. It is read anew at every attempt to connect: whoever renews it
// replaces it in place, with one of the same key.
type holding struct {
	path string
	key  string
}

func (h holding) read() (secret, error) {
	s, err := readCreds(h.path)
	switch {
	case err != nil:
		return s, err
	case s.Key != h.key:
		clear(s.seed)
		return secret{}, fmt.Errorf("%w: %s is somebody else's by now; connect anew", ErrCredsFile, h.path)
	}
	return s, nil
}

func (h holding) token() (string, error) {
	s, err := h.read()
	if err != nil {
		return "", err
	}
	clear(s.seed)
	if err := s.ended(h.path); err != nil {
		return "", err
	}
	return s.token, nil
}

func (h holding) sign(nonce []byte) ([]byte, error) {
	s, err := h.read()
	if err != nil {
		return nil, err
	}
	defer clear(s.seed)
	kp, err := nkeys.FromSeed(s.seed)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrCredsFile, h.path)
	}
	defer kp.Wipe()
	return kp.Sign(nonce)
}

// identity is who a client is, and how it shows that to a server.
type identity struct {
	caller wire.Caller
	inbox  string      // prefix of its inboxes
	auth   nats.Option // nil: nothing is shown
}

// identify finds out who a client is: whom its credential says, else whom the configuration says, else somebody new.
// One that says two is refused before anything is sent, since the server would refuse all of it without a word.
func identify(cfg Config) (identity, error) {
	id := identity{caller: cfg.Caller}
	if !id.caller.IsZero() {
		if err := id.caller.Check(); err != nil {
			return id, err
		}
	}
	if cfg.CredsFile != "" && (cfg.Token != "" || cfg.TokenFile != "") {
		return id, ErrTwoSecrets
	}
	switch {
	case cfg.CredsFile != "":
		s, err := readCreds(cfg.CredsFile)
		if err != nil {
			return id, err
		}
		clear(s.seed)
		if err := s.ended(cfg.CredsFile); err != nil {
			return id, err
		}
		switch {
		case s.Holder.IsZero():
		case id.caller.IsZero():
			id.caller = s.Holder
		case id.caller != s.Holder:
			return id, fmt.Errorf("the credential in %s is of %s in life %s, and not of %s in life %s",
				cfg.CredsFile, s.Holder.Principal(), s.Holder.UID, id.caller.Principal(), id.caller.UID)
		}
		h := holding{cfg.CredsFile, s.Key}
		id.auth = nats.UserJWT(h.token, h.sign)
		id.inbox = wire.InboxPrefix(s.Key)
	case cfg.Token != "":
		id.auth = nats.Token(cfg.Token)
	case cfg.TokenFile != "":
		token, err := ReadToken(cfg.TokenFile)
		if err != nil {
			return id, err
		}
		id.auth = nats.Token(token)
	}
	if id.caller.IsZero() {
		var err error
		if id.caller, err = NewCaller(); err != nil {
			return id, err
		}
	}
	if id.inbox == "" {
		// A credential reads no other inbox than that of its key, so that nobody reads the answers of somebody else;
		// without one nobody is kept from anything, and the name only has to be one's own.
		of := id.caller.Actor
		if !nkeys.IsValidPublicUserKey(of) {
			of = wire.NewUID()
		}
		id.inbox = wire.InboxPrefix(of)
	}
	return id, nil
}
