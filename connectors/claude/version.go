package claude

import (
	"path/filepath"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// oldest is the first version with everything that these launches use.
var oldest = program.Version{2, 1, 197}

// checkVersion refuses versions that are known not to work. BuildLaunch starts no process, so the version is read
// from the package.json of the npm package that the executable belongs to, or from its name where the program's own
// installer put it. An executable that tells neither is accepted: it says itself what is wrong.
func checkVersion(binary string) error {
	version, ok := program.ParseVersion(versionOf(binary))
	if !ok || !version.Less(oldest) {
		return nil
	}
	return sdk.Errorf(sdk.ErrUnsupported, "%s is Claude Code %s; this connector supports it from %s on (tested with %s): npm install -g %s@%s",
		binary, version, oldest, tested, packageName, tested)
}

// versionOf finds the version of an executable, through symbolic links; "" when nothing says it.
func versionOf(binary string) string {
	path, err := filepath.EvalSymlinks(binary)
	if err != nil {
		return ""
	}
	if _, ok := program.ParseVersion(filepath.Base(path)); ok && filepath.Base(filepath.Dir(path)) == "versions" {
		return filepath.Base(path)
	}
	_, version := program.NPMPackage(path, func(name string) bool { return strings.HasPrefix(name, packageName) })
	return version
}
