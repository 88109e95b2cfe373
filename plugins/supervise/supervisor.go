// Package supervise keeps plugin processes running: one Supervisor per entry of the manifest. It
// verifies what it executes, starts it with nothing but what it needs, restarts it when it dies and
// leaves nothing behind when it stops.
package supervise

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/hashicorp/go-hclog"
)

// Config says what to run and where.
type Config struct {
	Entry     manifest.Entry
	BundleDir string                           // where Entry.Command is; also told to the plugin
	RunDir    string                           // private socket directories are made here; keep it short
	StateDir  string                           // parent of the plugin's own scratch directory; empty: none
	SeatRoot  string                           // told to the plugin, and set as COTAL_SEAT_ROOT
	SocketDir string                           // told to the plugin
	Log       hclog.Logger                     // nil: no log
	Env       func(name string) (string, bool) // host environment; nil: os.LookupEnv
}

// Supervisor runs one plugin. All methods may be called from any goroutine.
type Supervisor struct {
	cfg Config
	log hclog.Logger

	healthEvery, healthTimeout time.Duration // as in timeouts.go; shorter in tests

	ctx     context.Context // ends when Stop is called
	cancel  context.CancelFunc
	restart chan struct{}
	needed  chan struct{} // a quarantine was ended by evNeeded; sent under mu
	done    chan struct{} // closed when run returned

	mu       sync.Mutex // held for field access only, never over I/O
	started  bool
	stopCtx  context.Context // of the first Stop
	m        machine
	live     *Live
	info     sdk.Info      // of the latest process that was ready
	attempt  int           // number of the latest start
	failed   int           // number of the latest start that failed
	restarts int           // starts after the first
	lastErr  error         // why it is not ready
	changed  chan struct{} // closed and replaced when any of the above changes
}

// Live is one plugin process that is ready. It stays valid as a value after the process died; its
// calls then fail with ErrPluginDown.
type Live struct {
	Client  *sdk.Client
	Info    sdk.Info
	PID     int
	Attempt int // grows with every start
	proc    *process
	suspect sync.Once
}

// Gone is closed when the process has ended.
func (l *Live) Gone() <-chan struct{} { return l.proc.gone }

// Status is a snapshot for people.
type Status struct {
	State    State
	PID      int // 0 unless ready
	Restarts int
	Reason   string // why it is not ready, or why it died last
}

// New makes a stopped supervisor.
func New(cfg Config) *Supervisor {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	s := &Supervisor{
		cfg: cfg, log: cfg.Log.With("plugin", cfg.Entry.Name, "kind", string(cfg.Entry.Kind)),
		restart: make(chan struct{}, 1), needed: make(chan struct{}, 1), done: make(chan struct{}),
		m: machine{state: StateStopped}, changed: make(chan struct{}),
		healthEvery: healthEvery, healthTimeout: healthTimeout,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Start begins to run the plugin and returns at once. A second call, or one after Stop, does nothing.
func (s *Supervisor) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.stopCtx != nil {
		return
	}
	s.started = true
	s.m, _ = s.m.on(evStart, time.Now())
	go s.run()
}

// Stop ends the plugin: politely, then TERM, then KILL, each to its whole process group; at most
// StopTimeout, and straight to KILL when ctx ends. It returns when the process is reaped and its
// directory removed, or an error if the kernel does not let go of it. It cannot be started again.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.mu.Lock()
	if s.stopCtx == nil {
		s.stopCtx = ctx
	}
	started := s.started
	s.mu.Unlock()
	s.cancel()
	if !started {
		return nil
	}
	// The rungs are bounded by themselves; this is for a process the kernel does not let go of.
	t := time.NewTimer(StopTimeout + stopKill + time.Second)
	defer t.Stop()
	select {
	case <-s.done:
		return nil
	case <-t.C:
		return fmt.Errorf("stop plugin %s: the process does not end after SIGKILL", s.cfg.Entry.Name)
	}
}

// Restart replaces the process by a new one, and ends backoff or quarantine.
func (s *Supervisor) Restart() {
	select {
	case s.restart <- struct{}{}:
	default: // one is on its way
	}
}

// State returns the state.
func (s *Supervisor) State() State { return s.Status().State }

// Status returns a snapshot.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{State: s.m.state, Restarts: s.restarts}
	if s.live != nil {
		st.PID = s.live.PID
	}
	if s.lastErr != nil {
		st.Reason = s.lastErr.Error()
	}
	if next := nextTry(s.m, time.Now()); next != "" {
		st.Reason = next + ": " + st.Reason
	}
	return st
}

