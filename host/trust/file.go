package trust

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/nats-io/jwt/v2"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// LifeFile is a credential of the life of a seat, as a file of a store.
type LifeFile struct {
	Name       string // in the store
	Alias, UID string
}

// LifeFiles lists the credentials of seats of a space, by their names. Errors: those of the store.
func LifeFiles(store SecretStore, space string) ([]LifeFile, error) {
	names, err := store.List(credsDir(space))
	if err != nil {
		return nil, fmt.Errorf("list credentials: %w", err)
	}
	var out []LifeFile
	for _, name := range names {
		if f, ok := lifeFile(name); ok {
			out = append(out, f)
		}
	}
	return out, nil
}

func lifeFile(name string) (LifeFile, bool) {
	alias, rest, _ := strings.Cut(path.Base(name), ".")
	uid, kind, _ := strings.Cut(rest, ".")
	return LifeFile{name, alias, uid}, kind == "creds" && wire.ValidUID(uid)
}

// InFile is the id of the credential that is in a file of a store, and the key in it, which the caller clears. holder is the
// public key that it has to be of.
//
// Errors: fs.ErrNotExist, ErrRefused (it is damaged, or another holder's), a *instance.FileError.
func InFile(store SecretStore, name, holder string) (id string, key Key, err error) {
	raw, err := store.Read(name)
	if err != nil {
		return "", Key{}, fmt.Errorf("read credential: %w", err)
	}
	defer clear(raw)
	bad := func(why string) error { return fmt.Errorf("read credential: %w: %s: %s", ErrRefused, name, why) }
	token, err := jwt.ParseDecoratedJWT(raw)
	if err != nil {
		return "", Key{}, bad("it is no credentials file")
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return "", Key{}, bad("its token cannot be read")
	}
	kp, err := jwt.ParseDecoratedUserNKey(raw)
	if err != nil {
		return "", Key{}, bad("its key cannot be read")
	}
	defer kp.Wipe()
	seed, err := kp.Seed()
	if err != nil {
		return "", Key{}, bad("its key cannot be read")
	}
	key = Key{Public: claims.Subject, Seed: bytes.Clone(seed)}
	switch {
	case checkKey(key) != nil:
		err = bad("its key is not that of its token")
	case key.Public != holder:
		err = bad("it is of another holder")
	}
	if err != nil {
		clear(key.Seed)
		return "", Key{}, err
	}
	return credentialID(token), key, nil
}
