package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrNotAttached is returned by Session.Write while the session is broken, or its host is not heard. What was to
// be typed was not sent, and is not kept for later.
var ErrNotAttached = errors.New("not attached to the terminal now")

// AttachCall says whose terminal is attached to, and how.
type AttachCall struct {
	Target   wire.Target
	Instance string     // the host of the seat (AgentRow.InstanceID); empty for any of the class
	Authz    wire.Authz // default wire.AuthzAny
	// Role is wire.AttachWriter (refused with conflict while another terminal has the keyboard),
	// wire.AttachObserver, or empty: the writer unless there is one.
	Role       string
	Takeover   bool   // take the keyboard from who has it
	Rows, Cols uint16 // size of the terminal here; 0: not known
	// OnNews is told what happens to the session, by the goroutine that reads, in order with the output.
	OnNews func(SessionNews)
	// Once makes a broken session end (wire.EndRailBroken and others) instead of being attached anew.
	Once bool
	// Deadline of the command attach; default 5 s.
	Deadline time.Duration
}

// Kinds of SessionNews.
const (
	SessionLost = "lost" // broken; it is being attached anew, and what is typed meanwhile is not sent
	SessionBack = "back" // attached anew: the screen is painted next, on a terminal that should be reset first
	SessionDrop = "drop" // output is missing here
)

// SessionNews is what happened to a session.
type SessionNews struct {
	Kind    string
	Reason  string // lost: an end reason of the wire, or a text
	Role    string // back: wire.AttachWriter or AttachObserver
	Dropped int64  // drop: bytes of output
	// Unsure is, with lost, how many typed bytes were on their way: whether they arrived is unknown. They are
	// never sent again.
	Unsure int
}

// redialWait bounds the first attach, and each later one in the end.
const redialWait = 5 * time.Second

// startingWait is for how long a seat that has no terminal now is tried again: it may be on its way.
const startingWait = 20 * time.Second

// redialDelay is the wait before a broken session is attached anew, for the attempt of that number since the server is
// there. A host that comes back behind its server is found within two seconds; one that has not for a while is asked
// less often. A server that comes back, and a host that says why a session is over, cut the wait short.
func redialDelay(attempt int) time.Duration {
	if attempt >= 32 { // a minute
		return 5 * time.Second
	}
	return min(250*time.Millisecond<<min(attempt, 3), 2*time.Second)
}

// redialBudget is what an attempt of that number may take: an answer that was lost must not hold up the next, and a host
// that has much to do is given more time.
func redialBudget(attempt int) time.Duration {
	return min(2*time.Second+time.Duration(min(attempt, 10))*time.Second, redialWait)
}

// Session is the terminal of a seat, attached over the mesh. Read and WriteTo give its output, Write types into it.
// It survives the loss of the server and the restart of its host. One goroutine may read, any may write.
type Session struct {
	c    *Client
	call AttachCall
	ctx  context.Context
	stop context.CancelFunc
	done chan struct{} // closed when it has ended for good

	mu         sync.Mutex
	change     *sync.Cond
	link       *link // nil while it is broken
	queue      []chunk
	free       [][]byte // buffers for output
	rows, cols uint16
	role       string
	ended      bool
	reason     string
	err        error

	cur  chunk // read by the reading goroutine alone
	rest []byte
}

// chunk is output, or news between output.
type chunk struct {
	from  *link
	p     []byte
	news  *SessionNews
	frame bool // it came as a frame, for which a credit is due
}

// Attach opens a session and returns once it may be used. The session lasts until Close, or until one of the ends
// that Reason tells. ctx bounds the attach alone.
//
// Errors: *wire.Error (expired, failed-precondition, resource-exhausted, conflict, …; not-executed), and those of Call.
func (c *Client) Attach(ctx context.Context, call AttachCall) (*Session, error) {
	if call.Authz == wire.AuthzNone {
		call.Authz = wire.AuthzAny
	}
	if call.Deadline <= 0 {
		call.Deadline = redialWait
	}
	s := &Session{c: c, call: call, done: make(chan struct{}), rows: call.Rows, cols: call.Cols}
	s.change = sync.NewCond(&s.mu)
	s.ctx, s.stop = context.WithCancel(context.Background())
	l, err := s.dial(ctx, call.Deadline, wire.AttachArgs{Role: call.Role, Takeover: call.Takeover, Rows: call.Rows, Cols: call.Cols})
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("attach: %w", err)
	}
	go s.keep(l)
	return s, nil
}

