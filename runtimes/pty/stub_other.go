//go:build !linux

package pty

import (
	"context"
	"runtime"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Runtime refuses loudly: custody needs a subreaper, pidfds and /proc, which this system lacks.
type Runtime struct{}

// New returns a runtime that refuses every call.
func New() *Runtime { return &Runtime{} }

func unsupported() error {
	return sdk.Errorf(sdk.ErrUnsupported, "the pty runtime holds seats on Linux only, this is %s; run cotal-host on Linux, or use another runtime", runtime.GOOS)
}

// Configure refuses.
func (*Runtime) Configure(context.Context, sdk.PluginConfig) error { return unsupported() }

// Spawn refuses.
func (*Runtime) Spawn(context.Context, sdk.SpawnRequest) (sdk.Handle, error) {
	return sdk.Handle{}, unsupported()
}

// Adopt refuses.
func (*Runtime) Adopt(context.Context, sdk.AdoptRequest) (sdk.SeatStatus, error) {
	return sdk.SeatStatus{}, unsupported()
}

// Attach refuses.
func (*Runtime) Attach(context.Context, sdk.AttachRequest) (sdk.AttachTarget, error) {
	return sdk.AttachTarget{}, unsupported()
}

// Reap refuses.
func (*Runtime) Reap(context.Context, sdk.StopRequest) (sdk.ReapReport, error) {
	return sdk.ReapReport{}, unsupported()
}

// Watch refuses.
func (*Runtime) Watch(context.Context, sdk.WatchRequest, func(sdk.SeatStatus) error) error {
	return unsupported()
}

// Snapshot refuses.
func (*Runtime) Snapshot(context.Context, sdk.SnapshotRequest) (sdk.Snapshot, error) {
	return sdk.Snapshot{}, unsupported()
}

// List refuses.
func (*Runtime) List(context.Context, sdk.ListRequest) ([]sdk.SeatListing, error) {
	return nil, unsupported()
}
