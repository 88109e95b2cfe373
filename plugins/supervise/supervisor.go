// Package supervise keeps plugin processes running: one Supervisor per entry of the manifest. It
// verifies what it executes, starts it with nothing but what it needs, restarts it when it dies and
// leaves nothing behind when it stops.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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
	CrashDir  string                           // crash reports are written here; empty: none
	Redact    *Redactor                        // secrets that must not be stored; nil: one of its own
	Log       hclog.Logger                     // nil: no log
	Env       func(name string) (string, bool) // host environment; nil: os.LookupEnv

	stuck func(*process) // is told of a process that does not end
}

// Supervisor runs one plugin. All methods may be called from any goroutine.
type Supervisor struct {
	cfg Config
	log hclog.Logger

	healthEvery, healthTimeout time.Duration // as in timeouts.go; shorter in tests

	ctx    context.Context // ends when Stop is called
	cancel context.CancelFunc
	swaps  chan *Prepared
	needed chan struct{}  // a quarantine was ended by evNeeded; sent under mu
	done   chan struct{}  // closed when run returned
	behind sync.WaitGroup // processes that are prepared, or were replaced

	reportMu sync.Mutex // one crash report is written at a time; before mu

	mu      sync.Mutex // held for field access only, never over I/O
	started bool
	stopCtx context.Context // of the first Stop
	entry   manifest.Entry  // cfg.Entry, or what replaced it
	m       machine
	crash   string // path of the report on the latest death
	live    *Live
	info    sdk.Info      // of the latest process that was ready
	attempt int           // number of the latest start, grows
	failed  int           // number of the latest start that failed
	served  int           // how many processes were ready
	lastErr error         // why it is not ready
	stuck   []*process    // killed, and did not end
	changed chan struct{} // closed and replaced when any of the above changes
}

// Status is a snapshot for people.
type Status struct {
	State    State
	PID      int    // 0 unless ready
	Restarts int    // how often a process was ready after the first one
	Reason   string // why it is not ready
	Fix      string // what a person can do about it; empty when it is ready
	Crash    string // path of the report on the latest death of this host's time; empty: none
}

// New makes a stopped supervisor.
func New(cfg Config) *Supervisor {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Redact == nil {
		cfg.Redact = &Redactor{}
	}
	s := &Supervisor{
		cfg: cfg, entry: cfg.Entry, log: cfg.Log.With("plugin", cfg.Entry.Name, "kind", string(cfg.Entry.Kind)),
		swaps: make(chan *Prepared), needed: make(chan struct{}, 1), done: make(chan struct{}),
		m: machine{state: StateStopped}, changed: make(chan struct{}),
		healthEvery: healthEvery, healthTimeout: healthTimeout,
	}
	s.cfg.stuck = s.keepStuck
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
// directory removed, or an error that names the processes that did not end. It cannot be started again.
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
	case <-t.C:
		if err := s.stillThere(); err != nil {
			return err
		}
		return fmt.Errorf("stop plugin %s: the process does not end after SIGKILL", s.cfg.Entry.Name)
	}
	return s.stillThere()
}

// keepStuck remembers a process that was killed and did not end, to name it when the plugin is stopped.
func (s *Supervisor) keepStuck(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = append(slices.DeleteFunc(s.stuck, (*process).isGone), p)
}

// stillThere is an error that names the processes that were killed and did not end.
func (s *Supervisor) stillThere() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pids []string
	for _, p := range s.stuck {
		if !p.isGone() {
			pids = append(pids, p.ID())
		}
	}
	if len(pids) == 0 {
		return nil
	}
	return fmt.Errorf("stop plugin %s: process %s does not end after SIGKILL, and is still there", s.cfg.Entry.Name, strings.Join(pids, ", "))
}

// end ends an instance and reports whether that succeeded.
func (s *Supervisor) end(in *instance, log hclog.Logger) bool {
	if in.discard(log) {
		return true
	}
	s.keepStuck(in.proc)
	return false
}

// State returns the state.
func (s *Supervisor) State() State { return s.Status().State }

// Status returns a snapshot.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{State: s.m.state, Restarts: max(0, s.served-1), Crash: s.crash}
	if s.live != nil {
		st.PID = s.live.PID
	}
	if s.lastErr != nil {
		st.Reason = s.lastErr.Error()
		var se *StartError
		if errors.As(s.lastErr, &se) {
			st.Reason = se.what() // what to do stands in Fix
		}
		st.Fix = fix(s.cfg.Entry.Name, s.m.state, s.lastErr)
	}
	if next := nextTry(s.m, time.Now()); next != "" {
		st.Reason = next + ": " + st.Reason
	}
	return st
}

// reloadCommand reads the manifest again and starts what is not ready.
const reloadCommand = "cotal ext reload"

