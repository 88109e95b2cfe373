package sdk

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/cotal-ai/cotal-host/sdk/internal/pb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// register adds the services of one plugin to a gRPC server. impl is a Connector or a Runtime.
func register(srv grpc.ServiceRegistrar, info Info, impl any) {
	base := &pluginServer{info: info, impl: impl}
	pb.RegisterPluginServiceServer(srv, base)
	switch v := impl.(type) {
	case Connector:
		pb.RegisterConnectorServiceServer(srv, &connectorServer{impl: v})
	case Runtime:
		pb.RegisterRuntimeServiceServer(srv, &runtimeServer{impl: v})
	}
}

type pluginServer struct {
	pb.UnimplementedPluginServiceServer
	info Info
	impl any

	mu         sync.Mutex
	configured bool
}

func (s *pluginServer) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return infoToPB(s.info), nil
}

func (s *pluginServer) Configure(ctx context.Context, p *pb.ConfigureRequest) (*pb.ConfigureResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := PluginConfig{
		Config: rawFromPB(p.GetConfigJson()), BundleDir: p.GetBundleDir(), StateDir: p.GetStateDir(),
		SeatRoot: p.GetSeatRoot(), SocketDir: p.GetSocketDir(),
	}
	c, ok := s.impl.(Configurer)
	if !ok {
		var table map[string]any
		if len(cfg.Config) > 0 {
			if err := json.Unmarshal(cfg.Config, &table); err != nil {
				return nil, Errorf(ErrInvalid, "the configuration is not a JSON object: %v", err)
			}
		}
		if len(table) > 0 {
			return nil, Errorf(ErrInvalid, "this plugin takes no configuration: remove its [plugin.config] table")
		}
		return &pb.ConfigureResponse{}, nil
	}
	if s.configured {
		return nil, Errorf(ErrInvalid, "the plugin is configured already: a new configuration needs a new process")
	}
	if err := c.Configure(ctx, cfg); err != nil {
		return nil, err
	}
	s.configured = true
	return &pb.ConfigureResponse{}, nil
}

type connectorServer struct {
	pb.UnimplementedConnectorServiceServer
	impl Connector
}

func (s *connectorServer) BuildLaunch(ctx context.Context, p *pb.BuildLaunchRequest) (*pb.BuildLaunchResponse, error) {
	req, err := launchRequestFromPB(p)
	if err != nil {
		return nil, err
	}
	spec, err := s.impl.BuildLaunch(ctx, req)
	if err != nil {
		return nil, err
	}
	return &pb.BuildLaunchResponse{Spec: specToPB(spec)}, nil
}

func (s *connectorServer) ListModels(ctx context.Context, p *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	c, err := s.impl.ListModels(ctx, ModelQuery{
		Refresh: p.GetRefresh(), BaseEnv: p.GetBaseEnv(), Binaries: p.GetBinaries(),
	})
	if err != nil {
		return nil, err
	}
	return catalogToPB(c), nil
}

// StreamModels is ListModels in messages below the limit. The catalogue is measured before the first one is
// sent: part of a catalogue is none.
func (s *connectorServer) StreamModels(p *pb.StreamModelsRequest, stream grpc.ServerStreamingServer[pb.StreamModelsResponse]) error {
	q := p.GetQuery()
	c, err := s.impl.ListModels(stream.Context(), ModelQuery{
		Refresh: q.GetRefresh(), BaseEnv: q.GetBaseEnv(), Binaries: q.GetBinaries(),
	})
	if err != nil {
		return err
	}
	all := catalogToPB(c)
	total := len(all.GetSource())
	for _, m := range all.GetModels() {
		n := modelSize(m)
		if n > MaxMessageBytes-listBatchBytes {
			return modelsTooLarge("the model %.80q has %d bytes, the limit of one is %d", m.GetId(), n, MaxMessageBytes-listBatchBytes)
		}
		total += n
	}
	if err := checkModels(len(all.GetModels()), total); err != nil {
		return err
	}
	batch, size := &pb.StreamModelsResponse{Source: all.GetSource()}, 0
	for _, m := range all.GetModels() {
		n := modelSize(m)
		if size > 0 && size+n > listBatchBytes {
			if err := stream.Send(batch); err != nil {
				return err
			}
			batch, size = &pb.StreamModelsResponse{}, 0
		}
		batch.Models = append(batch.Models, m)
		size += n
	}
	return stream.Send(batch) // also an empty catalogue: its source is known
}

