package attach

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Recover tells the holders of sessions of earlier incarnations that they are over, and goes on saying so for a
// while to those that did not hear it. It does not wait for anything but the connections.
func (s *Sessions) Recover(ctx context.Context) error {
	left, err := s.ledger.open(s.cfg.Epoch)
	if err != nil || len(left) == 0 {
		return err
	}
	end, err := endFrame(1, wire.EndManagerRestart)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(left, pastAtOnce) {
		if err := s.refuse(ctx, some, end); err != nil {
			return err
		}
	}
	time.AfterFunc(refuseFor, s.stopRefusing)
	return nil
}

// refuse speaks for some sessions of earlier incarnations.
func (s *Sessions) refuse(ctx context.Context, some []standing, end []byte) error {
	past := make([]Rail, 0, len(some))
	for _, old := range some {
		past = append(past, Rail{Session: old.id, Epoch: old.epoch})
	}
	rails, err := s.cfg.Lines.Past(ctx, past)
	if err != nil {
		return err
	}
	hangUp := sync.OnceFunc(rails.Close)
	s.mu.Lock()
	closing := s.closing
	s.refused = append(s.refused, hangUp)
	s.mu.Unlock()
	if closing { // nobody stops it any more
		hangUp()
		return ErrStopping
	}
	for _, old := range past {
		in, out, err := s.subjects(old.Session, old.Epoch)
		if err != nil {
			continue // parseLedger lets nothing through that gives no subject
		}
		stop, err := rails.Listen(in, func(f bus.RailFrame) {
			if !f.Nobody {
				_ = rails.Send(out, end) // a holder that does not hear it asks again
			}
		})
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.refused = append(s.refused, stop)
		s.mu.Unlock()
		_ = rails.Send(out, end)
	}
	return nil
}

func (s *Sessions) stopRefusing() {
	s.mu.Lock()
	stops := s.refused
	s.refused = nil
	s.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

func (s *Sessions) subjects(id string, epoch uint64) (in, out string, err error) {
	r := wire.SessionSubject{Space: s.cfg.Space, Endpoint: s.cfg.Endpoint, SessionID: id, Epoch: epoch, Dir: wire.SessionIn}
	if in, err = r.Subject(); err == nil {
		r.Dir = wire.SessionOut
		out, err = r.Subject()
	}
	return in, out, err
}
