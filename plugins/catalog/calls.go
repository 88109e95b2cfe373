package catalog

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// fpUnresolved: the answer of a Spawn was lost and it is not known yet what became of the seat.
var fpUnresolved = failpoint.New("catalog.spawn.unresolved")

// caller makes calls to whatever process of a plugin is the current one.
type caller struct {
	sup  *supervise.Supervisor
	hide *supervise.Redactor
}

// withDeadline gives ctx a deadline if it has none.
func withDeadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// within bounds every single call by d, whatever time the caller has. What the caller has more is for the
// wait for a new process and a second call.
func within[T any](d time.Duration, fn func(context.Context, *sdk.Client) (T, error)) func(context.Context, *sdk.Client) (T, error) {
	return func(ctx context.Context, p *sdk.Client) (T, error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return fn(ctx, p)
	}
}

// enter finds the current process and announces a call to it, which live.Leave ends. With an attempt, it
// is a later process than that.
func (c caller) enter(ctx context.Context, attempt int) (*supervise.Live, error) {
	for {
		find := c.sup.Ready
		if attempt > 0 {
			find = func(ctx context.Context) (*supervise.Live, error) { return c.sup.After(ctx, attempt) }
		}
		live, err := find(ctx)
		if err != nil || live.Enter() {
			return live, err
		} // replaced in this moment: the next one is there already
	}
}

// once calls fn with the current process; attempt names the process that was called.
func once[T any](ctx context.Context, c caller, fn func(context.Context, *sdk.Client) (T, error)) (out T, attempt int, err error) {
	live, err := c.enter(ctx, 0)
	if err != nil {
		return out, 0, err
	}
	defer live.Leave()
	out, err = fn(ctx, live.Client)
	return out, live.Attempt, err
}

// twice is for idempotent calls: one that the plugin's death interrupted is made once more, as soon
// as there is a new process, within the deadline of the caller.
func twice[T any](ctx context.Context, c caller, d time.Duration, fn func(context.Context, *sdk.Client) (T, error)) (T, error) {
	ctx, cancel := withDeadline(ctx, d)
	defer cancel()
	out, attempt, err := once(ctx, c, fn)
	if !errors.Is(err, sdk.ErrPluginDown) {
		return out, err
	}
	live, werr := c.enter(ctx, attempt)
	if werr != nil {
		return out, down(err, werr)
	}
	defer live.Leave()
	return fn(ctx, live.Client)
}

// down keeps what matters of a call that ended with its plugin: ErrPluginDown, outcome unknown.
func down(err, why error) error {
	return fmt.Errorf("%w (no new process: %w)", err, why)
}

type connector struct{ caller }

// BuildLaunch also has the secrets of the launch hidden in what plugins print from now on.
func (c *connector) BuildLaunch(ctx context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	c.hide.Hide(req.Secrets...)
	c.hide.HideEnv(req.BaseEnv)
	c.hide.HideObject(req.LaunchOptions)
	spec, err := twice(ctx, c.caller, supervise.BuildLaunchTimeout, within(supervise.BuildLaunchTimeout, func(ctx context.Context, p *sdk.Client) (sdk.LaunchSpec, error) {
		return p.Connector().BuildLaunch(ctx, req)
	}))
	// The mark of the plugin's own helpers must not get into a seat, which outlives the plugin.
	spec.Env = slices.DeleteFunc(spec.Env, func(kv string) bool { return strings.HasPrefix(kv, supervise.NonceEnv+"=") })
	c.hide.HideEnv(spec.Env)
	if spec.Probe != nil {
		c.hide.Hide(spec.Probe.Password)
	}
	return spec, c.clean(err, req.Secrets...)
}

func (c *connector) ListModels(ctx context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	out, err := twice(ctx, c.caller, supervise.ListModelsTimeout, func(ctx context.Context, p *sdk.Client) (sdk.ModelCatalog, error) {
		return p.Connector().ListModels(ctx, q)
	})
	return out, c.clean(err)
}

func (c *connector) Reap(ctx context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	out, err := twice(ctx, c.caller, supervise.ReapTimeout, func(ctx context.Context, p *sdk.Client) (sdk.ReapReport, error) {
		return p.Connector().Reap(ctx, req)
	})
	return out, c.clean(err)
}

