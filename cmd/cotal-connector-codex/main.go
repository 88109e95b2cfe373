// Command cotal-connector-codex is the plugin that runs Codex.
package main

import (
	"github.com/cotal-ai/cotal-host/connectors/codex"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() { sdk.ServeConnector(codex.Info(), &codex.Connector{}) }
