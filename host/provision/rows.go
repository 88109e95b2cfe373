package provision

import (
	"context"
	"errors"
	"sync"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
)

// rows are the rows of one life and its slot, over the one connection that carries all steps of its spawn. One that
// was lost meanwhile is made again for the next step.
type rows struct {
	mu   sync.Mutex
	kept bool // one is to be kept from one step to the next
	bus  *bus.Bus
	rec  *bus.Records
	end  func()
}

// keep has the connection of the next step stay for those behind it.
func (r *rows) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = true
}

// Close ends the connection that the steps of a spawn share. What is done for the life from here on has connections of
// its own. It is called in every path, more than once where that is easier.
func (d *Draft) Close() {
	r := &d.rows
	r.mu.Lock()
	end := r.end
	r.kept, r.bus, r.rec, r.end = false, nil, nil, nil
	r.mu.Unlock()
	if end != nil {
		end()
	}
}

// onRows runs do with the rows of a draft's life. The steps of a draft run one after the other.
func (p *Provisioner) onRows(ctx context.Context, d *Draft, do func(context.Context, *bus.Records) error) error {
	r := &d.rows
	r.mu.Lock()
	kept, b, rec, lost := r.kept, r.bus, r.rec, func() {}
	if b != nil && !b.Connected() {
		b, rec, lost = nil, nil, r.end
		r.bus, r.rec, r.end = nil, nil, nil
	}
	r.mu.Unlock()
	lost()
	switch {
	case !kept:
		return p.asExecutor(ctx, d.Life, do)
	case b != nil:
		err := do(ctx, rec)
		if b.Connected() || !errors.Is(err, bus.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		// It was lost before, and nobody had noticed: what a step wrote of it, if anything, it recognises.
		return p.onRows(ctx, d, do)
	}
	b, end, err := p.cfg.Auth.Open(ctx, executorOf(d.Life))
	if err != nil {
		return err
	}
	if rec, err = b.Rows(p.cfg.Space); err != nil {
		end()
		return err
	}
	r.mu.Lock()
	if kept = r.kept; kept {
		r.bus, r.rec, r.end = b, rec, end
	}
	r.mu.Unlock()
	if !kept { // closed meanwhile
		defer end()
	}
	return do(ctx, rec)
}

// executorOf asks for what writes the rows of one life and its slot.
func executorOf(l Life) trust.Request {
	return trust.Request{Profile: trust.Executor, Scope: trust.Scope{Target: l.Caller, Alias: l.Alias}}
}

// asExecutor runs do with the rows of one life and its slot, over a connection for that alone.
func (p *Provisioner) asExecutor(ctx context.Context, l Life, do func(context.Context, *bus.Records) error) error {
	return p.cfg.Auth.With(ctx, executorOf(l), func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(p.cfg.Space)
		if err != nil {
			return err
		}
		return do(ctx, rec)
	})
}
