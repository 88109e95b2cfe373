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

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const maxRequest = 4 + 1 + 4 + seat.MaxInput

func forbidden(text string) *seat.Error {
	return seat.Refuse(seat.CodeForbidden, text)
}

func protocol(text string) *seat.Error {
	return seat.Refuse(seat.CodeProtocol, text)
}

// accept takes connections until the process ends.
func (s *server) accept() {
	raw, err := s.listen.SyscallConn()
	if err != nil {
		s.log.say("accept: " + err.Error())
		return
	}
	slots := make(chan struct{}, maxClients)
	for {
		var fd int
		var aerr error
		err := raw.Read(func(l uintptr) bool {
			fd, _, aerr = unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return aerr != unix.EAGAIN
		})
		if err != nil {
			return // closed
		}
		if aerr != nil {
			if aerr != unix.EINTR && aerr != unix.ECONNABORTED {
				s.log.say("accept: " + aerr.Error())
				time.Sleep(100 * time.Millisecond) // out of descriptors: do not spin
			}
			continue
		}
		select {
		case slots <- struct{}{}:
			go func() {
				s.serve(fd)
				<-slots
			}()
		default:
			sendRefusal(fd, seat.Refuse(seat.CodeLimit, "64 connections are open"))
			_ = unix.Close(fd)
		}
	}
}

func sendRefusal(fd int, e *seat.Error) { _, _ = sendNow(fd, seat.AppendError(nil, 0, e)) }

// serve handles one connection to its end.
func (s *server) serve(fd int) {
	f := os.NewFile(uintptr(fd), "connection")
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		sendRefusal(fd, seat.Refuse(seat.CodeUID, "the seat belongs to user "+strconv.Itoa(os.Geteuid())))
		_ = f.Close()
		return
	}
	_ = f.SetReadDeadline(time.Now().Add(helloTimeout))
	in := seat.NewFrameReader(f, 128, 512)
	t, p, err := in.Next()
	var c *client
	if err == nil {
		var e *seat.Error
		if c, e = s.hello(f, fd, t, p); e != nil {
			sendRefusal(fd, e)
		}
	}
	if c == nil {
		_ = f.Close()
		return
	}
	_ = f.SetReadDeadline(time.Time{})
	in.Max = maxRequest
	for {
		t, p, err := in.Next()
		if err == nil {
			err = s.request(c, t, p)
		}
		if err != nil {
			s.lastWord(c, err)
			break
		}
		// Answers that nobody reads must not pile up.
		s.mu.Lock()
		for len(c.answers) > maxOwed && !c.closed {
			c.cond.Wait()
		}
		s.mu.Unlock()
	}
}

// lastWord ends a connection and says why, as far as the socket takes it now.
func (s *server) lastWord(c *client, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var e *seat.Error
	if errors.As(err, &e) && !c.closed {
		_, _ = sendNow(c.fd, seat.AppendError(slices.Concat(c.rest, c.answers), 0, e))
	}
	c.drop()
}

// sameToken takes the same time whatever the difference.
func sameToken(a, b []byte) bool {
	var diff byte
	for i := range a {
		diff |= a[i] ^ b[i]
	}
	return diff == 0
}

// hello admits a connection. The fd belongs to the caller when it is refused.
func (s *server) hello(f *os.File, fd int, t seat.Type, p []byte) (*client, *seat.Error) {
	if t != seat.TypeHello {
		return nil, protocol("the first frame must be HELLO")
	}
	h, err := seat.DecodeHello(p)
	if err != nil {
		return nil, protocol(err.Error())
	}
	if !sameToken(h.Token[:], s.launch.Token) {
		return nil, seat.Refuse(seat.CodeToken, "")
	}
	if h.VersionMin > seat.VersionMax || h.VersionMax < seat.VersionMin {
		return nil, &seat.Error{
			Code: seat.CodeVersion, Outcome: seat.OutcomeNotExecuted,
			Text: "this seat speaks versions 1 to " + strconv.Itoa(int(seat.VersionMax)),
		}
	}
	c := &client{s: s, f: f, fd: fd, role: h.Role &^ seat.RoleTakeover, fence: h.Fence, handed: true}
	c.cond = sync.NewCond(&s.mu)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.stale(c); e != nil {
		return nil, e
	}
	lease := h.Role.Has(seat.RoleInput) && (!h.Role.Has(seat.RoleControl) || h.Role.Has(seat.RoleTerminal))
	if lease && s.writer != nil && s.writer.hungUp() {
		s.writer.drop() // it reconnects before we noticed that it had gone
	}
	if lease && s.writer != nil {
		if !h.Role.Has(seat.RoleTakeover) {
			return nil, seat.Refuse(seat.CodeBusy, "another terminal has the keyboard")
		}
		s.writer.role &^= seat.RoleInput // told by the news below
	}
	if lease {
		s.writer = c
	}
	if c.role.Has(seat.RoleControl) && c.fence > s.fence {
		s.fence = c.fence
	}
	c.cursor = min(h.From, s.ring.next)
	c.resuming = c.cursor < s.ring.next
	c.stalled = c.resuming
	if h.Rows != 0 && h.Cols != 0 && s.maySize(c) == nil {
		s.size(h.Rows, h.Cols)
	}
	s.clients = append(s.clients, c)
	s.news()
	c.statusDue = false
	c.answers = seat.AppendWelcome(c.answers, min(h.VersionMax, seat.VersionMax), s.status(c))
	go c.writeLoop()
	return c, nil
}

