package supervise

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/hashicorp/go-hclog"
)

// Live is one plugin process that is ready. It stays valid as a value after the process died; its
// calls then fail with ErrPluginDown.
type Live struct {
	Client  *sdk.Client
	Info    sdk.Info
	PID     int
	Attempt int // grows with every process that is ready
	proc    *process
	suspect sync.Once

	mu      sync.Mutex
	calls   int
	retired chan struct{} // closed when another process has taken over
	idle    chan struct{} // closed when it is retired and no call is in flight
}

func newLive(in *instance, attempt int) *Live {
	return &Live{
		Client: in.rpc, Info: in.info, PID: in.proc.cmd.Process.Pid, Attempt: attempt, proc: in.proc,
		retired: make(chan struct{}), idle: make(chan struct{}),
	}
}

// Gone is closed when the process has ended.
func (l *Live) Gone() <-chan struct{} { return l.proc.gone }

// Retired is closed when another process has taken over from this one. Streams then have to be opened anew;
// calls in flight may finish.
func (l *Live) Retired() <-chan struct{} { return l.retired }

// Enter announces a call, which Leave must follow. It reports false when another process has taken over:
// Ready gives that one. A call that is announced is not cut by a swap within swapDrain.
func (l *Live) Enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.retired:
		return false
	default:
	}
	l.calls++
	return true
}

// Leave ends what Enter announced.
func (l *Live) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	select {
	case <-l.retired:
		if l.calls == 0 {
			close(l.idle)
		}
	default:
	}
}

func (l *Live) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.retired)
	if l.calls == 0 {
		close(l.idle)
	}
}

// Prepared is a process of a plugin that is verified, started, described and configured, and has no callers
// yet. Exactly one of Commit and Discard must be called.
type Prepared struct {
	s     *Supervisor
	entry manifest.Entry
	in    *instance
	log   hclog.Logger
	live  *Live         // set by takeOver
	old   int           // pid of the process it replaced; 0: none
	taken chan struct{} // closed by takeOver
}

// Swapped says what a swap did.
type Swapped struct {
	OldPID int // 0: none was running
	PID    int
	Info   sdk.Info
}

// Prepare starts a process for an entry of the same name and kind beside the one that runs, if any. At most
// StartTimeout. Errors: *StartError, after which everything is as it was; *NotReadyError when the
// supervisor does not run.
func (s *Supervisor) Prepare(ctx context.Context, entry manifest.Entry) (*Prepared, error) {
	if entry.Name != s.cfg.Entry.Name || entry.Kind != s.cfg.Entry.Kind {
		return nil, fmt.Errorf("prepare plugin %s: the entry is for %s %s", s.cfg.Entry.Name, entry.Kind, entry.Name)
	}
	s.mu.Lock()
	if !s.started || s.stopCtx != nil {
		m := s.m
		s.mu.Unlock()
		return nil, s.notReady(m, nil, "")
	}
	s.attempt++
	attempt := s.attempt
	s.behind.Add(1)
	s.mu.Unlock()
	cfg := s.cfg
	cfg.Entry = entry
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	log := s.log.With("attempt", attempt)
	in, err := launch(ctx, &cfg, log)
	if err != nil {
		s.mu.Lock()
		healthy := s.live != nil
		s.mu.Unlock()
		if !healthy { // else nothing of the plugin has crashed: the refusal says everything
			s.reportStart(attempt, err)
			s.update(func() {
				if s.live == nil {
					s.lastErr = err
				}
			})
		}
		log.Error("a new process of the plugin does not start", "err", err)
		s.behind.Done()
		return nil, err
	}
	return &Prepared{s: s, entry: entry, in: in, log: log, taken: make(chan struct{})}, nil
}

// Discard ends the prepared process.
func (p *Prepared) Discard() {
	defer p.s.behind.Done()
	p.in.proc.stop(p.s.stopContext())
	p.s.end(p.in, p.log)
}

// Err says why the process cannot take over: a *StartError when it has ended.
func (p *Prepared) Err() error {
	select {
	case <-p.in.proc.gone:
	default:
		return nil
	}
	<-p.in.proc.exited // its last words are worth the moment
	e := p.in.proc.fail(ReasonExited, "it ended after it was ready and before it took over", "", nil).(*StartError)
	e.Status, e.Stderr = p.in.proc.ended(), p.in.proc.out.lastLines(5)
	return e
}

// Commit has the process take over: from now on Ready gives it, and the next start goes by its entry. The
// old one ends by itself once its calls in flight have finished, at most swapDrain. Backoff, quarantine and
// past deaths are forgotten. Errors, after which the process is discarded and everything is as it was:
// *StartError when it has ended meanwhile, *NotReadyError when the supervisor was stopped.
func (p *Prepared) Commit() (Swapped, error) {
	if err := p.Err(); err != nil { // of two that are ready select takes any
		p.Discard()
		return Swapped{}, err
	}
	select {
	case p.s.swaps <- p:
	case <-p.in.proc.gone:
		err := p.Err()
		p.Discard()
		return Swapped{}, err
	case <-p.s.ctx.Done():
		p.Discard()
		return Swapped{}, p.s.notReady(machine{state: StateStopped}, nil, "")
	}
	<-p.taken
	p.s.behind.Done() // run looks after it now
	return Swapped{OldPID: p.old, PID: p.live.PID, Info: p.live.Info}, nil
}

// Replace is Prepare and Commit: a new process by a changed entry.
func (s *Supervisor) Replace(ctx context.Context, entry manifest.Entry) (Swapped, error) {
	p, err := s.Prepare(ctx, entry)
	if err != nil {
		return Swapped{}, err
	}
	return p.Commit()
}

// Restart replaces the process by a new one of the same entry; see Replace.
func (s *Supervisor) Restart(ctx context.Context) (Swapped, error) { return s.Replace(ctx, s.Entry()) }

// takeOver makes a prepared process the one that is called. Only run calls it.
func (s *Supervisor) takeOver(p *Prepared) {
	var old *Live
	s.update(func() {
		s.attempt++
		p.live = newLive(p.in, s.attempt)
		old = s.live
		s.m, _ = s.m.on(evRestart, time.Now())
		s.m, _ = s.m.on(evReady, time.Now())
		s.entry, s.live, s.info, s.lastErr = p.entry, p.live, p.in.info, nil
		s.served++
	})
	if old != nil {
		p.old = old.PID
		old.retire() // after the new one is there: who finds it retired finds that
	}
	s.log.Info("plugin is ready", "pid", p.live.PID, "version", p.live.Info.Version, "attempt", p.live.Attempt, "instead_of", p.old)
	close(p.taken)
}

// drain ends a process that was replaced, once its calls are done.
func (s *Supervisor) drain(live *Live, in *instance, log hclog.Logger) {
	t := time.NewTimer(swapDrain)
	defer t.Stop()
	select {
	case <-live.idle:
	case <-in.proc.gone:
		log.Warn("plugin ended while it was being replaced", "pid", live.PID, "err", s.died(in, live.Attempt))
	case <-s.ctx.Done():
	case <-t.C:
		log.Warn("calls on a replaced process are cut off", "pid", live.PID, "after", swapDrain.String())
	}
	in.proc.stop(s.stopContext())
	if s.end(in, log) {
		log.Info("replaced process has ended", "pid", live.PID)
	}
}
