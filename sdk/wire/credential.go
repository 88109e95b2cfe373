package wire

import (
	"fmt"
	"slices"
	"strings"
)

// States of a credential row. There is no way back.
const (
	CredentialActive  = "active"
	CredentialRevoked = "revoked"
)

// SourceRoot is the source of a credential that comes from nothing else.
const SourceRoot = "root"

// CredentialRow is the ledger row of one credential, written before the credential is released. In the
// family cred the life is an agent's; in epcred it is an instance's, and Endpoint is set.
type CredentialRow struct {
	CredentialID    string   `json:"credentialId"`
	HolderPrincipal string   `json:"holderPrincipal"` // whom to evict; never an endpoint's name
	LifecycleUID    string   `json:"lifecycleUid"`
	Endpoint        string   `json:"endpoint,omitempty"`
	SourceChain     []string `json:"sourceChain"` // root, handle.<issuer key>.<id>, session.<id>; all of the lineage
	State           string   `json:"state"`
	Exp             int64    `json:"exp"` // epoch milliseconds
}

// Key is where the row belongs.
func (c CredentialRow) Key() Key {
	if c.Endpoint != "" {
		return Key{Kind: KindEndpointCred, Qualifiers: []string{c.Endpoint, c.LifecycleUID, c.CredentialID}}
	}
	return Key{Kind: KindCredential, Qualifiers: []string{c.LifecycleUID, c.CredentialID}}
}

// ValidSource reports whether s is a member of a source chain.
func ValidSource(s string) bool {
	tok := strings.Split(s, ".")
	for _, t := range tok {
		if !ValidID(t) {
			return false
		}
	}
	switch tok[0] {
	case SourceRoot:
		return len(tok) == 1
	case KindHandle:
		return len(tok) == 3
	case KindSession:
		return len(tok) == 2
	}
	return false
}

// DecodeCredentialRow decodes and validates the row that was read under a key. The schema is closed, and
// a row that belongs under another key is refused.
func DecodeCredentialRow(key Key, p []byte) (CredentialRow, error) {
	c, err := decodeCredentialRow(p)
	if err != nil {
		return c, err
	}
	if own := c.Key(); own.Kind != key.Kind || !slices.Equal(own.Qualifiers, key.Qualifiers) {
		return CredentialRow{}, fmt.Errorf("decode credential row: %w", &FieldError{"credentialId", "belongs under another key"})
	}
	return c, nil
}

func decodeCredentialRow(p []byte) (CredentialRow, error) {
	return decode("credential row", p, func(f *fields, c *CredentialRow) {
		f.closed("credentialId", "holderPrincipal", "lifecycleUid", "endpoint", "sourceChain", "state", "exp")
		f.str("credentialId", true, ValidCredentialID, "is no credential id", &c.CredentialID)
		f.str("holderPrincipal", true, validPrincipal, whyPrincipal, &c.HolderPrincipal)
		f.str("lifecycleUid", true, ValidUID, whyUID, &c.LifecycleUID)
		f.str("endpoint", false, ValidEndpoint, whyEndpoint, &c.Endpoint)
		f.strings("sourceChain", true, ValidSource, "is not root, handle.<issuer key>.<id> or session.<id>", &c.SourceChain)
		if f.err == nil && len(c.SourceChain) == 0 {
			f.fail("sourceChain", "is empty")
		}
		f.oneOf("state", true, []string{CredentialActive, CredentialRevoked}, &c.State)
		f.millis("exp", true, 0, &c.Exp)
	})
}

// Encode returns the row as JSON, after it was read back.
func (c CredentialRow) Encode() ([]byte, error) {
	return encode("credential row", c, decodeCredentialRow)
}

// RepairCursor remembers how far an interrupted repair of a frozen endpoint gate came. It counts for the
// same operation, freeze and holders only; on any difference the repair starts over.
type RepairCursor struct {
	V           int      `json:"v"`
	OpID        string   `json:"opId"`
	FreezeToken uint64   `json:"freezeToken"` // revision of the frozen gate
	Holders     []string `json:"holders"`     // principals, sorted, each once
	Verified    []string `json:"verified"`    // those proved to be evicted; sorted, a subset
}

// DecodeRepairCursor decodes and validates a cursor. The schema is closed.
func DecodeRepairCursor(p []byte) (RepairCursor, error) {
	return decode("repair cursor", p, func(f *fields, c *RepairCursor) {
		f.closed("v", "opId", "freezeToken", "holders", "verified")
		f.version(&c.V)
		f.str("opId", true, ValidOpID, whyUID, &c.OpID)
		f.uint("freezeToken", true, 1, &c.FreezeToken)
		f.strings("holders", true, validPrincipal, whyPrincipal, &c.Holders)
		f.strings("verified", true, validPrincipal, whyPrincipal, &c.Verified)
		if f.err == nil && !strictlySorted(c.Holders) {
			f.fail("holders", "is not sorted, each once")
		}
		if f.err == nil && !strictlySorted(c.Verified) {
			f.fail("verified", "is not sorted, each once")
		}
		for _, v := range c.Verified {
			if f.err == nil && !slices.Contains(c.Holders, v) {
				f.fail("verified", v+" is none of the holders")
			}
		}
	})
}

// Encode returns the cursor as JSON, after it was read back.
func (c RepairCursor) Encode() ([]byte, error) {
	c.V = Version
	if c.Holders == nil {
		c.Holders = []string{}
	}
	if c.Verified == nil {
		c.Verified = []string{}
	}
	return encode("repair cursor", c, DecodeRepairCursor)
}

// Continues reports whether a cursor is of the same repair.
func (c RepairCursor) Continues(opID string, freezeToken uint64, holders []string) bool {
	return c.OpID == opID && c.FreezeToken == freezeToken && slices.Equal(c.Holders, holders)
}

func strictlySorted(s []string) bool {
	for i := 1; i < len(s); i++ {
		if s[i-1] >= s[i] {
			return false
		}
	}
	return true
}
