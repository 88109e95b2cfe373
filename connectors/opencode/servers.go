package opencode

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
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

// readServers are the MCP servers that the operator shares with the seat, as the program wants them. Variables are put
// in here: the program would put them into the text of its configuration, quotes and all.
func readServers(req sdk.LaunchRequest) (map[string]mcp, error) {
	shared, err := req.MCPServers(serverName)
	if err != nil || shared == nil {
		return nil, err
	}
	out := map[string]mcp{}
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		s, x := shared[name], sdk.Expander{Env: req.BaseEnv}
		if strings.HasPrefix(toolPrefix(name), toolPrefix(serverName)) {
			return nil, sdk.InvalidServer(name, fmt.Errorf("its tools would pass for those of the seat's own server %s, which are never asked for; give it another name", serverName))
		}
		server := mcp{Type: "local", Enabled: true, Timeout: mcpTimeoutMs, Environment: x.Map(s.Env)}
		if s.URL != "" {
			server.Type, server.URL, server.Headers = "remote", x.Text(s.URL), x.Map(s.Headers)
		} else {
			server.Command = x.Texts(append([]string{s.Command}, s.Args...))
		}
		if err := x.Err(); err != nil {
			return nil, sdk.InvalidServer(name, err)
		}
		out[name] = server
	}
	return out, nil
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
