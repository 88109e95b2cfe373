package sdk

import (
	"errors"
	"os"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

// NewServer returns a gRPC server that serves impl, a Connector or a Runtime, with everything that
// ServeConnector and ServeRuntime put around it but the process: limits, deadlines, recovered panics, errors
// as statuses. It also returns info as Describe will answer it. A plugin has no use for it; sdk/plugintest
// serves implementations with it inside a test. opts come last, so they win over the defaults.
func NewServer(info Info, impl any, opts ...grpc.ServerOption) (*grpc.Server, Info, error) {
	switch impl.(type) {
	case Connector:
		info.Kind = KindConnector
		if info.Connector.ReadyBy == "" {
			info.Connector.ReadyBy = ReadyByProcess
		}
	case Runtime:
		info.Kind, info.Connector = KindRuntime, ConnectorFacts{}
	default:
		return nil, info, errors.New("the implementation is neither a Connector nor a Runtime")
	}
	info, err := complete(info, impl)
	if err != nil {
		return nil, info, err
	}
	g := newGuard(hclog.NewNullLogger(), os.Stderr)
	srv := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream),
	}, opts...)...)
	register(srv, info, impl)
	return srv, info, nil
}
