package qwen

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

const (
	homeEnv    = "QWEN_HOME"        // where the program's configuration is
	runtimeEnv = "QWEN_RUNTIME_DIR" // where its sessions are

	homeDir      = "qwen"
	settingsFile = "settings.json"
	mcpFile      = "mcp.json"
	inputFile    = "input.jsonl"
	loginFile    = "oauth_creds.json"
	loginLink    = "qwen-login" // to the user's login: the program puts a file in place of the link that it reads
	serverName   = "cotal"      // the bridge among the MCP servers; its tools are called mcp__cotal__*
	maxSettings  = 1 << 20
)

// links are what of the user's configuration a seat sees as it is: his login, and what he wrote for his agents.
var links = []string{loginFile, ".env", "QWEN.md", "AGENTS.md", "output-language.md", "agents", "commands", "extensions", "skills"}

// hooks are what the bridge is told of, and which of them bring messages to the agent.
var hooks = []struct {
	name    string
	deliver bool
}{
	{"SessionStart", false},
	{"UserPromptSubmit", true},
	{"PreToolUse", false},
	{"PermissionRequest", false},
	{"PostToolUse", true},
	{"PostToolUseFailure", false},
	{"Notification", false}, // tells of an interrupted turn as well: that its input field waits
	{"PreCompact", false},
	{"PostCompact", false},
	{"Stop", true},
	{"StopFailure", false},
	{"SessionEnd", false},
}

// userDir is the user's configuration directory, as the program finds it, but that the program takes a path from where
// it was started, or with a tilde, and a seat has no such place. Errors: ErrInvalid.
func userDir(env []string) (string, error) {
	name, dir := homeEnv, sdk.Getenv(env, homeEnv)
	if dir == "" {
		if name, dir = "HOME", sdk.Getenv(env, "HOME"); dir == "" {
			return "", sdk.Errorf(sdk.ErrInvalid, "Qwen Code keeps its sessions in the home of its user: set HOME, or %s, where the host is started", homeEnv)
		}
		dir = filepath.Join(dir, ".qwen")
	}
	if !filepath.IsAbs(dir) {
		return "", sdk.Errorf(sdk.ErrInvalid, "%s is %q where the host is started: a seat takes an absolute path, which begins with /", name, sdk.Getenv(env, name))
	}
	return dir, nil
}

// readSettings reads the user's settings. Errors: ErrInvalid (no JSON, or with comments in it).
func readSettings(dir string) (map[string]any, error) {
	path := filepath.Join(dir, settingsFile)
	data, err := program.ReadFile(path, maxSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]any{}, nil
	}
	in := map[string]any{}
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err == nil && in == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return nil, sdk.Errorf(sdk.ErrInvalid, "read %s, which a seat starts with: %v; it must be an object of JSON, without comments", path, err)
	}
	return in, nil
}

// server is an MCP server as the program wants it.
type server struct {
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"` // of the transport of old
	HTTPURL string            `json:"httpUrl,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Trust   bool              `json:"trust,omitempty"` // its tools ask nobody
}

// servers are the MCP servers that the operator shares with the seat.
func servers(req sdk.LaunchRequest) (map[string]server, error) {
	shared, err := req.MCPServers(serverName)
	if err != nil {
		return nil, err
	}
	all := map[string]server{}
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		s, x := shared[name], sdk.Expander{Env: req.BaseEnv}
		to := server{Command: x.Text(s.Command), Args: x.Texts(s.Args), Env: x.Map(s.Env), Headers: x.Map(s.Headers)}
		if s.Type == "sse" {
			to.URL = x.Text(s.URL)
		} else {
			to.HTTPURL = x.Text(s.URL)
		}
		if err := x.Err(); err != nil {
			return nil, sdk.InvalidServer(name, err)
		}
		all[name] = to
	}
	return all, nil
}

// home is what a launch writes: the seat's configuration directory, and its MCP servers.
type home struct {
	req      sdk.LaunchRequest
	user     string // the user's configuration directory
	bridge   cmdline.Bridge
	settings map[string]any // the user's
	servers  map[string]server
}

func (h home) path(name ...string) string {
	return filepath.Join(append([]string{h.req.Dir}, name...)...)
}

// names are those of all MCP servers of the seat.
func (h home) names() []string { return slices.Sorted(maps.Keys(h.servers)) }

func (h home) furnish() error {
	// The bridge needs hooks. Where the user has turned all of them off, there are none but the bridge's.
	if off, ok := h.settings["disableAllHooks"]; ok && off != false {
		delete(h.settings, "hooks")
	}
	for _, name := range []string{"mcpServers", "mcp", "disableAllHooks"} {
		delete(h.settings, name)
	}
	h.set(false, "general", "enableAutoUpdate")        // a seat runs what was checked
	h.set(false, "security", "folderTrust", "enabled") // nobody would see the question
	h.set(false, "agents", "crossSessionMessaging")    // a seat is written to on the mesh
	for _, hook := range hooks {
		var flags []string
		if hook.deliver {
			flags = append(flags, cmdline.Deliver)
		}
		// In the place of its shell: its parent is the program then.
		command := map[string]any{"type": "command", "command": "exec " + cmdline.Shell(h.bridge.Hook(hook.name, flags...))}
		all := member(h.settings, "hooks")
		users, _ := all[hook.name].([]any)
		all[hook.name] = append(users, map[string]any{"hooks": []any{command}})
	}
	argv := h.bridge.MCP("--wake", "file", "--wake-file", h.path(inputFile))
	h.servers[serverName] = server{Command: argv[0], Args: argv[1:], Trust: true} // what it may do, its host decides
	if err := private.Dir(h.path(homeDir)); err != nil {
		return err
	}
	if err := private.WriteJSON(h.path(homeDir, settingsFile), h.settings); err != nil {
		return err
	}
	if err := private.WriteJSON(h.path(mcpFile), map[string]any{"mcpServers": h.servers}); err != nil {
		return err
	}
	for _, name := range links {
		from := filepath.Join(h.user, name)
		if _, err := os.Stat(from); err != nil {
			continue
		}
		to := []string{h.path(homeDir, name)}
		if name == loginFile {
			to = append(to, h.path(loginLink))
		}
		for _, to := range to {
			if err := os.Symlink(from, to); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("link %s: %w", name, err)
			}
		}
	}
	return nil
}

// set sets a member of a member of the settings.
func (h home) set(value any, path ...string) {
	in := h.settings
	for _, name := range path[:len(path)-1] {
		in = member(in, name)
	}
	in[path[len(path)-1]] = value
}

// member is an object within another one, made where there is none.
func member(in map[string]any, name string) map[string]any {
	m, ok := in[name].(map[string]any)
	if !ok {
		m = map[string]any{}
		in[name] = m
	}
	return m
}
