// Command hello is the smallest connector there can be.
package main

import (
	"context"

	"github.com/cotal-ai/cotal-host/sdk"
)

type hello struct{ sdk.ConnectorDefaults }

func (hello) BuildLaunch(_ context.Context, r sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	return sdk.LaunchSpec{Path: "/bin/echo", Args: []string{"hello", r.Name}, Env: r.BaseEnv}, nil
}

func main() {
	sdk.ServeConnector(sdk.Info{Name: "hello", Version: "0.1.0"}, hello{})
}