// Info returns what the plugin said of itself when it was ready last; zero before that.
func (s *Supervisor) Info() sdk.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// NotReadyError says why there is no plugin to call. It is a contract error (ErrUnavailable, not
// executed, retryable) and wraps the failed start, if that is why.
type NotReadyError struct {
	Refusal *sdk.Error
	Cause   error
}

// Error is the text of the refusal.
func (e *NotReadyError) Error() string { return e.Refusal.Error() }

// Unwrap gives both the refusal and the cause.
func (e *NotReadyError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Refusal}
	}
	return []error{e.Refusal, e.Cause}
}

func (s *Supervisor) notReady(m machine, cause error, why string) error {
	detail := fmt.Sprintf("plugin %s is %s", s.cfg.Entry.Name, m.state)
	if next := nextTry(m, time.Now()); next != "" {
		detail += ", " + next
	}
	if why != "" {
		detail += ": " + why
	}
	return &NotReadyError{
		Refusal: &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeNotExecuted, Retryable: true, Detail: detail},
		Cause:   cause,
	}
}

// nextTry says when a quarantined plugin is tried again; empty for any other.
func nextTry(m machine, now time.Time) string {
	if m.state != StateQuarantined {
		return ""
	}
	in := func(at time.Time) string { // rounded up: who waits so long is not too early
		return "in " + max((at.Sub(now)+time.Second-1).Truncate(time.Second), time.Second).String()
	}
	demand := "at once"
	if m.demandAt().After(now) {
		demand = in(m.demandAt())
	}
	return fmt.Sprintf("tried again %s, or %s when a command needs it", in(m.retryAt), demand)
}

// Ready returns the running plugin, waiting for it if it is on its way. A quarantined plugin is tried
// for it, at most once every quarantineDemand. It gives up when ctx ends, when a start fails while it
// waits, when the plugin is quarantined and no try is due, and when it is stopped: a *NotReadyError
// each time.
func (s *Supervisor) Ready(ctx context.Context) (*Live, error) { return s.after(ctx, 0) }

// After is Ready for a caller whose call to the process of that attempt failed with ErrPluginDown:
// it waits for a later process. A process that has lost its connection but does not end is killed.
func (s *Supervisor) After(ctx context.Context, attempt int) (*Live, error) {
	s.suspect(attempt)
	return s.after(ctx, attempt)
}

// Later is After for a caller with nobody waiting for its answer: it waits out failed starts and
// quarantines and asks for no try. It gives up when ctx ends and when the plugin is stopped.
func (s *Supervisor) Later(ctx context.Context, attempt int) (*Live, error) {
	s.suspect(attempt)
	for {
		s.mu.Lock()
		live, m, cause, changed := s.live, s.m, s.lastErr, s.changed
		s.mu.Unlock()
		switch {
		case live != nil && live.Attempt > attempt:
			return live, nil
		case m.state == StateStopped:
			return nil, s.notReady(m, nil, "")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, s.notReady(m, ctx.Err(), errText(cause))
		}
	}
}

// suspect has the process of that attempt ended if it outlives its connection.
func (s *Supervisor) suspect(attempt int) {
	s.mu.Lock()
	live := s.live
	s.mu.Unlock()
	if live != nil && live.Attempt == attempt {
		live.suspect.Do(func() { go s.endSuspect(live) })
	}
}

func (s *Supervisor) endSuspect(live *Live) {
	if !live.proc.waitGone(context.Background(), suspectGrace) {
		s.log.Warn("plugin lost its connection and does not end: killing it", "pid", live.PID)
		live.proc.kill()
	}
}

func (s *Supervisor) after(ctx context.Context, attempt int) (*Live, error) {
	s.mu.Lock()
	failedBefore := s.failed
	s.mu.Unlock()
	for {
		s.mu.Lock()
		if s.failed == failedBefore && ctx.Err() == nil {
			s.need()
		}
		live, m, failed, cause, changed := s.live, s.m, s.failed, s.lastErr, s.changed
		s.mu.Unlock()
		switch {
		case live != nil && live.Attempt > attempt:
			return live, nil
		case m.state == StateStopped:
			return nil, s.notReady(m, nil, "")
		case m.state == StateQuarantined, failed > failedBefore:
			return nil, s.notReady(m, cause, errText(cause))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, s.notReady(m, ctx.Err(), errText(cause))
		}
	}
}

