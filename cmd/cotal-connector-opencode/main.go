// Command cotal-connector-opencode is the plugin that runs OpenCode.
package main

import (
	"github.com/cotal-ai/cotal-host/connectors/opencode"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() { sdk.ServeConnector(opencode.Info(), &opencode.Connector{}) }
