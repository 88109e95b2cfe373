//go:build linux

package custody

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

const (
	maxClients   = 64
	helloTimeout = 5 * time.Second
	drainTimeout = 500 * time.Millisecond // from the end of the tree to the end of the output
	farewell     = time.Second            // viewers get so long for the last output after ACK_EXIT
	lastBytes    = 4 << 10
)

// server is one seat.
type server struct {
	id       string
	launch   *seat.Launch
	self     seat.Identity
	log      *logFile
	listen   *os.File
	reaper   reaper
	modes    terminal.ModeScanner // used by the pty reader alone, as is what follows
	second   time.Time            // the second it counts its waiting in
	patience time.Duration        // what is left of that
	modeBits atomic.Uint32
	outEnd   chan struct{} // closed when the pty reader has ended
	spillCh  chan struct{} // wakes the spill
	typeCh   chan struct{} // wakes the input queue

	commitMu sync.Mutex // one COMMIT at a time

	mu      sync.Mutex // guards everything below
	state   seat.State
	pty     *terminalPair
	ring    *ring
	spill   *spill
	drained *sync.Cond // a connection has caught up, or has gone
	clients []*client
	queue   []typed // input the terminal has not taken
	line    int     // bytes of the unfinished line, while the terminal is in canonical mode
	writer  *client // holder of the writer lease
	fence   uint64
	agent   seat.Identity
	exit    seat.ExitRecord
	asked   bool
	execErr string // the last failed exec
	rows    uint16
	cols    uint16
	ending  bool
}

// status is called with mu held. c is the connection it is for, nil for none.
func (s *server) status(c *client) seat.Status {
	st := seat.Status{
		State:        s.state,
		First:        s.oldest(),
		Next:         s.ring.next,
		Seat:         s.self,
		Agent:        s.agent,
		Rows:         s.rows,
		Cols:         s.cols,
		Modes:        s.modeBits.Load(),
		Fence:        s.fence,
		InputPending: uint32(s.untyped()),
	}
	if s.state == seat.StateExited {
		st.Code, st.CodeKnown = int32(s.exit.Code), s.exit.CodeKnown
		if s.exit.Signal != "" {
			st.Signal = uint8(s.exit.Code - 128)
		}
	}
	mirrors := false
	for _, o := range s.clients {
		if o.role.Has(seat.RoleTerminal) {
			st.Attached++
		}
		mirrors = mirrors || o.role.Has(seat.RoleMirror)
	}
	switch {
	case s.writer != nil && s.writer.role.Has(seat.RoleTerminal):
		st.Answerer = seat.AnswererTerminal
	case mirrors:
		st.Answerer = seat.AnswererMirror
	}
	if c != nil {
		st.Role = c.role
	}
	return st
}

// news tells every connection that the status changed. mu is held. The frame is built when it is
// sent, so that a slow viewer gets the newest status once and not a queue of old ones.
func (s *server) news() {
	for _, c := range s.clients {
		c.statusDue = true
		c.push()
	}
}

// prepareTimeout ends a seat that nobody committed.
func (s *server) prepareTimeout() {
	s.commitMu.Lock() // a commit under way decides first
	defer s.commitMu.Unlock()
	s.mu.Lock()
	next, do, _ := step(s.state, evPrepareTimeout)
	if do != doRecordEnd {
		s.mu.Unlock()
		return
	}
	s.state = next
	x := s.unstarted("nobody committed within " + (time.Duration(s.launch.PrepareTimeoutMs) * time.Millisecond).String())
	s.mu.Unlock()
	s.record(x)
	s.log.say("ended: " + x.Evidence + ": " + x.Detail)
	s.end(0)
}

// unstarted is the exit record of a seat whose agent never ran. mu is held.
func (s *server) unstarted(why string) seat.ExitRecord {
	x := seat.ExitRecord{AtUnixNs: time.Now().UnixNano(), Asked: s.asked, Evidence: seat.EvidenceUncommitted, Detail: why}
	if s.execErr != "" {
		x.Evidence, x.Detail = seat.EvidenceExecFailed, s.execErr
	}
	return x
}

// commit starts the agent, or answers that it has been started.
func (s *server) commit() *seat.Error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	_, do, _ := step(s.state, evCommit)
	rows, cols := s.rows, s.cols
	s.mu.Unlock()
	if do != doExec {
		return nil
	}
	if err := fpBeforeExec.Hit(); err != nil {
		return seat.Refuse(seat.CodeInternal, err.Error())
	}
	err := s.start()
	if err != nil {
		s.log.say("exec: " + err.Error())
		// The child that failed was leader of the terminal's session: its end hung the terminal up.
		fresh, perr := openTerminal(rows, cols)
		s.mu.Lock()
		s.execErr = err.Error()
		if perr == nil {
			s.pty.close()
			s.pty = fresh
		}
		s.mu.Unlock()
		return seat.Refuse(seat.CodeExec, err.Error())
	}
	s.mu.Lock()
	s.state, _, _ = step(s.state, evExecuted)
	s.agent = s.reaper.agent
	s.pty.closeSlave()
	s.news()
	s.mu.Unlock()
	s.log.say("agent started, pid " + strconv.Itoa(s.agent.PID))
	go s.readTerminal()
	go s.typeLoop(s.pty)
	s.reaper.kick() // it may have ended before anyone looked
	if err := fpAfterExec.Hit(); err != nil {
		return &seat.Error{Code: seat.CodeInternal, Outcome: seat.OutcomeExecuted, Text: err.Error()}
	}
	return nil
}

// stop carries out HUP, TERM or KILL.
func (s *server) stop(a seat.Action) *seat.Error {
	s.commitMu.Lock() // prepared or running, nothing between
	defer s.commitMu.Unlock()
	s.mu.Lock()
	next, do, _ := step(s.state, evStop)
	if s.state == seat.StatePrepared || s.state == seat.StateRunning { // an agent that has ended was not asked to
		s.asked = true
	}
	switch do {
	case doRecord:
		x := s.unstarted("stopped before it was committed")
		s.mu.Unlock()
		s.record(x)
		s.settle(next, x)
		return nil
	case doSignal:
		pty := s.pty
		s.mu.Unlock()
		return s.reaper.signal(s, a, pty.foreground())
	}
	s.mu.Unlock()
	return nil
}

// finish runs once, when the agent was reaped: it ends what is left of the tree, waits for the rest
// of the output, makes the exit durable and only then tells anybody.
func (s *server) finish(x seat.ExitRecord) {
	s.commitMu.Lock() // it may have ended before the commit has said that it runs
	s.mu.Lock()
	s.state, _, _ = step(s.state, evReaped)
	s.abandonInput()
	s.news()
	s.mu.Unlock()
	s.commitMu.Unlock()
	s.log.say("agent ended, code " + strconv.Itoa(x.Code) + " " + x.Signal)
	s.reaper.endTree(s, &x)
	select {
	case <-s.outEnd:
	case <-time.After(drainTimeout): // something outside the tree holds the terminal open
		s.log.say("output did not end; the terminal is held open from outside")
	}
	s.spillOut()
	s.mu.Lock()
	x.Asked = s.asked
	x.Last = terminal.LastLine(s.ring.tail(lastBytes), 160)
	next, _, _ := step(s.state, evTreeGone)
	s.mu.Unlock()
	s.record(x)
	s.settle(next, x)
}

// settle makes a recorded exit visible and waits for its acknowledgement.
func (s *server) settle(next seat.State, x seat.ExitRecord) {
	s.mu.Lock()
	s.state, s.exit = next, x
	s.news()
	s.mu.Unlock()
	time.AfterFunc(time.Duration(s.launch.ExitLingerMs)*time.Millisecond, func() {
		s.mu.Lock()
		_, do, _ := step(s.state, evLinger)
		s.mu.Unlock()
		if do == doEnd {
			s.log.say("nobody acknowledged the exit")
			s.end(0)
		}
	})
}

// record makes exit.json durable. A full disk is waited for: an exit that is told and then lost is
// worse than one that is told late. A directory that was removed has nobody left to read it.
func (s *server) record(x seat.ExitRecord) {
	text := seat.ExitJSON(s.id, s.launch.Nonce, &x)
	for {
		err := writeDurable(s.launch.Dir, "exit.json", text, fpBeforeFsync.Hit)
		if err == nil {
			err = fpAfterFsync.Hit()
		}
		if err == nil {
			return
		}
		s.log.say("write exit.json: " + err.Error())
		if os.IsNotExist(err) {
			return
		}
		time.Sleep(time.Second)
	}
}

// end removes the socket and ends the process, after giving viewers a moment for what is under way.
func (s *server) end(code int) {
	s.mu.Lock()
	if s.ending {
		s.mu.Unlock()
		select {} // another goroutine ends the process
	}
	s.ending = true
	s.mu.Unlock()
	_ = os.Remove(s.launch.Socket)
	for limit := time.Now().Add(farewell); time.Now().Before(limit) && s.owed(); {
		time.Sleep(time.Millisecond)
	}
	s.log.say("custody ends")
	os.Exit(code)
}

// owed reports whether a connection still has something coming.
func (s *server) owed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		if c.due() {
			return true
		}
	}
	return false
}
