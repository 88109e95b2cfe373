package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// LaunchVersion is the apiVersion of a launch spec.
const LaunchVersion = "cotal-launch/v1"

// MaxLaunchAgents bounds the agents of one launch spec.
const MaxLaunchAgents = 256

// Continuity of a launched agent: whether it has to go on with the session it had.
const (
	ContinuityNone  = "none" // default
	ContinuityExact = "exact"
)

// LaunchSpec is the specification of a run: what launch starts agents from. It is its own authority; no persona
// file is read for it.
type LaunchSpec struct {
	APIVersion string        `json:"apiVersion"` // LaunchVersion
	Space      string        `json:"space"`
	RunID      string        `json:"runId"`
	Owner      string        `json:"owner,omitempty"` // stamped when the manifest was applied; demanded where callers are users
	Agents     []LaunchAgent `json:"agents"`
}

// LaunchAgent is one agent of a run. Its channels are channels and not patterns.
type LaunchAgent struct {
	Name           string         `json:"name"`  // the alias, which is not numbered
	Agent          string         `json:"agent"` // connector
	Role           string         `json:"role,omitempty"`
	Model          string         `json:"model,omitempty"`
	Variant        string         `json:"variant,omitempty"`
	LaunchOptions  map[string]any `json:"launchOptions,omitempty"`
	Description    string         `json:"description,omitempty"`
	Body           string         `json:"body,omitempty"`   // persona text
	Prompt         string         `json:"prompt,omitempty"` // first turn
	Cwd            string         `json:"cwd,omitempty"`
	Continuity     string         `json:"continuity,omitempty"`
	Capabilities   []string       `json:"capabilities,omitempty"`
	Subscribe      []string       `json:"subscribe"`
	AllowSubscribe []string       `json:"allowSubscribe"`
	AllowPublish   []string       `json:"allowPublish"`
	PersonaPath    string         `json:"personaPath,omitempty"` // for people to see where it came from; never read
	Hash           string         `json:"hash"`                  // a change of it is drift
}

// ParseLaunchSpec reads a launch spec strictly: a member that is not in it, twice in it or of another type is
// refused. It returns a bad-request, not-executed, that names the member.
func ParseLaunchSpec(raw json.RawMessage) (LaunchSpec, *Error) {
	var s LaunchSpec
	if err := DecodeArgs(raw, &s); err != nil {
		text := strings.TrimPrefix(err.Message, "args: ")
		text = strings.Replace(text, unknownArg, " is not a member of a launch spec", 1)
		return LaunchSpec{}, Refuse(CodeBadRequest, "spec: %s", text)
	}
	return s, nil
}

// Check refuses what no host may launch. Errors are *FieldError.
func (s *LaunchSpec) Check() error {
	switch {
	case s.APIVersion != LaunchVersion:
		return &FieldError{"apiVersion", tokenProblem(s.APIVersion, "is not "+LaunchVersion)}
	case !ValidSpace(s.Space):
		return &FieldError{"space", tokenProblem(s.Space, whySpace)}
	case !ValidID(s.RunID):
		return &FieldError{"runId", tokenProblem(s.RunID, whyID)}
	case s.Owner != "" && (s.Owner == OwnerLocal || !ValidOwner(s.Owner)):
		return &FieldError{"owner", tokenProblem(s.Owner, "is not u_ with 26 characters of base32")}
	case len(s.Agents) == 0:
		return &FieldError{"agents", "are missing"}
	case len(s.Agents) > MaxLaunchAgents:
		return &FieldError{"agents", fmt.Sprintf("are %d, more than %d", len(s.Agents), MaxLaunchAgents)}
	}
	for i := range s.Agents {
		a := &s.Agents[i]
		if f := a.problem(); f != nil {
			return &FieldError{fmt.Sprintf("agents.%d.%s", i, f.Field), f.Why}
		}
		if slices.ContainsFunc(s.Agents[:i], func(o LaunchAgent) bool { return o.Name == a.Name }) {
			return &FieldError{fmt.Sprintf("agents.%d.name", i), tokenProblem(a.Name, "is there twice")}
		}
	}
	return nil
}

// Agent returns the agent of that name.
func (s *LaunchSpec) Agent(name string) (LaunchAgent, bool) {
	for _, a := range s.Agents {
		if a.Name == name {
			return a, true
		}
	}
	return LaunchAgent{}, false
}

func (a *LaunchAgent) problem() *FieldError {
	const token = "is not 1 to 128 characters of [A-Za-z0-9_-], the first of them no dash"
	name := func(s string) bool { return len(s) <= MaxName && ValidToken(s) && s[0] != '-' }
	switch {
	case !name(a.Name):
		return &FieldError{"name", tokenProblem(a.Name, token)}
	case !name(a.Agent):
		return &FieldError{"agent", tokenProblem(a.Agent, token)}
	case a.Role != "" && !name(a.Role):
		return &FieldError{"role", tokenProblem(a.Role, token)}
	case a.Continuity != "" && a.Continuity != ContinuityNone && a.Continuity != ContinuityExact:
		return &FieldError{"continuity", tokenProblem(a.Continuity, "is not none or exact")}
	case strings.ContainsRune(a.Cwd, 0):
		return &FieldError{"cwd", "has a NUL in it"}
	case !all(a.Hash, 1, 64, func(c byte) bool { return isTokenChar(c) && c != '_' && c != '-' }):
		return &FieldError{"hash", tokenProblem(a.Hash, "is not 1 to 64 letters and digits")}
	}
	for i, c := range a.Capabilities {
		role, isRole := strings.CutPrefix(c, "role:")
		if c != "spawn" && c != "run" && !(isRole && name(role)) {
			return &FieldError{fmt.Sprintf("capabilities.%d", i), tokenProblem(c, "is not spawn, run or role:<role>")}
		}
	}
	for _, l := range []channelList{{"subscribe", a.Subscribe}, {"allowSubscribe", a.AllowSubscribe}, {"allowPublish", a.AllowPublish}} {
		if l.list == nil {
			return &FieldError{l.field, "is missing; say [] for none"}
		}
		for i, c := range l.list {
			if !ValidChannel(c) {
				return &FieldError{fmt.Sprintf("%s.%d", l.field, i), tokenProblem(c, "is not a channel")}
			}
		}
	}
	for i, c := range a.Subscribe {
		if !slices.Contains(a.AllowSubscribe, c) {
			return &FieldError{fmt.Sprintf("subscribe.%d", i), tokenProblem(c, "is not among allowSubscribe")}
		}
	}
	return nil
}
