package claude

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/kept"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// Reap keeps the seat's sessions where they can be resumed, and removes what the program leaves: the seat's
// configuration directory, and the socket of a process that was killed. Background commands of the agent have
// sessions of their own and outlive a killed program; the runtime ends them before this is called, and one that is
// still there is an error. Then it prunes what is kept.
//
// Errors: ErrUnproven (a process of the seat is still there, or its sessions could not be kept; nothing was removed).
func (c *Connector) Reap(_ context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	var left sdk.Leftovers
	if req.Dir == "" {
		left.Say("no directory given: nothing of a launch can be left in one")
		return left.Report(), nil
	}
	home := filepath.Join(req.Dir, homeDir)
	found := processes(home)
	for _, p := range found {
		if alive(p.PID, home) {
			return left.Report(), sdk.StillThere("Claude Code still lives as process %d", p.PID)
		}
		left.Say("process %d of session %s is gone", p.PID, p.Session)
		// Removed by the program when it ends by itself. The name is its process id, which may be another's by now.
		if want := strconv.Itoa(p.PID) + ".sock"; filepath.Base(p.Socket) == want && gone(p.PID) && removeSocket(p.Socket) {
			left.Removed(p.Socket)
		}
	}
	if len(found) == 0 {
		left.Say("no process has left a record in %s", home)
	}
	copied, err := keep(home, req.WorkspaceRoot)
	if err != nil {
		return left.Report(), sdk.Unfinished("%v", err)
	}
	for _, path := range copied {
		left.Say("session %s is kept in %s", strings.TrimSuffix(filepath.Base(path), ".jsonl"), filepath.Dir(path))
	}
	for _, name := range []string{homeDir, tmpDir, personaFile, settingsFile, mcpFile} {
		if err := left.Remove(filepath.Join(req.Dir, name)); err != nil {
			return left.Report(), err
		}
	}
	if err := left.RemoveSockets(req.Dir); err != nil {
		return left.Report(), err
	}
	c.prune(req.WorkspaceRoot, &left)
	return left.Report(), nil
}

// prune bounds what is kept. A live seat needs none of it, since it has copies of its own; one that is about to go on
// with its session has just renewed it. What could not be removed is for the next time.
func (c *Connector) prune(workspace string, left *sdk.Leftovers) {
	if workspace == "" {
		return
	}
	now := c.now
	if now == nil {
		now = time.Now
	}
	pruned, err := c.bounds.Prune(workspace, store, now(), nil, "*", "*.jsonl")
	if len(pruned) > 0 {
		left.Say("%d sessions that were kept in %s are removed: they were too old, or too many", len(pruned), keptDir(workspace))
	}
	if err != nil {
		left.Say("%v", err)
	}
}

// process is what the program writes of itself while it runs.
type process struct {
	PID     int    `json:"pid"`
	Session string `json:"sessionId"`
	Socket  string `json:"messagingSocketPath"`
}

func processes(home string) []process {
	files, _ := filepath.Glob(kept.Pattern(home, "sessions", "*.json"))
	var all []process
	for _, file := range files {
		data, err := program.ReadFile(file, maxSmallFile)
		var p process
		if err == nil && json.Unmarshal(data, &p) == nil && p.PID > 1 {
			all = append(all, p)
		}
	}
	return all
}

// alive reports whether a process is one of the seat's: its environment names the seat's directory. A number that
// was given to another process since is none.
func alive(pid int, home string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false // gone, a zombie, or another user's; where there is no /proc the runtime's proof stands alone
	}
	return strings.Contains("\x00"+string(env), "\x00"+configEnv+"="+home+"\x00")
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// removeSocket removes a socket that nothing else is.
func removeSocket(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().Type() == fs.ModeSocket && os.Remove(path) == nil
}
