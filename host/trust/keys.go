package trust

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where the making of keys may be cut short. What is found afterwards is gone on with.
var (
	fpBrokerKeys  = failpoint.New("host.trust.broker-keys")  // operator and system account are written, no space
	fpSpaceKeys   = failpoint.New("host.trust.space-keys")   // the space's account is written
	fpKeyRotated  = failpoint.New("host.trust.key-rotated")  // a new signing key is written, no server knows it
	fpKeysRevoked = failpoint.New("host.trust.keys-revoked") // keys are written as revoked, no server knows it
)

// brokerFile holds the operator and the system account of the broker.
const brokerFile = "broker.json"

// accountFile is the name of a space's account. Its key is the space in hex, so that no two spaces share one.
func accountFile(space string) string {
	return "account." + hex.EncodeToString([]byte(space)) + ".json"
}

// revokedFile is the name of the keys that a space's account refuses. It is there as soon as the account is.
func revokedFile(space string) string {
	return "revoked." + hex.EncodeToString([]byte(space)) + ".json"
}

// revocationSlack is how long a revocation outlives the longest credential, for clocks that differ.
const revocationSlack = 10 * time.Minute

// brokerKeys is the content of broker.json.
type brokerKeys struct {
	V        int        `json:"v"`
	Operator keyPair    `json:"operator"`
	System   accountRef `json:"system"`
}

// keyPair is a key with its seed.
type keyPair struct {
	Public string    `json:"public"`
	Seed   secret    `json:"seed"`
	Since  time.Time `json:"since"`
	// Pending: no server knows it yet, so that it must not sign. Retired is when a signing key was replaced: it
	// still verifies, and signs no more.
	Pending bool       `json:"pending,omitempty"`
	Retired *time.Time `json:"retired,omitempty"`
}

// accountRef is an account. Its own seed is thrown away: an account is changed by its operator, and its users
// are signed by its signing keys.
type accountRef struct {
	Public  string    `json:"public"`
	Signing []keyPair `json:"signing"` // one of them is neither pending nor retired, and signs
}

func (a accountRef) signer() (keyPair, error) {
	var found []keyPair
	for _, p := range a.Signing {
		if !p.Pending && p.Retired == nil {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		return keyPair{}, fmt.Errorf("an account has %d keys that sign, not one", len(found))
	}
	return found[0], nil
}

// spaceKeys is the content of account.<key>.json.
type spaceKeys struct {
	V       int        `json:"v"`
	Space   string     `json:"space"`
	Account accountRef `json:"account"`
}

// revokedKeys is the content of revoked.<key>.json. It is apart from the keys, which are not written again at the
// end of every seat.
type revokedKeys struct {
	V int `json:"v"`
	// Revoked says of each public nkey until when the last credential of it could live, in seconds. Whatever was issued
	// before is refused, so that nobody renews one either.
	Revoked map[string]int64 `json:"revoked"`
}

// Keyring is the keys of one space and its broker, as they are in a SecretStore. It keeps no seed in memory.
type Keyring struct {
	store SecretStore
	space string
	now   func() time.Time
}

// MakeKeyring opens the keys of a space, and makes what is missing of them: the operator and the system
// account, then the account of the space. Two processes that do so at once end up with the same keys.
//
// Errors: a *instance.FileError that names a file that cannot be used; it is never made anew over it.
func MakeKeyring(ctx context.Context, store SecretStore, space string) (*Keyring, error) {
	k, err := newKeyring(store, space)
	if err != nil {
		return nil, err
	}
	if k.whole() == nil {
		return k, nil
	}
	unlock, err := store.Lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}
	defer unlock()
	b, err := k.readBroker()
	b.wipe()
	if errors.Is(err, fs.ErrNotExist) {
		// Accounts without the operator that signed them are what is left of a workspace: a new operator would
		// lock out everything that was signed below the old one.
		names, lerr := store.List("")
		if lerr != nil {
			return nil, fmt.Errorf("make keys: %w", lerr)
		}
		if i := slices.IndexFunc(names, func(n string) bool { return n != brokerFile }); i >= 0 {
			return nil, fmt.Errorf("make keys: %w", &instance.FileError{
				Path: brokerFile, Err: fmt.Errorf("is missing, and %s is there", names[i]),
				Fix: "restore it from a backup, or move .cotal/auth away to start with new keys and an empty mesh",
			})
		}
		err = k.makeBroker()
	}
	if err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}
	s, err := k.readSpace()
	s.wipe()
	if errors.Is(err, fs.ErrNotExist) {
		err = k.makeSpace()
	}
	if err == nil {
		err = k.whole()
	}
	if err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}
	return k, nil
}

