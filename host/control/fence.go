package control

import (
	"context"
	"fmt"
	"sync"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Mode is how much a host takes on.
type Mode string

// Modes of a host.
const (
	ModeActive     Mode = "active"
	ModePreserving Mode = "preserving" // its seats are being put away
	ModePreserved  Mode = "preserved"  // they are; nothing starts until they are resumed
)

// Members says whether a caller still belongs here; host/seat implements it.
type Members interface {
	// Retiring says why a caller is no longer served: it is a managed seat that is ending or has ended.
	// Empty for everybody else.
	Retiring(c wire.Caller) string
}

// Fence admits work and can be closed. Every admission is counted or refused, never in between, so that a
// stop can wait for all that was admitted before it looks at the seats.
type Fence struct {
	members Members

	mu       sync.Mutex
	stopping bool
	mode     Mode
	resume   string // attempt that a resume waits for
	inFlight int
	idle     chan struct{} // closed when inFlight returns to 0; nil while nobody waits
}

// NewFence makes an open fence. members may be nil: nobody is refused for who they are.
func NewFence(members Members) *Fence { return &Fence{members: members, mode: ModeActive} }

// Enter admits one operation and returns its release, which may be called more than once. observes marks a
// read that is answered in the states that writes nothing and waits for a resume.
//
// Errors: *wire.Error unavailable, not-executed.
func (f *Fence) Enter(observes bool) (release func(), refused *wire.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if refused := f.refusal(observes); refused != nil {
		return nil, refused
	}
	f.inFlight++
	var once sync.Once
	return func() { once.Do(f.leave) }, nil
}

// refusal decides under mu. The reasons have an order: stopping says most, a resume that is waited for says
// more than the mode that it will end.
func (f *Fence) refusal(observes bool) *wire.Error {
	switch {
	case f.stopping:
		return wire.Refuse(wire.CodeUnavailable, "this host is stopping")
	case f.resume != "" && !(observes && f.mode == ModeActive):
		return wire.Refuse(wire.CodeUnavailable, "this host waits for its seats to be resumed (attempt %s); try again then", f.resume)
	case f.mode == ModePreserved && observes, f.mode == ModeActive:
		return nil
	}
	return wire.Refuse(wire.CodeUnavailable, "this host is %s; it takes on nothing new", f.mode)
}

func (f *Fence) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inFlight--; f.inFlight == 0 && f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}

// Stop closes the fence for good.
func (f *Fence) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopping = true
}

// Set changes the mode, and the resume attempt that is waited for; empty for none.
func (f *Fence) Set(mode Mode, resume string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mode, f.resume = mode, resume
}

// Drain waits until nothing that was admitted is in flight. Close the fence first, or it may never be.
func (f *Fence) Drain(ctx context.Context) error {
	f.mu.Lock()
	if f.inFlight == 0 {
		f.mu.Unlock()
		return nil
	}
	if f.idle == nil {
		f.idle = make(chan struct{})
	}
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain lifecycle work: %w", ctx.Err())
	}
}

// admit is what stands between the bus and the handler of an entry, in this order: the fence, whether the
// caller still belongs here, whether it may.
func (d Deps) admit(e entry) func(context.Context, *bus.Request) (func(), *wire.Error) {
	if d.Fence == nil && d.Policy == nil {
		return nil
	}
	return func(ctx context.Context, r *bus.Request) (func(), *wire.Error) {
		release := func() {}
		if f := d.Fence; f != nil && !e.InstanceOnly {
			var refused *wire.Error
			if release, refused = f.Enter(e.Observes); refused != nil {
				return nil, refused
			}
			if f.members != nil {
				if why := f.members.Retiring(r.Caller()); why != "" {
					release()
					return nil, wire.Refuse(wire.CodePermissionDenied, "%s is no longer served: %s", r.Caller().Principal(), why)
				}
			}
		}
		if d.Policy != nil {
			if refused := d.Policy.Allow(ctx, r, e.Capability); refused != nil {
				release()
				return nil, refused
			}
		}
		return release, nil
	}
}
