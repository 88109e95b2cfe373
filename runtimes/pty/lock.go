package pty

import (
	"context"
	"sync"
)

// seatLocks hands out one lock a seat id. Entries exist only while somebody holds or awaits one.
type seatLocks struct {
	mu   sync.Mutex
	byID map[string]*seatLock
}

type seatLock struct {
	refs  int
	token chan struct{} // holds one token while the lock is free
	hurry chan struct{} // closed once a stop without grace waits for the holder
	once  sync.Once
}

// lock waits for the seat's lock. With hurry it also tells the holder to stop waiting politely: a
// second stop hastens the first instead of queueing behind its grace. The lock is released by calling
// the returned function.
func (s *seatLocks) lock(ctx context.Context, id string, hurry bool) (*seatLock, func(), error) {
	s.mu.Lock()
	if s.byID == nil {
		s.byID = map[string]*seatLock{}
	}
	l := s.byID[id]
	if l == nil {
		l = &seatLock{token: make(chan struct{}, 1), hurry: make(chan struct{})}
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
		l.once.Do(func() { close(l.hurry) })
	}
	select {
	case <-l.token:
		return l, func() { l.token <- struct{}{}; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, nil, ctx.Err()
	}
}
