package mirror

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/screen"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

const (
	// rebuildBytes is how much earlier output a picture is made from: the seat's ring, less what may come
	// while it is read. Older output is on disk, and reading it would cost the seat.
	rebuildBytes = 900 << 10

	// inboxMax is what a reader takes in while a piece is drawn. It then waits, and the seat goes on.
	inboxMax = 1 << 20

	// In a flood a wake-up costs more than the bytes it is for. The reader naps once it has taken in
	// readEnough: shorter than the socket's buffer takes to fill. The drawer naps longer.
	readNap    = 3 * time.Millisecond
	readEnough = 16 << 10
	drawNap    = 15 * time.Millisecond

	// readyWait bounds how long a snapshot waits for a picture that is being rebuilt.
	readyWait = 600 * time.Millisecond

	redialMin = 20 * time.Millisecond
	redialMax = 2 * time.Second
	dialLimit = 2 * time.Second

	// jigglePause is between the two sizes: shorter, and a program sees one change or none.
	jigglePause = 50 * time.Millisecond

	// unansweredMax and unansweredFor bound the answers that are kept for questions that went to a
	// terminal: one that leaves without having reacted has not answered, and the agent may still wait.
	unansweredMax = 32
	unansweredFor = seat.MirrorGap
)

// watched is one seat in the worker.
type watched struct {
	w      *worker
	add    message
	cancel context.CancelFunc
	wake   chan struct{} // the inbox has something
	asks   chan uint64   // snapshots that are wanted

	mu     sync.Mutex // guards the inbox
	room   *sync.Cond // the inbox was taken
	inbox  []byte
	at     uint64 // offset of inbox[0]
	gapTo  uint64 // 0: none
	modes  *terminal.Modes
	size   [2]int // 0: no change
	status seat.Status
	ended  bool

	flood    atomic.Bool // output comes faster than it is drawn
	jiggling atomic.Bool
	taken    int // by the reader since its last nap

	conn       *seat.Conn // of the drawer
	busy       [2]uint64  // what is being drawn
	unanswered []reply
}

type reply struct {
	start uint64
	p     []byte
	at    time.Time
}

