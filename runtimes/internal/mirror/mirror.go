package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// able says that this process can be started again as a worker: Main was called.
var able atomic.Bool

// Every wait of the plugin's side.
const (
	pingEvery = 2 * time.Second // while there are seats
	pongWait  = time.Second     // longer, and a worker that is stopped, or busy without an answer, is killed
	pongMost  = 8 * time.Second // the same for one that has not had the CPU: the machine is in trouble
	endWait   = time.Second     // from the end of its standard input to SIGKILL

	restartMin  = 50 * time.Millisecond // after a worker that did not live long
	restartMax  = 5 * time.Second
	restartCalm = 10 * time.Second

	snapshotWait = 900 * time.Millisecond // the host gives the whole call a second
)

// Memory of the worker: what one may have without a seat, and for each seat. More, and it is replaced.
const (
	baseKB    = 64 << 10
	perSeatKB = 12 << 10
	cellBytes = 600 // a cell of each of two screens, and as much again that waits to be collected

	// shrinkGrace is how long the worker may keep what it needed before: memory goes back to the system
	// some time after the seats have gone.
	shrinkGrace = 30 * time.Second
)

// needKB is what a seat of a size may have.
func needKB(rows, cols int) int { return max(perSeatKB, rows*cols*cellBytes>>10) }

// allowance is the memory that the worker may have.
type allowance struct {
	kb    int
	since time.Time // when so much was last needed
}

// limit is the allowance now that the seats need so much.
func (a *allowance) limit(now time.Time, need int) int {
	if need >= a.kb || now.Sub(a.since) > shrinkGrace {
		a.kb, a.since = need, now
	}
	return a.kb
}

// ErrNone says that there is no picture of the seat, and why.
var ErrNone = errors.New("no screen")

// Snapshot is the picture of a seat's terminal.
type Snapshot struct {
	Offset     uint64
	Rows, Cols int
	Modes      uint32
	Data       []byte
	Dirty      string
}

// Mirror watches over the worker of one runtime. The zero value mirrors nothing; see New.
type Mirror struct {
	log func(format string, args ...any)

	mu      sync.Mutex
	seats   map[string]*tracked
	w       *process // nil: none, or on its way (starting)
	start   bool     // a worker is being started
	closed  bool
	nextReq uint64
	waiting map[uint64]chan message
	pause   time.Duration
	slot    int
}

// tracked is a seat that should be mirrored.
type tracked struct {
	socket string
	token  []byte
	slot   int
	from   uint64    // never look at output before
	kb     int       // what its picture may need; 0 before the worker has said
	blame  [2]uint64 // what was being drawn when a worker died
}

// process is one worker.
type process struct {
	cmd   *exec.Cmd
	in    chan message // to its standard input
	quit  chan struct{}
	once  sync.Once
	page  page
	began time.Time
	done  chan struct{} // closed once it was waited for
	pong  chan uint64
	tail  tail
	asked bool // it was told to end; guarded by Mirror.mu
}

// New returns a mirror without seats. It starts no process before there is a seat, and none at all in a
// program whose main does not call Main.
func New(log func(format string, args ...any)) *Mirror {
	return &Mirror{log: log, seats: map[string]*tracked{}, waiting: map[uint64]chan message{}}
}

// Add mirrors a running seat. It does not wait. A seat that is mirrored already goes on.
func (m *Mirror) Add(id, socket string, token []byte) {
	if !able.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.seats[id]; m.closed || t != nil && t.socket == socket {
		return
	}
	m.slot++
	t := &tracked{socket: socket, token: append([]byte(nil), token...), slot: m.slot % pageSlots}
	m.seats[id] = t
	if m.w != nil {
		m.w.say(t.message(id))
		return
	}
	m.launch(0)
}

func (t *tracked) message(id string) message {
	return message{Op: "add", Seat: id, Socket: t.socket, Token: t.token, From: t.from, Slot: t.slot}
}

// Remove forgets a seat. Without seats the worker ends.
func (m *Mirror) Remove(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(id)
}

func (m *Mirror) remove(id string) {
	if m.seats[id] == nil {
		return
	}
	delete(m.seats, id)
	if m.w == nil {
		return
	}
	if len(m.seats) == 0 {
		m.w.asked = true
		m.w.stop()
		return
	}
	m.w.say(message{Op: "remove", Seat: id})
}

// Close ends the worker and waits for it.
func (m *Mirror) Close() {
	m.mu.Lock()
	m.closed = true
	m.seats = map[string]*tracked{}
	w := m.w
	m.mu.Unlock()
	if w != nil {
		w.stop()
		<-w.done
	}
}

