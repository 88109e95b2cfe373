package launch

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// osNames are the variables of the host that every agent gets when the host has them. Compared
// without regard to case; the host's own spelling is kept.
var osNames = []string{
	"PATH", "HOME", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "USER", "LOGNAME", "SHELL", "COMSPEC", "PATHEXT",
	"COLORFGBG", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ", "TEMP", "TMPDIR", "TMP",
	"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "APPDATA", "LOCALAPPDATA",
	"SystemRoot", "windir", "SystemDrive", "PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "ALLUSERSPROFILE",
	"ProgramData", "ProgramFiles", "ProgramFiles(x86)", "CommonProgramFiles", "PUBLIC",
}

// knobs are the machine settings of Cotal: names that no launch path writes per seat.
var knobs = []string{
	"COTAL_HOME", "COTAL_FEEDBACK_KEY", "COTAL_FEEDBACK_EMAIL", "COTAL_FEEDBACK_URL", "COTAL_DEFAULT_AGENT",
	"COTAL_DEFAULT_PERSONA", "COTAL_SKIP_CONNECTOR_SEED", "COTAL_SKIP_ASSIST", "COTAL_DETACH_KEY", "COTAL_COMPLETE_DEBUG",
	"COTAL_DEBUG", "COTAL_SERVE_HEADLESS", "COTAL_MEMBERSHIP_INTERVAL_MS", "COTAL_DELIVERY_BROKER_GONE_MS",
	"COTAL_IDP_TIMEOUT_MS", "COTAL_CODEX_BIN", "COTAL_OPENCODE_BIN", "COTAL_ORCA_BIN",
	// Processes of ours inside a seat (launchers) take part in fault injection.
	failpoint.EnvVar,
}

// providerKeys are the names under which model providers expect their key.
var providerKeys = []string{"OPENCODE_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "NOUS_API_KEY"}

// BaseEnv builds the environment an agent's launch starts from, sorted K=V. Nothing of the host's
// environment passes but the names of three fixed lists and of extra (what the connector declares
// and the operator's spawn.env, exact names). COTAL_* names other than the machine settings never
// pass, whoever lists them: they are credentials of the host or the identity of another seat.
//
// The terminal of a seat is not the terminal the host was started from, so TERM and COLORTERM are
// set whatever the host has; LANG is the user's, and C.UTF-8 when there is no locale at all.
func BaseEnv(environ, extra []string) []string {
	env := map[string]string{}
	for _, kv := range environ {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" || strings.ContainsRune(kv, 0) || !allowed(k, extra) {
			continue
		}
		env[k] = v // the last one counts, as for every program
	}
	env["TERM"], env["COLORTERM"] = "xterm-256color", "truecolor"
	if env["LANG"] == "" && env["LC_ALL"] == "" && env["LC_CTYPE"] == "" {
		env["LANG"] = "C.UTF-8"
	}
	return flatten(env)
}

func allowed(k string, extra []string) bool {
	if slices.Contains(knobs, k) {
		return true
	}
	if len(k) >= 6 && strings.EqualFold(k[:6], "COTAL_") {
		return false
	}
	return slices.Contains(providerKeys, k) || slices.Contains(extra, k) ||
		slices.ContainsFunc(osNames, func(n string) bool { return strings.EqualFold(n, k) })
}

// SeatVars are the facts of one seat that its environment states. Empty values are left out. None
// is a secret.
type SeatVars struct {
	Space          string
	Name           string // alias
	Role           string
	ID             string // principal, owner.actor
	LifecycleUID   string
	InstanceID     string // of the host that launched it
	AgentFile      string // absolute path of the persona
	Model, Variant string
	Events         bool
	WorkspaceRoot  string // told with Events only
	Subscribe      []string
	AllowSubscribe []string
	AllowPublish   []string
	Capabilities   []string
	Environment    string // opaque provider reference
	BackfillFloor  *uint64
}

// SeatEnv returns the COTAL_* variables of a seat, sorted K=V.
func SeatEnv(v SeatVars) []string {
	env := map[string]string{
		"COTAL_SPACE":            v.Space,
		"COTAL_NAME":             v.Name,
		"COTAL_ROLE":             v.Role,
		"COTAL_ID":               v.ID,
		"COTAL_LIFECYCLE_UID":    v.LifecycleUID,
		"COTAL_MANAGER_INSTANCE": v.InstanceID,
		"COTAL_AGENT_FILE":       v.AgentFile,
		"COTAL_MODEL":            v.Model,
		"COTAL_VARIANT":          v.Variant,
		"COTAL_SUBSCRIBE":        strings.Join(v.Subscribe, ","),
		"COTAL_ALLOW_SUBSCRIBE":  strings.Join(v.AllowSubscribe, ","),
		"COTAL_ALLOW_PUBLISH":    strings.Join(v.AllowPublish, ","),
		"COTAL_CAPABILITIES":     strings.Join(v.Capabilities, ","),
		"COTAL_ENVIRONMENT":      v.Environment,
	}
	if v.Events {
		env["COTAL_EVENTS"], env["COTAL_WORKSPACE_ROOT"] = "1", v.WorkspaceRoot
	}
	if v.BackfillFloor != nil {
		env["COTAL_BACKFILL_FLOOR"] = strconv.FormatUint(*v.BackfillFloor, 10)
	}
	for k, val := range env {
		if val == "" {
			delete(env, k)
		}
	}
	return flatten(env)
}

// MergeEnv lays environments over each other: a later one wins. The result is sorted and has every
// name once.
func MergeEnv(envs ...[]string) []string {
	m := map[string]string{}
	for _, env := range envs {
		for _, kv := range env {
			if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
				m[k] = v
			}
		}
	}
	return flatten(m)
}

func flatten(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// Getenv looks a name up in K=V entries; the last one counts.
func Getenv(environ []string, name string) (string, bool) {
	for i := len(environ) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(environ[i], "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}