// stale refuses a control connection of a host that was superseded. mu is held.
func (s *server) stale(c *client) *seat.Error {
	if !c.role.Has(seat.RoleControl) || c.fence >= s.fence {
		return nil
	}
	return &seat.Error{
		Code: seat.CodeStaleFence, Outcome: seat.OutcomeNotExecuted,
		Text: "epoch " + strconv.FormatUint(c.fence, 10) + " is older than " + strconv.FormatUint(s.fence, 10) + ", which holds the seat",
	}
}

// maySize says who may set the size: the writer and the host. mu is held.
func (s *server) maySize(c *client) *seat.Error {
	if c.role.Has(seat.RoleControl) {
		return s.stale(c)
	}
	if s.writer != c {
		return forbidden("only the writer and the host set the size")
	}
	return nil
}

// size sets the terminal's size. mu is held; the call does not block.
func (s *server) size(rows, cols uint16) {
	if err := s.pty.resize(rows, cols); err != nil {
		return // the terminal is gone with the agent
	}
	s.rows, s.cols = rows, cols
}

// request handles one frame. An error ends the connection.
func (s *server) request(c *client, t seat.Type, p []byte) error {
	switch t {
	case seat.TypeCommit, seat.TypeGet, seat.TypeInput, seat.TypeResize, seat.TypeSignal, seat.TypeAckExit:
	default:
		if t >= seat.TypeOptional {
			return nil
		}
		return protocol("frame type " + strconv.Itoa(int(t)) + " is not a request")
	}
	id, body, err := seat.DecodeRequest(p)
	if err != nil || id == 0 {
		return protocol("request without an id")
	}
	refusal := s.act(c, t, id, body)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case refusal != nil:
		c.answer(seat.AppendError(nil, id, refusal))
	case t != seat.TypeInput: // INPUT is answered when the terminal has taken it
		c.answer(seat.AppendStatus(nil, id, s.status(c)))
	}
	if t == seat.TypeAckExit && refusal == nil {
		go s.end(0)
	}
	return nil
}

func (s *server) act(c *client, t seat.Type, id uint32, body []byte) *seat.Error {
	switch t {
	case seat.TypeInput:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.typeIn(c, id, body)
	case seat.TypeGet:
		return nil
	case seat.TypeResize:
		rows, cols, err := seat.DecodeSize(body)
		if err != nil || rows == 0 || cols == 0 {
			return protocol("resize without a size")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if e := s.maySize(c); e != nil {
			return e
		}
		s.size(rows, cols)
		s.news()
		return nil
	}
	s.mu.Lock()
	refusal := s.stale(c)
	if !c.role.Has(seat.RoleControl) {
		refusal = forbidden("only a host may do this")
	}
	s.mu.Unlock()
	if refusal != nil {
		return refusal
	}
	switch t {
	case seat.TypeCommit:
		return s.commit()
	case seat.TypeSignal:
		if len(body) < 1 || body[0] < byte(seat.ActionInterrupt) || body[0] > byte(seat.ActionKill) {
			return protocol("signal without a known action")
		}
		a := seat.Action(body[0])
		if a == seat.ActionInterrupt {
			return s.interrupt()
		}
		return s.stop(a)
	}
	// ACK_EXIT
	if err := fpBeforeAck.Hit(); err != nil {
		return seat.Refuse(seat.CodeInternal, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, do, code := step(s.state, evAckExit); do == doRefuse {
		return seat.Refuse(code, "the seat is "+s.state.String())
	}
	return nil
}

func (s *server) interrupt() *seat.Error {
	s.mu.Lock()
	running, pty := s.state == seat.StateRunning, s.pty
	s.mu.Unlock()
	if !running {
		return seat.Refuse(seat.CodeNotRunning, "there is no agent to interrupt")
	}
	return s.reaper.signal(s, seat.ActionInterrupt, pty.foreground())
}