// need ends a quarantine for one try, if one is due. s.mu is held: of many who need the plugin at the
// same time one starts it, and the others find it starting.
func (s *Supervisor) need() {
	m, _ := s.m.on(evNeeded, time.Now())
	if m.state == s.m.state {
		return
	}
	s.m = m
	s.needed <- struct{}{} // pause emptied it when the quarantine began
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// update changes fields under the lock and wakes who waits.
func (s *Supervisor) update(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Supervisor) run() {
	defer close(s.done)
	defer s.update(func() { s.m, _ = s.m.on(evStop, time.Now()) })
	if removed, err := Sweep(s.cfg.RunDir); err != nil {
		s.log.Warn("leftovers of earlier runs remain", "err", err)
	} else if len(removed) > 0 {
		s.log.Info("removed socket directories of hosts that are gone", "count", len(removed))
	}
	for first := true; ; first = false {
		s.update(func() {
			s.attempt++
			if !first {
				s.restarts++
			}
		})
		cause := s.runOnce()
		if s.ctx.Err() != nil {
			return
		}
		if cause == nil {
			s.update(func() { s.m, _ = s.m.on(evRestart, time.Now()) })
			continue
		}
		if !s.pause(cause) {
			return
		}
	}
}

// pause waits out a backoff or a quarantine. It reports false when the supervisor was stopped.
func (s *Supervisor) pause(cause error) bool {
	var p pause
	var state State
	level := hclog.Error
	s.update(func() {
		if s.m.state != StateReady {
			s.failed = s.attempt
		}
		tried := s.m.trying
		s.m, p = s.m.on(evDied, time.Now())
		state = s.m.state
		same := s.lastErr != nil && s.lastErr.Error() == cause.Error()
		if same && (tried || state != StateQuarantined) {
			level = hclog.Debug // said before; status goes on saying it
		}
		s.lastErr = cause
		select {
		case <-s.needed:
		default:
		}
	})
	delay := p.min + time.Duration(rand.Int64N(int64(p.max-p.min)+1))
	s.log.Log(level, "plugin is down", "state", string(state), "retry_in", delay.Round(time.Millisecond).String(), "err", cause)
	t := time.NewTimer(delay)
	defer t.Stop()
	ev := evStart
	select {
	case <-s.ctx.Done():
		return false
	case <-s.restart:
		ev = evRestart
	case <-s.needed:
		return true // the machine is starting already
	case <-t.C:
	}
	s.update(func() { s.m, _ = s.m.on(ev, time.Now()) })
	return true
}

// runOnce starts one process and stays until it is gone. It returns why it is gone, or nil when a
// restart or a stop was asked for.
func (s *Supervisor) runOnce() error {
	attempt := s.attempt
	log := s.log.With("attempt", attempt)
	begin := time.Now()
	in, err := launch(s.ctx, &s.cfg, log)
	if err != nil {
		return err
	}
	live := &Live{
		Client: in.rpc, Info: in.info, PID: in.proc.cmd.Process.Pid, Attempt: attempt,
		proc: in.proc,
	}
	s.update(func() {
		s.m, _ = s.m.on(evReady, time.Now())
		s.live, s.info, s.lastErr = live, in.info, nil
	})
	log.Info("plugin is ready", "pid", live.PID, "version", in.info.Version, "dur", time.Since(begin).Round(time.Millisecond).String())

	healthy := make(chan struct{})
	go func() {
		defer close(healthy)
		s.watchHealth(live, log)
	}()
	defer func() { <-healthy }()

	var cause error
	select {
	case <-in.proc.gone:
		s.update(func() { s.live = nil }) // at once: its last words may take pipeGrace
		cause = s.died(in)
	case <-s.restart:
		in.proc.stop(context.Background())
	case <-s.ctx.Done():
		s.mu.Lock()
		stopCtx := s.stopCtx
		s.mu.Unlock()
		in.proc.stop(stopCtx)
	}
	// Not callable any more before it is taken apart, so that nobody is handed a dying process.
	s.update(func() { s.live = nil })
	in.discard(log)
	return cause
}

// watchHealth kills a process that is there and does not answer: stopped, deadlocked, swapped out.
// It returns when the process is gone.
func (s *Supervisor) watchHealth(live *Live, log hclog.Logger) {
	tick := time.NewTicker(s.healthEvery)
	defer tick.Stop()
	for misses := 0; misses < healthMisses; {
		select {
		case <-live.Gone():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.healthTimeout)
		_, err := live.Client.Describe(ctx)
		cancel()
		if err == nil {
			misses = 0
			continue
		}
		misses++
		log.Warn("plugin does not answer", "pid", live.PID, "misses", misses, "err", err)
	}
	log.Error("plugin is stuck: killing it", "pid", live.PID)
	live.proc.kill()
}

func (s *Supervisor) died(in *instance) error {
	<-in.proc.exited // its last words are worth the moment
	text := fmt.Sprintf("plugin %s (%s) ended with %s", s.cfg.Entry.Name, in.proc.path, in.proc.status)
	if tail := in.proc.out.lastLines(3); tail != "" {
		text += "; its last output: " + clean([]byte(tail), 600)
	}
	return fmt.Errorf("%s", text)
}
