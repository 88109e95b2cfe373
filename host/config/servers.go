package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/BurntSushi/toml"
)

// servers checks [connectors.<name>.mcpServers.<server>]: by connector and name, each as JSON in the shape of an
// .mcp.json. What is not looked at here goes to the program as it stands.
func (in *file) servers() (map[string]map[string]json.RawMessage, error) {
	if len(in.Connectors) == 0 {
		return nil, nil
	}
	out := map[string]map[string]json.RawMessage{}
	for _, connector := range slices.Sorted(maps.Keys(in.Connectors)) {
		if !connectorName(connector) {
			return nil, fmt.Errorf("connectors.%s: %q is not the name of a connector", connector, connector)
		}
		all := map[string]json.RawMessage{}
		for _, name := range slices.Sorted(maps.Keys(in.Connectors[connector].MCPServers)) {
			raw, err := server(name, in.Connectors[connector].MCPServers[name])
			if err != nil {
				return nil, fmt.Errorf("connectors.%s.mcpServers.%s: %w", connector, name, err)
			}
			all[name] = raw
		}
		out[connector] = all
	}
	return out, nil
}

// ownServer is the name of the MCP server that a seat has of its own.
const ownServer = "cotal"

func server(name string, spec map[string]any) (json.RawMessage, error) {
	switch {
	case !serverName(name):
		return nil, fmt.Errorf("%q is not a name of letters, digits, - and _", name)
	case name == ownServer:
		return nil, fmt.Errorf("the name %q is taken: it is the seat's own", name)
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	var s struct {
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Env     map[string]string `json:"env"`
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("want the shape of an .mcp.json: %w", err)
	}
	switch {
	case (s.Command == "") == (s.URL == ""):
		return nil, fmt.Errorf("either command or url is needed")
	case s.Command == "" && (len(s.Args) > 0 || len(s.Env) > 0):
		return nil, fmt.Errorf("args and env go with command")
	case s.URL == "" && len(s.Headers) > 0:
		return nil, fmt.Errorf("headers go with url")
	}
	return raw, nil
}

func serverName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || i > 0 && (c == '-' || c == '_')) {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// ofServer reports whether a key is one of an MCP server, which may have more than is looked at.
func ofServer(key toml.Key) bool {
	return len(key) > 4 && key[0] == "connectors" && key[2] == "mcpServers"
}