// modelSize is what a model takes in a message, with its tag and length.
func modelSize(m *pb.Model) int { return proto.Size(m) + 8 }

// checkModels holds a catalogue to its limits, in the plugin and in the host.
func checkModels(count, size int) error {
	switch {
	case count > MaxModels:
		return modelsTooLarge("the catalogue has more than %d models", MaxModels)
	case size > MaxModelsBytes:
		return modelsTooLarge("the catalogue has more than %d bytes", MaxModelsBytes)
	}
	return nil
}

func modelsTooLarge(format string, args ...any) error {
	return &Error{Code: ErrTooLarge, Outcome: OutcomeExecuted, Detail: "ListModels: " + fmt.Sprintf(format, args...)}
}

func (s *connectorServer) ReapLeftovers(ctx context.Context, p *pb.ReapLeftoversRequest) (*pb.ReapLeftoversResponse, error) {
	req, err := leftoverFromPB(p)
	if err != nil {
		return nil, err
	}
	report, err := s.impl.Reap(ctx, req)
	if err != nil {
		return nil, err
	}
	return &pb.ReapLeftoversResponse{Report: reportToPB(report)}, nil
}

type runtimeServer struct {
	pb.UnimplementedRuntimeServiceServer
	impl Runtime
}

func (s *runtimeServer) Spawn(ctx context.Context, p *pb.SpawnRequest) (*pb.SpawnResponse, error) {
	h, err := s.impl.Spawn(ctx, SpawnRequest{
		SeatID: p.GetSeatId(), Nonce: p.GetNonce(), Fence: p.GetFence(), Owner: ownerFromPB(p.GetOwner()),
		Launch: specFromPB(p.GetLaunch()), Cwd: p.GetCwd(), Rows: u16(p.GetRows()), Cols: u16(p.GetCols()),
		StopGraceMs: int(p.GetStopGraceMs()), Form: rawFromPB(p.GetFormJson()),
	})
	if err != nil {
		return nil, err
	}
	if len(h.State) > MaxHandleState {
		return nil, &Error{
			Code: ErrInternal, Outcome: OutcomeExecuted,
			Detail: "the runtime made a handle whose state is above 16 KiB",
		}
	}
	return &pb.SpawnResponse{Handle: handleToPB(h)}, nil
}

func (s *runtimeServer) Adopt(ctx context.Context, p *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	st, err := s.impl.Adopt(ctx, AdoptRequest{
		SeatID: p.GetSeatId(), InstanceID: p.GetInstanceId(), Handle: handleFromPB(p.GetHandle()),
		Nonce: p.GetNonce(), Fence: p.GetFence(), Commit: p.GetCommit(),
	})
	if err != nil {
		return nil, err
	}
	return &pb.AdoptResponse{Status: statusToPB(st)}, nil
}

func (s *runtimeServer) Attach(ctx context.Context, p *pb.AttachRequest) (*pb.AttachResponse, error) {
	t, err := s.impl.Attach(ctx, AttachRequest{
		SeatID: p.GetSeatId(), InstanceID: p.GetInstanceId(), Handle: handleFromPB(p.GetHandle()),
	})
	if err != nil {
		return nil, err
	}
	out := &pb.AttachResponse{Argv: t.Argv}
	if t.Seat != nil {
		out.Seat = &pb.SeatEndpoint{Socket: t.Seat.Socket, Token: t.Seat.Token}
	}
	return out, nil
}