// dial asks for a grant and redeems it.
func (s *Session) dial(ctx context.Context, deadline time.Duration, args wire.AttachArgs) (*link, error) {
	var reply wire.AttachReply
	target := s.call.Target
	who, err := s.c.Call(ctx, Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdAttach, Instance: s.call.Instance, Authz: s.call.Authz,
		Target: &target, Args: args, Deadline: deadline,
	}, &reply)
	if err != nil {
		return nil, err
	}
	g, err := wire.DecodeSessionGrant(reply.Grant)
	switch {
	case err != nil:
		return nil, err
	case g.Holder.ID != s.c.caller.Principal() || g.Holder.LifecycleUID != s.c.caller.UID || g.Space != s.c.cfg.Space:
		return nil, fmt.Errorf("%w: the grant is for somebody else", ErrBadReply)
	case g.Serving.InstanceID != who.InstanceID || g.Serving.Epoch != who.Epoch:
		return nil, fmt.Errorf("%w: the grant is of another incarnation than the one that answered", ErrBadReply)
	}
	l := newLink(s, g)
	role := reply.Role
	if role == "" {
		role = wire.AttachWriter
	}
	if args.Replaces != "" { // before the output that follows it
		s.push(chunk{from: l, news: &SessionNews{Kind: SessionBack, Role: role}})
	}
	if err := l.open(ctx); err != nil {
		s.drop(l)
		return nil, err
	}
	s.mu.Lock()
	s.link, s.role = l, role
	rows, cols := s.rows, s.cols
	s.mu.Unlock()
	if rows != args.Rows || cols != args.Cols {
		_ = l.data(resizeFrame(rows, cols), 0) // a link that breaks is attached anew with the size
	}
	return l, nil
}

// keep holds one link after the other until something ends the session.
func (s *Session) keep(l *link) {
	defer close(s.done)
	defer s.stop()
	for {
		select {
		case <-l.broken:
		case <-s.ctx.Done():
			l.close()
			s.end(wire.EndClosed, nil)
			return
		}
		why, unsure := l.why()
		if s.call.Once || final(why) {
			s.end(why, nil)
			return
		}
		s.mu.Lock()
		s.link = nil
		s.mu.Unlock()
		s.push(chunk{news: &SessionNews{Kind: SessionLost, Reason: why, Unsure: unsure}})
		next, err := s.again(l, why)
		if err != nil || next == nil {
			s.end(wire.EndClosed, err)
			return
		}
		l = next
	}
}

// final says whether a session is not attached anew after such an end.
func final(reason string) bool {
	return slices.Contains([]string{wire.EndProcessExit, wire.EndTargetDespawn, wire.EndReplaced}, reason)
}

// again attaches anew until that succeeds, is refused for good (the error), or the session is closed (nil).
func (s *Session) again(old *link, why string) (*link, error) {
	changes := s.c.nc.StatusChanged(nats.CONNECTED)
	defer s.c.nc.RemoveStatusListener(changes)
	told := why == wire.EndManagerRestart || why == wire.EndExpired || why == wire.EndRailBroken || why == wire.EndClosed
	var starting unready
	for attempt := 0; ; attempt++ {
		wait := redialDelay(attempt)
		if attempt == 0 && told && s.c.nc.IsConnected() {
			wait = 0 // the host is there
		}
		if !s.pause(wait, changes) {
			return nil, nil
		}
		if s.c.nc.IsClosed() {
			return nil, ErrClosed
		}
		if !s.c.nc.IsConnected() {
			attempt = -1 // what counts is how long the server is back and the host is not
			starting = unready{}
			continue
		}
		role := s.call.Role
		if role == wire.AttachWriter {
			role = "" // rather watch than be refused, if somebody took the keyboard meanwhile
		}
		s.mu.Lock()
		rows, cols := s.rows, s.cols
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.ctx, redialBudget(attempt)+time.Second)
		watched := s.whileConnected(ctx, cancel, changes)
		s.drop(old)
		l, err := s.dial(ctx, redialBudget(attempt), wire.AttachArgs{Role: role, Rows: rows, Cols: cols, Replaces: old.grant.SessionID})
		cancel()
		if again := <-watched; again && err != nil {
			attempt = -1
		}
		var refused *wire.Error
		switch {
		case err == nil:
			return l, nil
		case s.ctx.Err() != nil:
			return nil, nil
		case errors.As(err, &refused) && slices.Contains([]string{
			wire.CodeExpired, wire.CodePermissionDenied, wire.CodeUnauthenticated, wire.CodeNotFound, wire.CodeUnimplemented, wire.CodeBadRequest,
		}, refused.Code):
			return nil, err
		case starting.tooLong(refused, time.Now()):
			return nil, err // it is not only being started
		}
	}
}

// unready is since when a seat is there and has no terminal.
type unready struct{ since time.Time }

// tooLong takes the next answer (nil: there was none) and says whether the seat has had no terminal for longer than a
// start takes. While nobody says so it may have had one: the time begins anew.
func (u *unready) tooLong(refused *wire.Error, now time.Time) bool {
	switch {
	case refused == nil || refused.Code != wire.CodeFailedPrecondition:
		u.since = time.Time{}
		return false
	case u.since.IsZero():
		u.since = now
	}
	return now.Sub(u.since) > startingWait
}

