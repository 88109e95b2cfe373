package trust

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nkeys"
)

// Rotate gives the space a new signing key, which signs as soon as every server knows it (Activate, after a push).
// The one that is replaced still verifies what it signed, for as long as any of that lives; keys that were replaced
// longer ago are dropped. A rotation that is pending already is the one.
func (k *Keyring) Rotate(ctx context.Context) error {
	fresh, err := k.newPair(nkeys.PrefixByteAccount)
	if err != nil {
		return err
	}
	fresh.Pending = true
	err = k.change(ctx, func(s *spaceKeys) (bool, error) {
		signing := living(s.Account.Signing, k.now())
		if slices.ContainsFunc(signing, func(p keyPair) bool { return p.Pending }) {
			return false, nil
		}
		s.Account.Signing = append(signing, fresh)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("rotate signing key: %w", err)
	}
	return fpKeyRotated.Hit()
}

// Activate makes a pending signing key the one that signs, if it is among those that every server knows now.
func (k *Keyring) Activate(ctx context.Context, known []string) error {
	return k.change(ctx, func(s *spaceKeys) (bool, error) {
		i := slices.IndexFunc(s.Account.Signing, func(p keyPair) bool { return p.Pending && slices.Contains(known, p.Public) })
		if i < 0 {
			return false, nil
		}
		now := k.now().UTC().Truncate(time.Second)
		for j := range s.Account.Signing {
			if p := &s.Account.Signing[j]; j != i && p.Retired == nil {
				p.Retired = &now
			}
		}
		s.Account.Signing[i].Pending = false
		return true, nil
	})
}

// Drop takes every replaced signing key away at once: whatever they signed is refused from the next push on,
// and its connections are ended.
func (k *Keyring) Drop(ctx context.Context) error {
	err := k.change(ctx, func(s *spaceKeys) (bool, error) {
		kept := slices.DeleteFunc(slices.Clone(s.Account.Signing), func(p keyPair) bool { return p.Retired != nil })
		changed := len(kept) != len(s.Account.Signing)
		s.Account.Signing = kept
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("drop replaced signing keys: %w", err)
	}
	return nil
}

// living are the keys that may have signed something that lives.
func living(all []keyPair, now time.Time) []keyPair {
	return slices.DeleteFunc(slices.Clone(all), func(p keyPair) bool {
		return p.Retired != nil && now.Sub(*p.Retired) > MaxLife+revocationSlack
	})
}

// verifies reports whether what a key has signed is let in. What cannot be read is not taken for a key that is gone.
func (k *Keyring) verifies(issuer string) bool {
	s, err := k.readSpace()
	defer s.wipe()
	return err != nil || slices.ContainsFunc(s.Account.Signing, func(p keyPair) bool { return p.Public == issuer })
}