// runtime has the four methods every runtime has, and those of the abilities that nobody asserts; the
// others are added by newRuntime.
type runtime struct{ caller }

// The optional abilities are types of their own, so that a type assertion tells the truth.
type (
	watcher      struct{ caller }
	lister       struct{ caller }
	watchRuntime struct {
		runtime
		watcher
	}
	listRuntime struct {
		runtime
		lister
	}
	fullRuntime struct {
		runtime
		watcher
		lister
	}
)

func newRuntime(c caller, info sdk.Info) sdk.Runtime {
	switch watch, list := info.Has(sdk.CapWatch), info.Has(sdk.CapList); {
	case watch && list:
		return fullRuntime{runtime{c}, watcher{c}, lister{c}}
	case watch:
		return watchRuntime{runtime{c}, watcher{c}}
	case list:
		return listRuntime{runtime{c}, lister{c}}
	}
	return runtime{c}
}

func (r runtime) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	st, err := twice(ctx, r.caller, supervise.AdoptTimeout, within(supervise.AdoptTimeout, func(ctx context.Context, p *sdk.Client) (sdk.SeatStatus, error) {
		return p.Runtime().Adopt(ctx, req)
	}))
	return r.status(st), r.clean(err)
}

// Attach also has the token of the seat hidden in what plugins print from now on.
func (r runtime) Attach(ctx context.Context, req sdk.AttachRequest) (sdk.AttachTarget, error) {
	target, err := twice(ctx, r.caller, supervise.AttachTimeout, func(ctx context.Context, p *sdk.Client) (sdk.AttachTarget, error) {
		return p.Runtime().Attach(ctx, req)
	})
	if target.Seat != nil {
		t := target.Seat.Token
		r.hide.Hide(hex.EncodeToString(t), base64.StdEncoding.EncodeToString(t))
		if utf8.Valid(t) {
			r.hide.Hide(string(t))
		}
	}
	return target, r.clean(err)
}

func (r runtime) Reap(ctx context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	deadline := time.Duration(req.GraceMs)*time.Millisecond + supervise.ReapTimeout
	if req.GraceMs == 0 && req.Mode != sdk.StopNow {
		deadline = supervise.ReapOwnGraceTimeout
	}
	out, err := twice(ctx, r.caller, deadline, func(ctx context.Context, p *sdk.Client) (sdk.ReapReport, error) {
		return p.Runtime().Reap(ctx, req)
	})
	return out, r.clean(err)
}

// Write types into a seat. It is made once: what a dead plugin had typed already is not known. Whether
// the plugin can is what CapWrite says.
func (r runtime) Write(ctx context.Context, req sdk.WriteRequest) (int, error) {
	ctx, cancel := withDeadline(ctx, supervise.WriteTimeout)
	defer cancel()
	n, _, err := once(ctx, r.caller, func(ctx context.Context, p *sdk.Client) (int, error) { return p.Runtime().Write(ctx, req) })
	return n, r.clean(err)
}

// Snapshot shows the screen of a seat. Whether the plugin can is what CapSnapshot says.
func (r runtime) Snapshot(ctx context.Context, req sdk.SnapshotRequest) (sdk.Snapshot, error) {
	out, err := twice(ctx, r.caller, supervise.SnapshotTimeout, func(ctx context.Context, p *sdk.Client) (sdk.Snapshot, error) {
		return p.Runtime().Snapshot(ctx, req)
	})
	return out, r.clean(err)
}

// Spawn is not made twice on suspicion. When the plugin died under it, the next process is asked
// what there is: a seat that exists is the answer of the first Spawn; only one that is proven absent
// is spawned again, once. Anything else stays unknown, with ErrPluginDown.
func (r runtime) Spawn(ctx context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	ctx, cancel := withDeadline(ctx, supervise.SpawnTimeout)
	defer cancel()
	r.hide.HideEnv(req.Launch.Env)
	handle, err := r.spawn(ctx, req)
	return handle, r.clean(err, secretsOf(req.Launch)...)
}

// secretsOf are the values of a launch that no name has to mark as secret.
func secretsOf(l sdk.LaunchSpec) []string {
	if l.Probe == nil {
		return nil
	}
	return []string{l.Probe.Password}
}