// whileConnected calls cancel when the server comes back while ctx lasts, from another loss: what was asked before is
// not answered any more. The channel says, once, whether it did.
func (s *Session) whileConnected(ctx context.Context, cancel func(), changes <-chan nats.Status) <-chan bool {
	connection := s.c.nc.Stats().Reconnects
	said := make(chan bool, 1)
	go func() {
		for {
			select {
			case _, ok := <-changes:
				if !ok { // the connection is closed
					changes = nil
				} else if s.c.nc.Stats().Reconnects != connection { // else it is told late of an earlier one
					cancel()
					said <- true
					return
				}
			case <-ctx.Done():
				said <- false
				return
			}
		}
	}()
	return said
}

// pause waits, but not when the server comes back. It reports false when the session was closed.
func (s *Session) pause(d time.Duration, back <-chan nats.Status) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-back:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// drop forgets output of a link that is over: the screen is painted anew.
func (s *Session) drop(old *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(c chunk) bool { return c.from == old })
}

func (s *Session) end(reason string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.ended, s.reason, s.err = nil, true, reason, err
	s.change.Broadcast()
}

// push queues what is to be read.
func (s *Session) push(c chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, c)
	s.change.Broadcast()
}

// next returns output, having told what news there is before it. At the end it returns io.EOF, or the error.
func (s *Session) next() (chunk, error) {
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.ended {
			s.change.Wait()
		}
		if len(s.queue) == 0 {
			err := s.err
			s.mu.Unlock()
			if err == nil {
				err = io.EOF
			}
			return chunk{}, err
		}
		c := s.queue[0]
		s.queue[0] = chunk{}
		if s.queue = s.queue[1:]; len(s.queue) == 0 {
			s.queue = nil
		}
		s.mu.Unlock()
		if c.news == nil {
			return c, nil
		}
		if s.call.OnNews != nil {
			s.call.OnNews(*c.news)
		}
		if c.frame {
			c.from.taken(0)
		}
	}
}

// dealt gives a chunk back: it was shown, and there is room for another one.
func (s *Session) dealt(c chunk) {
	c.from.taken(len(c.p))
	if cap(c.p) >= wire.MaxSessionData {
		s.mu.Lock()
		s.free = append(s.free, c.p[:0])
		s.mu.Unlock()
	}
}

// buffer returns an empty buffer for a frame of size bytes on the wire.
func (s *Session) buffer(size int) []byte {
	if size < 8<<10 {
		return make([]byte, 0, size)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		b := s.free[n-1]
		s.free = s.free[:n-1]
		return b
	}
	return make([]byte, 0, wire.MaxSessionData+64) // what decoding needs
}

// Read gives output of the terminal. It returns io.EOF when the session has ended (Reason says why), and the error
// when it could not be attached anew.
func (s *Session) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		if s.cur.from != nil {
			s.dealt(s.cur)
			s.cur = chunk{}
		}
		c, err := s.next()
		if err != nil {
			return 0, err
		}
		s.cur, s.rest = c, c.p
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// WriteTo writes all output to w until the end of the session, which is no error, or an error. It spares a copy.
func (s *Session) WriteTo(w io.Writer) (total int64, err error) {
	for {
		c, err := s.next()
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		n, err := w.Write(c.p)
		total += int64(n)
		if err != nil {
			return total, err
		}
		s.dealt(c)
	}
}

// Write types p. It waits while the program does not read. What it returns with an error was sent, and may or may
// not be typed. Errors: ErrNotAttached, io.ErrClosedPipe (the session has ended).
func (s *Session) Write(p []byte) (n int, err error) {
	for n < len(p) {
		l, err := s.current()
		if err != nil {
			return n, err
		}
		part := p[n:min(len(p), n+wire.MaxSessionData)]
		data, err := wire.TerminalFrame{Kind: wire.TerminalData, Bytes: part}.MarshalJSON()
		if err != nil {
			return n, err
		}
		if err := l.data(data, len(part)); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

func (s *Session) current() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return nil, io.ErrClosedPipe
	case s.link == nil, s.link.stalled():
		return nil, ErrNotAttached
	}
	return s.link, nil
}

// Resize says which size the terminal here has. The writer's counts for the seat.
func (s *Session) Resize(rows, cols uint16) error {
	if rows == 0 || cols == 0 {
		return nil
	}
	s.mu.Lock()
	s.rows, s.cols = rows, cols
	s.mu.Unlock()
	l, err := s.current()
	if err != nil {
		if errors.Is(err, ErrNotAttached) {
			return nil // it is attached anew with the size
		}
		return err
	}
	return l.data(resizeFrame(rows, cols), 0)
}

func resizeFrame(rows, cols uint16) []byte {
	p, _ := wire.TerminalFrame{Kind: wire.TerminalResize, Rows: int(rows), Cols: int(cols)}.MarshalJSON() // fails for ends only
	return p
}

// Role is what the session may do now: wire.AttachWriter or wire.AttachObserver.
func (s *Session) Role() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.role
}

// Reason is why the session has ended: an end reason of the wire. It is empty while it lasts.
func (s *Session) Reason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// Close ends the session. The seat goes on.
func (s *Session) Close() error {
	s.stop()
	<-s.done
	return nil
}
