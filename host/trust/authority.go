package trust

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of an Authority.
var (
	// ErrRefused: the request asks for what its profile does not give: an unknown profile, a life that is too
	// long, a field that is missing or has no place. Nothing was written.
	ErrRefused = errors.New("credential is refused")
	// ErrTooLarge: the credential would be larger than wire.MaxCredentialJWT. Nothing was written.
	ErrTooLarge = errors.New("credential is too large")
	// ErrGate: the gate under which the credential would be minted is not open, or changed meanwhile. Nothing
	// was released; a row that was written is marked revoked.
	ErrGate = errors.New("credentials are not minted now")
	// ErrRetired comes with ErrGate when the gate is closed for good.
	ErrRetired = errors.New("the life is over")
	// ErrExpired: the life of a credential is over and it was not renewed; it is not shown to a broker.
	ErrExpired = errors.New("credential has expired")
	// ErrUnverified: it could not be proved that every server enforces a revocation, or that no connection of
	// the holder is left. The rows are revoked; call Revoke again.
	ErrUnverified = errors.New("revocation is not verified")
)

// Authority mints and revokes the credentials of one space. It is the one interface to whatever mode the
// space has. All methods may be called at once.
type Authority interface {
	// Space is the space that credentials are for.
	Space() string
	// NewKey makes the key of a connection that is to be; it is recorded nowhere. Its public half is the actor
	// of the holder's principal.
	NewKey() (Key, error)
	// Principal is the principal of whoever holds a key.
	Principal(publicKey string) wire.Principal
	// Mint makes one credential. In this order: the request is checked and signed (nothing is written yet),
	// Request.Record, the ledger row, the gate. What it returns is released: it may be shown to a broker.
	//
	// Errors: ErrRefused, ErrTooLarge, ErrGate, those of Request.Record, bus.ErrUnavailable (unknown: a row may
	// have been written; the credential was not released), a *instance.FileError of the keys.
	Mint(ctx context.Context, r Request) (Credential, error)
	// Check reports whether Mint would refuse a request as it is, before anything is done for it. Nothing is written.
	//
	// Errors: ErrRefused, ErrTooLarge, a *instance.FileError of the keys.
	Check(r Request) error
	// With mints a credential and calls do with a connection that has it: one-shot, it does not reconnect, and
	// it is drained whatever do returns. The credential never leaves the process and is not usable afterwards.
	// SetUp, which makes the ledger, has its row written after do.
	//
	// Errors: as of Mint, bus.ErrUnreachable, bus.ErrRefused, and what do returns.
	With(ctx context.Context, r Request, do func(context.Context, *bus.Bus) error) error
	// Open is With for the steps of one operation that are not one call: end, which the caller calls in every path,
	// drains the connection. SetUp is refused.
	//
	// Errors: as of Mint, bus.ErrUnreachable, bus.ErrRefused.
	Open(ctx context.Context, r Request) (b *bus.Bus, end func(), err error)
	// Stand mints a credential that is renewed for as long as its holder lives.
	//
	// Errors: as of Mint.
	Stand(ctx context.Context, r Request) (*Standing, error)
	// Adopt goes on renewing a credential that is a file, after a restart of the host: Stand without a mint. One of the
	// host's own instance is adopted before the instance is registered, which ends what nobody has adopted.
	//
	// Error: ErrRefused (the file is damaged, or of another profile or life).
	Adopt(r Request, file []byte) (*Standing, error)
	// Retry lets no renewal wait longer that has failed: a broker that was away is back.
	Retry()
	// Remind looks once in a while whether every server still refuses what was revoked, and tells it again where one does
	// not, until ctx ends.
	Remind(ctx context.Context)
	// Revoke ends every credential of a life. In this order: each row of the ledger marked revoked, the keys
	// refused by every server of the broker, every connection of the holders ended and none found in a second
	// look at every server. It is idempotent, and goes on where an interrupted one stopped. Of the host's own
	// instance it ends what incarnations before have left, and nothing that this process has minted or adopted: it is
	// the containment of a takeover (bus.RegisterConfig.Contain). What cannot be done, for a row that cannot be read or a
	// holder that another authority made, keeps nothing else from being done, and is the error in the end.
	//
	// Errors: ErrUnverified, bus.ErrUnavailable, bus.ErrCorrupt, a *instance.FileError of the keys.
	Revoke(ctx context.Context, of Life) (Revoked, error)
	// Drop says that nobody holds some credentials of the host's own instance any more: their keys are forgotten here,
	// and their rows marked revoked, to be forgotten by the ledger before long. What is copied of one is refused by no
	// server; so it is for those alone that reach nothing once their holder is gone (Session, Farewell).
	//
	// Errors: ErrRefused (one that is an agent's), bus.ErrUnavailable.
	Drop(ctx context.Context, gone ...Credential) error
	// Live says whether a principal is connected anywhere: a look at every server, never a guess.
	Live(ctx context.Context, p wire.Principal) (Liveness, error)
}

// Key is the key pair of one connection.
type Key struct {
	Public string // U and 55 characters base32
	Seed   []byte // secret; nobody prints it
}

