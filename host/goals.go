package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/goal"
)

// reconcileWait is how long a boot waits for the look through the goals. With a mesh that answers it takes
// milliseconds; with one that does not, reads are served and spawns are refused until it does.
const reconcileWait = 2 * time.Second

// streams is what the journal knows of the streams of the broker.
type streams struct {
	h      *Host
	scope  string
	mu     sync.Mutex
	unread error // why the journal could not be asked
}

func (h *Host) streams() *streams {
	s := &streams{h: h, scope: "embedded/"} // what an embedded broker had another one need not have
	switch {
	case h.auth != nil:
		s.scope = h.auth.scope
	case h.cfg.Server != "":
		s.scope = "external/"
	}
	return s
}

// known reports whether this host has used a stream before. What cannot be read is not absent.
func (s *streams) known(name string) bool {
	known, err := s.h.journal.Known(s.scope + name)
	if err != nil {
		s.mu.Lock()
		s.unread = err
		s.mu.Unlock()
	}
	return known || err != nil
}

// made remembers that this host uses a stream from now on.
func (s *streams) made(ctx context.Context) func(string) error {
	return func(name string) error { return s.h.journal.SetKnown(ctx, s.scope+name) }
}

// why is err, or that the journal could not be asked, which explains it.
func (s *streams) why(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unread != nil {
		return fmt.Errorf("ask the journal which streams are in use: %w", s.unread)
	}
	return err
}

// openRecords opens the durable state of the space on its broker, and the goals over it.
func (h *Host) openRecords(ctx context.Context) error {
	s := h.streams()
	rec, err := h.bus.Records(ctx, h.cfg.Space, s.known, s.made(ctx))
	if err = s.why(err); err != nil {
		return err
	}
	h.openStore(rec)
	return nil
}

// openStore keeps goals in records.
func (h *Host) openStore(rec *bus.Records) {
	h.records = rec
	h.goals = goal.New(goal.Config{
		Journal: h.journal, Records: h.records, InstanceID: h.inst.ID, Epoch: h.inst.Epoch, Publish: h.publish,
		Retention: h.retention, Log: h.log.Named("goal"),
	})
}

// openGoals lets the ends of goals go to the mesh, once this incarnation is the one that is registered, and
// looks through what an earlier one left. fence says before each commit whether that still is so.
func (h *Host) openGoals(fence func(context.Context) error) {
	if err := h.goals.Open(fence); err != nil {
		h.log.Error("the ends of some goals stay in the journal until the next start", "err", err)
	}
	done := make(chan struct{})
	h.background(func(ctx context.Context) {
		defer close(done)
		h.goals.Reconcile(ctx)
	})
	t := time.NewTimer(reconcileWait)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		h.log.Warn("the mesh does not answer: no spawns until the goals of this host are looked through")
	}
}
