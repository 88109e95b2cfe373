package sdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/internal/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// catalogue has n models of about size bytes each.
func catalogue(n, size int) ModelCatalog {
	c := ModelCatalog{Source: "made up"}
	for i := range n {
		c.Models = append(c.Models, Model{ID: fmt.Sprintf("p/%07d", i), Name: strings.Repeat("n", size)})
	}
	return c
}

func TestFieldA15_CataloguesAboveTheMessageLimitAreStreamed(t *testing.T) {
	const mib = 1 << 20
	cases := []struct {
		name string
		make func() ModelCatalog
		want string // of the refusal; empty: all of it arrives
	}{
		{"an empty one keeps its source", func() ModelCatalog { return ModelCatalog{Source: "nowhere"} }, ""},
		{"3.9 MiB", func() ModelCatalog { return catalogue(1000, 39*mib/10/1000) }, ""},
		{"4.1 MiB", func() ModelCatalog { return catalogue(1000, 41*mib/10/1000) }, ""},
		{"just below the limit of all", func() ModelCatalog { return catalogue(1000, 31*mib/1000) }, ""},
		{"64 MiB", func() ModelCatalog { return catalogue(1000, 64*mib/1000) }, "33554432 bytes"},
		{"the most models there may be", func() ModelCatalog { return catalogue(MaxModels, 10) }, ""},
		{"one model more", func() ModelCatalog { return catalogue(MaxModels+1, 10) }, "200000 models"},
		{"one model above the limit of a message", func() ModelCatalog { return catalogue(1, 5*mib) }, `"p/0000000"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := c.make()
			client, _, _ := connect(t, &fake{models: func(context.Context, ModelQuery) (ModelCatalog, error) { return want, nil }})
			got, err := client.Connector().ListModels(context.Background(), ModelQuery{})
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				same(t, "ModelCatalog", got, want)
				return
			}
			if !errors.Is(err, ErrTooLarge) || OutcomeOf(err) != OutcomeExecuted || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrTooLarge with %q", err, c.want)
			}
			if _, err := client.Describe(context.Background()); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// oldConnector is a plugin built before there was a stream of models, or one that misbehaves in it.
type oldConnector struct {
	pb.UnimplementedConnectorServiceServer
	stream func(grpc.ServerStreamingServer[pb.StreamModelsResponse]) error
	calls  int
}

func (o *oldConnector) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	o.calls++
	return &pb.ListModelsResponse{Source: "old", Models: []*pb.Model{{Id: "a/b"}}}, nil
}

func (o *oldConnector) StreamModels(r *pb.StreamModelsRequest, s grpc.ServerStreamingServer[pb.StreamModelsResponse]) error {
	if o.stream == nil {
		return o.UnimplementedConnectorServiceServer.StreamModels(r, s)
	}
	return o.stream(s)
}

func TestModelsOfPluginsThatDoOtherwise(t *testing.T) {
	big := make([]*pb.Model, 1000)
	for i := range big {
		big[i] = &pb.Model{Id: "x", Name: strings.Repeat("n", 1000)}
	}
	cases := []struct {
		name   string
		stream func(grpc.ServerStreamingServer[pb.StreamModelsResponse]) error
		check  func(ModelCatalog, error) bool
		calls  int
	}{
		{"one that knows no stream is asked for all at once", nil, func(c ModelCatalog, err error) bool {
			return err == nil && c.Source == "old" && len(c.Models) == 1
		}, 1},
		{"one that refuses in words is not asked again", func(grpc.ServerStreamingServer[pb.StreamModelsResponse]) error {
			return toStatus(Errorf(ErrUnsupported, "no catalogue"))
		}, func(_ ModelCatalog, err error) bool { return errors.Is(err, ErrUnsupported) }, 0},
		{"half a catalogue is none", func(s grpc.ServerStreamingServer[pb.StreamModelsResponse]) error {
			_ = s.Send(&pb.StreamModelsResponse{Models: []*pb.Model{{Id: "a/b"}}})
			return status.Error(codes.Unavailable, "dying")
		}, func(c ModelCatalog, err error) bool { return errors.Is(err, ErrPluginDown) && len(c.Models) == 0 }, 0},
		{"one that never ends is cut at the limit", func(s grpc.ServerStreamingServer[pb.StreamModelsResponse]) error {
			for {
				if err := s.Send(&pb.StreamModelsResponse{Models: big}); err != nil {
					return err
				}
			}
		}, func(_ ModelCatalog, err error) bool { return errors.Is(err, ErrTooLarge) }, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			old := &oldConnector{stream: c.stream}
			srv := grpc.NewServer()
			pb.RegisterConnectorServiceServer(srv, old)
			lis := bufconn.Listen(1 << 20)
			go func() { _ = srv.Serve(lis) }()
			conn, err := grpc.NewClient("passthrough:x",
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(); srv.Stop() })
			got, err := NewClient(conn).Connector().ListModels(context.Background(), ModelQuery{})
			if !c.check(got, err) || old.calls != c.calls {
				t.Errorf("%+v, %v, %d unary calls", got, err, old.calls)
			}
		})
	}
}
