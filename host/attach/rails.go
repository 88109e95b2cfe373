package attach

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
)

// Rails is what a session needs of the mesh; bus.Bus implements it.
type Rails interface {
	Listen(subject string, fn func(bus.RailFrame)) (stop func(), err error)
	Send(subject string, frame []byte) error
	Beat(subject, nobody string, frame []byte, at int64) error
	Flush(ctx context.Context) error
	// Close hands over what was sent, and ends the rails. It may be called more than once.
	Close()
}

// Rail names the two subjects of one session.
type Rail struct {
	Session string
	Epoch   uint64    // of the incarnation that serves it, or did
	Until   time.Time // when it is over at the latest; zero for one that is
}

// Lines connects sessions to the mesh: Shared, or Own where the broker holds each one to its own subjects. The methods may
// be called at once.
type Lines interface {
	// Open connects the rails of one session. lost is called whenever the server is lost, and must not block.
	Open(ctx context.Context, of Rail, lost func()) (Rails, error)
	// Past connects the rails of sessions of earlier incarnations, at most pastAtOnce of them.
	Past(ctx context.Context, of []Rail) (Rails, error)
	// Close ends what Open and Past have not handed out. Nothing is opened behind it.
	Close()
}

// pastAtOnce is how many rails of earlier sessions one connection carries: as many as a credential has room for.
const pastAtOnce = 32

// ErrStopping is returned by Lines that are closed.
var ErrStopping = errors.New("the host is stopping")

// Shared gives all sessions one connection, which is made for the first of them. No answer of the host waits behind a
// terminal. lost is called whenever its server is lost.
func Shared(dial func(ctx context.Context, lost func()) (Rails, error)) Lines {
	return &shared{dial: dial, users: map[*part]func(){}}
}

type shared struct {
	dial    func(ctx context.Context, lost func()) (Rails, error)
	dialing sync.Mutex // one connects, the others wait for it

	mu     sync.Mutex
	rails  Rails // nil before the first session
	users  map[*part]func()
	closed bool
}

// part is the connection as one session has it.
type part struct {
	Rails
	of *shared
}

func (p *part) Close() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.users, p)
}

func (s *shared) Open(ctx context.Context, _ Rail, lost func()) (Rails, error) {
	rails, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	p := &part{rails, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[p] = lost
	return p, nil
}

func (s *shared) Past(ctx context.Context, _ []Rail) (Rails, error) {
	return s.Open(ctx, Rail{}, func() {}) // the connection comes back, and what is listened to with it
}

func (s *shared) connect(ctx context.Context) (Rails, error) {
	s.dialing.Lock()
	defer s.dialing.Unlock()
	s.mu.Lock()
	rails, closed := s.rails, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return nil, ErrStopping
	case rails != nil:
		return rails, nil
	}
	rails, err := s.dial(ctx, s.lost)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if closed = s.closed; !closed {
		s.rails = rails
	}
	s.mu.Unlock()
	if closed { // nobody closes them any more
		rails.Close()
		return nil, ErrStopping
	}
	return rails, nil
}

// lost tells every session: what was under way is lost, and nobody knows what it was.
func (s *shared) lost() {
	s.mu.Lock()
	tell := make([]func(), 0, len(s.users))
	for _, lost := range s.users {
		tell = append(tell, lost)
	}
	s.mu.Unlock()
	for _, lost := range tell {
		lost()
	}
}

func (s *shared) Close() {
	s.mu.Lock()
	rails := s.rails
	s.closed = true
	s.mu.Unlock()
	if rails != nil {
		ctx, cancel := context.WithTimeout(context.Background(), endFlush)
		defer cancel()
		_ = rails.Flush(ctx) // a holder that is not told finds nobody
		rails.Close()
	}
}
