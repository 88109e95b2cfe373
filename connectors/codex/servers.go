package codex

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// shared is one of the operator's MCP servers, in the form of an .mcp.json.
type shared struct {
	Type    string            `json:"type"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// variable is a reference to a variable: ${NAME} or ${NAME:-default}.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}`)

// sharedServers reads the MCP servers that the operator shares with a seat, in the form of the program's
// configuration. The program knows no references in its configuration. A value that is one reference stays one: the
// program is told the name of the variable; elsewhere the value takes its place, in a file of the user alone.
//
// Errors: ErrInvalid (a file that nobody can read, a variable that is not there, a server that the program cannot
// reach).
func sharedServers(dir string, env []string) (map[string]any, error) {
	data, err := program.ReadFile(filepath.Join(dir, sdk.MCPServersFile), maxRead)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var in struct {
		Servers map[string]shared `json:"mcpServers"`
	}
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err != nil {
		return nil, sdk.Errorf(sdk.ErrInvalid, "read the MCP servers that this host shares: %v", err)
	}
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(in.Servers)) {
		if out[name], err = in.Servers[name].settings(name, env); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s shared) settings(name string, env []string) (map[string]any, error) {
	var err error
	value := func(text string) string {
		v, e := expand(text, env)
		if e != nil && err == nil {
			err = sdk.Errorf(sdk.ErrInvalid, "MCP server %s: %v", name, e)
		}
		return v
	}
	out := map[string]any{}
	switch {
	case s.URL != "" && (s.Type == "" || s.Type == "http" || s.Type == "streamable-http"):
		out["url"] = value(s.URL)
		fixed, named := map[string]string{}, map[string]string{}
		for key, text := range s.Headers {
			if ref := onlyReference(text, env); ref != "" {
				named[key] = ref
			} else {
				fixed[key] = value(text)
			}
		}
		put(out, "http_headers", fixed)
		put(out, "env_http_headers", named)
	case s.Command != "" && s.URL == "":
		out["command"] = value(s.Command)
		var args, names []string
		for _, a := range s.Args {
			args = append(args, value(a))
		}
		if args != nil {
			out["args"] = args
		}
		fixed := map[string]string{}
		for key, text := range s.Env {
			if onlyReference(text, env) == key {
				names = append(names, key)
			} else {
				fixed[key] = value(text)
			}
		}
		put(out, "env", fixed)
		if slices.Sort(names); names != nil {
			out["env_vars"] = names
		}
	default:
		return nil, sdk.Errorf(sdk.ErrInvalid, "MCP server %s: Codex reaches a command, or a url of type http; this has type %q", name, s.Type)
	}
	return out, err
}

func put(out map[string]any, key string, m map[string]string) {
	if len(m) > 0 {
		out[key] = m
	}
}

// onlyReference names the variable that a text refers to and has nothing beside; "" when it is none, or not set.
func onlyReference(text string, env []string) string {
	m := variable.FindStringSubmatch(text)
	if m == nil || m[0] != text || sdk.Getenv(env, m[1]) == "" {
		return ""
	}
	return m[1]
}

// expand puts variables in place of references to them.
func expand(text string, env []string) (string, error) {
	var err error
	out := variable.ReplaceAllStringFunc(text, func(ref string) string {
		m := variable.FindStringSubmatch(ref)
		if v := sdk.Getenv(env, m[1]); v != "" {
			return v
		}
		if !strings.Contains(ref, ":-") {
			err = errors.New(m[1] + " is not set where the host was started; set it, or give a default: ${" + m[1] + ":-…}")
		}
		return m[2]
	})
	return out, err
}
