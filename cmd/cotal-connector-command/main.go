// Command cotal-connector-command is the plugin that runs any program named by argv.
package main

import (
	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() { sdk.ServeConnector(command.Info(), &command.Connector{}) }
