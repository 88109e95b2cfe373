package trust

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// secret is a seed. The encoder and the decoder of JSON keep what they have seen in buffers that nobody can clear, so
// it passes through neither: it is taken out of the text that was read, and put into the text that is written, by
// hand. Whoever has one wipes it.
type secret []byte

// placeholder stands for a seed in what is encoded.
const placeholder = `"\u0000"`

// MarshalJSON never shows it.
func (s secret) MarshalJSON() ([]byte, error) { return []byte(placeholder), nil }

// UnmarshalJSON takes what stands between the quotes. A seed has no character that is escaped.
func (s *secret) UnmarshalJSON(b []byte) error {
	if len(b) < 2 || b[0] != '"' || bytes.IndexByte(b, '\\') >= 0 {
		return &json.UnsupportedValueError{Str: "a seed is not a plain string"}
	}
	*s = bytes.Clone(b[1 : len(b)-1])
	return nil
}

// String never shows it.
func (s secret) String() string { return "(secret)" }

// fill puts seeds where their placeholders are, into a text of its own.
func fill(raw []byte, pairs []keyPair) ([]byte, error) {
	n := len(raw)
	for _, p := range pairs {
		n += len(p.Seed)
	}
	out := make([]byte, 0, n)
	for _, p := range pairs {
		i := bytes.Index(raw, []byte(placeholder))
		if i < 0 {
			return nil, errors.New("a seed has no place")
		}
		out = append(append(append(append(out, raw[:i]...), '"'), p.Seed...), '"')
		raw = raw[i+len(placeholder):]
	}
	if bytes.Contains(raw, []byte(placeholder)) {
		return nil, errors.New("a seed is missing")
	}
	return append(out, raw...), nil
}

func wipe(pairs []keyPair) {
	for _, p := range pairs {
		clear(p.Seed)
	}
}

func (b brokerKeys) pairs() []keyPair { return append([]keyPair{b.Operator}, b.System.Signing...) }

func (b brokerKeys) wipe() { wipe(b.pairs()) }

func (s spaceKeys) wipe() { wipe(s.Account.Signing) }

// Sizes of a seed as text of 5 bits a character, and of what it decodes to: two bytes that say what it is for, the
// seed itself, and a checksum, which the public key beside it makes needless.
const (
	seedText  = 58
	seedBytes = 36
)

// private is the key that a seed makes; whoever asked for it clears it. It is decoded here since the decoders of
// libraries leave copies behind.
func (s secret) private() (ed25519.PrivateKey, error) {
	bad := errors.New("a seed is not valid")
	if len(s) != seedText || s[0] != 'S' {
		return nil, bad
	}
	var raw [seedBytes]byte
	defer clear(raw[:])
	acc, bits, n := uint32(0), 0, 0
	for _, c := range s {
		var v byte
		switch {
		case c >= 'A' && c <= 'Z':
			v = c - 'A'
		case c >= '2' && c <= '7':
			v = c - '2' + 26
		default:
			return nil, bad
		}
		acc, bits = acc<<5|uint32(v), bits+5
		if bits >= 8 && n < seedBytes {
			bits -= 8
			raw[n] = byte(acc >> bits)
			n++
		}
	}
	return ed25519.NewKeyFromSeed(raw[2 : 2+ed25519.SeedSize]), nil
}

// with lets do sign as a key. The private key lives as long as that.
func (p keyPair) with(do func(issuer nkeys.KeyPair, sign jwt.SignFn) error) error {
	issuer, err := nkeys.FromPublicKey(p.Public)
	if err != nil {
		return err
	}
	priv, err := p.Seed.private()
	if err != nil {
		return err
	}
	defer clear(priv)
	return do(issuer, func(_ string, data []byte) ([]byte, error) { return ed25519.Sign(priv, data), nil })
}

// check refuses a pair whose seed is not that of its public key.
func (p keyPair) check(prefix nkeys.PrefixByte) error {
	priv, err := p.Seed.private()
	if err != nil {
		return err
	}
	defer clear(priv)
	pub, err := nkeys.Encode(prefix, priv[ed25519.SeedSize:])
	if err != nil || string(pub) != p.Public {
		return errors.New("a seed is not that of its public key")
	}
	return nil
}
