package seat

import (
	"context"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// A count of the seats of other hosts is told for foreignFor; who asks then waits foreignWait for a newer one.
const (
	foreignFor  = 5 * time.Second
	foreignWait = 150 * time.Millisecond
)

// Foreign is the number of seats on this machine that belong to other instances, as of a few seconds ago. While
// a runtime does not answer it is what that runtime said last.
func (s *Set) Foreign() int {
	if done := s.recount(); done != nil {
		t := time.NewTimer(foreignWait)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, of := range s.foreign {
		n += of
	}
	return n
}

// recount has the runtimes asked again, once for everybody who wants to know. It returns nil when what is known
// is new enough.
func (s *Set) recount() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.counting != nil:
		return s.counting
	case time.Since(s.counted) < foreignFor || s.closing != "":
		return nil
	}
	done := make(chan struct{})
	s.counting = done
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		ctx, cancel := context.WithTimeout(s.life, listTimeout)
		defer cancel()
		for _, runtime := range s.cfg.Plugins.Runtimes() {
			if n, ok := s.foreignOn(ctx, runtime); ok {
				s.mu.Lock()
				s.foreign[runtime] = n
				s.mu.Unlock()
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.counting, s.counted = nil, time.Now()
		close(done)
	}()
	return done
}

// foreignOn asks one runtime. ok is false when it does not tell.
func (s *Set) foreignOn(ctx context.Context, runtime string) (n int, ok bool) {
	rt, info, err := s.cfg.Plugins.Runtime(ctx, runtime)
	if err != nil {
		return 0, false
	}
	l, can := rt.(sdk.Lister)
	if !can || !info.Has(sdk.CapList) {
		return 0, true
	}
	list, err := l.List(ctx, sdk.ListRequest{InstanceID: s.cfg.InstanceID})
	if err != nil {
		return 0, false
	}
	for _, e := range list {
		if !e.Ours {
			n++
		}
	}
	return n, true
}