// fix says what a person can do about a plugin that is not ready.
func fix(name string, state State, err error) string {
	var se *StartError
	switch {
	case errors.As(err, &se) && strings.HasSuffix(se.Fix, reloadCommand):
		return se.Fix
	case errors.As(err, &se) && se.Fix != "":
		return se.Fix + "; then: " + reloadCommand
	case state == StateQuarantined:
		return "read its crash report, repair the cause, then: cotal ext restart " + name
	case state == StateBackoff:
		return "nothing: it is started again by itself"
	}
	return ""
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
		live.proc.killFor("killed by the host: its connection was lost")
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
	defer s.behind.Wait()
	defer s.update(func() { s.m, _ = s.m.on(evStop, time.Now()) })
	if removed, err := Sweep(s.cfg.RunDir); err != nil {
		s.log.Warn("leftovers of earlier runs remain", "err", err)
	} else if len(removed) > 0 {
		s.log.Info("removed socket directories of hosts that are gone", "count", len(removed))
	}
	var next *Prepared // took over from the last one
	for {
		attempt := 0
		if next == nil {
			s.update(func() {
				s.attempt++
				attempt = s.attempt
			})
		}
		var cause error
		next, cause = s.runOnce(attempt, next)
		if next != nil {
			continue
		}
		if s.ctx.Err() != nil {
			return
		}
		var stopped bool
		if next, stopped = s.pause(attempt, cause); stopped {
			return
		}
	}
}

// pause waits out a backoff or a quarantine. A prepared process that takes over ends it.
func (s *Supervisor) pause(attempt int, cause error) (next *Prepared, stopped bool) {
	var p pause
	var state State
	var crash string
	level := hclog.Error
	s.update(func() {
		if s.m.state != StateReady {
			s.failed = attempt
		}
		tried := s.m.trying
		s.m, p = s.m.on(evDied, time.Now())
		state, crash = s.m.state, s.crash
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
	kv := []any{"state", string(state), "retry_in", delay.Round(time.Millisecond).String(), "err", cause}
	if crash != "" {
		kv = append(kv, "crash_report", crash)
	}
	s.log.Log(level, "plugin is down", kv...)
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-s.ctx.Done():
		return nil, true
	case next := <-s.swaps:
		s.takeOver(next)
		return next, false
	case <-s.needed:
		return nil, false // the machine is starting already
	case <-t.C:
	}
	s.update(func() { s.m, _ = s.m.on(evStart, time.Now()) })
	return nil, false
}

// runOnce starts one process, or takes a prepared one, and stays until it is gone or replaced. It returns
// what took its place, or why it is gone, or neither when a stop was asked for.
func (s *Supervisor) runOnce(attempt int, prepared *Prepared) (next *Prepared, cause error) {
	var live *Live
	var in *instance
	if prepared != nil {
		live, in = prepared.live, prepared.in
	} else {
		log := s.log.With("attempt", attempt)
		begin := time.Now()
		var err error
		if in, err = launch(s.ctx, s.config(), log); err != nil {
			s.reportStart(attempt, err)
			return nil, err
		}
		live = newLive(in, attempt)
		s.update(func() {
			s.m, _ = s.m.on(evReady, time.Now())
			s.live, s.info, s.lastErr = live, in.info, nil
			s.served++
		})
		log.Info("plugin is ready", "pid", live.PID, "version", in.info.Version, "dur", time.Since(begin).Round(time.Millisecond).String())
	}
	log := s.log.With("attempt", live.Attempt)
	healthy := make(chan struct{})
	go func() {
		defer close(healthy)
		s.watchHealth(live, log)
	}()

	select {
	case <-in.proc.gone:
		s.update(func() { s.live = nil }) // at once: its last words may take pipeGrace
		cause = s.died(in, live.Attempt)
	case next = <-s.swaps:
		s.takeOver(next)
		s.behind.Add(1)
		go func() {
			defer s.behind.Done()
			s.drain(live, in, log)
			<-healthy
		}()
		return next, nil
	case <-s.ctx.Done():
		in.proc.stop(s.stopContext())
	}
	// Not callable any more before it is taken apart, so that nobody is handed a dying process.
	s.update(func() { s.live = nil })
	s.end(in, log)
	<-healthy
	return nil, cause
}

func (s *Supervisor) stopContext() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopCtx == nil {
		return context.Background()
	}
	return s.stopCtx
}

// config is what the next start goes by.
func (s *Supervisor) config() *Config {
	cfg := s.cfg
	cfg.Entry = s.Entry()
	return &cfg
}

// Entry returns the entry of the manifest that the next start goes by.
func (s *Supervisor) Entry() manifest.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entry
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
		live.proc.record()
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
	live.proc.killFor(fmt.Sprintf("killed by the host: it did not answer %d times in a row within %s", healthMisses, s.healthTimeout))
}

func (s *Supervisor) died(in *instance, attempt int) error {
	p := in.proc
	<-p.exited // its last words are worth the moment
	how := "ended with " + p.ended()
	path := s.report(p, attempt, true, "it "+how)
	s.update(func() { s.crash = path })
	text := fmt.Sprintf("plugin %s (%s) %s", s.cfg.Entry.Name, p.path, how)
	if tail := p.out.lastLines(3); tail != "" {
		text += "; its last output: " + clean([]byte(tail), 600)
	}
	return errors.New(text)
}

// reportStart writes the report on a start that failed after there was a process.
func (s *Supervisor) reportStart(attempt int, err error) {
	var se *StartError
	if !errors.As(err, &se) || se.proc == nil || s.ctx.Err() != nil {
		return
	}
	p := se.proc
	se.proc = nil // its output is in the report; the error may be kept for long
	path := s.report(p, attempt, false, se.Error())
	s.update(func() { s.crash = path })
}
