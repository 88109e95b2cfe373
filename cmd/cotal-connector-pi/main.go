// Command cotal-connector-pi is the plugin that runs pi.
package main

import (
	"github.com/cotal-ai/cotal-host/connectors/pi"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() { sdk.ServeConnector(pi.Info(), &pi.Connector{}) }
