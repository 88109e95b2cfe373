package opencode

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// launcherName is the launcher's file in the bundle directory.
const launcherName = "cotal-opencode-seat"

// minMinor is the oldest 1.x whose API and configuration these launches were written for.
const minMinor = 16

// checkVersion refuses versions that are known not to work. BuildLaunch starts no process, so the version
// is read from the package.json of the npm package that the executable belongs to. An executable that
// belongs to none (an installer script's, a distribution's) is accepted: it says itself what is wrong.
func checkVersion(binary string) error {
	version := packageVersion(binary)
	if version == "" {
		return nil
	}
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	if n, err := strconv.Atoi(minor); major == "1" && err == nil && n >= minMinor {
		return nil
	}
	return sdk.Errorf(sdk.ErrUnsupported, "%s is OpenCode %s; this connector supports 1.x from 1.%d on (tested with %s): npm install -g opencode-ai@%s",
		binary, version, minMinor, tested, tested)
}

// packageVersion finds the package.json that an executable belongs to, through symbolic links.
func packageVersion(binary string) string {
	path, err := filepath.EvalSymlinks(binary)
	if err != nil {
		return ""
	}
	for range 3 { // <package>/bin/opencode, or one level deeper
		path = filepath.Dir(path)
		data, err := program.ReadFile(filepath.Join(path, "package.json"), maxRead)
		if err != nil {
			continue
		}
		var pkg struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		}
		if json.Unmarshal(data, &pkg) != nil {
			return ""
		}
		if strings.HasPrefix(pkg.Name, "opencode-") || strings.HasPrefix(pkg.Name, "@opencode/") {
			return pkg.Version
		}
		return "" // somebody else's package: a wrapper of the user's
	}
	return ""
}

// launcher returns the path of the launcher and checks that it is the one of this bundle.
func (c *Connector) launcher() (string, error) {
	path := filepath.Join(c.cfg.bundleDir, launcherName)
	f, err := program.Open(path)
	if err != nil {
		return "", sdk.Errorf(sdk.ErrNotFound, "this launch needs the bundled %s: %v", launcherName, err)
	}
	defer f.Close()
	if c.cfg.launcherSHA256 == "" {
		return path, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", sdk.Errorf(sdk.ErrNotFound, "read %s: %v", path, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != c.cfg.launcherSHA256 {
		return "", sdk.Errorf(sdk.ErrInvalid, "%s has digest %s, plugins.toml says launcher_sha256 = %s; build or install the bundle again", path, got, c.cfg.launcherSHA256)
	}
	return path, nil
}
