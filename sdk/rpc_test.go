package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/internal/pb"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// fake implements every interface of the contract through functions.
type fake struct {
	build  func(context.Context, LaunchRequest) (LaunchSpec, error)
	models func(context.Context, ModelQuery) (ModelCatalog, error)
	reap   func(context.Context, LeftoverRequest) (ReapReport, error)
}

func (f *fake) BuildLaunch(ctx context.Context, r LaunchRequest) (LaunchSpec, error) {
	return f.build(ctx, r)
}

func (f *fake) ListModels(ctx context.Context, q ModelQuery) (ModelCatalog, error) {
	return f.models(ctx, q)
}

func (f *fake) Reap(ctx context.Context, r LeftoverRequest) (ReapReport, error) {
	return f.reap(ctx, r)
}

type fakeRuntime struct {
	spawn  func(context.Context, SpawnRequest) (Handle, error)
	adopt  func(context.Context, AdoptRequest) (SeatStatus, error)
	attach func(context.Context, AttachRequest) (AttachTarget, error)
	reap   func(context.Context, StopRequest) (ReapReport, error)
	watch  func(context.Context, WatchRequest, func(SeatStatus) error) error
	list   func(context.Context, ListRequest) ([]SeatListing, error)
	config func(context.Context, PluginConfig) error
	write  func(context.Context, WriteRequest) (int, error)
	snap   func(context.Context, SnapshotRequest) (Snapshot, error)
}

func (f *fakeRuntime) Write(ctx context.Context, r WriteRequest) (int, error) { return f.write(ctx, r) }

func (f *fakeRuntime) Snapshot(ctx context.Context, r SnapshotRequest) (Snapshot, error) {
	return f.snap(ctx, r)
}

func (f *fakeRuntime) Spawn(ctx context.Context, r SpawnRequest) (Handle, error) {
	return f.spawn(ctx, r)
}

func (f *fakeRuntime) Adopt(ctx context.Context, r AdoptRequest) (SeatStatus, error) {
	return f.adopt(ctx, r)
}

func (f *fakeRuntime) Attach(ctx context.Context, r AttachRequest) (AttachTarget, error) {
	return f.attach(ctx, r)
}

func (f *fakeRuntime) Reap(ctx context.Context, r StopRequest) (ReapReport, error) {
	return f.reap(ctx, r)
}

func (f *fakeRuntime) Watch(ctx context.Context, r WatchRequest, emit func(SeatStatus) error) error {
	return f.watch(ctx, r, emit)
}

func (f *fakeRuntime) List(ctx context.Context, r ListRequest) ([]SeatListing, error) {
	return f.list(ctx, r)
}

func (f *fakeRuntime) Configure(ctx context.Context, c PluginConfig) error { return f.config(ctx, c) }

