package claude

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// Reap keeps the seat's sessions where they can be resumed, and removes what the program leaves: the seat's
// configuration directory, and the socket of a process that was killed. Background commands of the agent have
// sessions of their own and outlive a killed program; the runtime ends them before this is called, and one that is
// still there is an error.
//
// Errors: ErrUnproven (a process of the seat is still there, or its sessions could not be kept; nothing was removed).
func (c *Connector) Reap(_ context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	report := sdk.ReapReport{Outcome: sdk.ReapAbsent}
	say := func(format string, args ...any) {
		report.Evidence = append(report.Evidence, fmt.Sprintf(format, args...))
	}
	if req.Dir == "" {
		say("no directory given: nothing of a launch can be left in one")
		return report, nil
	}
	home := filepath.Join(req.Dir, homeDir)
	for _, p := range processes(home) {
		if alive(p.PID, home) {
			return report, &sdk.Error{
				Code: sdk.ErrUnproven, Outcome: sdk.OutcomeNotExecuted, Retryable: true,
				Detail: fmt.Sprintf("Claude Code still lives as process %d", p.PID),
			}
		}
		say("process %d of session %s is gone", p.PID, p.Session)
		// Removed by the program when it ends by itself. The name is its process id, which may be another's by now.
		if want := strconv.Itoa(p.PID) + ".sock"; filepath.Base(p.Socket) == want && gone(p.PID) && removeSocket(p.Socket) {
			report.Outcome = sdk.ReapExited
			report.Removed = append(report.Removed, p.Socket)
		}
	}
	kept, err := keep(home, req.WorkspaceRoot)
	if err != nil {
		return report, &sdk.Error{Code: sdk.ErrUnproven, Outcome: sdk.OutcomeUnknown, Retryable: true, Detail: err.Error()}
	}
	for _, path := range kept {
		say("session %s is kept in %s", strings.TrimSuffix(filepath.Base(path), ".jsonl"), filepath.Dir(path))
	}
	for _, name := range []string{homeDir, tmpDir, personaFile, settingsFile, mcpFile} {
		path := filepath.Join(req.Dir, name)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return report, &sdk.Error{Code: sdk.ErrUnproven, Outcome: sdk.OutcomeUnknown, Retryable: true, Detail: fmt.Sprintf("remove leftover: %v", err)}
		}
		report.Outcome = sdk.ReapExited
		report.Removed = append(report.Removed, path)
	}
	if len(report.Evidence) == 0 {
		say("no process has left a record in %s", home)
	}
	return report, nil
}

// process is what the program writes of itself while it runs.
type process struct {
	PID     int    `json:"pid"`
	Session string `json:"sessionId"`
	Socket  string `json:"messagingSocketPath"`
}

func processes(home string) []process {
	files, _ := filepath.Glob(filepath.Join(escapeGlob(home), "sessions", "*.json"))
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
