package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/internal/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Client is the host's side of one plugin connection. Authors of plugins do not need it.
//
// Every error of its methods is a *Error, or wraps context.DeadlineExceeded or context.Canceled. A
// connection that ended gives ErrPluginDown with OutcomeUnknown. A call whose context has no
// deadline gets one: 60 s, and 5 minutes for Reap.
type Client struct {
	base      pb.PluginServiceClient
	connector pb.ConnectorServiceClient
	runtime   pb.RuntimeServiceClient
}

// NewClient wraps an established connection. The connection stays the caller's.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{
		base:      pb.NewPluginServiceClient(conn),
		connector: pb.NewConnectorServiceClient(conn),
		runtime:   pb.NewRuntimeServiceClient(conn),
	}
}

// Describe asks the plugin what it is. Errors: ErrInvalid when it wants more minted than can be (MintCounts).
func (c *Client) Describe(ctx context.Context) (Info, error) {
	p, err := unary(ctx, "Describe", defaultDeadline, &pb.DescribeRequest{}, c.base.Describe)
	if err != nil {
		return Info{}, err
	}
	info := infoFromPB(p)
	return info, info.Connector.Mints.Check()
}

// Configure hands the plugin its configuration. Errors: ErrInvalid, naming the key.
func (c *Client) Configure(ctx context.Context, cfg PluginConfig) error {
	_, err := unary(ctx, "Configure", defaultDeadline, &pb.ConfigureRequest{
		ConfigJson: cfg.Config, BundleDir: cfg.BundleDir, StateDir: cfg.StateDir,
		SeatRoot: cfg.SeatRoot, SocketDir: cfg.SocketDir,
	}, c.base.Configure)
	return err
}

// Connector returns the connector at the other end. Whether there is one is what Describe says.
func (c *Client) Connector() Connector { return &connectorClient{rpc: c.connector} }

// RuntimeClient is what a runtime can do, optional abilities included. Without the capability they
// answer ErrUnsupported.
type RuntimeClient interface {
	Runtime
	Watcher
	Lister
	Writer
	Snapshotter
}

// Runtime returns the runtime at the other end. Whether there is one, and which of its optional
// abilities it has, is what Describe says.
func (c *Client) Runtime() RuntimeClient { return &runtimeClient{rpc: c.runtime} }

// unary makes one call: deadline, size check, error conversion.
func unary[Req proto.Message, Resp any](ctx context.Context, method string, deadline time.Duration, req Req,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error),
) (Resp, error) {
	var none Resp
	if n := proto.Size(req); n > MaxMessageBytes {
		return none, Errorf(ErrTooLarge, "%s: the request has %d bytes, the limit is %d", method, n, MaxMessageBytes)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	resp, err := call(ctx, req, grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes))
	if err != nil {
		if field := notText(req.ProtoReflect()); field != "" {
			return none, Errorf(ErrInvalid, "%s: %s is not UTF-8 text", method, field) // never sent
		}
		return none, fromStatus(ctx, method, err)
	}
	return resp, nil
}

// notText names a field of m that cannot be sent because it is no UTF-8, or "". The encoder refuses
// such a message without saying where.
func notText(m protoreflect.Message) (field string) {
	bad := func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch fd.Kind() {
		case protoreflect.StringKind:
			if !utf8.ValidString(v.String()) {
				field = fd.JSONName()
			}
		case protoreflect.MessageKind:
			if inner := notText(v.Message()); inner != "" {
				field = fd.JSONName() + "." + inner
			}
		}
		return field != ""
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				return !bad(fd.MapKey(), k.Value()) && !bad(fd.MapValue(), v)
			})
			if field != "" {
				field = fd.JSONName() + "." + field
			}
		case fd.IsList():
			for i := range v.List().Len() {
				if bad(fd, v.List().Get(i)) {
					break
				}
			}
		default:
			bad(fd, v)
		}
		return field == ""
	})
	return field
}

type connectorClient struct{ rpc pb.ConnectorServiceClient }

func (c *connectorClient) BuildLaunch(ctx context.Context, req LaunchRequest) (LaunchSpec, error) {
	p, err := launchRequestToPB(req)
	if err != nil {
		return LaunchSpec{}, err
	}
	resp, err := unary(ctx, "BuildLaunch", defaultDeadline, p, c.rpc.BuildLaunch)
	if err != nil {
		return LaunchSpec{}, err
	}
	return specFromPB(resp.GetSpec()), nil
}

