package opencode

import (
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// launcherName is the launcher's file in the bundle directory.
const launcherName = "cotal-opencode-seat"

// oldest is the first 1.x whose API and configuration these launches were written for, and above is past the last.
var oldest, above = program.Version{1, 16, 0}, program.Version{2, 0, 0}

// checkVersion refuses versions that are known not to work. BuildLaunch starts no process, so the version
// is read from the package.json of the npm package that the executable belongs to. An executable that
// belongs to none (an installer script's, a distribution's) is accepted: it says itself what is wrong.
func checkVersion(binary string) error {
	_, text := program.NPMPackage(binary, func(name string) bool {
		return strings.HasPrefix(name, "opencode-") || strings.HasPrefix(name, "@opencode/")
	})
	version, ok := program.ParseVersion(text)
	if !ok || !version.Less(oldest) && version.Less(above) {
		return nil
	}
	return sdk.Errorf(sdk.ErrUnsupported, "%s is OpenCode %s; this connector supports 1.x from 1.%d on (tested with %s): npm install -g opencode-ai@%s",
		binary, version, oldest[1], tested, tested)
}
