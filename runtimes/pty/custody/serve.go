//go:build linux

package custody

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodian"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	maxViewers = 48 // of the connections a seat may have; the others are kept for hosts, and for who has not said HELLO yet
	maxRequest = 4 + 1 + 4 + seat.MaxInput
)

func forbidden(text string) *seat.Error { return seat.Refuse(seat.CodeForbidden, text) }

func protocol(text string) *seat.Error { return seat.Refuse(seat.CodeProtocol, text) }

// refuse ends a connection that was not admitted. Who did not even say HELLO is told nothing.
func refuse(f *os.File, fd int, e *seat.Error) {
	if e != nil {
		_, _ = sendNow(fd, seat.AppendError(nil, 0, e))
	}
	_ = f.Close()
}

// serve handles one connection to its end. It has patience for its HELLO.
func (s *server) serve(f *os.File, fd int, patience time.Duration) {
	_ = f.SetReadDeadline(time.Now().Add(patience))
	in := seat.NewFrameReader(f, 128, 512)
	c, refusal := s.hello(f, fd, in)
	if c == nil {
		refuse(f, fd, refusal)
		return
	}
	_ = f.SetReadDeadline(time.Time{})
	in.Max = maxRequest
	var err error
	for err == nil {
		err = s.request(c, in)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var e *seat.Error
	if errors.As(err, &e) && !c.closed { // the reason, as far as the socket takes it now
		_, _ = sendNow(fd, seat.AppendError(slices.Concat(c.rest, c.answers), 0, e))
	}
	c.drop()
}

// hello reads the first frame and admits a connection, or says why not.
func (s *server) hello(f *os.File, fd int, in *seat.FrameReader) (*client, *seat.Error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		return nil, seat.Refuse(seat.CodeUID, "the seat belongs to user "+strconv.Itoa(os.Geteuid()))
	}
	t, p, err := in.Next()
	if err != nil {
		return nil, nil
	}
	h, err := seat.DecodeHello(p)
	switch {
	case t != seat.TypeHello || err != nil:
		return nil, protocol("the first frame must be a whole HELLO")
	case !seat.SameToken(h.Token[:], s.launch.Token):
		return nil, seat.Refuse(seat.CodeToken, "")
	case h.VersionMin > seat.VersionMax || h.VersionMax < seat.VersionMin:
		return nil, seat.Refuse(seat.CodeVersion, "this seat speaks versions 1 to "+strconv.Itoa(int(seat.VersionMax)))
	}
	// The connection's own goroutine sends the WELCOME.
	c := &client{s: s, f: f, fd: fd, cond: sync.NewCond(&s.mu), role: h.Role &^ seat.RoleTakeover, fence: h.Fence, handed: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.stale(c); e != nil {
		return nil, e
	}
	if e := s.lease(c, h.Role.Has(seat.RoleTakeover)); e != nil {
		return nil, e
	}
	if c.role.Has(seat.RoleControl) {
		s.fence = c.fence
	} else if len(s.clients) >= maxViewers {
		return nil, seat.Refuse(seat.CodeLimit, strconv.Itoa(len(s.clients))+" connections are open")
	}
	s.questions.Came(h.Role, s.ring.next, time.Now())
	c.cursor = min(h.From, s.ring.next)
	c.resuming = c.cursor < s.ring.next
	c.stalled = c.resuming || c.role.Has(seat.RoleMirror)
	if h.Rows != 0 && h.Cols != 0 {
		_ = s.resize(c, h.Rows, h.Cols) // who may not keeps the size there is
	}
	s.clients = append(s.clients, c)
	s.news()
	c.statusDue = false
	c.answers = seat.AppendWelcome(nil, min(h.VersionMax, seat.VersionMax), s.status(c))
	go c.writeLoop()
	return c, nil
}

// stale refuses a control connection of a host that was superseded. mu is held, as in all that follows
// but request.
func (s *server) stale(c *client) *seat.Error {
	if !c.role.Has(seat.RoleControl) || c.fence >= s.fence {
		return nil
	}
	return seat.Refuse(seat.CodeStaleFence, "epoch "+strconv.FormatUint(c.fence, 10)+" is older than "+
		strconv.FormatUint(s.fence, 10)+", which holds the seat")
}

// lease gives c the keyboard, if it asks for it: a host types without.
func (s *server) lease(c *client, takeover bool) *seat.Error {
	if !c.role.Has(seat.RoleInput) || c.role.Has(seat.RoleControl) && !c.role.Has(seat.RoleTerminal) {
		return nil
	}
	if s.writer != nil && s.writer.hungUp() {
		s.writer.drop() // it reconnects before we noticed that it had gone
	}
	if s.writer != nil {
		if !takeover {
			return seat.Refuse(seat.CodeBusy, "another terminal has the keyboard")
		}
		s.writer.role &^= seat.RoleInput // told by the news that follows
	}
	s.writer = c
	return nil
}

// resize sets the terminal's size for the writer or a host.
func (s *server) resize(c *client, rows, cols uint16) *seat.Error {
	if s.writer != c && !c.role.Has(seat.RoleControl) && !(s.writer == nil && c.role.Has(seat.RoleMirror)) {
		return forbidden("only the writer and the host set the size")
	}
	if e := s.stale(c); e != nil {
		return e
	}
	if s.pty.resize(rows, cols) == nil { // else the terminal is gone with the agent
		s.rows, s.cols = rows, cols
	}
	return nil
}

// requests says who answers what. control asks for a host that was not superseded. INPUT is answered
// by typeIn, when the terminal has taken it; all others are with a STATUS.
var requests = map[seat.Type]struct {
	control bool
	act     func(s *server, c *client, id uint32, body []byte) *seat.Error
}{
	seat.TypeGet:     {false, func(*server, *client, uint32, []byte) *seat.Error { return nil }},
	seat.TypeInput:   {false, (*server).typeIn},
	seat.TypeResize:  {false, (*server).onResize},
	seat.TypeCommit:  {true, (*server).onCommit},
	seat.TypeSignal:  {true, (*server).onSignal},
	seat.TypeAckExit: {true, (*server).onAckExit},
	seat.TypeAnswer:  {false, (*server).onAnswer},
}

// request reads and handles one frame. An error ends the connection.
func (s *server) request(c *client, in *seat.FrameReader) error {
	t, p, err := in.Next()
	if err != nil {
		return err
	}
	r, known := requests[t]
	if !known && t >= seat.TypeOptional {
		return nil
	}
	id, body, err := seat.DecodeRequest(p)
	if !known || err != nil || id == 0 {
		return protocol("frame type " + strconv.Itoa(int(t)) + " is not a request, or has no id")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var refusal *seat.Error
	if r.control {
		refusal = s.stale(c)
		if !c.role.Has(seat.RoleControl) {
			refusal = forbidden("only a host may do this")
		}
	}
	if refusal == nil {
		refusal = r.act(s, c, id, body)
	}
	if refusal != nil {
		c.answer(seat.AppendError(nil, id, refusal))
	} else if t != seat.TypeInput && t != seat.TypeAnswer {
		c.answer(seat.AppendStatus(nil, id, s.status(c)))
	}
	for len(c.answers) > maxOwed && !c.closed { // answers that nobody reads must not pile up
		c.cond.Wait()
	}
	return nil
}

func (s *server) onResize(c *client, _ uint32, body []byte) *seat.Error {
	rows, cols, err := seat.DecodeSize(body)
	if err != nil || rows == 0 || cols == 0 {
		return protocol("resize without a size")
	}
	e := s.resize(c, rows, cols)
	if e == nil {
		s.news()
	}
	return e
}

// onCommit starts the agent, or answers that it has been started.
func (s *server) onCommit(*client, uint32, []byte) *seat.Error {
	refusal, _ := s.ask(false)
	return refusal
}

func (s *server) onSignal(_ *client, _ uint32, body []byte) *seat.Error {
	if len(body) < 1 || custodian.Signals[seat.Action(body[0])] == 0 {
		return protocol("signal without a known action")
	}
	a := seat.Action(body[0])
	if a != seat.ActionInterrupt {
		if refusal, ok := s.ask(true); ok {
			return refusal
		}
	}
	if a == seat.ActionKill {
		s.hurry.Store(true) // what the agent leaves behind is killed at once
	}
	switch {
	case s.state == seat.StateRunning: // an agent that has ended was not asked to
		s.asked = s.asked || a != seat.ActionInterrupt
		custodian.Signal(s.agent.PID, s.pty.foreground(), a)
	case a == seat.ActionInterrupt:
		return seat.Refuse(seat.CodeNotRunning, "there is no agent to interrupt")
	}
	return nil
}

func (s *server) onAckExit(*client, uint32, []byte) *seat.Error {
	if err := fpBeforeAck.Hit(); err != nil {
		return seat.Refuse(seat.CodeInternal, err.Error())
	}
	if s.state != seat.StateExited {
		return seat.Refuse(seat.CodeNotExited, "the seat is "+s.state.String())
	}
	kick(s.acked)
	return nil
}
