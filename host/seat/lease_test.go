package seat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// tenure is a lease that a test gives and takes.
type tenure struct {
	mu      sync.Mutex
	why     error
	over    bool
	changed chan struct{}
	waits   int
	refused int // how often somebody who waited was told that it is over
}

func newTenure() *tenure { return &tenure{changed: make(chan struct{})} }

func (l *tenure) set(why error, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why, l.over = why, over
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *tenure) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits
}

func (l *tenure) refusals() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

func (l *tenure) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

func (l *tenure) Await(ctx context.Context) error {
	l.mu.Lock()
	l.waits++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.waits--
		l.mu.Unlock()
	}()
	for {
		l.mu.Lock()
		why, over, changed := l.why, l.over, l.changed
		if why != nil && over {
			l.refused++
		}
		l.mu.Unlock()
		if why == nil || over {
			return why
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errUnproven = errors.New("the lease cannot be proved")

// A host that cannot prove that it holds its lease starts nothing: a spawn is refused without a trace, the answer to one
// that was accepted before stays what it was, and a seat that ended by itself waits for its next process. What runs is
// not touched and can be ended.
func TestWithoutItsLeaseAHostStartsNothing(t *testing.T) {
	w := newWorld(t)
	w.crash()
	l := newTenure()
	w.lease = l
	w.boot()
	id := wire.NewID()
	first, err := w.spawn(id, w.args("first", `[{"hang": true}]`))
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	w.supervised("steady", 3, nil)

	l.set(errUnproven, false)
	_, err = w.spawn(wire.NewID(), w.args("late", `[{"hang": true}]`))
	if e := wire.ErrorFrom(err); e == nil || e.Code != wire.CodeUnavailable || e.Outcome != wire.OutcomeNotExecuted || !strings.Contains(e.Message, errUnproven.Error()) {
		t.Errorf("a spawn: %v", err)
	}
	if occ := w.set.Occupancy(); occ.Live != 2 || occ.Pending != 0 {
		t.Errorf("it left %+v", occ)
	}
	if again, err := w.spawn(id, w.args("first", `[{"hang": true}]`)); err != nil || again.UID != first.UID {
		t.Errorf("the answer to an earlier spawn is %+v, %v", again, err)
	}
	old := w.kill("steady")
	w.eventually("its next process waits", func() (bool, string) { return l.waiting() == 1, fmt.Sprint(l.waiting()) })
	if row := w.row("steady"); row.Status == "running" && row.PID != old.PID {
		t.Errorf("it is %+v", row)
	}
	if r, err := w.stop(first, false); err != nil || !r.Stopped {
		t.Errorf("a stop: %+v, %v", r, err)
	}
	l.set(nil, false)
	w.next(old)
	w.run("late", `[{"hang": true}]`)
}

// What was accepted before the lease was lost is not started after it: the goal says that nothing of it was executed.
// A seat that waits for its next process is neither started nor ended: it is the next host's.
func TestAHostThatWasReplacedStartsNothingMore(t *testing.T) {
	w := newWorld(t)
	w.crash()
	l := newTenure()
	w.lease = l
	w.boot()
	w.supervised("steady", 3, nil)
	let := w.hold()
	id := wire.NewID()
	if _, err := w.spawn(id, w.args("accepted", `[{"hang": true}]`)); err != nil {
		t.Fatal(err)
	}
	l.set(errors.New("replaced"), true)
	let()
	if r := w.terminal(id); r.State != wire.GoalFailed || r.Error == nil || r.Error.Outcome != wire.OutcomeNotExecuted || !strings.Contains(r.Error.Message, "replaced") {
		t.Errorf("the goal ended %+v %+v", r, r.Error)
	}
	// One that is prepared already is not committed either.
	l.set(nil, false)
	if err := failpoint.Arm("host.spawn.handle-persisted=pause(" + filepath.Join(w.dir, "persisted") + ")"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(failpoint.Disarm)
	id = wire.NewID()
	if _, err := w.spawn(id, w.args("prepared", `[{"hang": true}]`)); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is prepared", func() (bool, string) {
		_, err := os.Stat(filepath.Join(w.dir, "persisted.reached"))
		return err == nil, fmt.Sprint(err)
	})
	l.set(errors.New("replaced"), true)
	if err := os.WriteFile(filepath.Join(w.dir, "persisted"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := w.terminal(id); r.State != wire.GoalFailed || r.Error == nil || r.Error.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("the goal of a prepared seat ended %+v %+v", r, r.Error)
	}

	before := l.refusals()
	old := w.kill("steady")
	w.eventually("its next process was asked for, and refused", func() (bool, string) {
		return l.refusals() > before, w.row("steady").Status
	})
	if row := w.row("steady"); row.Status == "running" || row.Status == "exited" {
		t.Errorf("it is %+v", row)
	}
	w.crash()
	w.lease = nil
	w.boot()
	w.next(old)
}

// gated is a connector that builds nothing before it is let.
type gated struct {
	sdk.Connector
	let chan struct{}
}

func (g gated) BuildLaunch(ctx context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	select {
	case <-g.let:
	case <-ctx.Done():
		return sdk.LaunchSpec{}, ctx.Err()
	}
	return g.Connector.BuildLaunch(ctx, req)
}

// hold lets no launch be built until the returned function is called.
func (w *world) hold() (release func()) {
	g := gated{command.Connector{}, make(chan struct{})}
	w.plugins.mu.Lock()
	w.plugins.conns["command"] = g
	w.plugins.mu.Unlock()
	return sync.OnceFunc(func() { close(g.let) })
}
