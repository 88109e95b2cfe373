package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/diskfull"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// smallDisk is the size of a disk that is filled, in bytes: a host needs a few hundred KiB.
const smallDisk = 8 << 20

// fullFor is how long a disk stays full: long enough for a spawn or a stop to run into it.
const fullFor = 1500 * time.Millisecond

// answerWithin is what a command may take while a fault holds, with the start of a process that asks.
const answerWithin = 2 * time.Second

// strike is one fault that waits for its moment. It runs beside the life that it strikes.
type strike struct {
	w        *world
	cell     cell
	how      string // of a full disk: how it is made
	gate     string // the failpoint waits for this file
	fullFile string // while it exists, pretended disks are full
	disks    []*diskfull.Disk
	broker   *harness.Broker
	rng      *rand.Rand

	over    chan struct{} // the life is over: do not wait any longer
	ended   atomic.Bool
	healed  chan struct{} // closed once the fault is over
	holding atomic.Bool
	hit     atomic.Bool
	victim  atomic.Pointer[string] // custody id of the seat that was struck
}

func (s *strike) active() bool { return s.holding.Load() }

// cancel ends the wait for the moment.
func (s *strike) cancel() {
	if s.ended.CompareAndSwap(false, true) {
		close(s.over)
	}
	<-s.healed
}

// finish waits for the end of the fault. A failpoint that was never reached fails the test.
func (s *strike) finish() {
	s.w.t.Helper()
	if _, err := os.Stat(s.gate + ".reached"); err != nil {
		s.cancel()
		s.w.t.Fatalf("%s was never reached", s.cell.site.Name)
	}
	<-s.healed
}

func (s *strike) run() {
	defer close(s.healed)
	pid, ok := s.awaitReached()
	if !ok {
		return
	}
	s.hit.Store(true)
	s.holding.Store(true)
	defer s.holding.Store(false)
	target := s.target(pid)
	begun := time.Now()
	s.note("reached by process %d; %s strikes %v", pid, s.cell.fault, target)
	heal := s.begin(target)
	if err := os.WriteFile(s.gate, nil, 0o600); err != nil {
		s.w.t.Error(err)
	}
	if s.cell.fault != kill || s.cell.process == theBroker {
		s.ask()
	}
	if s.cell.fault == stop && s.cell.process == theHost {
		s.secondHost(target.PID)
	}
	var last time.Duration
	switch {
	case s.cell.fault == stop:
		last = s.cell.stop
	case s.cell.fault == full:
		last = fullFor
	case s.cell.process == theBroker:
		last = time.Duration(200+s.rng.IntN(600)) * time.Millisecond
	}
	<-time.After(time.Until(begun.Add(last)))
	heal()
	s.note("over after %v", time.Since(begun).Round(time.Millisecond))
}

func (s *strike) note(format string, args ...any) {
	s.w.t.Logf(s.cell.site.Name+": "+format, args...)
}

// awaitReached waits until some process stands at the failpoint.
func (s *strike) awaitReached() (pid int, ok bool) {
	for {
		if text, err := os.ReadFile(s.gate + ".reached"); err == nil {
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			return pid, err == nil
		}
		select {
		case <-s.over:
			return 0, false
		case <-time.After(time.Millisecond):
		}
	}
}

// is reports whether a process is of the kind that the cell strikes. At the moment a launch is built the
// plugin is the connector; at every other moment it is the runtime whose seats the life has.
func (s *strike) is(p harness.Proc) bool {
	switch s.cell.process {
	case theHost:
		return strings.Contains(p.Args, "cotal-host serve")
	case theSeat:
		return custodyOf(p) != ""
	case theBroker:
		return strings.Contains(p.Args, "test-broker")
	}
	if strings.HasPrefix(s.cell.site.Name, "host.spawn.buil") {
		return strings.HasSuffix(p.Args, "/cotal-connector-command")
	}
	return strings.HasSuffix(p.Args, "/cotal-runtime-"+runtimeOf(s.cell.site))
}

// runsWithin is how long a process of the struck kind may be away when the moment is reached: a plugin that
// has just died comes back after its backoff, and of plugins started at once another may be there first.
const runsWithin = 20 * time.Second

