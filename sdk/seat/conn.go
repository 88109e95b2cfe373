package seat

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// DialConfig says which seat to dial and in which role.
type DialConfig struct {
	Socket string
	Token  []byte // TokenBytes
	Role   Role
	Fence  uint64 // the host's epoch with RoleControl, else 0
	From   uint64 // output offset to start at; FromLive: only what comes. Zero is the oldest byte kept
	// Rows and Cols set the terminal's size when the connection holds the writer lease or control; 0 leaves it.
	Rows, Cols uint16
}

// Handler receives what a seat sends. All functions may be nil. They run on the goroutine of Run, one
// at a time, and must not wait for a request on the same Conn. An error ends Run.
type Handler struct {
	Output func(seq uint64, p []byte) error // p is valid only during the call
	Gap    func(from, to uint64) error      // bytes from..to-1 will not come
	Status func(Status)                     // news: state, size, role, answerer
	Exit   func(Status, ExitRecord)
	Idle   func() error // everything that has come was handed over, and Run is about to wait for more
}

// Conn is one connection to a seat. Requests may be made from any goroutine.
type Conn struct {
	f       *os.File
	welcome Status
	version uint16
	output  bool // asked for output: nobody but Run may read

	wmu    sync.Mutex // serialises frames written
	wbuf   []byte
	reader chan struct{} // holds one token: who has it reads the socket
	in     *FrameReader  // owned by the token holder

	mu      sync.Mutex
	nextID  uint32
	waiting map[uint32]chan reply
	ended   bool       // Run has returned: requests read for themselves
	broken  error      // first fatal error
	news    *Status    // read by a request before Run: Run tells it first
	exit    *exitFrame // the same for the exit
}

type exitFrame struct {
	status Status
	record ExitRecord
}

type reply struct {
	typ     Type
	status  Status
	err     *Error
	result  uint8
	written uint32
}

// limitWait is how long Dial goes on asking a seat whose connections are all taken: those that say nothing
// are closed within a second then, and who came to look should not have to come again.
const limitWait = 1500 * time.Millisecond

// Dial connects and says HELLO. ctx bounds only the dialling. A seat that has no connection left is asked
// again for 1.5 s.
//
// Errors: *Error wrapping ErrBusy, ErrStaleFence, ErrBadToken, ErrVersion, ErrWrongUser, ErrLimit or
// ErrProtocol; else an error wrapping the cause (os.ErrNotExist: no socket; ECONNREFUSED: nobody listens).
func Dial(ctx context.Context, cfg DialConfig) (*Conn, error) {
	if len(cfg.Token) != TokenBytes {
		return nil, Refuse(CodeToken, "a token has "+itoa(TokenBytes)+" bytes")
	}
	for until := time.Now().Add(limitWait); ; {
		c, err := dial(ctx, cfg)
		if !errors.Is(err, ErrLimit) || time.Now().After(until) || pause(ctx, 20*time.Millisecond) != nil {
			return c, err
		}
	}
}

func dial(ctx context.Context, cfg DialConfig) (*Conn, error) {
	f, err := connect(ctx, cfg.Socket)
	if err != nil {
		return nil, &os.PathError{Op: "dial seat", Path: cfg.Socket, Err: err}
	}
	c := &Conn{
		f:       f,
		output:  cfg.Role.Has(RoleOutput),
		reader:  make(chan struct{}, 1),
		waiting: map[uint32]chan reply{},
	}
	c.reader <- struct{}{}
	size := 4 << 10
	if c.output {
		size = 2*MaxOutput + 64 // two full OUTPUT frames: one read takes in what the seat sent at once
	}
	c.in = NewFrameReader(f, size, MaxFrame+headerBytes)
	if err := c.hello(ctx, cfg); err != nil {
		_ = f.Close()
		return nil, err
	}
	return c, nil
}

