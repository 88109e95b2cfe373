package holder

import (
	"crypto/subtle"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodian"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const (
	writeTimeout = 2 * time.Second // who does not read for so long is dropped
	maxRequest   = 4 + 1 + 4 + seat.MaxInput
)

const notHere = "this seat's terminal is in tmux: output, input and size are not had from its socket; attach with tmux"

// client is one connection.
type client struct {
	f     *os.File
	role  seat.Role
	fence uint64
	done  chan struct{} // closed once its goroutine has ended

	wmu sync.Mutex // one frame at a time; taken after server.mu or without it, never before
}

// send writes frames, or closes the connection of who does not take them in time.
func (c *client) send(p []byte) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_ = c.f.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := c.f.Write(p); err != nil {
		_ = c.f.Close()
	}
}

// leave tells a connection of the exit and waits, for a while, until it has hung up: what was sent is
// then read.
func (c *client) leave(x seat.ExitRecord) {
	c.send(seat.AppendExit(nil, seat.Status{}, x))
	_ = unixShutdown(c.f)
	select {
	case <-c.done:
	case <-time.After(farewell):
	}
}

func unixShutdown(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.Shutdown(int(fd), unix.SHUT_WR) })
	return errors.Join(err, serr)
}

// serve handles one connection to its end. It has patience for its HELLO.
func (s *server) serve(f *os.File, fd int, patience time.Duration) {
	c := &client{f: f, done: make(chan struct{})}
	defer close(c.done)
	defer c.f.Close()
	_ = c.f.SetReadDeadline(time.Now().Add(patience))
	in := seat.NewFrameReader(c.f, 128, 512)
	if refusal, ok := s.hello(c, fd, in); !ok {
		if refusal != nil { // who did not even say HELLO is told nothing
			c.send(seat.AppendError(nil, 0, refusal))
		}
		return
	}
	_ = c.f.SetReadDeadline(time.Time{})
	in.Max = maxRequest
	for {
		t, p, err := in.Next()
		if err != nil {
			break
		}
		if err := s.request(c, t, p); err != nil {
			c.send(seat.AppendError(nil, 0, err))
			break
		}
	}
	s.mu.Lock()
	delete(s.clients, c)
	s.mu.Unlock()
}

// hello reads the first frame and admits a connection, or says why not.
func (s *server) hello(c *client, fd int, in *seat.FrameReader) (*seat.Error, bool) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		return seat.Refuse(seat.CodeUID, "the seat belongs to user "+strconv.Itoa(os.Geteuid())), false
	}
	t, p, err := in.Next()
	if err != nil {
		return nil, false
	}
	h, err := seat.DecodeHello(p)
	switch {
	case t != seat.TypeHello || err != nil:
		return seat.Refuse(seat.CodeProtocol, "the first frame must be a whole HELLO"), false
	case subtle.ConstantTimeCompare(h.Token[:], s.launch.Token) != 1:
		return seat.Refuse(seat.CodeToken, ""), false
	case h.VersionMin > seat.VersionMax || h.VersionMax < seat.VersionMin:
		return seat.Refuse(seat.CodeVersion, "this seat speaks versions 1 to "+strconv.Itoa(int(seat.VersionMax))), false
	case h.Role&^seat.RoleControl != 0:
		return seat.Refuse(seat.CodeForbidden, notHere), false
	}
	c.role, c.fence = h.Role, h.Fence
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.stale(c); e != nil {
		return e, false
	}
	if c.role.Has(seat.RoleControl) {
		s.fence = c.fence
	}
	if s.state == seat.StateExited {
		return nil, false // it is about to end: its record tells
	}
	s.clients[c] = true
	c.send(seat.AppendWelcome(nil, min(h.VersionMax, seat.VersionMax), s.status(c)))
	return nil, true
}

// stale refuses a control connection of a host that was superseded. mu is held.
func (s *server) stale(c *client) *seat.Error {
	if !c.role.Has(seat.RoleControl) || c.fence >= s.fence {
		return nil
	}
	return seat.Refuse(seat.CodeStaleFence, "epoch "+strconv.FormatUint(c.fence, 10)+" is older than "+
		strconv.FormatUint(s.fence, 10)+", which holds the seat")
}

// news tells every connection that the status changed. mu is held.
func (s *server) news() {
	for c := range s.clients {
		c.send(seat.AppendStatus(nil, 0, s.status(c)))
	}
}

// request handles one frame. An error ends the connection.
func (s *server) request(c *client, t seat.Type, p []byte) *seat.Error {
	switch t {
	case seat.TypeGet, seat.TypeInput, seat.TypeResize, seat.TypeCommit, seat.TypeSignal, seat.TypeAckExit:
	default:
		if t >= seat.TypeOptional {
			return nil
		}
		return seat.Refuse(seat.CodeProtocol, "frame type "+strconv.Itoa(int(t))+" is not a request")
	}
	id, body, err := seat.DecodeRequest(p)
	if err != nil || id == 0 {
		return seat.Refuse(seat.CodeProtocol, "a request without an id")
	}
	refusal := s.act(c, t, body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if refusal != nil {
		c.send(seat.AppendError(nil, id, refusal))
	} else {
		c.send(seat.AppendStatus(nil, id, s.status(c)))
	}
	return nil
}

func (s *server) act(c *client, t seat.Type, body []byte) *seat.Error {
	switch t {
	case seat.TypeGet:
		return nil
	case seat.TypeInput, seat.TypeResize:
		return seat.Refuse(seat.CodeForbidden, notHere)
	}
	s.mu.Lock()
	refusal := s.stale(c)
	s.mu.Unlock()
	switch {
	case !c.role.Has(seat.RoleControl):
		return seat.Refuse(seat.CodeForbidden, "only a host may do this")
	case refusal != nil:
		return refusal
	case t == seat.TypeCommit:
		refusal, _ := s.ask(false)
		return refusal
	case t == seat.TypeSignal:
		return s.onSignal(body)
	}
	return nil // ACK_EXIT: this process waits for nobody
}

// ask lets live decide; ok is false when the seat is not prepared any more.
func (s *server) ask(stop bool) (refusal *seat.Error, ok bool) {
	q := ask{stop: stop, answer: make(chan *seat.Error, 1)}
	select {
	case s.asks <- q:
		return <-q.answer, true
	case <-s.begun:
		return nil, false
	}
}

func (s *server) onSignal(body []byte) *seat.Error {
	if len(body) < 1 || custodian.Signals[seat.Action(body[0])] == 0 {
		return seat.Refuse(seat.CodeProtocol, "signal without a known action")
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
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state == seat.StateRunning: // an agent that has ended was not asked to
		s.asked = s.asked || a != seat.ActionInterrupt
		s.signal(a)
	case a == seat.ActionInterrupt:
		return seat.Refuse(seat.CodeNotRunning, "there is no agent to interrupt")
	}
	return nil
}
