package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Everything is a credential that may do everything in the account of a space, signed with the key in its workspace: what a
// test looks with, since no credential of the product can. It is entered in no ledger. It is a bus.Credentials.
type Everything struct {
	Public string // key of whoever uses it

	token string
	pair  nkeys.KeyPair
}

// NewEverything makes one from the keys in a workspace of one space.
func NewEverything(root string) (Everything, error) {
	var none Everything
	files, err := filepath.Glob(filepath.Join(root, ".cotal", "auth", "account.*"))
	if err != nil || len(files) != 1 {
		return none, fmt.Errorf("look for the account in %s: %d files, %w", root, len(files), err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		return none, err
	}
	var keys struct {
		Account struct {
			Public  string `json:"public"`
			Signing []struct {
				Seed string `json:"seed"`
			} `json:"signing"`
		} `json:"account"`
	}
	if err := json.Unmarshal(raw, &keys); err != nil {
		return none, fmt.Errorf("read %s: %w", files[0], err)
	}
	if len(keys.Account.Signing) == 0 {
		return none, fmt.Errorf("read %s: no signing key", files[0])
	}
	signer, err := nkeys.FromSeed([]byte(keys.Account.Signing[0].Seed))
	if err != nil {
		return none, fmt.Errorf("read %s: %w", files[0], err)
	}
	e := Everything{}
	if e.pair, err = nkeys.CreateUser(); err != nil {
		return none, err
	}
	if e.Public, err = e.pair.PublicKey(); err != nil {
		return none, err
	}
	claims := jwt.NewUserClaims(e.Public)
	claims.Name, claims.IssuerAccount = "a test", keys.Account.Public
	e.token, err = claims.Encode(signer)
	return e, err
}

// Token is the user JWT.
func (e Everything) Token() (string, error) { return e.token, nil }

// Sign signs what a server asks.
func (e Everything) Sign(nonce []byte) ([]byte, error) { return e.pair.Sign(nonce) }

// Inbox is where its answers go.
func (e Everything) Inbox() string { return wire.InboxPrefix(e.Public) }
