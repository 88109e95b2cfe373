package codex

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/kept"
)

// store is where the sessions of a workspace's seats are, below it, by year, month and day: a seat's home goes with the
// seat, and what was said in it does not.
var store = filepath.Join(".cotal", "codex", "sessions")

func storeDir(workspace string) string { return filepath.Join(workspace, store) }

// operatorHome is the operator's own home of the program; "" when there is none to be found.
func operatorHome(env []string) string {
	if dir := sdk.Getenv(env, "CODEX_HOME"); filepath.IsAbs(dir) {
		return filepath.Clean(dir)
	}
	if dir := sdk.Getenv(env, "HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, ".codex")
	}
	return ""
}

// findSession returns the file of the session that a request names; "" when it names none.
//
// A fork reads its source and leaves it as it is, so it may be a session of the operator's own as well. One that is
// reopened is written to, so it must be a seat's.
//
// Errors: ErrNotFound, ErrUnsupported (a session of the operator's own cannot be reopened).
func findSession(req sdk.LaunchRequest, operator string) (string, error) {
	id := req.Resume + req.Continue
	if id == "" {
		return "", nil
	}
	kept, own := storeDir(req.WorkspaceRoot), ""
	if operator != "" {
		own = filepath.Join(operator, "sessions")
	}
	mine, theirs := newest(kept, id), newest(own, id)
	switch {
	case req.Continue != "" && mine == "" && theirs != "":
		return "", sdk.Errorf(sdk.ErrUnsupported, "session %s is your own (%s) and a seat does not write to it; resume forks it", id, theirs)
	case req.Resume != "" && theirs != "" && changed(theirs).After(changed(mine)):
		return theirs, nil // a copy that a fork made before may have fallen behind
	case mine != "":
		return mine, nil
	}
	return "", sdk.Errorf(sdk.ErrNotFound, "no Codex session %s in %s or in %s", id, kept, own)
}

// newest finds the file of a session: <dir>/YYYY/MM/DD/rollout-<time>-<id>.jsonl. What is no regular file is none: the
// program would wait at a FIFO for whoever writes into it.
func newest(dir, id string) string {
	if dir == "" {
		return ""
	}
	files, err := filepath.Glob(kept.Pattern(dir, "*", "*", "*", "rollout-*-"+id+".jsonl"))
	files = slices.DeleteFunc(files, func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || !info.Mode().IsRegular()
	})
	if err != nil || len(files) == 0 {
		return ""
	}
	return slices.MaxFunc(files, func(a, b string) int { return changed(a).Compare(changed(b)) })
}

// changed is when a file was last written; zero for none.
func changed(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
