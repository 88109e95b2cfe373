package holder

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodian"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// farewell is how long connections get to take the last frame.
const farewell = time.Second

// server is one seat.
type server struct {
	id       string
	launch   *seat.Launch
	self     seat.Identity
	listen   int
	log      *os.File
	hurry    atomic.Bool    // a host asked for KILL: leftovers get no grace
	children chan os.Signal // a child may have ended
	asks     chan ask       // taken while the seat is prepared
	begun    chan struct{}  // closed when it is not any more
	hungUp   chan struct{}  // closed when the terminal is gone

	mu      sync.Mutex // guards everything below
	state   seat.State
	clients map[*client]bool
	fence   uint64
	agent   seat.Identity
	exit    seat.ExitRecord
	asked   bool // a host asked for the end of a running agent
}

// ask is a COMMIT, or a stop, of a prepared seat.
type ask struct {
	stop   bool
	answer chan *seat.Error // has room for one
}

func newServer(id string, l *seat.Launch) *server {
	l.PrepareTimeoutMs = cmp.Or(l.PrepareTimeoutMs, 30_000)
	return &server{
		id: id, launch: l, fence: l.Fence, state: seat.StatePrepared,
		children: make(chan os.Signal, 1), asks: make(chan ask), begun: make(chan struct{}), hungUp: make(chan struct{}),
		clients: map[*client]bool{},
	}
}

func (s *server) say(text string) {
	_, _ = s.log.WriteString(time.Now().UTC().Format("2006-01-02T15:04:05.000Z") + " " + text + "\n")
}

// prepare makes everything the seat needs, the durable record last, so that a record never names
// something that does not exist. code is the word after "error".
func (s *server) prepare() (code string, err error) {
	l := s.launch
	for _, step := range []struct {
		code string
		do   func() error
	}{
		{"directory", s.openLog},
		{"exists", func() error { return custodian.Claim(l.Dir) }},
		{"directory", func() error { return os.Chdir("/") }},
		{"identity", func() (err error) { s.self, err = seat.SelfIdentity(); return err }},
		// Orphans of the agent's tree come to this process and not to init.
		{"subreaper", func() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }},
		{"terminal", checkTerminal},
		{"failpoint", fpBeforeBind.Hit},
		{"socket", func() (err error) { s.listen, err = custodian.Listen(l.Socket); return err }},
		{"record", func() error {
			return custodian.WriteDurable(l.Dir, "seat.json", seat.SeatJSON(s.id, l, s.self, time.Now()), fpBeforeRecord.Hit)
		}},
		{"record", fpAfterRecord.Hit},
	} {
		if err := step.do(); err != nil {
			if s.listen > 0 {
				_ = os.Remove(l.Socket)
			}
			return step.code, err
		}
	}
	return "", nil
}

func checkTerminal() error {
	if _, err := unix.IoctlGetTermios(terminalFD, unix.TCGETS); err != nil {
		return errors.New("standard input is no terminal: " + err.Error())
	}
	return nil
}

// openLog makes the log standard error too, so that a crash of the Go runtime is recorded and nothing of
// ours is ever written into the pane.
func (s *server) openLog() (err error) {
	s.log, err = os.OpenFile(s.launch.Dir+"/seat.log", os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return unix.Dup3(int(s.log.Fd()), 2, 0)
}

// watchTerminal waits for the end of the terminal: the tmux server was killed, or the pane was. It looks
// for hang-ups alone and takes nothing of what is typed.
func (s *server) watchTerminal() {
	for {
		p := []unix.PollFd{{Fd: terminalFD}}
		_, err := unix.Poll(p, -1)
		if err == nil && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
			close(s.hungUp)
			return
		}
		if err != nil && err != unix.EINTR {
			s.say("watch the terminal: " + err.Error())
			return
		}
	}
}

// live takes the seat from prepared to its end, in one direction, on one goroutine: nothing happens
// twice, and no child is reaped before it is known. The exit is durable before anyone is told.
func (s *server) live() *seat.ExitRecord {
	x, stopped := s.awaitCommit(time.After(time.Duration(s.launch.PrepareTimeoutMs) * time.Millisecond))
	if x == nil {
		x = s.awaitAgent()
	}
	custodian.Record(s.id, s.launch, x, fpBeforeFsync, fpAfterFsync, s.say)
	s.mu.Lock()
	if s.state == seat.StatePrepared {
		close(s.begun)
	}
	s.state, s.exit = seat.StateExited, *x
	all := make([]*client, 0, len(s.clients))
	for c := range s.clients {
		all = append(all, c)
	}
	s.mu.Unlock()
	if stopped != nil {
		stopped <- nil
	}
	_ = os.Remove(s.launch.Socket)
	var told sync.WaitGroup
	for _, c := range all {
		told.Go(func() { c.leave(*x) })
	}
	told.Wait()
	s.say("custody ends")
	return x
}

// awaitCommit serves a prepared seat until its agent runs. It returns how the seat ended when that
// does not come: on request (stopped waits to hear of it), or because nobody asked for anything.
func (s *server) awaitCommit(timeout <-chan time.Time) (x *seat.ExitRecord, stopped chan<- *seat.Error) {
	x = &seat.ExitRecord{Evidence: seat.EvidenceUncommitted}
	for {
		var why string
		select {
		case <-timeout:
			why = "nobody committed within " + strconv.Itoa(int(s.launch.PrepareTimeoutMs)) + " ms"
		case <-s.hungUp:
			why = "the tmux pane was gone before the commit"
		case q := <-s.asks:
			if !q.stop {
				refusal := s.commit()
				q.answer <- refusal
				if refusal == nil || refusal.Outcome == seat.OutcomeExecuted {
					return nil, nil
				}
				if refusal.Code == seat.CodeExec {
					x.Evidence, x.Detail = seat.EvidenceExecFailed, refusal.Text
				}
				continue
			}
			why, stopped, x.Asked = "stopped before it was committed", q.answer, true
		}
		x.AtUnixNs, x.Detail = time.Now().UnixNano(), cmp.Or(x.Detail, why)
		s.say("ended: " + why)
		return x, stopped
	}
}

func (s *server) commit() *seat.Error {
	if err := fpBeforeExec.Hit(); err != nil {
		return seat.Refuse(seat.CodeInternal, err.Error())
	}
	if err := s.start(); err != nil {
		s.say("exec: " + err.Error())
		return seat.Refuse(seat.CodeExec, err.Error())
	}
	if err := fpAfterExec.Hit(); err != nil {
		return &seat.Error{Code: seat.CodeInternal, Outcome: seat.OutcomeExecuted, Text: err.Error()}
	}
	return nil
}

// status is called with mu held.
func (s *server) status(c *client) seat.Status {
	st := seat.Status{
		State: s.state, Seat: s.self, Agent: s.agent, Role: c.role, Fence: s.fence,
		Code: int32(s.exit.Code), CodeKnown: s.exit.CodeKnown, Rows: s.launch.Rows, Cols: s.launch.Cols,
	}
	if size, err := unix.IoctlGetWinsize(terminalFD, unix.TIOCGWINSZ); err == nil && size.Row > 0 {
		st.Rows, st.Cols = size.Row, size.Col
	}
	if t, err := unix.IoctlGetTermios(terminalFD, unix.TCGETS); err == nil {
		st.Lines, st.Line = seat.LinesOf(t.Lflag&unix.ICANON != 0, 0) // what is typed goes past this process
	}
	if s.exit.Signal != "" {
		st.Signal = uint8(s.exit.Code - 128)
	}
	return st
}
