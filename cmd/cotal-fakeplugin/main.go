// Command cotal-fakeplugin is a plugin that is wrong in exactly one way, or honest. The tests of the
// conformance suite try every rule with it.
//
// Plugins get no environment of the host's, so the mode is the name it is started by:
//
//	ln -s cotal-fakeplugin cotal-fakeplugin--build-path-is-relative
//	cotal ext verify ./cotal-fakeplugin--build-path-is-relative
//	cotal-fakeplugin --modes        lists the modes, their kind, and the rules that each breaks
//
// As a runtime it is the pty runtime with a fault around it, so it wants that one's configuration.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/cotal-ai/cotal-host/sdk"
)

// separator stands between the name of the program and the mode.
const separator = "--"

// filterArg makes this program an agent's filter: it starts a copy of itself between the agent's output and
// the terminal, and becomes the agent.
const filterArg = "--filter"

func main() {
	if len(os.Args) > 2 && os.Args[1] == filterArg {
		filter(os.Args[2], os.Args[3:])
	}
	if len(os.Args) == 2 && os.Args[1] == "--modes" {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(modes); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	_, name, _ := strings.Cut(filepath.Base(os.Args[0]), separator)
	if name == "" {
		name = "honest-connector"
	}
	if servePresence(name) {
		return
	}
	for _, m := range modes {
		if m.Name == name {
			serve(m)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "cotal-fakeplugin has no mode %q; --modes lists them\n", name)
	os.Exit(2)
}

// hosted reports whether a host, or the suite, started this process.
func hosted() bool { return os.Getenv(sdk.Handshake().MagicCookieKey) != "" }

func serve(m mode) {
	describing := len(os.Args) == 2 && os.Args[1] == sdk.DescribeFlag
	info := sdk.Info{Name: "fake", Version: "0.1.0"}
	switch {
	case m.Name == "prints-before-the-handshake" && hosted():
		fmt.Println("hello")
	case m.Name == "does-not-start" && hosted():
		fmt.Fprintln(os.Stderr, "no")
		os.Exit(3)
	case m.Name == "describes-no-json" && describing:
		fmt.Println("fake 0.1.0")
		return
	case m.Name == "describes-something-else" && describing:
		info.Version = "0.2.0"
	case m.Name == "silent-by-hand" && !hosted() && !describing:
		return
	case m.Name == "ignores-its-lifeline" && hosted():
		r, w, err := os.Pipe() // a standard input that never ends
		if err != nil {
			panic(err)
		}
		if _, err := syscall.Dup(int(w.Fd())); err != nil { // a file would be closed when it is collected
			panic(err)
		}
		os.Stdin = r
	}
	var impl any
	if m.Kind == sdk.KindRuntime {
		info.Name = "pty" // the seats are that runtime's, and it takes no other's
		impl = newRuntime(m.Name)
	} else {
		impl = &connector{mode: m.Name}
		info = connectorInfo(info, m.Name)
	}
	if m.wire != nil && hosted() {
		serveWire(info, impl, m)
		return
	}
	if r, ok := impl.(*runtime); ok {
		sdk.ServeRuntime(info, r)
	}
	sdk.ServeConnector(info, impl.(sdk.Connector))
}

// noServices leaves the services to the server that serveWire makes.
type noServices struct{ plugin.NetRPCUnsupportedPlugin }

func (noServices) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (noServices) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

// serveWire serves below the sdk, for faults that the sdk does not let a plugin have.
func serveWire(info sdk.Info, impl any, m mode) {
	go func() { // the lifeline
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  sdk.Handshake(),
		VersionedPlugins: map[int]plugin.PluginSet{sdk.ProtocolVersion: {sdk.PluginName: noServices{}}},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			srv, _, err := sdk.NewServer(info, impl, append(opts, m.wire()...)...)
			if err != nil {
				panic(err)
			}
			return srv
		},
	})
}