// connect serves impl as a plugin does and returns the host's side.
func connect(t *testing.T, impl any) (*Client, *guard, *bytes.Buffer) {
	t.Helper()
	info := Info{Name: "fake", Version: "1", Kind: KindRuntime}
	if _, ok := impl.(Connector); ok {
		info.Kind, info.Connector.ReadyBy = KindConnector, ReadyByProcess
	}
	info, err := complete(info, impl)
	if err != nil {
		t.Fatal(err)
	}
	stderr := &bytes.Buffer{}
	g := newGuard(hclog.NewNullLogger(), stderr)
	srv := grpc.NewServer(
		grpc.MaxRecvMsgSize(MaxMessageBytes), grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.ChainUnaryInterceptor(g.unary), grpc.ChainStreamInterceptor(g.stream))
	register(srv, info, impl)
	lis := bufconn.Listen(1 << 20)
	go func() { _ = srv.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:x",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); srv.Stop() })
	return NewClient(conn), g, stderr
}

// fill gives every field of a struct a value of its own, so that a field a conversion forgets, or
// takes for another, shows.
func fill(v reflect.Value, n *int) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			*n++
			v.Set(reflect.ValueOf(time.Unix(int64(1_000_000+*n), 500).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			*n++
			v.SetBytes([]byte(fmt.Sprintf(`{"n":%d}`, *n)))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		*n++
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.ValueOf(fmt.Sprint("v", *n))
		v.SetMapIndex(reflect.ValueOf(fmt.Sprint("k", *n)), value)
	case reflect.String:
		*n++
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		*n++
		v.SetInt(int64(*n))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		*n++
		v.SetUint(uint64(*n))
	default:
		panic("fill: " + v.Kind().String())
	}
}

func filled[T any](fix ...func(*T)) T {
	var v T
	n := 0
	fill(reflect.ValueOf(&v).Elem(), &n)
	for _, f := range fix {
		f(&v)
	}
	return v
}

// same sends a filled request, answers with a filled reply and wants both to arrive whole.
func same[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// proves: CONN-1
func TestEveryFieldCrossesTheWire(t *testing.T) {
	ctx := context.Background()
	report := filled(func(r *ReapReport) { r.Outcome = ReapExited })
	seat := filled(func(s *SeatStatus) { s.State = SeatExited })
	f := &fake{
		build: func(_ context.Context, r LaunchRequest) (LaunchSpec, error) {
			same(t, "LaunchRequest", r, filled[LaunchRequest]())
			return filled[LaunchSpec](), nil
		},
		models: func(_ context.Context, q ModelQuery) (ModelCatalog, error) {
			same(t, "ModelQuery", q, filled[ModelQuery]())
			return filled[ModelCatalog](), nil
		},
		reap: func(_ context.Context, r LeftoverRequest) (ReapReport, error) {
			same(t, "LeftoverRequest", r, filled[LeftoverRequest]())
			return report, nil
		},
	}
	c, _, _ := connect(t, f)
	spec, err := c.Connector().BuildLaunch(ctx, filled[LaunchRequest]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "LaunchSpec", spec, filled[LaunchSpec]())
	models, err := c.Connector().ListModels(ctx, filled[ModelQuery]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "ModelCatalog", models, filled[ModelCatalog]())
	left, err := c.Connector().Reap(ctx, filled[LeftoverRequest]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "ReapReport", left, report)

	stop := filled(func(r *StopRequest) { r.Mode = StopNow })
	r := &fakeRuntime{
		spawn: func(_ context.Context, req SpawnRequest) (Handle, error) {
			same(t, "SpawnRequest", req, filled[SpawnRequest]())
			return filled[Handle](), nil
		},
		adopt: func(_ context.Context, req AdoptRequest) (SeatStatus, error) {
			same(t, "AdoptRequest", req, filled[AdoptRequest]())
			return seat, nil
		},
		attach: func(_ context.Context, req AttachRequest) (AttachTarget, error) {
			same(t, "AttachRequest", req, filled[AttachRequest]())
			return AttachTarget{Seat: &SeatEndpoint{Socket: "/s", Token: []byte{0, 1, 255}}}, nil
		},
		reap: func(_ context.Context, req StopRequest) (ReapReport, error) {
			same(t, "StopRequest", req, stop)
			return report, nil
		},
		watch: func(_ context.Context, req WatchRequest, emit func(SeatStatus) error) error {
			same(t, "WatchRequest", req, filled[WatchRequest]())
			return emit(seat)
		},
		list: func(_ context.Context, req ListRequest) ([]SeatListing, error) {
			same(t, "ListRequest", req, filled[ListRequest]())
			return []SeatListing{filled[SeatListing](), {SeatID: "x"}}, nil
		},
		write: func(_ context.Context, req WriteRequest) (int, error) {
			same(t, "WriteRequest", req, filled[WriteRequest]())
			return 77, nil
		},
		snap: func(_ context.Context, req SnapshotRequest) (Snapshot, error) {
			same(t, "SnapshotRequest", req, filled[SnapshotRequest]())
			return filled[Snapshot](), nil
		},
		config: func(_ context.Context, cfg PluginConfig) error {
			same(t, "PluginConfig", cfg, filled[PluginConfig]())
			return nil
		},
	}
	c, _, _ = connect(t, r)
	if err := c.Configure(ctx, filled[PluginConfig]()); err != nil {
		t.Fatal(err)
	}
	h, err := c.Runtime().Spawn(ctx, filled[SpawnRequest]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "Handle", h, filled[Handle]())
	st, err := c.Runtime().Adopt(ctx, filled[AdoptRequest]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "SeatStatus", st, seat)
	target, err := c.Runtime().Attach(ctx, filled[AttachRequest]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "AttachTarget", target, AttachTarget{Seat: &SeatEndpoint{Socket: "/s", Token: []byte{0, 1, 255}}})
	end, err := c.Runtime().Reap(ctx, stop)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "ReapReport", end, report)
	var seen []SeatStatus
	if err := c.Runtime().Watch(ctx, filled[WatchRequest](), func(s SeatStatus) error { seen = append(seen, s); return nil }); err != nil {
		t.Fatal(err)
	}
	same(t, "watched", seen, []SeatStatus{seat})
	list, err := c.Runtime().List(ctx, filled[ListRequest]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "List", list, []SeatListing{filled[SeatListing](), {SeatID: "x"}})

	n, err := c.Runtime().Write(ctx, filled[WriteRequest]())
	if err != nil || n != 77 {
		t.Errorf("Write: %d, %v", n, err)
	}
	snap, err := c.Runtime().Snapshot(ctx, filled[SnapshotRequest]())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "Snapshot", snap, filled[Snapshot]())

	info := filled(func(i *Info) { i.Kind = KindConnector })
	same(t, "Info", infoFromPB(infoToPB(info)), info)
	info, err = c.Describe(ctx)
	if err != nil || !info.Has(CapWatch) || !info.Has(CapList) || info.Kind != KindRuntime {
		t.Errorf("Describe: %+v, %v", info, err)
	}
}