// ListModels reads the stream of the catalogue. Errors beside those of the connector: ErrTooLarge (above
// MaxModels or MaxModelsBytes). A plugin that was built before there was a stream is asked for all at once.
func (c *connectorClient) ListModels(ctx context.Context, q ModelQuery) (ModelCatalog, error) {
	req := &pb.ListModelsRequest{Refresh: q.Refresh, BaseEnv: q.BaseEnv, Binaries: q.Binaries}
	streamed := &pb.StreamModelsRequest{Query: req}
	if n := proto.Size(streamed); n > MaxMessageBytes {
		return ModelCatalog{}, Errorf(ErrTooLarge, "ListModels: the request has %d bytes, the limit is %d", n, MaxMessageBytes)
	}
	var cancel context.CancelFunc
	if _, ok := ctx.Deadline(); ok {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithTimeout(ctx, defaultDeadline)
	}
	defer cancel() // ends the stream when it is given up in the middle
	stream, err := c.rpc.StreamModels(ctx, streamed, grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes))
	if err != nil {
		if field := notText(streamed.ProtoReflect()); field != "" {
			return ModelCatalog{}, Errorf(ErrInvalid, "ListModels: %s is not UTF-8 text", field) // never sent
		}
		return ModelCatalog{}, fromStatus(ctx, "ListModels", err)
	}
	all, size := &pb.ListModelsResponse{}, 0
	for first := true; ; first = false {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return catalogFromPB(all), nil
		case err != nil && first && unknownMethod(err):
			return c.listModels(ctx, req)
		case err != nil:
			// Part of a catalogue is none: what is missing would be taken for unsupported.
			return ModelCatalog{}, fromStatus(ctx, "ListModels", err)
		}
		if first {
			all.Source = m.GetSource()
			size += len(all.Source)
		}
		all.Models = append(all.Models, m.GetModels()...)
		for _, model := range m.GetModels() {
			size += modelSize(model)
		}
		if err := checkModels(len(all.Models), size); err != nil {
			return ModelCatalog{}, err
		}
	}
}

// unknownMethod reports whether the peer has no such method, which is not the same as a refusal by one.
func unknownMethod(err error) bool {
	st, ok := status.FromError(err)
	return ok && st.Code() == codes.Unimplemented && len(st.Details()) == 0
}

func (c *connectorClient) listModels(ctx context.Context, req *pb.ListModelsRequest) (ModelCatalog, error) {
	resp, err := unary(ctx, "ListModels", defaultDeadline, req, c.rpc.ListModels)
	if err != nil {
		return ModelCatalog{}, err
	}
	return catalogFromPB(resp), nil
}

func (c *connectorClient) Reap(ctx context.Context, req LeftoverRequest) (ReapReport, error) {
	p, err := leftoverToPB(req)
	if err != nil {
		return ReapReport{}, err
	}
	resp, err := unary(ctx, "Reap", defaultReapDeadline, p, c.rpc.ReapLeftovers)
	if err != nil {
		return ReapReport{}, err
	}
	return reportFromPB(resp.GetReport())
}

type runtimeClient struct{ rpc pb.RuntimeServiceClient }

func (c *runtimeClient) Spawn(ctx context.Context, req SpawnRequest) (Handle, error) {
	resp, err := unary(ctx, "Spawn", defaultDeadline, &pb.SpawnRequest{
		SeatId: req.SeatID, Nonce: req.Nonce, Fence: req.Fence, Owner: ownerToPB(req.Owner),
		Launch: specToPB(req.Launch), Cwd: req.Cwd, Rows: uint32(req.Rows), Cols: uint32(req.Cols),
		StopGraceMs: u32(req.StopGraceMs), FormJson: req.Form,
	}, c.rpc.Spawn)
	if err != nil {
		return Handle{}, err
	}
	h := handleFromPB(resp.GetHandle())
	if why := handleProblem(h); why != "" {
		return Handle{}, &Error{Code: ErrTooLarge, Outcome: OutcomeExecuted, Detail: "Spawn: " + why}
	}
	return h, nil
}

func (c *runtimeClient) Adopt(ctx context.Context, req AdoptRequest) (SeatStatus, error) {
	resp, err := unary(ctx, "Adopt", defaultDeadline, &pb.AdoptRequest{
		SeatId: req.SeatID, InstanceId: req.InstanceID, Handle: handleToPB(req.Handle),
		Nonce: req.Nonce, Fence: req.Fence, Commit: req.Commit,
	}, c.rpc.Adopt)
	if err != nil {
		return SeatStatus{}, err
	}
	return statusFromPB(req.SeatID, resp.GetStatus()), nil
}

