package claude

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// oldest is the first version with everything that these launches use.
var oldest = [3]int{2, 1, 197}

var threeNumbers = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)$`)

// checkVersion refuses versions that are known not to work. BuildLaunch starts no process, so the version is read
// from the package.json of the npm package that the executable belongs to, or from its name where the program's own
// installer put it. An executable that tells neither is accepted: it says itself what is wrong.
func checkVersion(binary string) error {
	version := versionOf(binary)
	m := threeNumbers.FindStringSubmatch(version)
	if m == nil {
		return nil
	}
	for i, least := range oldest {
		n, err := strconv.Atoi(m[i+1])
		if err != nil || n > least {
			return nil
		}
		if n < least {
			return sdk.Errorf(sdk.ErrUnsupported, "%s is Claude Code %s; this connector supports it from %d.%d.%d on (tested with %s): npm install -g %s@%s",
				binary, version, oldest[0], oldest[1], oldest[2], tested, packageName, tested)
		}
	}
	return nil
}

// versionOf finds the version of an executable, through symbolic links; "" when nothing says it.
func versionOf(binary string) string {
	path, err := filepath.EvalSymlinks(binary)
	if err != nil {
		return ""
	}
	if base := filepath.Base(path); threeNumbers.MatchString(base) && filepath.Base(filepath.Dir(path)) == "versions" {
		return base
	}
	for range 3 { // <package>/bin/claude, or one level deeper
		path = filepath.Dir(path)
		data, err := program.ReadFile(filepath.Join(path, "package.json"), maxSmallFile)
		if err != nil {
			continue
		}
		var pkg struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		}
		if json.Unmarshal(data, &pkg) == nil && strings.HasPrefix(pkg.Name, packageName) {
			return pkg.Version
		}
		return "" // somebody else's package: a wrapper of the user's
	}
	return ""
}
