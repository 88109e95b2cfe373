package codex

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cotal-ai/cotal-host/sdk"
)

// sharedServers are the MCP servers that the operator shares with a seat, in the form of the program's configuration.
// The program knows no references in its configuration. A value that is one reference stays one: the program is told
// the name of the variable; elsewhere the value takes its place, in a file of the user alone.
//
// Errors: ErrInvalid (a file that nobody can read, a variable that is not there, a server that the program cannot
// reach).
func sharedServers(req sdk.LaunchRequest) (map[string]any, error) {
	shared, err := req.MCPServers(serverName)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		settings, err := serverSettings(shared[name], req.BaseEnv)
		if err != nil {
			return nil, sdk.InvalidServer(name, err)
		}
		out[name] = settings
	}
	return out, nil
}

func serverSettings(s sdk.MCPServer, env []string) (map[string]any, error) {
	x := sdk.Expander{Env: env}
	out := map[string]any{}
	switch {
	case s.URL != "" && (s.Type == "" || s.Type == "http" || s.Type == "streamable-http"):
		out["url"] = x.Text(s.URL)
		fixed, named := map[string]string{}, map[string]string{}
		for _, key := range slices.Sorted(maps.Keys(s.Headers)) {
			if ref := x.Only(s.Headers[key]); ref != "" {
				named[key] = ref
			} else {
				fixed[key] = x.Text(s.Headers[key])
			}
		}
		put(out, "http_headers", fixed)
		put(out, "env_http_headers", named)
	case s.Command != "" && s.URL == "":
		out["command"] = x.Text(s.Command)
		if args := x.Texts(s.Args); args != nil {
			out["args"] = args
		}
		fixed := map[string]string{}
		var names []string
		for _, key := range slices.Sorted(maps.Keys(s.Env)) {
			if x.Only(s.Env[key]) == key {
				names = append(names, key)
			} else {
				fixed[key] = x.Text(s.Env[key])
			}
		}
		put(out, "env", fixed)
		if names != nil {
			out["env_vars"] = names
		}
	default:
		return nil, fmt.Errorf("it has type %q, and Codex reaches a command, or a url of type http", s.Type)
	}
	return out, x.Err()
}

func put(out map[string]any, key string, m map[string]string) {
	if len(m) > 0 {
		out[key] = m
	}
}