// OpenKeyring opens keys that exist.
//
// Errors: fs.ErrNotExist (this workspace was never served with credentials), a *instance.FileError.
func OpenKeyring(store SecretStore, space string) (*Keyring, error) {
	k, err := newKeyring(store, space)
	if err != nil {
		return nil, err
	}
	if err := k.whole(); err != nil {
		return nil, fmt.Errorf("open keys: %w", err)
	}
	return k, nil
}

func newKeyring(store SecretStore, space string) (*Keyring, error) {
	if !wire.ValidSpace(space) {
		return nil, fmt.Errorf("open keys: space %q is not 1 to 64 characters [A-Za-z0-9_-]", space)
	}
	if store.Identity() == "" {
		return nil, errors.New("open keys: the secret store does not say which one it is")
	}
	return &Keyring{store: store, space: space, now: time.Now}, nil
}

// whole reads every file once.
func (k *Keyring) whole() error {
	b, s, err := k.load()
	b.wipe()
	s.wipe()
	if err == nil {
		_, err = k.readRevoked()
	}
	return err
}

func (k *Keyring) load() (brokerKeys, spaceKeys, error) {
	b, err := k.readBroker()
	if err != nil {
		return b, spaceKeys{}, err
	}
	s, err := k.readSpace()
	return b, s, err
}

func (k *Keyring) readBroker() (brokerKeys, error) {
	var b brokerKeys
	if err := k.read(brokerFile, &b); err != nil {
		return b, err
	}
	err := b.Operator.check(nkeys.PrefixByteOperator)
	if err == nil {
		err = checkAccount(b.System)
	}
	if err != nil || b.V != 1 {
		return b, damaged(brokerFile, err)
	}
	return b, nil
}

func (k *Keyring) readSpace() (spaceKeys, error) {
	var s spaceKeys
	name := accountFile(k.space)
	if err := k.read(name, &s); err != nil {
		return s, err
	}
	err := checkAccount(s.Account)
	if err == nil && s.Space != k.space {
		err = fmt.Errorf("it is of space %q", s.Space)
	}
	if err != nil || s.V != 1 {
		return s, damaged(name, err)
	}
	return s, nil
}

func (k *Keyring) readRevoked() (revokedKeys, error) {
	var r revokedKeys
	name := revokedFile(k.space)
	err := k.read(name, &r)
	if errors.Is(err, fs.ErrNotExist) {
		// Without it whatever was revoked would be let in again.
		return r, damaged(name, errors.New("is missing"))
	}
	if err != nil {
		return r, err
	}
	for nkey := range r.Revoked {
		if err == nil && !nkeys.IsValidPublicUserKey(nkey) {
			err = errors.New("a revoked key is no user key")
		}
	}
	if err != nil || r.V != 1 {
		return r, damaged(name, err)
	}
	return r, nil
}

func (k *Keyring) read(name string, dst any) error {
	raw, err := k.store.Read(name)
	if err != nil {
		return err
	}
	defer clear(raw)
	if err := json.Unmarshal(raw, dst); err != nil {
		return damaged(name, errors.New("it is not the JSON that was written")) // the text of the error could quote a seed
	}
	return nil
}

func damaged(name string, err error) error {
	if err == nil {
		err = errors.New("it has another version")
	}
	return &instance.FileError{Path: name, Err: err, Fix: "restore it from a backup; keys are never made anew over a file that is there"}
}