// Snapshot asks for the picture of a seat. Errors: ErrNone.
func (m *Mirror) Snapshot(ctx context.Context, id string) (Snapshot, error) {
	if !able.Load() {
		return Snapshot{}, fmt.Errorf("%w: this program cannot be started as a mirror", ErrNone)
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotWait)
	defer cancel()
	for {
		m.mu.Lock()
		w, known := m.w, m.seats[id] != nil
		var answer chan message
		var req uint64
		if w != nil {
			m.nextReq++
			req, answer = m.nextReq, make(chan message, 1)
			m.waiting[req] = answer
		}
		m.mu.Unlock()
		if !known {
			return Snapshot{}, fmt.Errorf("%w: the seat is not mirrored", ErrNone)
		}
		if w == nil { // on its way
			select {
			case <-ctx.Done():
				return Snapshot{}, fmt.Errorf("%w: the mirror is being started", ErrNone)
			case <-time.After(5 * time.Millisecond):
			}
			continue
		}
		w.say(message{Op: "snapshot", Req: req, Seat: id})
		select {
		case a := <-answer:
			if a.Problem != "" {
				return Snapshot{}, fmt.Errorf("%w: %s", ErrNone, a.Problem)
			}
			return Snapshot{Offset: a.Offset, Rows: a.Rows, Cols: a.Cols, Modes: a.Modes, Data: a.body, Dirty: a.Dirty}, nil
		case <-w.done: // it died of something: the next one is asked
			m.drop(req)
			time.Sleep(5 * time.Millisecond)
		case <-ctx.Done():
			m.drop(req)
			return Snapshot{}, fmt.Errorf("%w: the mirror has not answered in time", ErrNone)
		}
	}
}

func (m *Mirror) drop(req uint64) {
	m.mu.Lock()
	delete(m.waiting, req)
	m.mu.Unlock()
}

// launch starts a worker after a pause, unless one is on its way. mu is held.
func (m *Mirror) launch(pause time.Duration) {
	if m.start || m.closed || len(m.seats) == 0 {
		return
	}
	m.start = true
	time.AfterFunc(pause, m.run)
}

// run starts one worker and serves it to its end.
func (m *Mirror) run() {
	w, out, err := startProcess()
	m.mu.Lock()
	m.start = false
	if err != nil || m.closed || len(m.seats) == 0 {
		if err != nil {
			m.log("start mirror worker: %v", err)
			m.backOff(0)
			m.launch(m.pause)
		}
		m.mu.Unlock()
		if err == nil {
			w.stop()
			w.wait()
		}
		return
	}
	m.w = w
	for id, t := range m.seats {
		w.say(t.message(id))
	}
	m.mu.Unlock()
	pings := make(chan struct{})
	go func() {
		defer close(pings)
		m.watch(w)
	}()
	err = m.read(w, out)
	w.stop()
	w.wait()
	<-pings
	m.ended(w, err)
}

// ended judges the death of a worker and starts the next.
func (m *Mirror) ended(w *process, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.w = nil
	switch {
	case w.asked: // seats that came meanwhile get the next one
		m.launch(0)
	case len(m.seats) > 0 && !m.closed:
		m.log("mirror worker %d ended: %v, %v; %s", w.cmd.Process.Pid, w.cmd.ProcessState, err, w.tail.String())
		for id, t := range m.seats {
			from, to := w.page.get(t.slot)
			if skip := t.blamed(from, to); skip > 0 {
				m.log("seat %s: drawing bytes %d to %d ended the mirror twice; its screen starts behind them", id, from, to)
			}
		}
		m.backOff(time.Since(w.began))
		m.launch(m.pause)
	}
	w.page.close()
}

// blamed notes what was being drawn of a seat when a worker died. The second time at the same place it
// returns where to start instead.
func (t *tracked) blamed(from, to uint64) (skip uint64) {
	if from == to {
		return 0
	}
	if t.blame[0] < to && from < t.blame[1] {
		t.from = to
		t.blame = [2]uint64{}
		return to
	}
	t.blame = [2]uint64{from, to}
	return 0
}

// backOff sets the pause before the next start: none after a worker that lived for a while.
func (m *Mirror) backOff(lived time.Duration) {
	switch {
	case lived > restartCalm:
		m.pause = 0
	case m.pause == 0:
		m.pause = restartMin
	default:
		m.pause = min(2*m.pause, restartMax)
	}
}

// read takes what the worker says until it has no more to say.
func (m *Mirror) read(w *process, out io.Reader) error {
	hello, err := readMessage(out)
	if err != nil {
		return err
	}
	if hello.Op != "hello" || hello.Version != version {
		return fmt.Errorf("it speaks version %d, not %d", hello.Version, version)
	}
	for {
		a, err := readMessage(out)
		if err != nil {
			return err
		}
		switch a.Op {
		case "pong":
			select {
			case w.pong <- a.Req:
			default:
			}
		case "size":
			m.mu.Lock()
			if t := m.seats[a.Seat]; t != nil {
				t.kb = needKB(a.Rows, a.Cols)
			}
			m.mu.Unlock()
		case "gone":
			m.mu.Lock()
			m.remove(a.Seat)
			m.mu.Unlock()
		case "snapshot":
			m.mu.Lock()
			answer := m.waiting[a.Req]
			delete(m.waiting, a.Req)
			m.mu.Unlock()
			if answer != nil {
				answer <- a
			}
		}
	}
}

