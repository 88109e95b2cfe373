package sdk

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// guard stands around every call of the contract in the plugin: it counts calls in flight, refuses
// new ones while the process ends, gives calls without a deadline one, recovers panics and turns
// errors into statuses. Services of go-plugin itself pass through untouched.
type guard struct {
	log    hclog.Logger
	stderr io.Writer // the original one, for stacks

	mu       sync.Mutex
	inFlight int
	draining bool
	idle     chan struct{} // closed once draining and nothing is in flight

	watches, streams context.Context // end the Watch streams, and those of go-plugin
	endWatches       context.CancelFunc
	endStreams       context.CancelFunc
}

func newGuard(log hclog.Logger, stderr io.Writer) *guard {
	g := &guard{log: log, stderr: stderr, idle: make(chan struct{})}
	g.watches, g.endWatches = context.WithCancel(context.Background())
	g.streams, g.endStreams = context.WithCancel(context.Background())
	return g
}

func ours(method string) bool { return strings.HasPrefix(method, "/cotal.plugin.v1.") }

func (g *guard) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		// No ErrorDetail: the caller reads it as ErrPluginDown, which is what it is about to be.
		return status.Error(codes.Unavailable, "the plugin is shutting down")
	}
	g.inFlight++
	return nil
}

func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	if g.draining && g.inFlight == 0 {
		close(g.idle)
	}
}

// drain refuses new calls and returns a channel that is closed when the last one in flight ended.
func (g *guard) drain() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.draining {
		g.draining = true
		g.endWatches()
		if g.inFlight == 0 {
			close(g.idle)
		}
	}
	return g.idle
}

func (g *guard) recovered(method string, err *error) {
	v := recover()
	if v == nil {
		return
	}
	// The stack goes out as it is: a host shows lines from "panic:" on as errors.
	_, _ = fmt.Fprintf(g.stderr, "panic: in %s: %v\n%s\n", method, v, debug.Stack())
	*err = toStatus(&Error{
		Code: ErrInternal, Outcome: OutcomeUnknown,
		Detail: fmt.Sprintf("%s panicked: %v (the stack is in the log of the plugin)", method, v),
	})
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	if !ours(info.FullMethod) {
		return next(ctx, req)
	}
	if err := g.enter(); err != nil {
		return nil, err
	}
	defer g.leave()
	defer g.recovered(shortMethod(info.FullMethod), &err)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, serverDeadline(info.FullMethod))
		defer cancel()
	}
	resp, err = next(ctx, req)
	if err != nil {
		return nil, toStatus(err)
	}
	if m, ok := resp.(proto.Message); ok {
		if n := proto.Size(m); n > MaxMessageBytes {
			return nil, toStatus(&Error{
				Code: ErrTooLarge, Outcome: OutcomeExecuted,
				Detail: fmt.Sprintf("%s: the reply has %d bytes, the limit is %d", shortMethod(info.FullMethod), n, MaxMessageBytes),
			})
		}
	}
	return resp, nil
}

// stream has no default deadline: Watch lives as long as its seat, List is bounded by its caller.
// A Watch is not counted as in flight either, it would hold up every shutdown.
func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	if !ours(info.FullMethod) {
		ss, cancel := endWith(ss, g.streams)
		defer cancel()
		return next(srv, ss)
	}
	if err := g.enter(); err != nil {
		return err
	}
	if strings.HasSuffix(info.FullMethod, "/Watch") {
		g.leave()
		var cancel context.CancelFunc
		ss, cancel = endWith(ss, g.watches)
		defer cancel()
	} else {
		defer g.leave()
	}
	defer g.recovered(shortMethod(info.FullMethod), &err)
	return toStatus(next(srv, ss))
}

// endingStream is a stream that also ends when the process is about to.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func endWith(ss grpc.ServerStream, end context.Context) (grpc.ServerStream, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ss.Context())
	stop := context.AfterFunc(end, cancel)
	return &endingStream{ss, ctx}, func() { stop(); cancel() }
}

func (s *endingStream) Context() context.Context { return s.ctx }

// RecvMsg gives up when the stream is to end: go-plugin's handlers wait in it for ever. The receive
// below it ends with the handler.
func (s *endingStream) RecvMsg(m any) error {
	result := make(chan error, 1)
	go func() { result <- s.ServerStream.RecvMsg(m) }()
	select {
	case err := <-result:
		return err
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func serverDeadline(method string) time.Duration {
	if strings.Contains(shortMethod(method), "Reap") {
		return defaultReapDeadline
	}
	return defaultDeadline
}

func shortMethod(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }
