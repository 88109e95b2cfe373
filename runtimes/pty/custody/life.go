//go:build linux

package custody

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodian"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

const (
	drainTimeout = 500 * time.Millisecond // from the end of the tree to the end of the output
	farewell     = time.Second            // viewers get so long for the last output after ACK_EXIT
	lastBytes    = 4 << 10
)

// server is one seat.
type server struct {
	id              string
	launch          *seat.Launch
	self            seat.Identity
	log             *logFile
	listen          int                  // the socket
	modes           terminal.ModeScanner // used by the pty reader alone, as are the next two
	second          time.Time            // the second it counts its waiting in
	patience        time.Duration        // what is left of that
	modeBits        atomic.Uint32
	hurry           atomic.Bool    // a host asked for KILL: leftovers get no grace
	children        chan os.Signal // a child may have ended
	asks            chan ask       // taken while the seat is prepared
	begun           chan struct{}  // closed when it is not any more
	outEnd          chan struct{}  // closed when the pty reader has ended
	acked           chan struct{}  // a host has taken the exit record over
	spillCh, typeCh chan struct{}  // wake the spill, and the input queue

	mu         sync.Mutex // guards everything below
	state      seat.State
	pty        *terminalPair
	ring       *ring
	spill      *spill
	drained    *sync.Cond // a connection has caught up, or has gone
	clients    []*client
	writer     *client // holder of the writer lease
	fence      uint64
	agent      seat.Identity
	exit       seat.ExitRecord
	asked      bool      // a host asked for the end of a running agent
	queue      []typed   // input the terminal has not taken
	line       int       // bytes of the unfinished line, while the terminal is in canonical mode
	typedAt    time.Time // when a terminal last typed
	rows, cols uint16
	questions  seat.Questions
}

// ask is a COMMIT, or a stop, of a prepared seat.
type ask struct {
	stop   bool
	answer chan *seat.Error // has room for one
}

// ask lets live decide; ok is false when the seat is not prepared any more. mu is held, and given up
// meanwhile.
func (s *server) ask(stop bool) (refusal *seat.Error, ok bool) {
	s.mu.Unlock()
	defer s.mu.Lock()
	q := ask{stop: stop, answer: make(chan *seat.Error, 1)}
	select {
	case s.asks <- q:
		return <-q.answer, true
	case <-s.begun:
		return nil, false
	}
}

// live takes the seat from prepared to its end, in one direction, on one goroutine: nothing happens
// twice, and no child is reaped before it is known. The exit is durable before anyone is told.
func (s *server) live() {
	timeout := time.After(time.Duration(s.launch.PrepareTimeoutMs) * time.Millisecond)
	x, stopped := s.awaitCommit(timeout)
	if x == nil {
		x = s.awaitAgent()
	}
	custodian.Record(s.id, s.launch, x, fpBeforeFsync, fpAfterFsync, s.log.say)
	s.mu.Lock()
	if s.state == seat.StatePrepared {
		close(s.begun)
	}
	s.state, s.exit = seat.StateExited, *x
	s.news()
	s.mu.Unlock()
	if stopped != nil {
		stopped <- nil
	}
	if x.CodeKnown || stopped != nil { // somebody knows of it, and may ask
		select {
		case <-s.acked:
		case <-time.After(time.Duration(s.launch.ExitLingerMs) * time.Millisecond):
			s.log.say("nobody acknowledged the exit")
		}
	}
	_ = os.Remove(s.launch.Socket)
	for limit := time.Now().Add(farewell); s.owes() && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
	s.log.say("custody ends")
}

// owes reports whether a connection still has something coming.
func (s *server) owes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.clients, (*client).due)
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
		s.log.say("ended: " + why)
		return x, stopped
	}
}

func (s *server) commit() *seat.Error {
	if err := fpBeforeExec.Hit(); err != nil {
		return seat.Refuse(seat.CodeInternal, err.Error())
	}
	if err := s.start(); err != nil {
		s.log.say("exec: " + err.Error())
		return seat.Refuse(seat.CodeExec, err.Error())
	}
	if err := fpAfterExec.Hit(); err != nil {
		return &seat.Error{Code: seat.CodeInternal, Outcome: seat.OutcomeExecuted, Text: err.Error()}
	}
	return nil
}

// start executes the agent, and from then on the seat is running. Errors name the path; the seat is
// as before.
func (s *server) start() error {
	s.mu.Lock()
	pty, rows, cols := s.pty, s.rows, s.cols
	s.mu.Unlock()
	pid, err := custodian.Execute(s.launch, uintptr(pty.slave))
	if err != nil {
		// The child that failed was leader of the terminal's session: its end hung the terminal up.
		if fresh, perr := openTerminal(rows, cols); perr == nil {
			s.mu.Lock()
			s.pty = fresh
			s.mu.Unlock()
			pty.close()
		}
		return err
	}
	agent, err := seat.IdentityOf(pid)
	if err != nil { // unreadable /proc: the number alone is still exact while it is our child
		agent = seat.Identity{PID: pid, BootID: s.self.BootID}
	}
	pty.closeSlave()
	s.log.say("agent started, pid " + strconv.Itoa(pid))
	s.mu.Lock()
	s.state, s.agent = seat.StateRunning, agent
	close(s.begun)
	s.questions.Left(seat.RoleMirror, time.Now()) // one that is on its way sees the first questions
	s.news()
	s.mu.Unlock()
	go s.readTerminal(pty)
	go s.typeLoop(pty)
	return nil
}

// reapAgent waits for the end of the agent and for every orphan before it. An agent that was not
// waited for keeps its number, and it is waited for with mu held: a signal sent with mu held to a
// running agent is exact.
func (s *server) reapAgent() unix.WaitStatus {
	for {
		s.mu.Lock()
		pid, ws := custodian.Reap()
		if pid == s.agent.PID {
			s.state = seat.StateDraining
			s.abandonInput()
			s.news()
			s.mu.Unlock()
			return ws
		}
		s.mu.Unlock()
		if pid <= 0 {
			<-s.children
		}
	}
}

// awaitAgent waits for the end of the agent, ends what is left of its tree and collects the rest of
// the output.
func (s *server) awaitAgent() *seat.ExitRecord {
	x := &seat.ExitRecord{CodeKnown: true, Evidence: seat.EvidenceReaped}
	x.Code, x.Signal = custodian.ExitOf(s.reapAgent())
	x.AtUnixNs = time.Now().UnixNano()
	s.log.say("agent ended, code " + strconv.Itoa(x.Code) + " " + x.Signal)
	custodian.EndTree(s.self.PID, s.children, &s.hurry, s.log.say, x)
	select {
	case <-s.outEnd:
	case <-time.After(drainTimeout): // something outside the tree holds the terminal open
		s.log.say("output did not end; the terminal is held open from outside")
	}
	s.spillOut()
	s.mu.Lock()
	defer s.mu.Unlock()
	x.Asked = s.asked
	x.Last = terminal.LastLine(s.ring.tail(lastBytes), 160)
	return x
}

// status is called with mu held. c is the connection it is for.
func (s *server) status(c *client) seat.Status {
	st := seat.Status{
		State: s.state, Seat: s.self, Agent: s.agent, Role: c.role, Rows: s.rows, Cols: s.cols,
		First: s.oldest(), Next: s.ring.next, Modes: s.modeBits.Load(), Fence: s.fence,
		Code: int32(s.exit.Code), CodeKnown: s.exit.CodeKnown, // zero before the exit
		InputPending: uint32(s.untyped(true) + s.untyped(false)), Typed: seat.TypedOf(s.typedAt),
	}
	st.AskFrom, st.AskTo = s.questions.Range()
	if s.exit.Signal != "" {
		st.Signal = uint8(s.exit.Code - 128)
	}
	if t, err := s.pty.modes(); err == nil && s.state == seat.StateRunning {
		st.Lines, st.Line = seat.LinesOf(t.Lflag&unix.ICANON != 0, s.line)
	}
	for _, o := range s.clients {
		if o.role.Has(seat.RoleTerminal) {
			st.Attached++
		}
		if o.role.Has(seat.RoleMirror) {
			st.Answerer = seat.AnswererMirror
		}
	}
	if s.writer != nil && s.writer.role.Has(seat.RoleTerminal) {
		st.Answerer = seat.AnswererTerminal
	}
	return st
}

// news tells every connection that the status changed. mu is held. The frame is built when it is
// sent, so that a slow viewer gets the newest status once and not a queue of old ones.
func (s *server) news() {
	s.questions.Terminal(s.writer != nil && s.writer.role.Has(seat.RoleTerminal), s.ring.next)
	for _, c := range s.clients {
		c.statusDue = true
		c.push()
	}
}
