package seat

import (
	"encoding/json"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk"
)

// sharedAgain are the MCP servers of a process that follows another one: those that were asked for, as far as the
// operator still shares them; where nothing was said (asked is nil), all that he shares now. A configuration that
// cannot be read while somebody edits it ends no seat: those of the first process stay, when it is known (kept).
func (s *Set) sharedAgain(log hclog.Logger, info sdk.Info, asked []string, kept *plan) (map[string]json.RawMessage, error) {
	settings, err := config.Load(s.cfg.Root)
	if err != nil && kept != nil {
		log.Warn("shared MCP servers cannot be read anew: the seat keeps those of its first process", "err", err)
		return kept.servers, nil
	}
	if err != nil {
		return nil, err
	}
	declared := settings.MCPServers[info.Name]
	if asked != nil {
		asked = slices.DeleteFunc(slices.Clone(asked), func(name string) bool { return declared[name] == nil })
	}
	return launch.Share(info, declared, asked)
}
