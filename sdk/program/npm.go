package program

import (
	"encoding/json"
	"path/filepath"
)

// npmDepth is how many directories above an executable its package is looked for: <package>/bin/x, or
// <package>/vendor/<system>/bin/x.
const npmDepth = 5

// maxPackage bounds a package.json, in bytes.
const maxPackage = 1 << 20

// NPMPackage is the npm package that an executable belongs to, found through symbolic links: its directory and its
// version. ours says of a package's name whether it is the program's; the first package that is found counts, so that a
// wrapper of the user's own is none. Both are empty where there is none: an installer's, or a distribution's.
//
// A connector's BuildLaunch starts no process, and so asks no program for its version.
func NPMPackage(executable string, ours func(name string) bool) (dir, version string) {
	dir, err := filepath.EvalSymlinks(executable)
	if err != nil {
		return "", ""
	}
	for range npmDepth {
		dir = filepath.Dir(dir)
		data, err := ReadFile(filepath.Join(dir, "package.json"), maxPackage)
		if err != nil {
			continue
		}
		var pkg struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		}
		if json.Unmarshal(data, &pkg) != nil || !ours(pkg.Name) {
			return "", ""
		}
		return dir, pkg.Version
	}
	return "", ""
}
