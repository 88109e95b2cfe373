package mesh

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// inboxPrefix is where the answers to a connection's own requests arrive. A credential reads no other inbox than
// that of its key, so that nobody reads the answers of somebody else.
func inboxPrefix(cfg Config, caller wire.Caller) string {
	id := caller.Actor
	if cfg.CredsFile != "" {
		c, _ := readClaims(cfg.CredsFile)
		id = c.Subject
	}
	if !nkeys.IsValidPublicUserKey(id) {
		id = wire.NewUID()
	}
	return "_INBOX_" + id
}

// claims is what a credentials file says of its holder. Nothing here believes it: the broker verifies it.
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

// readClaims reads a credentials file; false when it cannot be read as one, which connecting will say.
func readClaims(path string) (claims, bool) {
	var c claims
	text, err := os.ReadFile(path)
	if err != nil {
		return c, false
	}
	token, err := nkeys.ParseDecoratedJWT(text)
	if err != nil {
		return c, false
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return c, false
	}
	return c, json.Unmarshal(raw, &c) == nil
}

// holder is who a credential is minted for; false when it does not say, as one that another tool made.
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

// callerOf is who a client is: whom its credentials file says, else whom the configuration says, else somebody new.
// One that says two is refused before anything is sent, since the broker would refuse all of it without a word.
func callerOf(cfg Config) (wire.Caller, error) {
	caller := cfg.Caller
	if !caller.IsZero() {
		if err := caller.Check(); err != nil {
			return caller, err
		}
	}
	if cfg.CredsFile != "" && cfg.Token == "" && cfg.TokenFile == "" {
		c, _ := readClaims(cfg.CredsFile)
		if c.Expires != 0 && time.Now().Unix() >= c.Expires {
			return caller, fmt.Errorf("%w: the credential in %s ended at %s; the host that gave it renews it while it runs",
				ErrUnauthorized, cfg.CredsFile, time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
		}
		switch holder, ok := c.holder(); {
		case ok && caller.IsZero():
			return holder, nil
		case ok && caller != holder:
			return caller, fmt.Errorf("the credential in %s is of %s in life %s, and not of %s in life %s", cfg.CredsFile, holder.Principal(), holder.UID, caller.Principal(), caller.UID)
		}
	}
	if caller.IsZero() {
		return NewCaller()
	}
	return caller, nil
}
