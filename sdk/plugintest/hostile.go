package plugintest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/internal/pb"
)

// survived says what is wrong with how a plugin took a bad request, if anything is.
func (e *Env) survived(ctx context.Context, r *running, what string, err error) error {
	switch {
	case errors.Is(err, sdk.ErrPluginDown):
		return fmt.Errorf("%s ended the plugin", what)
	case errors.Is(err, sdk.ErrInternal) && strings.Contains(err.Error(), "panic"):
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, err := r.client.Describe(ctx); err != nil {
		return fmt.Errorf("after %s it does not answer any more: %w", what, err)
	}
	return nil
}

func checkBadInput(ctx context.Context, e *Env) error {
	long := strings.Repeat("x", 1<<20)
	var bad []error
	for _, c := range []struct {
		what   string
		change func(*sdk.LaunchRequest)
	}{
		{"an empty request", func(r *sdk.LaunchRequest) { *r = sdk.LaunchRequest{} }},
		{"a prompt with a zero byte", func(r *sdk.LaunchRequest) { r.Prompt = "a\x00b" }},
		{"a prompt of 1 MiB", func(r *sdk.LaunchRequest) { r.Prompt = long }},
		{"a persona of 1 MiB", func(r *sdk.LaunchRequest) { r.Persona = long }},
		{"a directory that does not exist", func(r *sdk.LaunchRequest) { r.Dir += "/none/such" }},
		{"no ports, secrets and session ids", func(r *sdk.LaunchRequest) { r.Ports, r.Secrets, r.SessionIDs = nil, nil, nil }},
		{"ports that are none", func(r *sdk.LaunchRequest) { r.Ports = []int{-1, 0, 1 << 30} }},
		{"an environment that is none", func(r *sdk.LaunchRequest) { r.BaseEnv = []string{"", "=", "NOVALUE", "A=1", "A=2"} }},
		{"launch options of the wrong types", func(r *sdk.LaunchRequest) {
			r.LaunchOptions = map[string]any{}
			for name := range e.opt.LaunchOptions {
				r.LaunchOptions[name] = map[string]any{"a": []any{nil, 1.5, true}}
			}
			r.LaunchOptions[""] = nil
		}},
		{"launch options nested a thousand deep", func(r *sdk.LaunchRequest) {
			var v any = "x"
			for range 1000 {
				v = []any{v}
			}
			r.LaunchOptions = map[string]any{"deep": v}
		}},
		{"names that climb out", func(r *sdk.LaunchRequest) { r.Name, r.SeatID, r.Role = "../../x", "../../x", "\n\x1b[2J" }},
	} {
		r, err := e.Plugin(ctx)
		if err != nil {
			return errors.Join(append(bad, err)...)
		}
		_, _, err = e.build(ctx, c.change)
		if err := e.survived(ctx, r, c.what, err); err != nil {
			bad = append(bad, err)
		}
	}
	r, err := e.Plugin(ctx)
	if err != nil {
		return errors.Join(append(bad, err)...)
	}
	_, err = r.client.Connector().Reap(ctx, sdk.LeftoverRequest{SeatID: "../..", Dir: e.dir.root + "/none"})
	if err := e.survived(ctx, r, "a Reap of nonsense", err); err != nil {
		bad = append(bad, err)
	}
	_, err = r.client.Connector().ListModels(ctx, sdk.ModelQuery{BaseEnv: []string{"="}, Binaries: map[string]string{"x": "/none"}})
	if err := e.survived(ctx, r, "a ListModels of nonsense", err); err != nil {
		bad = append(bad, err)
	}
	return errors.Join(bad...)
}

// oversize sends a message above the limit past the client, which would refuse it itself.
func (e *Env) oversize(ctx context.Context, call func(context.Context, *grpc.ClientConn, string, ...grpc.CallOption) error) error {
	r, err := e.Plugin(ctx)
	if err != nil {
		return err
	}
	err = call(ctx, r.conn, strings.Repeat("x", sdk.MaxMessageBytes+(1<<20)), grpc.MaxCallSendMsgSize(16<<20))
	switch code := status.Code(err); {
	case err == nil:
		return fmt.Errorf("a request of 5 MiB was taken; the limit is %d bytes", sdk.MaxMessageBytes)
	case code != codes.ResourceExhausted:
		return fmt.Errorf("a request of 5 MiB: %w, want the status ResourceExhausted", err)
	}
	return e.survived(ctx, r, "a request of 5 MiB", nil)
}

func checkOversize(ctx context.Context, e *Env) error {
	return e.oversize(ctx, func(ctx context.Context, conn *grpc.ClientConn, text string, opts ...grpc.CallOption) error {
		_, err := pb.NewConnectorServiceClient(conn).BuildLaunch(ctx, &pb.BuildLaunchRequest{Persona: text}, opts...)
		return err
	})
}

func checkRuntimeOversize(ctx context.Context, e *Env) error {
	return e.oversize(ctx, func(ctx context.Context, conn *grpc.ClientConn, text string, opts ...grpc.CallOption) error {
		_, err := pb.NewRuntimeServiceClient(conn).Spawn(ctx, &pb.SpawnRequest{Cwd: text}, opts...)
		return err
	})
}