func TestSentinelsSurviveTheWire(t *testing.T) {
	var answer error
	c, _, _ := connect(t, &fake{build: func(context.Context, LaunchRequest) (LaunchSpec, error) { return LaunchSpec{}, answer }})
	call := func(err error) error {
		answer = err
		_, got := c.Connector().BuildLaunch(context.Background(), LaunchRequest{})
		return got
	}
	for _, s := range []error{
		ErrInvalid, ErrUnsupported, ErrNotFound, ErrUnavailable, ErrNotOurs, ErrStaleFence, ErrGone,
		ErrUnproven, ErrExecFailed, ErrInternal, ErrTooLarge,
	} {
		t.Run(s.Error(), func(t *testing.T) {
			for _, o := range []Outcome{OutcomeExecuted, OutcomeNotExecuted, OutcomeUnknown} {
				sent := &Error{Code: s, Outcome: o, Retryable: o == OutcomeUnknown, Detail: "because"}
				got := call(fmt.Errorf("wrapped: %w", sent))
				var e *Error
				if !errors.Is(got, s) || !errors.As(got, &e) || e.Outcome != o || e.Retryable != sent.Retryable || !strings.Contains(e.Detail, "because") {
					t.Errorf("%s: got %#v", o, got)
				}
				if got := call(sent); got.Error() != sent.Error() {
					t.Errorf("text: sent %q, got %q", sent, got)
				}
			}
			if got := call(s); !errors.Is(got, s) || OutcomeOf(got) != OutcomeUnknown {
				t.Errorf("bare sentinel: %#v", got)
			}
			for _, other := range []error{ErrInvalid, ErrGone, ErrInternal} {
				if got := call(s); !errors.Is(s, other) && errors.Is(got, other) {
					t.Errorf("is also %v", other)
				}
			}
		})
	}
	if got := call(errors.New("plain")); !errors.Is(got, ErrInternal) || !strings.Contains(got.Error(), "plain") {
		t.Errorf("an error of no contract: %v", got)
	}
	if got := call(ErrPluginDown); !errors.Is(got, ErrInternal) || errors.Is(got, ErrPluginDown) {
		t.Errorf("a plugin that says it is down: %v, want ErrInternal: only a host can know", got)
	}
	if got := call(context.DeadlineExceeded); !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", got)
	}
	if got := call(errors.New(strings.Repeat("\xff", 1<<20))); !errors.Is(got, ErrInternal) || len(got.Error()) > 3*maxDetailBytes {
		t.Errorf("a huge text: %d bytes, %.80v", len(got.Error()), got)
	}
}

