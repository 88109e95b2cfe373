package sdk

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path/filepath"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/program"
)

// BundledProgram is the path of a program of the host's own, such as a connector's launcher, in the bundle directory
// (PluginConfig.BundleDir). digest is its SHA-256 in hex, from the key of [plugin.config] that is named, which
// `cotal-host bundle` writes; empty: it is not checked.
//
// Errors: ErrNotFound (it is not there, or no program), ErrInvalid (another digest).
func BundledProgram(bundleDir, name, key, digest string) (string, error) {
	path := filepath.Join(bundleDir, name)
	none := func(why string) (string, error) {
		return "", Errorf(ErrNotFound, "%s is missing from the bundle directory %q, or is no program (%s); build or install the bundle again", name, bundleDir, why)
	}
	if !filepath.IsAbs(path) {
		return none("no such directory was configured")
	}
	f, err := program.Open(path)
	if err != nil {
		return none(err.Error())
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return none(err.Error())
	}
	if st.Mode().Perm()&0o111 == 0 {
		return none("it is not executable")
	}
	if digest == "" {
		return path, nil
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return none(err.Error())
	}
	if got := hex.EncodeToString(sum.Sum(nil)); !strings.EqualFold(got, digest) {
		return "", Errorf(ErrInvalid, "%s has digest %s, plugins.toml says %s = %s; build or install the bundle again", path, got, key, digest)
	}
	return path, nil
}
