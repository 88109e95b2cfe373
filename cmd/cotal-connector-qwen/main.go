// Command cotal-connector-qwen is the plugin that runs Qwen Code.
package main

import (
	"github.com/cotal-ai/cotal-host/connectors/qwen"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() { sdk.ServeConnector(qwen.Info(), &qwen.Connector{}) }
