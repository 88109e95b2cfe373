package opencode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// serverName is the key of the seat's own MCP server: the program's names of its tools begin with it.
const serverName = "cotal"

// notInTools are the characters that the program replaces in the names of its tools.
var notInTools = regexp.MustCompile(`[^a-zA-Z0-9_-]`)

// toolPrefix is what the program's names of a server's tools begin with.
func toolPrefix(server string) string { return notInTools.ReplaceAllString(server, "_") + "_" }

// mcpTimeoutMs is how long the program waits for the tools of an MCP server. Its own 5 s are short on a machine that
// boots several programs at once, and a server that is late is left out for good.
const mcpTimeoutMs = 60_000

// mcp is an MCP server in the program's own configuration.
type mcp struct {
	Type        string            `json:"type"` // local, remote
	Command     []string          `json:"command,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	URL         string            `json:"url,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	Enabled     bool              `json:"enabled"`
	Timeout     int               `json:"timeout"`
}

// readServers reads the MCP servers that the operator shares with the seat and writes them as the program wants them.
// Variables are put in here: the program would put them into the text of its configuration, quotes and all.
func readServers(dir string, env []string) (map[string]mcp, error) {
	path := filepath.Join(dir, sdk.MCPServersFile)
	data, err := program.ReadFile(path, maxRead)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var in struct {
		Servers map[string]struct {
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
			URL     string            `json:"url"`
			Headers map[string]string `json:"headers"`
		} `json:"mcpServers"`
	}
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err != nil {
		return nil, sdk.Errorf(sdk.ErrInvalid, "read shared MCP servers %s: %v", path, err)
	}
	out := map[string]mcp{}
	for _, name := range slices.Sorted(maps.Keys(in.Servers)) {
		s, x := in.Servers[name], expander{env: env}
		server := mcp{Type: "local", Enabled: true, Timeout: mcpTimeoutMs, Environment: x.all(s.Env)}
		if s.URL != "" {
			server.Type, server.URL, server.Headers = "remote", x.text(s.URL), x.all(s.Headers)
		} else {
			for _, arg := range append([]string{s.Command}, s.Args...) {
				server.Command = append(server.Command, x.text(arg))
			}
		}
		switch {
		case name == serverName:
			err = fmt.Errorf("the name is the seat's own")
		case strings.HasPrefix(toolPrefix(name), toolPrefix(serverName)):
			err = fmt.Errorf("its tools would pass for those of the seat's own server %s, which are never asked for; give it another name", serverName)
		case s.URL == "" && s.Command == "":
			err = fmt.Errorf("it has neither a command nor a url")
		case len(x.missing) > 0:
			err = fmt.Errorf("the host has no variable %s, which it refers to; set it there, or write ${%s:-default}", strings.Join(x.missing, ", "), x.missing[0])
		}
		if err != nil {
			return nil, sdk.Errorf(sdk.ErrInvalid, "shared MCP server %q: %v", name, err)
		}
		out[name] = server
	}
	return out, nil
}

// reference is a reference to a variable: ${NAME} or ${NAME:-default}.
var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}`)

// expander puts variables in. An empty one is as good as none, as in a shell.
type expander struct {
	env     []string
	missing []string
}

func (x *expander) text(s string) string {
	return reference.ReplaceAllStringFunc(s, func(ref string) string {
		m := reference.FindStringSubmatch(ref)
		for _, kv := range x.env {
			if value, ok := strings.CutPrefix(kv, m[1]+"="); ok && value != "" {
				return value
			}
		}
		if m[2] == "" && !slices.Contains(x.missing, m[1]) {
			x.missing = append(x.missing, m[1])
		}
		return strings.TrimPrefix(m[2], ":-")
	})
}

func (x *expander) all(in map[string]string) map[string]string {
	out := maps.Clone(in)
	for k, v := range in {
		out[k] = x.text(v)
	}
	return out
}

// servers are the MCP servers of the seat: those that are shared with it, and its own.
func (l launch) servers() map[string]mcp {
	all := maps.Clone(l.shared)
	if l.member != "" {
		if all == nil {
			all = map[string]mcp{}
		}
		all[serverName] = mcp{Type: "local", Command: []string{l.member, "mcp", l.record()}, Enabled: true, Timeout: mcpTimeoutMs}
	}
	return all
}
