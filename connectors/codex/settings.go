package codex

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// serverName is how the program knows the bridge: its tools are mcp__cotal__cotal_send and so on.
const serverName = "cotal"

// Seconds that the program gives the bridge: to start, and for one call (cotal_spawn waits up to 45 s).
const (
	serverStartSeconds = 30
	serverCallSeconds  = 120
)

// taken are the members of the operator's own configuration that a seat has: which model, how it is reached, and
// how the screen looks. His MCP servers are shared with seats where the host is told to, and his hooks, plugins and notifications are not.
var taken = []string{
	"model", "model_provider", "model_providers", "model_reasoning_effort", "model_reasoning_summary", "model_verbosity",
	"model_context_window", "model_auto_compact_token_limit", "model_catalog_json", "review_model", "service_tier", "personality",
	"openai_base_url", "chatgpt_base_url", "forced_login_method", "forced_chatgpt_workspace_id", "cli_auth_credentials_store",
	"approval_policy", "sandbox_mode", "sandbox_workspace_write", "shell_environment_policy", "web_search",
	"developer_instructions", "disable_response_storage", "tui", "analytics", "feedback", "otel",
}

// settings is the configuration of a seat: the operator's, or the file of launchOptions.config as it stands, under
// what the launch says. It holds no secret that it was not given.
//
// Errors: ErrInvalid (it is no TOML, or not of the program's shape; the key of the provider is not in the environment).
func settings(req sdk.LaunchRequest, opt options, operator, seat string) ([]byte, error) {
	base, err := baseSettings(opt, operator)
	if err != nil {
		return nil, err
	}
	set := func(key, value string) {
		if value != "" {
			base[key] = value
		}
	}
	if err := checkKey(base, req.BaseEnv); err != nil {
		return nil, err
	}
	set("model", req.Model)
	set("model_reasoning_effort", req.Variant)
	switch opt.Permissions {
	case permissionsAsk:
		base["approval_policy"], base["sandbox_mode"] = "on-request", "workspace-write"
	case permissionsAllow:
		base["approval_policy"], base["sandbox_mode"] = "never", "danger-full-access"
	}
	own, _ := base["developer_instructions"].(string)
	set("developer_instructions", strings.TrimSpace(strings.TrimSpace(own)+"\n\n"+strings.TrimSpace(req.Persona)))
	base["check_for_update_on_startup"] = false // a seat runs what was checked
	servers, err := table(base, "mcp_servers")
	if err != nil {
		return nil, err
	}
	// The agent's own voice asks nobody, whatever the permissions are: what it may say and to whom is the mesh's to
	// decide.
	servers[serverName] = map[string]any{
		"command": seat, "args": []string{"mcp", req.Dir}, "env_vars": []string{"COTAL_SEAT_NONCE"},
		"startup_timeout_sec": serverStartSeconds, "tool_timeout_sec": serverCallSeconds, "default_tools_approval_mode": "approve",
	}
	given, err := sharedServers(req)
	if err != nil {
		return nil, err
	}
	maps.Copy(servers, given)
	projects, err := table(base, "projects")
	if err != nil {
		return nil, err
	}
	// Whoever starts a seat in a directory trusts it; the question would wait for nobody.
	projects[req.Cwd] = map[string]any{"trust_level": "trusted"}
	if real, err := filepath.EvalSymlinks(req.Cwd); err == nil { // a program that works in a directory knows it by this
		projects[real] = map[string]any{"trust_level": "trusted"}
	}
	var out bytes.Buffer
	err = encode(&out, base)
	return out.Bytes(), err
}

// checkKey refuses a provider whose key is in a variable that the seat does not get: the program says so at its first
// turn only.
func checkKey(base map[string]any, env []string) error {
	name, _ := base["model_provider"].(string)
	providers, _ := base["model_providers"].(map[string]any)
	provider, _ := providers[name].(map[string]any)
	key, _ := provider["env_key"].(string)
	if key == "" || sdk.Getenv(env, key) != "" {
		return nil
	}
	return sdk.Errorf(sdk.ErrInvalid, "the configuration of Codex has the key of its provider %s in %s (env_key), which a seat does not get: set it where the host is started, and name it in [spawn] env of .cotal/config.toml", name, key)
}

func encode(w io.Writer, settings map[string]any) error {
	enc := toml.NewEncoder(w)
	enc.Indent = ""
	if err := enc.Encode(settings); err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	return nil
}

// table returns a table of the configuration, made when it is not there.
func table(base map[string]any, key string) (map[string]any, error) {
	if base[key] == nil {
		base[key] = map[string]any{}
	}
	t, ok := base[key].(map[string]any)
	if !ok {
		return nil, sdk.Errorf(sdk.ErrInvalid, "%s in the configuration of Codex is no table", key)
	}
	return t, nil
}

func baseSettings(opt options, operator string) (map[string]any, error) {
	path := opt.Config
	if path == "" {
		if operator == "" {
			return map[string]any{}, nil
		}
		path = filepath.Join(operator, "config.toml")
	}
	data, err := program.ReadFile(path, maxRead)
	switch {
	case errors.Is(err, fs.ErrNotExist) && opt.Config == "":
		return map[string]any{}, nil
	case err != nil:
		return nil, sdk.Errorf(sdk.ErrInvalid, "read the configuration of Codex: %v", err)
	}
	all := map[string]any{}
	if _, err := toml.Decode(string(data), &all); err != nil {
		return nil, sdk.Errorf(sdk.ErrInvalid, "read the configuration of Codex %s: %v", path, err)
	}
	if opt.Config != "" {
		return all, nil
	}
	base := map[string]any{}
	for _, key := range taken {
		if v, ok := all[key]; ok {
			base[key] = v
		}
	}
	return base, nil
}
