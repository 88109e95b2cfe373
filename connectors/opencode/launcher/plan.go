// Package launcher runs OpenCode as a server and a terminal client inside one seat: it starts the server,
// opens or forks the session and posts the prompt over the server's API, and then runs the client in the
// foreground of the seat's terminal. Server and client end together.
package launcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// PlanVersion is the version of Plan. Connector and launcher come in one bundle, but a seat that was
// prepared before an upgrade may start after it.
const PlanVersion = 1

// LogName is the file beside the plan that takes the server's output, at most maxLog bytes of it.
const LogName = "serve.log"

// Action says what to do with which session.
type Action string

// Actions.
const (
	ActionNew  Action = "new"  // a new session
	ActionOpen Action = "open" // the session itself
	ActionFork Action = "fork" // a copy; the source stays as it is
)

// Plan is what a launcher is told to do, in a file that only its user can read.
type Plan struct {
	Version  int    `json:"version"`
	Binary   string `json:"binary"` // absolute path of opencode
	Port     int    `json:"port"`   // of the server, on 127.0.0.1
	Password string `json:"password"`
	Action   Action `json:"action"`
	Session  string `json:"session,omitempty"` // for open and fork
	Prompt   string `json:"prompt,omitempty"`
	Model    string `json:"model,omitempty"` // provider/model, for the prompt
	Variant  string `json:"variant,omitempty"`
}

// ReadPlan reads and checks a plan. Its errors name the file and the field.
func ReadPlan(path string) (Plan, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Plan{}, fmt.Errorf("read plan: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Plan{}, fmt.Errorf("read plan: %s is readable by others (mode %04o); it holds a password", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Plan{}, fmt.Errorf("read plan: %w", err)
	}
	p, err := parsePlan(data)
	if err != nil {
		return Plan{}, fmt.Errorf("read plan %s: %w", path, err)
	}
	return p, nil
}

func parsePlan(data []byte) (Plan, error) {
	var p Plan
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return Plan{}, err
	}
	provider, model, split := strings.Cut(p.Model, "/")
	switch {
	case p.Version != PlanVersion:
		return Plan{}, fmt.Errorf("version is %d, this launcher reads %d", p.Version, PlanVersion)
	case !filepath.IsAbs(p.Binary):
		return Plan{}, fmt.Errorf("binary %q is no absolute path", p.Binary)
	case p.Port < 1 || p.Port > 65535:
		return Plan{}, fmt.Errorf("port is %d", p.Port)
	case p.Password == "":
		return Plan{}, fmt.Errorf("password is empty")
	case p.Action != ActionNew && p.Action != ActionOpen && p.Action != ActionFork:
		return Plan{}, fmt.Errorf("action is %q", p.Action)
	case (p.Action == ActionNew) != (p.Session == ""):
		return Plan{}, fmt.Errorf("session is %q for action %s", p.Session, p.Action)
	case p.Model != "" && (!split || provider == "" || model == ""):
		return Plan{}, fmt.Errorf("model %q is not provider/model", p.Model)
	}
	return p, nil
}
