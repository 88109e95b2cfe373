package claude

import (
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
)

const (
	// serverName is the bridge among the MCP servers; its tools are called mcp__cotal__*.
	serverName = "cotal"
	// hookSeconds bounds a hook; the bridge's own bound is 2 s.
	hookSeconds = 10
	// waiterSeconds bounds the hook in the background that waits for messages: a week. The program keeps it as a
	// timer in milliseconds, and one above 2^31 of them would ring at once.
	waiterSeconds = 7 * 24 * 3600
)

// settings are handed to the program with --settings, beside the user's and the project's own.
type settings struct {
	Hooks       map[string][]hookGroup `json:"hooks"`
	Permissions permissions            `json:"permissions"`
	// SkipDangerous answers the question whether it is meant that nothing is asked.
	SkipDangerous bool `json:"skipDangerousModePermissionPrompt,omitempty"`
}

// permissions let the agent use the mesh without a person: what it may do there, its host decides.
type permissions struct {
	Allow []string `json:"allow"`
}

type hookGroup struct {
	Hooks []hook `json:"hooks"`
}

type hook struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout"` // seconds
	// Rewake: it runs in the background, and when it ends with 2 a turn begins with what it wrote to standard error.
	Rewake bool `json:"asyncRewake,omitempty"`
}

// hookEvents are what the bridge is told of, and which of them bring messages to the agent.
var hookEvents = []struct {
	name    string
	deliver bool
	waits   bool // behind it the agent is idle
}{
	{"SessionStart", false, true},
	{"UserPromptSubmit", true, false},
	{"PreToolUse", false, false},
	{"PermissionRequest", false, false},
	{"PermissionDenied", false, false},
	{"PostToolUse", true, false},
	{"PostToolUseFailure", false, false},
	{"Notification", false, false},
	{"PreCompact", false, false},
	{"Stop", true, true},
	{"StopFailure", false, true},
	{"SessionEnd", false, false},
}

func (l launch) settings() settings {
	s := settings{
		Hooks:         map[string][]hookGroup{},
		Permissions:   permissions{Allow: []string{"mcp__" + serverName}},
		SkipDangerous: l.opt.Permissions == permissionsAllow,
	}
	for _, e := range hookEvents {
		var flags []string
		if e.deliver {
			flags = append(flags, cmdline.Deliver)
		}
		hooks := []hook{{Type: "command", Command: command(l.bridge.Hook(e.name, flags...)), Timeout: hookSeconds}}
		if e.waits {
			waiter := []string{l.bridge.Path, "rewake", "--material", l.bridge.Material}
			hooks = append(hooks, hook{Type: "command", Command: command(waiter), Timeout: waiterSeconds, Rewake: true})
		}
		s.Hooks[e.name] = []hookGroup{{Hooks: hooks}}
	}
	return s
}

// command is an argv as a line for the shell. It takes the shell's place: its parent is the program then, and it sees
// when that is gone.
func command(argv []string) string { return "exec " + cmdline.Shell(argv) }

// statusFile is where the program says its state, which its hooks do not do when a turn is interrupted by hand.
func (l launch) statusFile() string {
	home := l.home()
	if home == "" {
		home = userDir(l.req.BaseEnv)
	}
	return filepath.Join(home, "sessions", "{parent}.json")
}

// servers are the MCP servers of the seat: those that are shared, and the bridge, which none of them can stand for.
func (l launch) servers() any {
	all := map[string]any{}
	for name, server := range l.shared {
		all[name] = server.Raw
	}
	argv := l.bridge.MCP("--status-file", l.statusFile())
	all[serverName] = map[string]any{
		"type": "stdio", "command": argv[0], "args": argv[1:],
		"alwaysLoad": true, // else the program shows their names alone and has the agent look for the rest
	}
	return map[string]any{"mcpServers": all}
}
