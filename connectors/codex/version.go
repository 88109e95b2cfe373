package codex

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// maxRead bounds the small files of others that are read here.
const maxRead = 1 << 20

// launcherName is the launcher's file in the bundle directory.
const launcherName = "cotal-codex-seat"

// minMinor is the oldest 0.x whose server these launches were written for.
const minMinor = 171

// checkVersion refuses versions that are known not to work. BuildLaunch starts no process, so the version is read
// from the package.json of the npm package that the executable belongs to. An executable that belongs to none is
// accepted: it says itself what is wrong.
func checkVersion(binary string) error {
	_, version := npmPackage(binary)
	version, _, _ = strings.Cut(version, "-") // 0.171.0-linux-x64 is the package of one system
	if version == "" {
		return nil
	}
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	if n, err := strconv.Atoi(minor); major == "0" && err == nil && n >= minMinor {
		return nil
	}
	return sdk.Errorf(sdk.ErrUnsupported, "%s is Codex %s; this connector supports 0.x from 0.%d on (tested with %s): npm install -g @openai/codex@%s",
		binary, version, minMinor, tested, tested)
}

// npmPackage finds the npm package of Codex that an executable belongs to, through symbolic links.
func npmPackage(binary string) (root, version string) {
	path, err := filepath.EvalSymlinks(binary)
	if err != nil {
		return "", ""
	}
	for range 5 { // <package>/bin/codex.js, or <package>/vendor/<system>/bin/codex
		path = filepath.Dir(path)
		data, err := program.ReadFile(filepath.Join(path, "package.json"), maxRead)
		if err != nil {
			continue
		}
		var pkg struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		}
		if json.Unmarshal(data, &pkg) != nil || !strings.HasPrefix(pkg.Name, "@openai/codex") {
			return "", "" // somebody else's package: a wrapper of the user's
		}
		return path, pkg.Version
	}
	return "", ""
}

// native returns the program itself where binary is the npm package's starter, a script that would stay as a
// process between us and it; else binary.
func native(binary string) string {
	root, _ := npmPackage(binary)
	if root == "" {
		return binary
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	system := map[string]string{"linux": "unknown-linux-musl", "darwin": "apple-darwin"}[runtime.GOOS]
	short := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	vendor := filepath.Join("codex-"+runtime.GOOS+"-"+short, "vendor", arch+"-"+system, "bin", binaryName)
	for _, near := range []string{filepath.Join(root, "node_modules", "@openai"), filepath.Dir(root)} {
		path := filepath.Join(near, vendor)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return binary
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
