// Command cotal-connector-claude is the plugin that runs Claude Code.
package main

import (
	"github.com/cotal-ai/cotal-host/connectors/claude"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() { sdk.ServeConnector(claude.Info(), &claude.Connector{}) }
