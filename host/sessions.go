package host

import (
	"context"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/host/attach"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// openSessions prepares attach sessions. Nothing is connected before the first one, unless sessions of an earlier
// incarnation have to be told that they are over.
func (h *Host) openSessions(cfg bus.Config) {
	h.sessions = attach.New(attach.Config{
		Space: h.cfg.Space, Endpoint: wire.EndpointManager, InstanceID: h.inst.ID, Epoch: h.inst.Epoch, SeatRoot: h.cfg.SeatRoot,
		MaxSessions: h.cfg.MaxSessions, LedgerPath: filepath.Join(h.inst.Dir, "sessions"), Seats: h.seats, Log: h.log.Named("attach"),
		Lines: h.sessionLines(cfg),
	})
}

// sessionLines is how sessions reach the mesh: over one connection of theirs where everybody reaches every rail, and
// each with a credential for its own rails otherwise.
func (h *Host) sessionLines(cfg bus.Config) attach.Lines {
	if h.auth != nil {
		return attach.Own(attach.OwnConfig{Authority: h.auth, Reach: cfg, Log: h.log.Named("attach")})
	}
	return attach.Shared(func(ctx context.Context, lost func()) (attach.Rails, error) {
		cfg := cfg
		cfg.Name = "cotal-host sessions"
		cfg.OnState = func(connected bool, _ string) {
			if !connected {
				lost()
			}
		}
		return bus.Connect(ctx, cfg)
	})
}

// recoverSessions speaks for earlier incarnations, behind ready: seats and commands come first.
func (h *Host) recoverSessions(ctx context.Context) {
	if err := h.sessions.Recover(ctx); err != nil && ctx.Err() == nil {
		h.log.Warn("sessions of the last host are not told that they are over", "err", err)
	}
}
