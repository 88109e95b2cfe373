package trust

import (
	"os"
	"path/filepath"

	"github.com/nats-io/jwt/v2"
)

// accountName is the name that the account of a space has for its servers.
func accountName(space string) string { return "space " + space }

// ToldOf reports whether a server that keeps what it was told of accounts in a directory knows one of a space. What cannot
// be read there is not of one.
func ToldOf(dir, space string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*.jwt")) // the one error is of the pattern
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if c, err := jwt.DecodeAccountClaims(string(raw)); err == nil && c.Name == accountName(space) {
			return true
		}
	}
	return false
}
