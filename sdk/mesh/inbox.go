package mesh

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// inboxPrefix is where the answers to a connection's own requests arrive. A credential reads no other inbox than
// that of its key, so that nobody reads the answers of somebody else.
func inboxPrefix(cfg Config, caller wire.Caller) string {
	id := caller.Actor
	if cfg.CredsFile != "" {
		id = credsKey(cfg.CredsFile)
	}
	if !nkeys.IsValidPublicUserKey(id) {
		id = wire.NewUID()
	}
	return "_INBOX_" + id
}

// credsKey is the public key that a credentials file is for; empty when it does not say.
func credsKey(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "" // connecting will say so
	}
	token, err := nkeys.ParseDecoratedJWT(text)
	if err != nil {
		return ""
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Subject
}
