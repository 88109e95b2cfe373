// Command named is the connector for any program, under the name and the version that its file says:
// cotal-connector-NAME+VERSION.
package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() {
	info := command.Info()
	info.Name, info.Version, _ = strings.Cut(strings.TrimPrefix(filepath.Base(os.Args[0]), "cotal-connector-"), "+")
	sdk.ServeConnector(info, command.Connector{})
}
