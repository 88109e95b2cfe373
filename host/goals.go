package host

import (
	"context"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
)

// reconcileWait is how long a boot waits for the look through the goals. With a mesh that answers it takes
// milliseconds; with one that does not, reads are served and spawns are refused until it does.
const reconcileWait = 2 * time.Second

// openRecords opens the durable state of the space on its broker, and the goals over it.
func (h *Host) openRecords(ctx context.Context) error {
	// What an embedded broker had another one need not have.
	scope := "embedded/"
	if h.cfg.Server != "" {
		scope = "external/"
	}
	var unread error
	known := func(name string) bool {
		known, err := h.journal.Known(scope + name)
		if err != nil {
			unread = err
		}
		return known || err != nil // what cannot be read is not absent
	}
	var err error
	h.records, err = h.bus.Records(ctx, h.cfg.Space, known, func(name string) error { return h.journal.SetKnown(ctx, scope+name) })
	if unread != nil {
		return fmt.Errorf("open records: %w", unread)
	}
	if err != nil {
		return err
	}
	h.goals = goal.New(goal.Config{
		Journal: h.journal, Records: h.records, InstanceID: h.inst.ID, Epoch: h.inst.Epoch, Publish: h.publish,
		Retention: h.retention, Log: h.log.Named("goal"),
	})
	return nil
}

// openGoals lets the ends of goals go to the mesh, once this incarnation is the one that is registered, and
// looks through what an earlier one left. fence says before each commit whether that still is so.
func (h *Host) openGoals(ctx context.Context, fence func(context.Context) error) {
	if err := h.goals.Open(fence); err != nil {
		h.log.Error("the ends of some goals stay in the journal until the next start", "err", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.goals.Reconcile(ctx)
	}()
	t := time.NewTimer(reconcileWait)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		h.log.Warn("the mesh does not answer: no spawns until the goals of this host are looked through")
	}
}
