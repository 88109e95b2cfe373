package opencode

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk"
)

// agentName is the agent that carries a pinned model: a model set at the top of the configuration loses
// against one the user pinned for the default agent, and a variant counts only beside its model.
const agentName = "cotal"

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

// asks is what permissions=ask sets: everything that changes something or leaves the directory. What it
// does not name, reading above all, follows the user's configuration. The mesh is never asked for: whoever writes to
// the agent would wait for its person.
type asks struct {
	Bash      string `json:"bash"`
	Edit      string `json:"edit"`
	External  string `json:"external_directory"`
	WebFetch  string `json:"webfetch"`
	WebSearch string `json:"websearch"`
	Mesh      string `json:"cotal_*,omitempty"`
}

func (l launch) settings() settings {
	s := settings{Schema: "https://opencode.ai/config.json"}
	switch l.opt.Permissions {
	case permissionAsk:
		ask := asks{Bash: permissionAsk, Edit: permissionAsk, External: permissionAsk, WebFetch: permissionAsk, WebSearch: permissionAsk}
		if l.member != "" {
			ask.Mesh = permissionAllow
		}
		s.Permission = ask
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
	env := sdk.SetEnv(l.req.BaseEnv, "COTAL_SPACE="+l.req.Space, "COTAL_NAME="+l.req.Name)
	if l.req.Role != "" {
		env = sdk.SetEnv(env, "COTAL_ROLE="+l.req.Role)
	}
	if l.opt.Home != "" {
		env = sdk.SetEnv(env,
			"HOME="+l.opt.Home,
			"XDG_CONFIG_HOME="+filepath.Join(l.opt.Home, ".config"),
			"XDG_DATA_HOME="+filepath.Join(l.opt.Home, ".local", "share"),
			"XDG_STATE_HOME="+filepath.Join(l.opt.Home, ".local", "state"),
			"XDG_CACHE_HOME="+filepath.Join(l.opt.Home, ".cache"),
		)
	}
	if l.opt.Config != "" {
		env = sdk.SetEnv(env, "OPENCODE_CONFIG="+l.opt.Config)
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
