package codex

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// maxRead bounds the small files of others that are read here.
const maxRead = 1 << 20

// launcherName is the launcher's file in the bundle directory.
const launcherName = "cotal-codex-seat"

// oldest is the first 0.x whose server these launches were written for, and above is past the last.
var oldest, above = program.Version{0, 171, 0}, program.Version{1, 0, 0}

// checkVersion refuses versions that are known not to work. BuildLaunch starts no process, so the version is read
// from the package.json of the npm package that the executable belongs to. An executable that belongs to none is
// accepted: it says itself what is wrong.
func checkVersion(binary string) error {
	_, text := npmPackage(binary)
	version, ok := program.ParseVersion(text)
	if !ok || !version.Less(oldest) && version.Less(above) {
		return nil
	}
	return sdk.Errorf(sdk.ErrUnsupported, "%s is Codex %s; this connector supports 0.x from 0.%d on (tested with %s): npm install -g @openai/codex@%s",
		binary, version, oldest[1], tested, tested)
}

// npmPackage finds the npm package of Codex that an executable belongs to, through symbolic links.
func npmPackage(binary string) (root, version string) {
	return program.NPMPackage(binary, func(name string) bool { return strings.HasPrefix(name, "@openai/codex") })
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
