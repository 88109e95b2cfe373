package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Bounds of a connection that removes messages. What is settled together is removed over one of them.
const (
	eraserIdle = 250 * time.Millisecond // from the last removal to its end
	eraserMost = 30 * time.Second       // from its beginning
)

// EraseBy has the messages of records that may not remove any removed over connections that open makes, each for a
// moment: end drains one. It is not called beside anything else, and Close ends what it has left open.
func (r *Records) EraseBy(open func(ctx context.Context) (by *Records, end func(), err error)) {
	r.eraser = &eraser{open: open, opening: make(chan struct{}, 1)}
}

// Close ends what the records have opened for themselves; they end with their connection.
func (r *Records) Close() {
	if r.eraser != nil {
		r.eraser.close()
	}
}

// eraser removes messages over a connection for a step, which it keeps for as long as one removal follows the other.
type eraser struct {
	open    func(context.Context) (*Records, func(), error)
	opening chan struct{} // a token: one opens, and the others wait for it

	mu     sync.Mutex
	closed bool
	now    *erasing // nil: none is open
}

// erasing is one connection. Its end waits for the removals that go over it.
type erasing struct {
	rec   *Records
	end   func()
	begun time.Time
	idle  *time.Timer
	users sync.WaitGroup
	once  sync.Once // of the end
}

// errNoEraser: nobody removes messages for these records now. Nothing was removed.
var errNoEraser = errors.New("nobody removes messages for these records")

// erase removes one message.
func (r *Records) erase(ctx context.Context, stream string, seq uint64) error {
	body := map[string]any{"seq": seq, "no_erase": true}
	if !r.marks {
		_, err := r.api(ctx, "STREAM.MSG.DELETE."+stream, body)
		return err
	}
	if r.eraser == nil {
		return fmt.Errorf("remove message: %w: %w: %w", ErrUnavailable, errNoEraser, ErrNotWritten)
	}
	e, err := r.eraser.take(ctx)
	if err != nil {
		return fmt.Errorf("remove message: %w: %w: %w: %w", ErrUnavailable, errNoEraser, ErrNotWritten, err)
	}
	_, err = e.rec.api(ctx, "STREAM.MSG.DELETE."+stream, body)
	e.users.Done()
	if errors.Is(err, ErrUnavailable) {
		r.eraser.drop(e)
	}
	return err
}

// take returns the connection that is open, or opens one. Its users are one more.
func (s *eraser) take(ctx context.Context) (*erasing, error) {
	if e := s.usable(); e != nil {
		return e, nil
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if e := s.usable(); e != nil {
		return e, nil
	}
	rec, end, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	mine := &erasing{rec: rec, end: end, begun: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		defer end()
		return nil, errors.New("it is closed")
	}
	mine.idle = time.AfterFunc(eraserIdle, func() { s.drop(mine) })
	mine.users.Add(1)
	s.now = mine
	return mine, nil
}

// usable is the connection that is open, with one more user; nil when there is none, or it is too old.
func (s *eraser) usable() *erasing {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.now
	if e == nil || s.closed || time.Since(e.begun) > eraserMost || !e.rec.Connected() {
		return nil
	}
	e.idle.Reset(eraserIdle)
	e.users.Add(1)
	return e
}

// drop ends a connection once nobody uses it any more.
func (s *eraser) drop(e *erasing) {
	s.mu.Lock()
	if s.now == e {
		s.now = nil
	}
	s.mu.Unlock()
	e.idle.Stop()
	e.users.Wait()
	e.once.Do(e.end)
}

func (s *eraser) close() {
	s.mu.Lock()
	s.closed = true
	e := s.now
	s.mu.Unlock()
	if e != nil {
		s.drop(e)
	}
}