// Life is whose credentials a ledger family holds: an agent's life, or an instance of an endpoint.
type Life struct {
	// UID is the lifecycle UID, or with Endpoint the instance id.
	UID string
	// Endpoint is empty for an agent's life.
	Endpoint string
	// Actor is the key of the agent, where it is known: it is refused even if a row of the life cannot be read. It is
	// looked at by Revoke alone.
	Actor string
}

func (l Life) gate() wire.Key {
	if l.Endpoint != "" {
		return wire.EndpointGateKey(l.Endpoint, l.UID)
	}
	return wire.GateKey(l.UID)
}

func (l Life) family() (string, error) {
	if l.Endpoint != "" {
		return wire.KeyFilter(wire.KindEndpointCred, l.Endpoint, l.UID)
	}
	return wire.KeyFilter(wire.KindCredential, l.UID)
}

func (l Life) check() error {
	if !wire.ValidUID(l.UID) {
		return fmt.Errorf("%w: life: uid %q is not 26 to 32 characters [a-z0-9]", ErrRefused, l.UID)
	}
	if l.Endpoint != "" && !wire.ValidEndpoint(l.Endpoint) {
		return fmt.Errorf("%w: life: endpoint %q is not labels joined by dots", ErrRefused, l.Endpoint)
	}
	return nil
}

// Request says which credential is wanted.
type Request struct {
	Profile Profile
	// Key of the holder; the zero Key has one made. Renewal keeps the key.
	Key Key
	// UID of the holder's life: of ProfileAgent the seat's, else empty, which means the host's own instance.
	UID string
	// Life of the credential; 0 is the profile's own. A longer one than the profile's is refused.
	Life time.Duration
	// Scope narrows the profile to what this one is for.
	Scope Scope
	// Record is called with the credential id before the ledger row is written, so that the holder's own record
	// names it first. An error ends the mint with nothing written. May be nil.
	Record func(ctx context.Context, credentialID string, exp time.Time) error
	// Over are the rows that an executor of the same life has open: ledger and gate are written over that connection.
	// nil, or one that is lost, has another one opened for them. Renewal never uses it.
	Over *bus.Records
}

// Scope is what a credential is narrowed to. Which fields a profile takes stands in its table; one that is
// missing, and one that has no place, are refused.
type Scope struct {
	// Epoch of the serving incarnation (supervisor, session).
	Epoch uint64
	// Target is the one life that a one-shot is pinned to (provisioner, deprovisioner), and that an executor is
	// pinned to beside its own instance.
	Target wire.Caller
	// Alias of Target, of an executor that writes its slot.
	Alias string
	// OpID of the operation that an executor stages for.
	OpID string
	// Session is the id of an attach session.
	Session string
	// Past are attach sessions of earlier incarnations (farewell).
	Past []PastSession
	// Role of an agent, or of the life that is provisioned.
	Role string
	// Read and Write are the channels of an agent, as patterns.
	Read, Write []string
	// Spawn lets an agent call the manager's lifecycle commands in mode owner.
	Spawn bool
}

// PastSession is an attach session that an earlier incarnation served.
type PastSession struct {
	ID    string
	Epoch uint64
}

// Credential is what a holder shows to a broker. It implements bus.Credentials: an expired one is not shown.
type Credential struct {
	ID      string // of its ledger row
	Profile Profile
	Public  string
	Issued  time.Time
	Expires time.Time

	token  string
	issuer string // public key that signed it
	seed   []byte
	now    func() time.Time
}

// Token is the user JWT. Error: ErrExpired.
func (c Credential) Token() (string, error) {
	if now := c.now(); !now.Before(c.Expires) {
		return "", fmt.Errorf("%w: %s of %s, at %s", ErrExpired, c.Profile, c.Public, c.Expires.Format(time.RFC3339))
	}
	return c.token, nil
}

// Sign signs what the broker asks.
func (c Credential) Sign(nonce []byte) ([]byte, error) {
	kp, err := nkeys.FromSeed(c.seed)
	if err != nil {
		return nil, fmt.Errorf("sign nonce: %w", err)
	}
	defer kp.Wipe()
	return kp.Sign(nonce)
}

// Inbox is the prefix of the holder's inboxes.
func (c Credential) Inbox() string { return wire.InboxPrefix(c.Public) }

// File is the credential as a NATS credentials file. It holds the seed.
func (c Credential) File() ([]byte, error) {
	b, err := jwt.FormatUserConfig(c.token, c.seed)
	if err != nil {
		return nil, fmt.Errorf("format credentials: %w", err)
	}
	return b, nil
}

// String never shows a secret.
func (c Credential) String() string { return string(c.Profile) + " " + c.ID }

// Revoked is what a revocation did.
type Revoked struct {
	Credentials int      // rows of the family, whether this call marked them or an earlier one
	Holders     []string // principals, sorted
	Ended       int      // connections that outlived the servers' own refusal and were ended one by one
	Servers     int      // servers that refuse the keys now
}

// Liveness is what is known of a principal's connections.
type Liveness string

// Verdicts of Live.
const (
	Live    Liveness = "live"
	Gone    Liveness = "gone" // every server was asked, and answered
	Unknown Liveness = "unknown"
)