func checkAccount(a accountRef) error {
	if !nkeys.IsValidPublicAccountKey(a.Public) {
		return errors.New("an account key is not valid")
	}
	if _, err := a.signer(); err != nil {
		return err
	}
	for _, p := range a.Signing {
		if err := p.check(nkeys.PrefixByteAccount); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keyring) newPair(prefix nkeys.PrefixByte) (keyPair, error) {
	var raw [ed25519.SeedSize]byte
	defer clear(raw[:])
	rand.Read(raw[:])
	priv := ed25519.NewKeyFromSeed(raw[:])
	defer clear(priv)
	pub, err := nkeys.Encode(prefix, priv[ed25519.SeedSize:])
	if err != nil {
		return keyPair{}, fmt.Errorf("make key: %w", err)
	}
	seed, err := nkeys.EncodeSeed(prefix, raw[:])
	if err != nil {
		return keyPair{}, fmt.Errorf("make key: %w", err)
	}
	return keyPair{Public: string(pub), Seed: seed, Since: k.now().UTC().Truncate(time.Second)}, nil
}

func (k *Keyring) newAccount() (accountRef, error) {
	own, err := k.newPair(nkeys.PrefixByteAccount)
	if err != nil {
		return accountRef{}, err
	}
	clear(own.Seed) // see accountRef
	signing, err := k.newPair(nkeys.PrefixByteAccount)
	return accountRef{Public: own.Public, Signing: []keyPair{signing}}, err
}

func (k *Keyring) makeBroker() error {
	b := brokerKeys{V: 1}
	var err error
	if b.Operator, err = k.newPair(nkeys.PrefixByteOperator); err != nil {
		return err
	}
	if b.System, err = k.newAccount(); err != nil {
		return err
	}
	defer b.wipe()
	if err := k.write(brokerFile, b, b.pairs()); err != nil {
		return err
	}
	return fpBrokerKeys.Hit()
}

func (k *Keyring) makeSpace() error {
	s := spaceKeys{V: 1, Space: k.space}
	var err error
	if s.Account, err = k.newAccount(); err != nil {
		return err
	}
	defer s.wipe()
	if err := k.write(revokedFile(k.space), revokedKeys{V: 1, Revoked: map[string]int64{}}, nil); err != nil {
		return err
	}
	if err := k.write(accountFile(k.space), s, s.Account.Signing); err != nil {
		return err
	}
	return fpSpaceKeys.Hit()
}

// write encodes v, with the seeds of pairs in the order in which they stand in it.
func (k *Keyring) write(name string, v any, pairs []keyPair) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode keys: %w", err)
	}
	raw, err = fill(append(raw, '\n'), pairs)
	if err != nil {
		return fmt.Errorf("encode keys: %w", err)
	}
	defer clear(raw)
	return k.store.Write(name, raw)
}

// change rewrites the keys of the space under the lock, if edit says so.
func (k *Keyring) change(ctx context.Context, edit func(*spaceKeys) (bool, error)) error {
	unlock, err := k.store.Lock(ctx)
	if err != nil {
		return fmt.Errorf("change keys: %w", err)
	}
	defer unlock()
	s, err := k.readSpace()
	if err != nil {
		return fmt.Errorf("change keys: %w", err)
	}
	defer func(before spaceKeys) { before.wipe(); s.wipe() }(s)
	changed, err := edit(&s)
	if err != nil || !changed {
		return err
	}
	if err := k.write(accountFile(k.space), s, s.Account.Signing); err != nil {
		return fmt.Errorf("change keys: %w", err)
	}
	return nil
}

// Revoke adds keys to those that the account refuses. When their credentials end by themselves is not known.
func (k *Keyring) Revoke(ctx context.Context, public ...string) error {
	keys := map[string]time.Time{}
	for _, p := range public {
		keys[p] = time.Time{}
	}
	return k.RevokeUntil(ctx, keys)
}

// RevokeUntil adds keys to those that the account refuses, each with the end of its last credential, and drops what no
// living credential needs any more: past that end, or where it is zero past the longest life of a credential. Every
// server is told all of them at each revocation, and most keys were for one step.
func (k *Keyring) RevokeUntil(ctx context.Context, keys map[string]time.Time) error {
	unlock, err := k.store.Lock(ctx)
	if err != nil {
		return fmt.Errorf("revoke keys: %w", err)
	}
	defer unlock()
	all, err := k.readRevoked()
	if err != nil {
		return fmt.Errorf("revoke keys: %w", err)
	}
	now := k.now()
	kept := prunedRevocations(all, now)
	changed := len(kept.Revoked) != len(all.Revoked)
	for p, until := range keys {
		if !nkeys.IsValidPublicUserKey(p) {
			return fmt.Errorf("revoke keys: %q is no user key", p)
		}
		have, ok := kept.Revoked[p]
		if !ok && until.IsZero() {
			until = now.Add(MaxLife)
		}
		if end := until.Unix(); !ok || !until.IsZero() && end > have {
			kept.Revoked[p], changed = end, true
		}
	}
	if changed {
		if err := k.write(revokedFile(k.space), kept, nil); err != nil {
			return fmt.Errorf("revoke keys: %w", err)
		}
	}
	return fpKeysRevoked.Hit()
}

// prunedRevocations are those that still have something to refuse.
func prunedRevocations(all revokedKeys, now time.Time) revokedKeys {
	kept := revokedKeys{V: 1, Revoked: map[string]int64{}}
	for p, end := range all.Revoked {
		if now.Sub(time.Unix(end, 0)) <= revocationSlack {
			kept.Revoked[p] = end
		}
	}
	return kept
}