func TestUnknownCodesOfNewerPluginsAreInternal(t *testing.T) {
	st, err := status.New(codes.Aborted, "x").WithDetails(&pb.ErrorDetail{
		Code: "quota", Outcome: pb.Outcome_OUTCOME_NOT_EXECUTED, Retryable: true, Detail: "none left",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := fromStatus(context.Background(), "Spawn", st.Err())
	var e *Error
	if !errors.As(got, &e) || e.Code != ErrInternal || e.Outcome != OutcomeNotExecuted || !e.Retryable ||
		!strings.Contains(e.Detail, `"quota"`) || !strings.Contains(e.Detail, "none left") {
		t.Errorf("got %#v", got)
	}
}

func TestStatusesWithoutDetail(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		name    string
		ctx     context.Context
		code    codes.Code
		want    error
		outcome Outcome
	}{
		{"a broken connection is a plugin that is down", context.Background(), codes.Unavailable, ErrPluginDown, OutcomeUnknown},
		{"a cancellation nobody asked for too", context.Background(), codes.Canceled, ErrPluginDown, OutcomeUnknown},
		{"one the caller asked for is his", ended, codes.Canceled, context.Canceled, OutcomeUnknown},
		{"a deadline is a deadline", context.Background(), codes.DeadlineExceeded, context.DeadlineExceeded, OutcomeUnknown},
		{"a method the plugin lacks", context.Background(), codes.Unimplemented, ErrUnsupported, OutcomeNotExecuted},
		{"a reply above the limit", context.Background(), codes.ResourceExhausted, ErrTooLarge, OutcomeExecuted},
		{"anything else is internal", context.Background(), codes.DataLoss, ErrInternal, OutcomeUnknown},
	} {
		got := fromStatus(c.ctx, "Spawn", status.Error(c.code, "text"))
		if !errors.Is(got, c.want) || OutcomeOf(got) != c.outcome || !strings.Contains(got.Error(), "Spawn") {
			t.Errorf("%s: %#v", c.name, got)
		}
	}
}

// proves: RT-5
func TestAnswersThatProveNothingAreNotTaken(t *testing.T) {
	c, _, _ := connect(t, &fakeRuntime{
		adopt: func(context.Context, AdoptRequest) (SeatStatus, error) { return SeatStatus{State: "zombie"}, nil },
		reap:  func(context.Context, StopRequest) (ReapReport, error) { return ReapReport{}, nil },
		attach: func(context.Context, AttachRequest) (AttachTarget, error) {
			return AttachTarget{}, nil
		},
		spawn: func(context.Context, SpawnRequest) (Handle, error) {
			return Handle{State: make([]byte, MaxHandleState+1)}, nil
		},
	})
	ctx, r := context.Background(), c.Runtime()
	if st, err := r.Adopt(ctx, AdoptRequest{}); err != nil || st.State != SeatUnknown || st.Reason == "" {
		t.Errorf("a state nobody knows: %+v, %v, want unknown with a reason", st, err)
	}
	if _, err := r.Reap(ctx, StopRequest{}); !errors.Is(err, ErrUnproven) {
		t.Errorf("an empty report: %v, want ErrUnproven", err)
	}
	if _, err := r.Attach(ctx, AttachRequest{}); !errors.Is(err, ErrInternal) {
		t.Errorf("a target that is none: %v", err)
	}
	if _, err := r.Spawn(ctx, SpawnRequest{}); !errors.Is(err, ErrInternal) || OutcomeOf(err) != OutcomeExecuted {
		t.Errorf("a handle above the limit: %v", err)
	}
}

func TestBytesThatAreNoTextDoNotCostAReport(t *testing.T) {
	bad := "a\xffb"
	c, _, _ := connect(t, &fakeRuntime{
		reap: func(context.Context, StopRequest) (ReapReport, error) {
			return ReapReport{
				Outcome: ReapStopped, Killed: []Killed{{Command: bad}}, Removed: []string{bad}, Evidence: []string{bad},
				Exit: &Exit{Detail: bad, Last: bad},
			}, nil
		},
		spawn: func(context.Context, SpawnRequest) (Handle, error) { return Handle{}, nil },
	})
	r, err := c.Runtime().Reap(context.Background(), StopRequest{})
	if err != nil || r.Killed[0].Command != "a?b" || r.Exit.Last != "a?b" || r.Removed[0] != "a?b" {
		t.Errorf("%+v, %v", r, err)
	}
	for field, req := range map[string]SpawnRequest{
		"cwd": {Cwd: bad}, "launch.env": {Launch: LaunchSpec{Env: []string{"A=b", bad}}},
		"launch.probe.path": {Launch: LaunchSpec{Probe: &Probe{Path: bad}}},
	} {
		_, err := c.Runtime().Spawn(context.Background(), req)
		if !errors.Is(err, ErrInvalid) || OutcomeOf(err) != OutcomeNotExecuted || !strings.Contains(err.Error(), field+" is not UTF-8") {
			t.Errorf("%s that is no text: %v", field, err)
		}
	}
}

func TestCallsGetADeadline(t *testing.T) {
	var left time.Duration
	c, g, _ := connect(t, &fake{build: func(ctx context.Context, _ LaunchRequest) (LaunchSpec, error) {
		d, ok := ctx.Deadline()
		if !ok {
			t.Error("no deadline")
		}
		left = time.Until(d)
		return LaunchSpec{}, nil
	}})
	if _, err := c.Connector().BuildLaunch(context.Background(), LaunchRequest{}); err != nil || left > defaultDeadline {
		t.Errorf("%v, %s left", err, left)
	}
	// A host that is not ours may forget it.
	_, err := g.unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/cotal.plugin.v1.ConnectorService/BuildLaunch"},
		func(ctx context.Context, _ any) (any, error) {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("no deadline on the plugin's side")
			}
			return nil, nil
		})
	if err != nil {
		t.Error(err)
	}
}