// watch kills a worker that does not answer or is too large.
func (m *Mirror) watch(w *process) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	var memory allowance
	for n := uint64(1); ; n++ {
		select {
		case <-w.quit:
			return
		case <-tick.C:
		}
		m.mu.Lock()
		seats, need := len(m.seats), baseKB
		for _, t := range m.seats {
			need += max(t.kb, perSeatKB)
		}
		m.mu.Unlock()
		if kb := residentKB(w.cmd.Process.Pid); kb > memory.limit(time.Now(), need) {
			w.kill(fmt.Sprintf("it has %d KB for %d seats", kb, seats))
			return
		}
		w.say(message{Op: "ping", Req: n})
		if !w.answers(n) {
			return
		}
	}
}

// answers waits for the answer to a ping. Without one it kills the worker and returns false.
func (w *process) answers(n uint64) bool {
	_, before := running(w.cmd.Process.Pid)
	asked := time.Now()
	late := time.NewTicker(pongWait)
	defer late.Stop()
	for {
		select {
		case got := <-w.pong:
			if got == n {
				return true
			}
		case <-late.C:
			stopped, cpu := running(w.cmd.Process.Pid)
			if stopped || cpu-before > pongWait/2 || time.Since(asked) > pongMost {
				w.kill("it does not answer")
				return false
			}
		case <-w.quit:
			return false
		}
	}
}

// startProcess starts this program once more, as the worker.
// program is what is executed as the worker when it is not this very program.
var program atomic.Value

// UseProgram makes the file at path the worker of every mirror that is started from now on; empty: this very
// program. It is for tests that measure, whose own program the race detector makes slower and larger.
func UseProgram(path string) { program.Store(path) }

func workerProgram() string {
	if path, _ := program.Load().(string); path != "" {
		return path
	}
	return "/proc/self/exe"
}

func startProcess() (*process, io.Reader, error) {
	p, f, err := newPage()
	if err != nil {
		return nil, nil, err
	}
	w := &process{
		in: make(chan message, 4096), quit: make(chan struct{}), done: make(chan struct{}),
		page: p, began: time.Now(), pong: make(chan uint64, 1),
	}
	w.cmd = exec.Command(workerProgram())
	w.cmd.Args = []string{"cotal-mirror", Arg}
	w.cmd.Env = []string{workerEnv + "=1"}
	if v, ok := os.LookupEnv("GOCOVERDIR"); ok {
		w.cmd.Env = append(w.cmd.Env, "GOCOVERDIR="+v)
	}
	w.cmd.Dir = "/"
	w.cmd.Stderr = &w.tail
	if f != nil {
		defer f.Close()
		w.cmd.ExtraFiles = []*os.File{f}
	}
	in, err := w.cmd.StdinPipe()
	if err != nil {
		p.close()
		return nil, nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		p.close()
		return nil, nil, err
	}
	if err := w.cmd.Start(); err != nil {
		p.close()
		return nil, nil, err
	}
	go w.write(in)
	return w, out, nil
}

// say queues a message. A worker that takes none is stuck; it is found out by its pings.
func (w *process) say(a message) {
	select {
	case w.in <- a:
	default:
		w.kill("it takes no messages")
	}
}

// write hands queued messages over until the worker is to stop, which its end of input tells it.
func (w *process) write(in io.WriteCloser) {
	defer in.Close()
	for {
		select {
		case a := <-w.in:
			if writeMessage(in, a) != nil {
				return
			}
		case <-w.quit:
			return
		}
	}
}

// stop lets the worker end, and sees to it that it does.
func (w *process) stop() {
	w.once.Do(func() {
		close(w.quit)
		time.AfterFunc(endWait, func() {
			select {
			case <-w.done:
			default:
				_ = w.cmd.Process.Kill()
			}
		})
	})
}

func (w *process) kill(why string) {
	w.tail.add("killed: " + why)
	_ = w.cmd.Process.Kill()
}

// wait waits for the process after its output was read.
func (w *process) wait() {
	_ = w.cmd.Wait()
	close(w.done)
}

// tail keeps the end of what a worker writes to standard error.
type tail struct {
	mu sync.Mutex
	p  []byte
}

const tailMax = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.add(string(p))
	return len(p), nil
}

func (t *tail) add(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p = append(t.p, s...)
	if n := len(t.p) - tailMax; n > 0 {
		t.p = append(t.p[:0], t.p[n:]...)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.p))
}