func (c *runtimeClient) Attach(ctx context.Context, req AttachRequest) (AttachTarget, error) {
	resp, err := unary(ctx, "Attach", defaultDeadline, &pb.AttachRequest{
		SeatId: req.SeatID, InstanceId: req.InstanceID, Handle: handleToPB(req.Handle),
	}, c.rpc.Attach)
	if err != nil {
		return AttachTarget{}, err
	}
	t := AttachTarget{Argv: resp.GetArgv()}
	if s := resp.GetSeat(); s != nil {
		t.Seat = &SeatEndpoint{Socket: s.GetSocket(), Token: s.GetToken()}
	}
	if (t.Seat == nil) == (len(t.Argv) == 0) {
		return AttachTarget{}, &Error{
			Code: ErrInternal, Outcome: OutcomeNotExecuted,
			Detail: "Attach: the runtime must answer exactly one of a seat socket and an argv",
		}
	}
	return t, nil
}

func (c *runtimeClient) Reap(ctx context.Context, req StopRequest) (ReapReport, error) {
	resp, err := unary(ctx, "Reap", defaultReapDeadline, &pb.ReapRequest{
		SeatId: req.SeatID, InstanceId: req.InstanceID, Handle: handleToPB(req.Handle), Nonce: req.Nonce,
		Fence: req.Fence, Mode: stopModeToPB(req.Mode), GraceMs: u32(req.GraceMs), Keep: req.Keep,
	}, c.rpc.Reap)
	if err != nil {
		return ReapReport{}, err
	}
	return reportFromPB(resp.GetReport())
}

func (c *runtimeClient) Write(ctx context.Context, req WriteRequest) (int, error) {
	if len(req.Data) > MaxWrite {
		return 0, Errorf(ErrTooLarge, "Write: %d bytes, the limit is %d", len(req.Data), MaxWrite)
	}
	resp, err := unary(ctx, "Write", defaultDeadline, &pb.WriteRequest{
		SeatId: req.SeatID, InstanceId: req.InstanceID, Handle: handleToPB(req.Handle), Fence: req.Fence, Data: req.Data, Paste: req.Paste,
	}, c.rpc.Write)
	return int(resp.GetWritten()), err
}

func (c *runtimeClient) Snapshot(ctx context.Context, req SnapshotRequest) (Snapshot, error) {
	resp, err := unary(ctx, "Snapshot", defaultDeadline, &pb.SnapshotRequest{
		SeatId: req.SeatID, InstanceId: req.InstanceID, Handle: handleToPB(req.Handle),
	}, c.rpc.Snapshot)
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{
		Offset: resp.GetOffset(), Rows: u16(resp.GetRows()), Cols: u16(resp.GetCols()),
		Modes: resp.GetModes(), Data: resp.GetData(), Dirty: resp.GetDirty(),
	}, nil
}

func (c *runtimeClient) Watch(ctx context.Context, req WatchRequest, emit func(SeatStatus) error) error {
	// Without it an emit that fails would leave the stream, and the plugin's watcher, running.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Watch(ctx, &pb.WatchRequest{
		SeatId: req.SeatID, InstanceId: req.InstanceID, Handle: handleToPB(req.Handle), Fence: req.Fence,
	}, grpc.MaxCallRecvMsgSize(MaxMessageBytes))
	if err != nil {
		return fromStatus(ctx, "Watch", err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fromStatus(ctx, "Watch", err)
		}
		if err := emit(statusFromPB(req.SeatID, m.GetStatus())); err != nil {
			return fmt.Errorf("handle seat status: %w", err)
		}
	}
}

func (c *runtimeClient) List(ctx context.Context, req ListRequest) ([]SeatListing, error) {
	var cancel context.CancelFunc
	if _, ok := ctx.Deadline(); ok {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithTimeout(ctx, defaultDeadline)
	}
	defer cancel()
	stream, err := c.rpc.List(ctx, &pb.ListRequest{InstanceId: req.InstanceID}, grpc.MaxCallRecvMsgSize(MaxMessageBytes))
	if err != nil {
		return nil, fromStatus(ctx, "List", err)
	}
	var out []SeatListing
	size := 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			// Part of a list is no list: a host would take what is missing for gone.
			return nil, fromStatus(ctx, "List", err)
		}
		size += proto.Size(m)
		if n := len(out) + len(m.GetSeats()); n > MaxListed || size > MaxListedBytes {
			return nil, &Error{
				Code: ErrTooLarge, Outcome: OutcomeExecuted,
				Detail: fmt.Sprintf("List: more than %d seats in %d bytes; the limits are %d and %d", n, size, MaxListed, MaxListedBytes),
			}
		}
		for _, s := range m.GetSeats() {
			out = append(out, listingFromPB(s))
		}
	}
}
