package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// Version is the version of this package, told by Describe as sdkVersion.
const Version = "0.1.0"

// ProtocolVersion is the major version of the plugin contract. It changes only when the contract
// breaks; additions are announced as capabilities.
const ProtocolVersion = describe.ProtocolVersion

// PluginName is the name under which go-plugin dispenses the *Client of a connection.
const PluginName = "cotal"

// DescribeFlag makes a plugin binary print its Info as JSON and exit.
const DescribeFlag = describe.Flag

// Handshake is what tells a plugin that a host started it. It is no secret: it only keeps people
// from running a plugin by hand and waiting for something to happen.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		MagicCookieKey:   "COTAL_PLUGIN_COOKIE",
		MagicCookieValue: "b3d6f0a86e0f4a0d9f2f5c1d7e4b8a93",
	}
}

// HostPlugins is the plugin set of a host, by protocol version. Dispense(PluginName) of its
// connections returns a *Client.
func HostPlugins() map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{ProtocolVersion: {PluginName: &grpcPlugin{}}}
}

// grpcPlugin joins the services to go-plugin; impl is nil in a host.
type grpcPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	info Info
	impl any
}

func (p *grpcPlugin) GRPCServer(_ *plugin.GRPCBroker, srv *grpc.Server) error {
	register(srv, p.info, p.impl)
	return nil
}

func (p *grpcPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn), nil
}

// ServeConnector is the first statement of a connector's main. It returns, or ends the process,
// when the host asks for it, when the host is gone (end of standard input) or on SIGTERM.
//
// Standard output and standard input belong to the host. Log through hclog in JSON on standard
// error, or simply with fmt.Fprintln(os.Stderr, ...).
func ServeConnector(info Info, c Connector) {
	info.Kind = KindConnector
	if info.Connector.ReadyBy == "" {
		info.Connector.ReadyBy = ReadyByProcess
	}
	os.Exit(serve(info, c, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// ServeRuntime is the first statement of a runtime's main. Like ServeConnector; the capabilities
// CapWatch, CapList, CapWrite and CapSnapshot follow from the interfaces r implements.
func ServeRuntime(info Info, r Runtime) {
	info.Kind = KindRuntime
	info.Connector = ConnectorFacts{}
	os.Exit(serve(info, r, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

var nameRE = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// complete fills in what the implementation shows and refuses what it contradicts.
func complete(info Info, impl any) (Info, error) {
	info.SDKVersion, info.ProtocolMinor = Version, 0
	if impl == nil {
		return info, errors.New("there is no implementation to serve")
	}
	if !nameRE.MatchString(info.Name) {
		return info, fmt.Errorf("Info.Name %q: want %s", info.Name, nameRE)
	}
	if info.Version == "" {
		return info, errors.New("Info.Version is empty")
	}
	if info.Kind == KindConnector {
		if r := info.Connector.ReadyBy; r != ReadyByPresence && r != ReadyByProcess {
			return info, fmt.Errorf("Info.Connector.ReadyBy %q: want presence or process", r)
		}
	}
	_, watches := impl.(Watcher)
	_, lists := impl.(Lister)
	_, writes := impl.(Writer)
	_, snaps := impl.(Snapshotter)
	caps := append([]Capability(nil), info.Capabilities...)
	info.Capabilities = caps
	for _, c := range []struct {
		name Capability
		has  bool
		what string
	}{{CapWatch, watches, "Watcher"}, {CapList, lists, "Lister"}, {CapWrite, writes, "Writer"}, {CapSnapshot, snaps, "Snapshotter"}} {
		switch {
		case info.Has(c.name) && !c.has:
			return info, fmt.Errorf("Info.Capabilities names %q, but %T does not implement %s", c.name, impl, c.what)
		case c.has && !info.Has(c.name):
			info.Capabilities = append(info.Capabilities, c.name)
		}
	}
	return info, nil
}

// serve is ServeConnector and ServeRuntime without the process around it; it returns the exit
// status. Only the happy path takes over signals and standard streams.
func serve(info Info, impl any, args []string, stdin io.Reader, stdout, stderr *os.File) int {
	info, err := complete(info, impl)
	if err != nil {
		fmt.Fprintf(stderr, "%s: bug in this plugin: %v\n", filepath.Base(args[0]), err)
		return 1
	}
	if len(args) == 2 && args[1] == DescribeFlag {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(struct {
			Info
			Protocol int `json:"protocol"` // what the handshake would say, for who installs the plugin
		}{info, ProtocolVersion}); err != nil {
			fmt.Fprintf(stderr, "write description: %v\n", err)
			return 1
		}
		return 0
	}
	hs := Handshake()
	if os.Getenv(hs.MagicCookieKey) != hs.MagicCookieValue {
		fmt.Fprint(stderr, byHand(filepath.Base(args[0]), info))
		return 1
	}
	return serveHost(info, impl, stdin, stderr)
}

// byHand is what a person reads who starts a plugin from a shell.
func byHand(self string, info Info) string {
	return fmt.Sprintf(`%s is a plugin of cotal-host (%s %q, version %s); it does nothing on its own.

cotal-host loads it: add a [[plugin]] entry with name = %q, kind = %q and
command = %q to plugins.toml, then run "cotal-host serve".

To see what it offers: %s %s
`, self, info.Kind, info.Name, info.Version, info.Name, info.Kind, self, self, DescribeFlag)
}

// forgetHandshake removes what the host told this process alone, so that nothing the plugin starts
// takes itself for a plugin of that host.
func forgetHandshake() {
	for _, name := range []string{
		Handshake().MagicCookieKey, "PLUGIN_CLIENT_CERT", "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT",
	} {
		_ = os.Unsetenv(name)
	}
}

func serveHost(info Info, impl any, stdin io.Reader, stderr *os.File) int {
	// go-plugin replaces os.Stderr by a pipe into the connection; logs must not depend on that.
	log := hclog.New(&hclog.LoggerOptions{
		Name: info.Name, Level: hclog.Debug, Output: stderr, JSONFormat: true,
	})
	hclog.SetDefault(log)
	nameProcess(info)

	g := newGuard(log, stderr)
	life := newLifecycle(g, log)
	life.watchSignals()
	go life.watchLifeline(stdin)

	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake(),
		VersionedPlugins: map[int]plugin.PluginSet{
			ProtocolVersion: {PluginName: &grpcPlugin{info: info, impl: impl}},
		},
		// Its chatter is of no use; what stops it from serving is.
		Logger: hclog.New(&hclog.LoggerOptions{Name: info.Name, Level: hclog.Warn, Output: stderr, JSONFormat: true}),
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			opts = append(opts,
				grpc.MaxRecvMsgSize(MaxMessageBytes),
				grpc.MaxSendMsgSize(MaxMessageBytes),
				grpc.ChainUnaryInterceptor(g.unary),
				grpc.ChainStreamInterceptor(g.stream),
			)
			srv := grpc.NewServer(opts...)
			life.serving(srv)
			forgetHandshake()
			return srv
		},
	})
	if life.srv == nil {
		return 1 // the listener or the certificate could not be made; it is in the log
	}
	return 0
}