// Learn adds what the servers of the broker refuse and this store does not know: a host on another machine has a copy of
// the keys, and revokes by that one. token is the account as a server has it.
func (k *Keyring) Learn(ctx context.Context, token string) error {
	acc, err := jwt.DecodeAccountClaims(token)
	if err != nil {
		return fmt.Errorf("learn revoked keys: %w", err)
	}
	own, err := k.readRevoked()
	if err != nil {
		return fmt.Errorf("learn revoked keys: %w", err)
	}
	now := k.now()
	more := map[string]time.Time{}
	for nkey, end := range acc.Revocations {
		if have, ok := own.Revoked[nkey]; nkeys.IsValidPublicUserKey(nkey) && (!ok || end > have) && now.Sub(time.Unix(end, 0)) <= revocationSlack {
			more[nkey] = time.Unix(end, 0)
		}
	}
	if len(more) == 0 {
		return nil
	}
	return k.RevokeUntil(ctx, more)
}

// Bundle is what a broker has to know, all of it public.
type Bundle struct {
	OperatorToken string
	Operator      string // public key
	System        string // public key of the system account
	Account       string // public key of the space's account
	// Accounts are the JWTs, by public key.
	Accounts map[string]string
	// Signing are the public keys that may sign users of the space, pending ones included.
	Signing []string
}

// Bundle signs the operator's own token and those of its accounts.
//
// Errors: fs.ErrNotExist, a *instance.FileError.
func (k *Keyring) Bundle() (Bundle, error) {
	b, s, err := k.load()
	if err != nil {
		return Bundle{}, fmt.Errorf("sign accounts: %w", err)
	}
	defer b.wipe()
	defer s.wipe()
	revoked, err := k.readRevoked()
	if err != nil {
		return Bundle{}, fmt.Errorf("sign accounts: %w", err)
	}
	oc := jwt.NewOperatorClaims(b.Operator.Public)
	oc.Name, oc.SystemAccount = "cotal", b.System.Public
	out := Bundle{Operator: b.Operator.Public, System: b.System.Public, Account: s.Account.Public, Accounts: map[string]string{}}
	sys := jwt.NewAccountClaims(b.System.Public)
	sys.Name = "system"
	for _, p := range b.System.Signing {
		sys.SigningKeys.Add(p.Public)
	}
	acc := jwt.NewAccountClaims(s.Account.Public)
	acc.Name = accountName(s.Space)
	acc.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
		MaxAckPending: jwt.NoLimit, MemoryMaxStreamBytes: jwt.NoLimit, DiskMaxStreamBytes: jwt.NoLimit,
	}
	acc.Limits.DisallowBearer = true
	for _, p := range s.Account.Signing {
		acc.SigningKeys.Add(p.Public)
		out.Signing = append(out.Signing, p.Public)
	}
	for nkey, end := range prunedRevocations(revoked, k.now()).Revoked {
		acc.RevokeAt(nkey, time.Unix(end, 0))
	}
	err = b.Operator.with(func(op nkeys.KeyPair, sign jwt.SignFn) error {
		var err error
		if out.OperatorToken, err = oc.EncodeWithSigner(op, sign); err != nil {
			return err
		}
		for _, c := range []*jwt.AccountClaims{sys, acc} {
			if out.Accounts[c.Subject], err = c.EncodeWithSigner(op, sign); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Bundle{}, fmt.Errorf("sign accounts: %w", err)
	}
	return out, nil
}

// sign signs a user of the space's account, or with system of the system account. The seed is read for this
// one signature.
func (k *Keyring) sign(c *jwt.UserClaims, system bool) (string, error) {
	var ref accountRef
	if system {
		b, err := k.readBroker()
		if err != nil {
			return "", fmt.Errorf("sign credential: %w", err)
		}
		defer b.wipe()
		ref = b.System
	} else {
		s, err := k.readSpace()
		if err != nil {
			return "", fmt.Errorf("sign credential: %w", err)
		}
		defer s.wipe()
		ref = s.Account
	}
	signer, err := ref.signer()
	if err != nil {
		return "", fmt.Errorf("sign credential: %w", err)
	}
	c.IssuerAccount = ref.Public
	var token string
	err = signer.with(func(issuer nkeys.KeyPair, sign jwt.SignFn) error {
		var err error
		token, err = c.EncodeWithSigner(issuer, sign)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("sign credential: %w", err)
	}
	return token, nil
}

// account is the public key of the space's account.
func (k *Keyring) account() (string, error) {
	s, err := k.readSpace()
	if err != nil {
		return "", fmt.Errorf("read account: %w", err)
	}
	defer s.wipe()
	return s.Account.Public, nil
}