// run keeps a connection to the seat until the seat has ended.
func (s *watched) run(ctx context.Context) {
	defer s.w.gone(s)
	defer s.cancel()
	for wait := redialMin; ctx.Err() == nil; wait = min(2*wait, redialMax) {
		began := time.Now()
		if s.once(ctx) {
			return
		}
		if time.Since(began) > redialMax {
			wait = redialMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func (s *watched) dial(ctx context.Context, role seat.Role, from uint64) (*seat.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	return seat.Dial(ctx, seat.DialConfig{Socket: s.add.Socket, Token: s.add.Token, Role: role, From: from})
}

// once holds one connection. It reports whether there is no sense in another.
func (s *watched) once(ctx context.Context) (over bool) {
	look, err := s.dial(ctx, 0, seat.FromLive)
	if err != nil {
		return hopeless(err)
	}
	was := look.Welcome()
	_ = look.Close()
	from := max(was.First, was.Next-min(was.Next, rebuildBytes), s.add.From)
	if from > was.Next {
		from = was.Next
	}
	c, err := s.dial(ctx, seat.RoleOutput|seat.RoleMirror, from)
	if err != nil {
		return hopeless(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer c.Close()
	st := c.Welcome()
	s.mu.Lock()
	s.room = sync.NewCond(&s.mu)
	s.inbox, s.at, s.gapTo, s.modes, s.size, s.status, s.ended = nil, from, 0, nil, [2]int{}, st, false
	s.mu.Unlock()
	s.conn, s.unanswered = c, nil
	drawn := make(chan struct{})
	go func() {
		defer close(drawn)
		s.draw(from, st)
	}()
	err = c.Run(ctx, seat.Handler{
		Output: func(at uint64, p []byte) error { s.output(at, p); return nil },
		Gap:    func(_, to uint64) error { s.gap(ctx, c, to); return nil },
		Status: s.news,
	})
	s.mu.Lock()
	s.ended = true
	s.room.Broadcast()
	s.mu.Unlock()
	s.poke()
	<-drawn
	return err == nil || ctx.Err() != nil
}

// hopeless says whether nobody will ever answer at the socket.
func hopeless(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, seat.ErrBadToken) || errors.Is(err, seat.ErrWrongUser) || errors.Is(err, seat.ErrVersion)
}

func (s *watched) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *watched) output(at uint64, p []byte) {
	if s.taken += len(p); s.taken >= readEnough {
		s.taken = 0
		if s.flood.Load() {
			time.Sleep(readNap)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.inbox)+len(p) > inboxMax && !s.ended {
		s.room.Wait()
	}
	if len(s.inbox) == 0 {
		s.at = at
	}
	s.inbox = append(s.inbox, p...)
	s.poke()
}

// gap notes lost output, and asks the seat which modes are in force now.
func (s *watched) gap(ctx context.Context, c *seat.Conn, to uint64) {
	s.mu.Lock()
	s.inbox, s.gapTo = s.inbox[:0], to
	s.mu.Unlock()
	s.poke()
	go func() {
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()
		if st, err := c.Get(ctx); err == nil {
			s.mu.Lock()
			m := terminal.Modes(st.Modes)
			s.modes = &m
			s.mu.Unlock()
			s.poke()
		}
	}()
}

func (s *watched) news(st seat.Status) {
	s.mu.Lock()
	if st.Rows != s.status.Rows || st.Cols != s.status.Cols {
		s.size = [2]int{int(st.Rows), int(st.Cols)}
	}
	s.status = st
	s.mu.Unlock()
	s.poke()
}

// draw is the goroutine that owns the screen.
func (s *watched) draw(from uint64, st seat.Status) {
	dog := newWatchdog("seat " + s.add.Seat)
	s.tellSize(int(st.Rows), int(st.Cols))
	scr, err := screen.New(screen.Config{
		Rows: int(st.Rows), Cols: int(st.Cols), From: from, Modes: terminal.Modes(st.Modes),
		Answer: s.answer, Jiggle: s.jiggle, CPU: func() time.Duration { return thisThread().now() },
		Busy: func(from, to uint64) {
			s.busy = [2]uint64{from, to}
			s.w.page.set(s.add.Slot, from, to)
			dog.again()
		},
	})
	if err != nil {
		_, _ = os.Stderr.WriteString("mirror worker: " + err.Error() + "\n")
		s.cancel()
		return
	}
	defer scr.Close()
	ready, deadline := from >= st.Next, time.Now().Add(readyWait)
	var waiting []uint64 // snapshots
	var spare []byte
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var ended bool
		spare, ended = s.take(scr, spare)
		var wait time.Duration
		s.alone(dog, func() { wait = scr.Step() })
		s.flood.Store(scr.Flooded())
		s.handBack()
		ready = ready || wait != 0 && scr.Offset() >= st.Next || time.Now().After(deadline)
		if ready {
			for _, req := range waiting {
				var snap screen.Snapshot
				s.alone(dog, func() { snap = scr.Snapshot() })
				s.snapshot(snap, req)
			}
			waiting = waiting[:0]
		}
		switch {
		case wait == 0:
			select {
			case req := <-s.asks:
				waiting = append(waiting, req)
			default:
			}
			continue
		case ended:
			s.refuse(waiting)
			return
		case !ready:
			wait = time.Until(deadline)
		}
		var c <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			c = timer.C
		}
		select {
		case req := <-s.asks:
			waiting = append(waiting, req)
		case <-s.wake:
			if wait > drawNap && scr.Flooded() {
				time.Sleep(drawNap)
			}
		case <-c:
		}
	}
}

// take hands over to the screen what has come, and returns the emptied buffer for the next time.
func (s *watched) take(scr *screen.Screen, spare []byte) (_ []byte, ended bool) {
	s.mu.Lock()
	p, at, gapTo, modes, size := s.inbox, s.at, s.gapTo, s.modes, s.size
	s.inbox, s.gapTo, s.modes, s.size = spare[:0], 0, nil, [2]int{}
	ended = s.ended
	s.room.Broadcast()
	s.mu.Unlock()
	if size[0] > 0 && size[1] > 0 {
		s.tellSize(size[0], size[1])
		scr.Resize(size[0], size[1])
	}
	if gapTo > 0 {
		scr.Gap(gapTo)
	}
	scr.Feed(at, p)
	if modes != nil {
		scr.SetModes(*modes)
	}
	if cap(p) > 256<<10 && len(p) < 64<<10 {
		p = nil // of a flood that is over
	}
	return p[:0], ended && len(p) == 0
}

// tellSize says what the picture is about to need.
func (s *watched) tellSize(rows, cols int) {
	rows, cols = screen.Size(rows, cols)
	_ = s.w.send(message{Op: "size", Seat: s.add.Seat, Rows: rows, Cols: cols})
}

func (s *watched) refuse(reqs []uint64) {
	for {
		for _, req := range reqs {
			_ = s.w.send(message{Op: "snapshot", Req: req, Problem: "the connection to the seat is lost"})
		}
		select {
		case req := <-s.asks:
			reqs = []uint64{req}
		default:
			return
		}
	}
}

// alone draws while no other seat does, under the eyes of the watchdog.
func (s *watched) alone(dog *watchdog, f func()) {
	s.w.drawing.Lock()
	defer s.w.drawing.Unlock()
	dog.guard(f)
}

// aside lets other seats draw meanwhile: f may wait for somebody.
func (s *watched) aside(f func()) {
	was := s.busy
	s.w.page.set(s.add.Slot, 0, 0)
	s.w.drawing.Unlock()
	f()
	s.w.drawing.Lock()
	s.w.page.set(s.add.Slot, was[0], was[1])
}

func (s *watched) snapshot(snap screen.Snapshot, req uint64) {
	m := message{
		Op: "snapshot", Req: req, Offset: snap.Offset, Rows: snap.Rows, Cols: snap.Cols,
		Modes: uint32(snap.Modes), Dirty: snap.Dirty, body: snap.Data,
	}
	_ = s.w.send(m)
}

// now is the newest status.
func (s *watched) now() seat.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// answer is called with every answer, old ones too when the picture is rebuilt. The seat types it if the
// question is the mirror's and was not answered; asking it for what it has said it will not do is spared.
func (s *watched) answer(start uint64, p []byte) {
	switch st := s.now(); {
	case start < st.AskFrom:
	case start < st.AskTo:
		s.aside(func() { _ = s.conn.Answer(start, p) })
	default:
		if len(s.unanswered) >= unansweredMax {
			s.unanswered = s.unanswered[1:]
		}
		s.unanswered = append(s.unanswered, reply{start, p, time.Now()})
	}
}

// handBack answers what a terminal was asked that has gone, or lost the keyboard to another one, and did not
// answer. The seat knows which.
func (s *watched) handBack() {
	if len(s.unanswered) == 0 {
		return
	}
	to := s.now().AskTo
	s.unanswered = slices.DeleteFunc(s.unanswered, func(r reply) bool {
		if r.start < to && time.Since(r.at) < unansweredFor {
			_ = s.conn.Answer(r.start, r.p)
		}
		return r.start < to || time.Since(r.at) >= unansweredFor
	})
}

// jiggle changes the size and back, so that the program repaints. Nobody who looks may see it.
func (s *watched) jiggle() bool {
	st := s.now()
	if st.State != seat.StateRunning || st.Attached > 0 || st.Answerer != seat.AnswererMirror || st.Rows < 3 {
		return false
	}
	if !s.jiggling.CompareAndSwap(false, true) {
		return true // one is under way, and the size it found is the one to go back to
	}
	c := s.conn
	go func() {
		defer s.jiggling.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
		defer cancel()
		if c.Resize(ctx, st.Rows-1, st.Cols) != nil {
			return
		}
		time.Sleep(jigglePause)
		// Refused when a terminal has come meanwhile: it has set its own size.
		_ = c.Resize(ctx, st.Rows, st.Cols)
	}()
	return true
}