// target is the process to strike: the one that reached the failpoint if it is of the kind, else the
// newest of the kind.
func (s *strike) target(reached int) harness.Proc {
	limit := time.Now().Add(runsWithin)
	found := s.newest(reached)
	for found.PID == 0 && time.Now().Before(limit) {
		time.Sleep(2 * time.Millisecond)
		found = s.newest(reached)
	}
	if id := custodyOf(found); id != "" && s.cell.fault == kill {
		s.victim.Store(&id)
	}
	if found.PID == 0 && s.cell.fault != full {
		s.w.t.Errorf("no %s runs when %s is reached: the cell belongs into the table of exclusions", s.cell.process, s.cell.site.Name)
	}
	return found
}

// newest is the process of the kind that reached the failpoint, or the one that was started last.
func (s *strike) newest(reached int) harness.Proc {
	var found harness.Proc
	for _, p := range s.w.Procs() {
		if !s.is(p) {
			continue
		}
		if p.PID == reached {
			return p
		}
		if p.Ticks >= found.Ticks {
			found = p
		}
	}
	return found
}

// begin lets the fault strike and returns what ends it.
func (s *strike) begin(target harness.Proc) (heal func()) {
	signal := func(sig syscall.Signal, pids ...int) {
		for _, pid := range pids {
			if err := s.w.TrySignal(pid, sig); err != nil && sig != syscall.SIGCONT {
				s.w.t.Errorf("send %v: %v", sig, err)
			}
		}
	}
	switch {
	case s.cell.fault == full:
		errs := []error{os.WriteFile(s.fullFile, nil, 0o600)}
		for _, d := range s.disks {
			errs = append(errs, d.Fill())
		}
		if err := errors.Join(errs...); err != nil {
			s.w.t.Error(err)
		}
		s.note("no room: %s", s.how)
		return func() {
			errs := []error{os.Remove(s.fullFile)}
			for _, d := range s.disks {
				errs = append(errs, d.Free())
			}
			if err := errors.Join(errs...); err != nil {
				s.w.t.Error(err)
			}
			if s.broker != nil {
				// A server that could not write does not write again before its operator starts it anew.
				s.broker.Kill()
				s.broker.Restart()
			}
		}
	case s.cell.fault == stop:
		// A server of tmux makes what was stopped in its terminals go on at once: it is stopped before and goes
		// on after.
		stopped := []int{target.PID}
		if s.cell.process == theSeat && runtimeOf(s.cell.site) == "tmux" {
			stopped = []int{target.PPID, target.PID}
		}
		signal(syscall.SIGSTOP, stopped...)
		return func() {
			if !s.w.Alive(target.PID) {
				s.note("the stopped process was replaced meanwhile")
			}
			slices.Reverse(stopped)
			signal(syscall.SIGCONT, stopped...)
		}
	case s.broker != nil:
		s.broker.Kill()
		return s.broker.Restart
	default:
		signal(syscall.SIGKILL, target.PID)
		return func() {}
	}
}

// pretended are failpoints that stand for a full disk where no small disk can be made.
func (s *strike) pretended() map[string]string {
	if s.how != diskfull.Injected {
		return nil
	}
	rule := "full(" + s.fullFile + ")"
	journal, exit := "host.journal.commit", "seat.exit.before-fsync"
	if runtimeOf(s.cell.site) == "tmux" {
		exit = "tmuxseat.exit.before-fsync"
	}
	switch s.cell.process {
	case theHost:
		return map[string]string{journal: rule}
	case theSeat:
		return map[string]string{exit: rule}
	case thePlugin:
		return map[string]string{journal: rule, exit: rule}
	}
	return nil
}

// ask runs a command while the fault holds: it answers, or says that nobody does, in time.
func (s *strike) ask() {
	r := s.w.CLI("ps", "--timeout", "1500ms")
	slow := busy.Limit(answerWithin)
	if answers := r.Code == 0 || r.Code == 3; r.Took > slow || !answers {
		s.w.t.Errorf("a command during the fault: want an answer, or that nobody answers, within %v: %v", slow, r)
	}
	s.note("ps during the fault: exit code %d after %v %s", r.Code, r.Took.Round(time.Millisecond), strings.TrimSpace(r.Stderr))
}

// secondHost starts a host beside the stopped one: the lock is held by a process that lives.
func (s *strike) secondHost(pid int) {
	args := []string{"serve"}
	if !s.w.auth {
		args = append(args, "--open")
	}
	r := s.w.Host(args[0], args[1:]...)
	if r.Code == 0 || !strings.Contains(r.Stderr+r.Stdout, fmt.Sprint(pid)) {
		s.w.t.Errorf("a second host beside stopped host %d: want a refusal that names it: %v", pid, r)
	}
}
