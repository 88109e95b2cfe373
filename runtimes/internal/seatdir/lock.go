package seatdir

import (
	"context"
	"sync"
)

// Locks hands out one lock a seat id. Entries exist only while somebody holds or awaits one.
type Locks struct {
	mu   sync.Mutex
	byID map[string]*Held
}

// Held is the lock of one seat.
type Held struct {
	refs  int
	token chan struct{} // holds one token while the lock is free
	Hurry chan struct{} // closed once a stop without grace waits for the holder
	once  sync.Once
}

// Lock waits for the seat's lock. With hurry it also tells the holder to stop waiting politely: a
// second stop hastens the first instead of queueing behind its grace. The lock is released by calling
// the returned function.
func (s *Locks) Lock(ctx context.Context, id string, hurry bool) (*Held, func(), error) {
	s.mu.Lock()
	if s.byID == nil {
		s.byID = map[string]*Held{}
	}
	l := s.byID[id]
	if l == nil {
		l = &Held{token: make(chan struct{}, 1), Hurry: make(chan struct{})}
		l.token <- struct{}{}
		s.byID[id] = l
	}
	l.refs++
	s.mu.Unlock()
	drop := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.refs--; l.refs == 0 {
			delete(s.byID, id)
		}
	}
	if hurry {
		l.once.Do(func() { close(l.Hurry) })
	}
	select {
	case <-l.token:
		return l, func() { l.token <- struct{}{}; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, nil, ctx.Err()
	}
}

// InUse reports whether somebody holds or awaits the lock of a seat.
func (s *Locks) InUse(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] != nil
}