// connect retries EAGAIN, which a unix socket returns while the listener's queue is full.
func connect(ctx context.Context, path string) (*os.File, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		fd, err := socket()
		if err != nil {
			return nil, err
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		_ = unix.Close(fd)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// pause waits, or returns the error of ctx when that ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (c *Conn) hello(ctx context.Context, cfg DialConfig) error {
	undo := c.deadline(ctx)
	defer undo()
	h := Hello{
		VersionMin: VersionMin,
		VersionMax: VersionMax,
		Role:       cfg.Role,
		Fence:      cfg.Fence,
		From:       cfg.From,
		Rows:       cfg.Rows,
		Cols:       cfg.Cols,
	}
	copy(h.Token[:], cfg.Token)
	// A refused connection may be closed before HELLO is read; the refusal is still to be read.
	_, werr := c.f.Write(AppendHello(nil, h))
	t, p, err := c.in.Next()
	if err != nil {
		if werr != nil {
			err = werr
		}
		return ctxOr(ctx, &os.PathError{Op: "hello to seat", Path: cfg.Socket, Err: err})
	}
	switch t {
	case TypeWelcome:
		c.version, c.welcome, err = DecodeWelcome(p)
		if err == nil && (c.version < VersionMin || c.version > VersionMax) {
			err = Refuse(CodeVersion, "seat chose version "+itoa(int(c.version)))
		}
		return err
	case TypeError:
		_, e, err := DecodeError(p)
		if err != nil {
			return err
		}
		return e
	}
	return Refuse(CodeProtocol, "frame "+itoa(int(t))+" instead of WELCOME")
}

// deadline makes ctx interrupt blocked reads until undo is called.
func (c *Conn) deadline(ctx context.Context) (undo func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.f.SetReadDeadline(time.Unix(1, 0))
		close(fired)
	})
	return func() {
		if !stop() {
			<-fired
			_ = c.f.SetReadDeadline(time.Time{})
		}
	}
}

func ctxOr(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

// Version is the version of the protocol that the seat chose.
func (c *Conn) Version() uint16 { return c.version }

// Welcome returns the status that came with the seat's answer to HELLO. Its Role is what was granted.
func (c *Conn) Welcome() Status { return c.welcome }

// Run reads until the exit was delivered (nil), ctx ends (its error), the connection ends (an *Error
// wrapping ErrClosed) or a handler fails (its error). At most one goroutine runs it.
func (c *Conn) Run(ctx context.Context, h Handler) error {
	select {
	case <-c.reader:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() {
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		c.reader <- struct{}{}
	}()
	c.mu.Lock()
	news, exit := c.news, c.exit
	c.mu.Unlock()
	if news != nil && h.Status != nil {
		h.Status(*news)
	}
	if exit != nil {
		if h.Exit != nil {
			h.Exit(exit.status, exit.record)
		}
		return nil
	}
	undo := c.deadline(ctx)
	defer undo()
	for {
		if h.Idle != nil && !c.in.Ready() {
			if err := h.Idle(); err != nil {
				return err
			}
		}
		done, err := c.step(&h)
		if err != nil {
			err = ctxOr(ctx, err)
			if ctx.Err() == nil {
				c.fail(err)
			}
			return err
		}
		if done {
			return nil
		}
	}
}

// step handles one frame and reports whether it was EXIT.
func (c *Conn) step(h *Handler) (exit bool, err error) {
	t, p, err := c.in.Next()
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ErrProtocol) {
			return false, err
		}
		return false, &Error{Code: CodeClosed, Outcome: OutcomeUnknown, Text: err.Error()}
	}
	switch t {
	case TypeOutput:
		seq, data, err := DecodeOutput(p)
		if err == nil && h.Output != nil {
			err = h.Output(seq, data)
		}
		return false, err
	case TypeGap:
		from, to, _, err := DecodeGap(p)
		if err == nil && h.Gap != nil {
			err = h.Gap(from, to)
		}
		return false, err
	case TypeStatus:
		id, s, err := DecodeStatus(p)
		if err != nil {
			return false, err
		}
		if id == 0 {
			if h.Status != nil {
				h.Status(s)
			}
			return false, nil
		}
		c.deliver(id, reply{typ: t, status: s})
	case TypeInputAck:
		id, result, n, err := DecodeInputAck(p)
		if err != nil {
			return false, err
		}
		c.deliver(id, reply{typ: t, result: result, written: n})
	case TypeError:
		id, e, err := DecodeError(p)
		if err != nil {
			return false, err
		}
		if id == 0 {
			return false, e
		}
		c.deliver(id, reply{typ: t, err: e})
	case TypeExit:
		s, x, err := DecodeExit(p)
		if err != nil {
			return false, err
		}
		if h.Exit != nil {
			h.Exit(s, x)
		}
		return true, nil
	default:
		if t < TypeOptional {
			return false, Refuse(CodeProtocol, "unknown frame type "+itoa(int(t)))
		}
	}
	return false, nil
}