func TestListsAboveTheMessageLimitAreStreamed(t *testing.T) {
	form, _ := json.Marshal(strings.Repeat("x", 100<<10))
	c, _, _ := connect(t, &fakeRuntime{list: func(context.Context, ListRequest) ([]SeatListing, error) {
		var out []SeatListing
		for i := range 200 { // 20 MB
			out = append(out, SeatListing{SeatID: fmt.Sprint(i), Form: form})
		}
		out[7].Form = make([]byte, MaxMessageBytes)
		return out, nil
	}})
	list, err := c.Runtime().List(context.Background(), ListRequest{})
	if err != nil || len(list) != 200 {
		t.Fatalf("%d seats, %v", len(list), err)
	}
	for i, l := range list {
		if l.SeatID != fmt.Sprint(i) || (l.Problem != "") != (i == 7) {
			t.Errorf("seat %d: %s, problem %q", i, l.SeatID, l.Problem)
		}
	}
}

func TestPanicsAreErrorsWithAStackOnStderr(t *testing.T) {
	c, g, stderr := connect(t, &fakeRuntime{
		spawn: func(context.Context, SpawnRequest) (Handle, error) { panic("kaboom") },
		watch: func(context.Context, WatchRequest, func(SeatStatus) error) error { panic("kaboom too") },
	})
	_, err := c.Runtime().Spawn(context.Background(), SpawnRequest{})
	if !errors.Is(err, ErrInternal) || OutcomeOf(err) != OutcomeUnknown || !strings.Contains(err.Error(), "kaboom") {
		t.Errorf("got %v", err)
	}
	err = c.Runtime().Watch(context.Background(), WatchRequest{}, nil)
	if !errors.Is(err, ErrInternal) || !strings.Contains(err.Error(), "kaboom too") {
		t.Errorf("got %v", err)
	}
	<-g.drain()
	if !strings.HasPrefix(stderr.String(), "panic: in Spawn: kaboom\n") || !strings.Contains(stderr.String(), "rpc_test.go") {
		t.Errorf("stderr %q", stderr)
	}
}

func TestAWatchWhoseReaderFailsEndsInThePlugin(t *testing.T) {
	ended := make(chan struct{})
	c, _, _ := connect(t, &fakeRuntime{watch: func(ctx context.Context, _ WatchRequest, emit func(SeatStatus) error) error {
		defer close(ended)
		if err := emit(SeatStatus{State: SeatRunning}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}})
	stop := errors.New("enough")
	err := c.Runtime().Watch(context.Background(), WatchRequest{}, func(SeatStatus) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("the plugin still watches")
	}
}

func TestConfigurationIsTakenOnceAndOnlyByWhoWantsIt(t *testing.T) {
	ctx := context.Background()
	c, _, _ := connect(t, &fake{})
	if err := c.Configure(ctx, PluginConfig{Config: []byte(`{}`)}); err != nil {
		t.Errorf("an empty table: %v", err)
	}
	if err := c.Configure(ctx, PluginConfig{Config: []byte(`{"a":1}`)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a table for a plugin without settings: %v", err)
	}
	fail := true
	c, _, _ = connect(t, &fakeRuntime{config: func(context.Context, PluginConfig) error {
		if fail {
			return Errorf(ErrInvalid, "a: too large")
		}
		return nil
	}})
	if err := c.Configure(ctx, PluginConfig{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("refused: %v", err)
	}
	fail = false
	if err := c.Configure(ctx, PluginConfig{}); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	if err := c.Configure(ctx, PluginConfig{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a second time: %v", err)
	}
}