func (s *runtimeServer) Reap(ctx context.Context, p *pb.ReapRequest) (*pb.ReapResponse, error) {
	report, err := s.impl.Reap(ctx, StopRequest{
		SeatID: p.GetSeatId(), InstanceID: p.GetInstanceId(), Handle: handleFromPB(p.GetHandle()),
		Nonce: p.GetNonce(), Fence: p.GetFence(), Mode: stopModeFromPB(p.GetMode()), GraceMs: int(p.GetGraceMs()), Keep: p.GetKeep(),
	})
	if err != nil {
		return nil, err
	}
	return &pb.ReapResponse{Report: reportToPB(report)}, nil
}

func (s *runtimeServer) Write(ctx context.Context, p *pb.WriteRequest) (*pb.WriteResponse, error) {
	w, ok := s.impl.(Writer)
	switch {
	case !ok:
		return nil, Errorf(ErrUnsupported, "this runtime cannot type into seats; it gives a seat socket for that")
	case len(p.GetData()) > MaxWrite:
		return nil, Errorf(ErrTooLarge, "Write: %d bytes, the limit is %d", len(p.GetData()), MaxWrite)
	}
	n, err := w.Write(ctx, WriteRequest{
		SeatID: p.GetSeatId(), InstanceID: p.GetInstanceId(), Handle: handleFromPB(p.GetHandle()),
		Fence: p.GetFence(), Data: p.GetData(), Paste: p.GetPaste(),
	})
	if err != nil {
		return nil, err
	}
	return &pb.WriteResponse{Written: u32(n)}, nil
}

func (s *runtimeServer) Snapshot(ctx context.Context, p *pb.SnapshotRequest) (*pb.SnapshotResponse, error) {
	sn, ok := s.impl.(Snapshotter)
	if !ok {
		return nil, Errorf(ErrUnsupported, "this runtime keeps no screen of its seats")
	}
	snap, err := sn.Snapshot(ctx, SnapshotRequest{SeatID: p.GetSeatId(), InstanceID: p.GetInstanceId(), Handle: handleFromPB(p.GetHandle())})
	if err != nil {
		return nil, err
	}
	return &pb.SnapshotResponse{
		Offset: snap.Offset, Rows: uint32(snap.Rows), Cols: uint32(snap.Cols), Modes: snap.Modes, Data: snap.Data, Dirty: text(snap.Dirty),
	}, nil
}

func (s *runtimeServer) Watch(p *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.WatchResponse]) error {
	w, ok := s.impl.(Watcher)
	if !ok {
		return Errorf(ErrUnsupported, "this runtime cannot watch seats")
	}
	return w.Watch(stream.Context(), WatchRequest{
		SeatID: p.GetSeatId(), InstanceID: p.GetInstanceId(), Handle: handleFromPB(p.GetHandle()), Fence: p.GetFence(),
	}, func(st SeatStatus) error {
		return stream.Send(&pb.WatchResponse{Status: statusToPB(st)})
	})
}

func (s *runtimeServer) List(p *pb.ListRequest, stream grpc.ServerStreamingServer[pb.ListResponse]) error {
	l, ok := s.impl.(Lister)
	if !ok {
		return Errorf(ErrUnsupported, "this runtime cannot list seats")
	}
	seats, err := l.List(stream.Context(), ListRequest{InstanceID: p.GetInstanceId()})
	if err != nil {
		return err
	}
	batch, size := &pb.ListResponse{}, 0
	for _, seat := range seats {
		m := listingToPB(seat)
		n := proto.Size(m) + 8
		if n > MaxMessageBytes {
			// One absurd record must not hide the others.
			m = listingToPB(SeatListing{SeatID: seat.SeatID, Owner: seat.Owner, Ours: seat.Ours, Problem: "the record of this seat is above the message limit"})
			n = proto.Size(m) + 8
		}
		if size > 0 && size+n > listBatchBytes {
			if err := stream.Send(batch); err != nil {
				return err
			}
			batch, size = &pb.ListResponse{}, 0
		}
		batch.Seats = append(batch.Seats, m)
		size += n
	}
	if size > 0 {
		return stream.Send(batch)
	}
	return nil
}