func (c *Conn) deliver(id uint32, r reply) {
	c.mu.Lock()
	ch := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if ch != nil {
		ch <- r // buffered, one reply a request
	}
}

// fail makes every waiting and later request return err.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
	}
	for id, ch := range c.waiting {
		delete(c.waiting, id)
		close(ch)
	}
}

func (c *Conn) closedErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := "connection closed"
	if c.broken != nil {
		text = c.broken.Error()
	}
	return &Error{Code: CodeClosed, Outcome: OutcomeUnknown, Text: text}
}

// request sends one frame and waits for its answer.
func (c *Conn) request(ctx context.Context, t Type, body []byte) (reply, error) {
	if err := ctx.Err(); err != nil { // a caller that is gone asks for nothing more
		return reply{}, err
	}
	id, ch, err := c.send(t, body)
	if err != nil {
		return reply{}, err
	}
	defer c.forget(id)
	return c.await(ctx, ch)
}

// send sends one request. Its answer comes on ch until the id is forgotten.
func (c *Conn) send(t Type, body []byte) (id uint32, ch chan reply, err error) {
	ch = make(chan reply, 1)
	c.mu.Lock()
	if c.broken != nil {
		c.mu.Unlock()
		return 0, nil, c.closedErr()
	}
	c.nextID++
	if c.nextID == 0 { // 0 means "no request"
		c.nextID = 1
	}
	id = c.nextID
	c.waiting[id] = ch
	c.mu.Unlock()
	if err := c.write(t, id, body); err != nil {
		c.forget(id)
		return 0, nil, err
	}
	return id, ch, nil
}

func (c *Conn) forget(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// await waits for the answer on ch, and reads the socket for it when nobody else does.
func (c *Conn) await(ctx context.Context, ch chan reply) (reply, error) {
	var token chan struct{}
	c.mu.Lock()
	if !c.output || c.ended { // else Run alone may read: anybody else would drop output
		token = c.reader
	}
	c.mu.Unlock()
	for {
		select {
		case r, ok := <-ch:
			return c.answer(r, ok)
		case <-ctx.Done():
			return reply{}, ctx.Err()
		case <-token:
			if err := c.pump(ctx, ch); err != nil {
				return reply{}, err
			}
		}
	}
}

func (c *Conn) answer(r reply, ok bool) (reply, error) {
	if !ok {
		return reply{}, c.closedErr()
	}
	if r.err != nil {
		return reply{}, r.err
	}
	return r, nil
}

// pump reads frames until ch has an answer. The caller has taken the reader token.
func (c *Conn) pump(ctx context.Context, ch chan reply) error {
	defer func() { c.reader <- struct{}{} }()
	// A request may be first at the socket although Run was called first: what is not its answer is
	// kept for Run.
	keep := Handler{
		Status: func(s Status) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.news = &s
		},
		Exit: func(s Status, x ExitRecord) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.exit = &exitFrame{s, x}
		},
	}
	undo := c.deadline(ctx)
	defer undo()
	for len(ch) == 0 {
		if _, err := c.step(&keep); err != nil {
			if err := ctxOr(ctx, err); ctx.Err() != nil {
				return err
			}
			c.fail(err)
			return nil // ch is closed now, or holds the answer
		}
		c.mu.Lock()
		broken := c.broken != nil
		c.mu.Unlock()
		if broken {
			return nil
		}
	}
	return nil
}

