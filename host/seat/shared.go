package seat

import (
	"encoding/json"
	"slices"

	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk"
)

// sharedAgain are the MCP servers of a process that follows another one: those that it was launched with, as far as
// the operator still shares them.
func (s *Set) sharedAgain(info sdk.Info, asked []string) (map[string]json.RawMessage, error) {
	settings, err := config.Load(s.cfg.Root)
	if err != nil {
		return nil, err
	}
	declared := settings.MCPServers[info.Name]
	if asked != nil {
		asked = slices.DeleteFunc(slices.Clone(asked), func(name string) bool { return declared[name] == nil })
	}
	return launch.Share(info, declared, asked)
}
