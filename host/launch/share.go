package launch

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Share picks which of the MCP servers that the operator declared for a connector a seat gets: those that were asked
// for, and all of them where nothing was said (asked is nil). None is the zero map. Every error is a *Refusal.
func Share(info sdk.Info, declared map[string]json.RawMessage, asked []string) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	if asked == nil {
		maps.Copy(out, declared)
	}
	for _, name := range asked {
		server, ok := declared[name]
		switch {
		case !ok && len(declared) == 0:
			return nil, precondition("shareTools: %q is not declared: the operator of this host shares no MCP servers with seats of connector %s; leave shareTools out", name, info.Name)
		case !ok:
			return nil, precondition("shareTools: %q is not declared: the operator of this host shares %s with seats of connector %s", name, strings.Join(slices.Sorted(maps.Keys(declared)), ", "), info.Name)
		}
		out[name] = server
	}
	if len(out) > 0 && !info.Has(sdk.CapMCPServers) {
		return nil, precondition("shareTools: connector %s gives its program no MCP servers; take [connectors.%s.mcpServers] out of config.toml, or share none (--share-tools none)", info.Name, info.Name)
	}
	return out, nil
}

// variable is a reference to a variable in the text of a server: ${NAME} or ${NAME:-default}.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}`)

// VariablesOf names the variables that servers refer to, sorted: a seat that gets the servers gets them too.
func VariablesOf(servers map[string]json.RawMessage) []string {
	var names []string
	for _, raw := range servers {
		var s struct {
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
			URL     string            `json:"url"`
			Headers map[string]string `json:"headers"`
		}
		if json.Unmarshal(raw, &s) != nil {
			continue // it was read from a configuration that was checked
		}
		texts := append([]string{s.Command, s.URL}, s.Args...)
		texts = slices.AppendSeq(texts, maps.Values(s.Env))
		texts = slices.AppendSeq(texts, maps.Values(s.Headers))
		for _, text := range texts {
			for _, m := range variable.FindAllStringSubmatch(text, -1) {
				names = append(names, m[1])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// WriteShared writes the servers of a seat into dir (0700, gone with the seat), for its connector. None is no file.
func WriteShared(dir string, servers map[string]json.RawMessage) error {
	path := filepath.Join(dir, sdk.MCPServersFile)
	if len(servers) == 0 {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) { // of a launch that was interrupted
			return fmt.Errorf("write shared MCP servers: %w", err)
		}
		return nil
	}
	body, err := json.MarshalIndent(map[string]any{"mcpServers": servers}, "", "  ")
	if err != nil {
		return fmt.Errorf("write shared MCP servers: %w", err)
	}
	if err := writePrivate(path, append(body, '\n')); err != nil {
		return fmt.Errorf("write shared MCP servers: %w", err)
	}
	return nil
}
