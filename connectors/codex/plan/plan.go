// Package plan is what the codex connector and cotal-codex-seat tell each other: a file, and names of files.
package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Version is the version of Plan. Connector and launcher come in one bundle, but a seat that was prepared
// before an upgrade may start after it.
const Version = 1

// LogName is the file beside the plan that takes the server's output, bounded.
const LogName = "app-server.log"

// Action says what to do with which session.
type Action string

// Actions.
const (
	ActionNew  Action = "new"  // a new session
	ActionOpen Action = "open" // the session itself
	ActionFork Action = "fork" // a copy; the source stays as it is
)

// Plan is what a launcher is told to do, in a file that only its user can read. Paths are absolute.
type Plan struct {
	Version  int    `json:"version"`
	Binary   string `json:"binary"`             // codex
	Home     string `json:"home"`               // the seat's own CODEX_HOME
	Store    string `json:"store"`              // where sessions are kept; the home links to it
	Operator string `json:"operator,omitempty"` // his own home; what of it a seat has is linked into its own
	Cwd      string `json:"cwd"`
	Action   Action `json:"action"`
	Session  string `json:"session,omitempty"` // for open and fork
	Rollout  string `json:"rollout,omitempty"` // its file
	Prompt   string `json:"prompt,omitempty"`
	Model    string `json:"model,omitempty"` // what the launch says, not what the configuration does
	Effort   string `json:"effort,omitempty"`
}

// Read reads and checks a plan. Its errors name the file and the field.
func Read(path string) (Plan, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Plan{}, fmt.Errorf("read plan: %w", err)
	}
	p, err := parse(data)
	if err != nil {
		return Plan{}, fmt.Errorf("read plan %s: %w", path, err)
	}
	return p, nil
}

func parse(data []byte) (Plan, error) {
	var p Plan
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return Plan{}, err
	}
	if p.Version != Version {
		return Plan{}, fmt.Errorf("version is %d, this launcher reads %d", p.Version, Version)
	}
	if p.Action != ActionNew && p.Action != ActionOpen && p.Action != ActionFork {
		return Plan{}, fmt.Errorf("action is %q", p.Action)
	}
	for _, f := range []struct {
		name, path string
		may        bool
	}{
		{"binary", p.Binary, false},
		{"home", p.Home, false},
		{"store", p.Store, false},
		{"cwd", p.Cwd, false},
		{"operator", p.Operator, true},
		{"rollout", p.Rollout, p.Action == ActionNew},
	} {
		if !filepath.IsAbs(f.path) && (f.path != "" || !f.may) {
			return Plan{}, fmt.Errorf("%s %q is no absolute path", f.name, f.path)
		}
	}
	if (p.Action == ActionNew) != (p.Session == "") {
		return Plan{}, fmt.Errorf("session is %q for action %s", p.Session, p.Action)
	}
	return p, nil
}

// Names of the sockets of a launch (private.PlaceSocket): where the program's server listens, and where the bridge of
// the seat does for the program's MCP servers.
const (
	APISocket   = "codex.sock"
	ToolsSocket = "mcp.sock"
)

// SessionsName is the file beside the plan with the ids of the sessions that the seat has worked in, a line each: they
// are kept as long as it lives.
const SessionsName = "sessions"

// NoteSession adds a session to those that the seat whose launch is in dir has worked in.
func NoteSession(dir, id string) error {
	f, err := os.OpenFile(filepath.Join(dir, SessionsName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("note session: %w", err)
	}
	_, err = f.WriteString(id + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("note session: %w", err)
	}
	return nil
}

// SessionsOf are the sessions that the launch in dir begins with or has worked in. With an error they are those that are
// known, and there may be others: its plan is of another version, or it has noted none yet.
func SessionsOf(dir, planFile string) ([]string, error) {
	var ids []string
	p, err := Read(filepath.Join(dir, planFile))
	if err == nil && p.Session != "" {
		ids = append(ids, p.Session)
	}
	text, rerr := os.ReadFile(filepath.Join(dir, SessionsName))
	if rerr != nil {
		rerr = fmt.Errorf("read sessions of a launch: %w", rerr)
	}
	return append(ids, strings.Fields(string(text))...), errors.Join(err, rerr)
}