func (r runtime) spawn(ctx context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	spawn := within(supervise.SpawnTimeout, func(ctx context.Context, p *sdk.Client) (sdk.Handle, error) { return p.Runtime().Spawn(ctx, req) })
	handle, attempt, err := once(ctx, r.caller, spawn)
	if !errors.Is(err, sdk.ErrPluginDown) {
		return handle, err
	}
	if fperr := fpUnresolved.Hit(); fperr != nil {
		return sdk.Handle{}, down(err, fperr)
	}
	live, werr := r.enter(ctx, attempt)
	if werr != nil {
		return sdk.Handle{}, down(err, werr)
	}
	defer live.Leave()
	st, aerr := live.Client.Runtime().Adopt(ctx, sdk.AdoptRequest{
		SeatID: req.SeatID, InstanceID: req.Owner.InstanceID, Nonce: req.Nonce, Fence: req.Fence,
	})
	if aerr != nil {
		return sdk.Handle{}, fmt.Errorf("%w (and what became of the seat is not known: %w)", err, aerr)
	}
	switch st.State {
	case sdk.SeatPrepared, sdk.SeatRunning, sdk.SeatExited:
		return st.Handle, nil
	case sdk.SeatNotFound:
		return spawn(ctx, live.Client)
	}
	return sdk.Handle{}, fmt.Errorf("%w (and what became of the seat is not known: %s)", err, st.Reason)
}

func (l lister) List(ctx context.Context, req sdk.ListRequest) ([]sdk.SeatListing, error) {
	out, err := twice(ctx, l.caller, supervise.ListTimeout, func(ctx context.Context, p *sdk.Client) ([]sdk.SeatListing, error) {
		return p.Runtime().List(ctx, req)
	})
	return out, l.clean(err)
}

// emptyStreams is how often in a row a process may end a watch without saying anything. A stream
// that ends so is that of a plugin that is shutting down, or a bug that must not become a busy loop.
const emptyStreams = 5

// Watch outlives plugin processes: it subscribes again to each new one, whose first status is then
// the one that was missed. It ends with nil after an exited status, with the error of emit, with
// the context's, or with a refusal of the runtime. It has no deadline of its own.
func (w watcher) Watch(ctx context.Context, req sdk.WatchRequest, emit func(sdk.SeatStatus) error) error {
	var emitErr error
	attempt, silent := 0, 0
	for {
		// Unlike a call, a watch has nobody waiting for an answer: failed starts and pauses are waited
		// out, and no try is asked for.
		live, err := w.sup.Later(ctx, attempt)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return err
		}
		exited, spoke := false, false
		wctx, cancel := untilRetired(ctx, live)
		err = live.Client.Runtime().Watch(wctx, req, func(st sdk.SeatStatus) error {
			spoke = true
			if emitErr = emit(w.status(st)); emitErr != nil {
				return emitErr
			}
			exited = st.State == sdk.SeatExited
			return nil
		})
		replaced := wctx.Err() != nil
		cancel()
		switch {
		case emitErr != nil:
			return emitErr
		case exited:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case replaced: // the next one is there already
			attempt, silent = live.Attempt, 0
			continue
		case err != nil && !errors.Is(err, sdk.ErrPluginDown):
			return w.clean(err)
		}
		if spoke {
			silent = 0
		} else if silent++; silent > emptyStreams {
			return &sdk.Error{Code: sdk.ErrInternal, Outcome: sdk.OutcomeUnknown, Detail: "the runtime ends watches without a status"}
		}
		attempt = live.Attempt
		if err == nil {
			// The stream ended, the process may not have: give it the time to.
			if stayed := stays(ctx, live); stayed {
				attempt = live.Attempt - 1
			}
		}
	}
}

// untilRetired gives a context that also ends when another process has taken over.
func untilRetired(ctx context.Context, live *supervise.Live) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-live.Retired():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// stays reports whether a process is still there after a moment.
func stays(ctx context.Context, live *supervise.Live) bool {
	t := time.NewTimer(250 * time.Millisecond)
	defer t.Stop()
	select {
	case <-live.Gone():
		return false
	case <-live.Retired():
		return false
	case <-ctx.Done():
	case <-t.C:
	}
	return true
}
