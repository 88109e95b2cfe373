package opencode

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk"
)

// agentName is the agent that carries a pinned model: a model set at the top of the configuration loses
// against one the user pinned for the default agent, and a variant counts only beside its model.
const agentName = "cotal"

// Variables of the program: where more of the user's configuration is.
const (
	configEnv    = "OPENCODE_CONFIG"
	configDirEnv = "OPENCODE_CONFIG_DIR"
)

// settings is the part of OpenCode's configuration that a seat sets. It travels in
// OPENCODE_CONFIG_CONTENT, the highest layer of the merge, so no file of the user's is touched; the
// instructions are added to the user's own. It holds no secret but what a shared MCP server is given.
type settings struct {
	Schema       string           `json:"$schema"`
	Permission   any              `json:"permission,omitempty"`
	Instructions []string         `json:"instructions,omitempty"`
	Agent        map[string]agent `json:"agent,omitempty"`
	DefaultAgent string           `json:"default_agent,omitempty"`
	MCP          map[string]mcp   `json:"mcp,omitempty"`
}

type agent struct {
	Mode    string `json:"mode"`
	Model   string `json:"model"`
	Variant string `json:"variant,omitempty"`
}

// rule is what a tool, or what the tools of a pattern, may do.
type rule struct{ tool, action string }

// rules is an object of the configuration in the order of its members: of those that match, the program follows the last.
type rules []rule

// MarshalJSON keeps the order.
func (r rules) MarshalJSON() ([]byte, error) {
	m := []byte{'{'}
	for i, one := range r {
		if i > 0 {
			m = append(m, ',')
		}
		m = append(m, strconv.Quote(one.tool)+":"+strconv.Quote(one.action)...) // ASCII without control characters
	}
	return append(m, '}'), nil
}

// asks is what permissions=ask sets: everything that changes something or leaves the directory, and the tools of the
// servers that are shared with the seat. What it does not name, reading above all, follows the user's configuration. The
// mesh is never asked for: whoever writes to the agent would wait for its person.
func (l launch) asks() rules {
	r := rules{
		{"bash", permissionAsk},
		{"edit", permissionAsk},
		{"external_directory", permissionAsk},
		{"webfetch", permissionAsk},
		{"websearch", permissionAsk},
	}
	for _, name := range slices.Sorted(maps.Keys(l.shared)) {
		r = append(r, rule{toolPrefix(name) + "*", permissionAsk})
	}
	if l.member != "" {
		r = append(r, rule{toolPrefix(serverName) + "*", permissionAllow})
	}
	return r
}

func (l launch) settings() settings {
	s := settings{Schema: "https://opencode.ai/config.json"}
	switch l.opt.Permissions {
	case permissionAsk:
		s.Permission = l.asks()
	case permissionAllow:
		s.Permission = "allow"
	}
	if l.persona != "" {
		s.Instructions = []string{filepath.Join(l.req.Dir, personaFile)}
	}
	s.MCP = l.servers()
	// A session that is forked keeps its agent; there the prompt carries the model.
	if l.req.Model != "" && l.req.Resume == "" {
		s.Agent = map[string]agent{agentName: {Mode: "primary", Model: l.req.Model, Variant: l.req.Variant}}
		s.DefaultAgent = agentName
	}
	return s
}

// environment is the complete environment of the seat.
//
// The password of the HTTP API stands in it, not in argv: the environment of a process is readable by its
// own user alone, who could read the agent's memory as well, while argv is readable by everybody. The
// agent's own tools inherit it, which gives them nothing that a process of that user does not have.
func (l launch) environment() ([]string, error) {
	content, err := json.Marshal(l.settings())
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	env := l.req.Environment()
	if l.opt.Home != "" {
		env = sdk.SetEnv(env,
			"HOME="+l.opt.Home,
			"XDG_CONFIG_HOME="+filepath.Join(l.opt.Home, ".config"),
			"XDG_DATA_HOME="+filepath.Join(l.opt.Home, ".local", "share"),
			"XDG_STATE_HOME="+filepath.Join(l.opt.Home, ".local", "state"),
			"XDG_CACHE_HOME="+filepath.Join(l.opt.Home, ".cache"),
		)
		env = sdk.UnsetEnv(env, configEnv, configDirEnv) // those of another home
	}
	if l.opt.Config != "" {
		env = sdk.SetEnv(env, configEnv+"="+l.opt.Config)
	}
	return sdk.SetEnv(env,
		"OPENCODE_CONFIG_CONTENT="+string(content),
		"OPENCODE_SERVER_USERNAME="+api.User,
		"OPENCODE_SERVER_PASSWORD="+l.secret,
		"OPENCODE_DISABLE_AUTOUPDATE=1", // a seat runs what was checked
		// The program unpacks 19 MB of libraries at every start and leaves them behind; here they go
		// with the seat instead of filling the system's temporary directory.
		"BUN_TMPDIR="+filepath.Join(l.req.Dir, tmpDir),
	), nil
}