func (c *Conn) write(t Type, id uint32, body []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.wbuf = AppendRequest(c.wbuf[:0], t, id, body)
	if n, err := c.f.Write(c.wbuf); err != nil {
		out := OutcomeNotExecuted
		if n == len(c.wbuf) {
			out = OutcomeUnknown
		}
		return &Error{Code: CodeClosed, Outcome: out, Text: err.Error()}
	}
	return nil
}

// Commit starts the agent. It is idempotent: on a seat that runs or has exited it returns the status.
// Errors: *Error wrapping ErrExec (the seat is still prepared), ErrForbidden, ErrStaleFence, ErrClosed.
func (c *Conn) Commit(ctx context.Context) (Status, error) {
	r, err := c.request(ctx, TypeCommit, nil)
	return r.status, err
}

// Get returns the current status.
func (c *Conn) Get(ctx context.Context) (Status, error) {
	r, err := c.request(ctx, TypeGet, nil)
	return r.status, err
}

// Answer types what a terminal says to a question of the agent, for a connection with RoleMirror. at is
// the offset of the first byte of the question. The seat types it if the question is in AskFrom..AskTo at
// that moment, which happens once, and says nothing either way. It does not wait.
func (c *Conn) Answer(at uint64, p []byte) error {
	return c.write(TypeAnswer, 1, AppendAnswer(nil, at, p))
}

// Resize sets the size of the terminal. Errors: as for Input, without ErrBusy and ErrLineTooLong.
func (c *Conn) Resize(ctx context.Context, rows, cols uint16) error {
	_, err := c.request(ctx, TypeResize, AppendSize(nil, rows, cols))
	return err
}

// Bounds of the time between the two sizes of a nudge.
const (
	nudgePause = 50 * time.Millisecond // shorter, and programs see one change
	nudgeLook  = 25 * time.Millisecond
	nudgeMost  = 2 * time.Second // of a program that does not repaint, or has not come to it on a busy machine
)

// Nudge makes a full-screen program repaint: its terminal has a row less, until the program has said something, and then
// has the size rows and cols (in cells, rows 2 at least) that was asked for. A program that says nothing has two seconds.
//
// Errors: as of Resize, and the context's.
func (c *Conn) Nudge(ctx context.Context, rows, cols uint16) error {
	before, err := c.Get(ctx)
	if err != nil {
		return err
	}
	if err := c.Resize(ctx, rows-1, cols); err != nil {
		return err
	}
	begun, wait := time.Now(), nudgePause
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		wait = nudgeLook
		if now, err := c.Get(ctx); err != nil || now.Next != before.Next || time.Since(begun) > nudgeMost {
			return errors.Join(err, c.Resize(ctx, rows, cols))
		}
	}
}

// Signal acts on the agent. It returns when the signal was sent, not when it had its effect. On a
// seat that is only prepared, every action but ActionInterrupt ends the seat; on one that has exited
// it does nothing. Errors: *Error wrapping ErrForbidden, ErrStaleFence, ErrNotRunning, ErrClosed.
func (c *Conn) Signal(ctx context.Context, a Action) error {
	_, err := c.request(ctx, TypeSignal, []byte{byte(a)})
	return err
}

// AckExit tells an exited seat that its exit record was taken over: it removes its socket and ends.
// Errors: *Error wrapping ErrNotExited, ErrForbidden, ErrStaleFence, ErrClosed.
func (c *Conn) AckExit(ctx context.Context) error {
	_, err := c.request(ctx, TypeAckExit, nil)
	return err
}

// Close ends the connection. Input that was not acknowledged is dropped unless it had begun.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	return c.f.Close()
}
