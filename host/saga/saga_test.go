package saga

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

var (
	fpBefore = failpoint.New("host.sagatest.before")
	fpAfter  = failpoint.New("host.sagatest.after")
)

// script records what happened, in order.
type script struct {
	log   []string
	fails map[string]error // by event
}

func (s *script) event(e string) error {
	s.log = append(s.log, e)
	return s.fails[e]
}

func (s *script) Intent(_ context.Context, step string) error { return s.event("intent " + step) }
func (s *script) Done(_ context.Context, step string) error   { return s.event("done " + step) }

func (s *script) step(name string) Step {
	return Step{
		Name: name,
		Do:   func(context.Context) error { return s.event("do " + name) },
		Undo: func(context.Context) error { return s.event("undo " + name) },
	}
}

var errBoom = errors.New("boom")

func TestRun(t *testing.T) {
	notExecuted := sdk.Errorf(sdk.ErrUnavailable, "no pty left")
	for name, tc := range map[string]struct {
		fails map[string]error
		want  string
		err   string
	}{
		"every step is intended, done and recorded in order": {
			want: "intent a, do a, done a, intent b, do b, done b, intent c, do c, done c",
		},
		"a failed step is taken back too, because it may have acted": {
			fails: map[string]error{"do b": errBoom},
			want:  "intent a, do a, done a, intent b, do b, undo b, undo a",
			err:   "boom (step b of spawn)",
		},
		"a step that says it did not execute is not taken back": {
			fails: map[string]error{"do b": notExecuted},
			want:  "intent a, do a, done a, intent b, do b, undo a",
			err:   "unavailable: no pty left (step b of spawn)",
		},
		"without a recorded intent nothing is done": {
			fails: map[string]error{"intent b": errBoom},
			want:  "intent a, do a, done a, intent b, undo a",
			err:   "record intent of b: boom (step b of spawn)",
		},
		"a result that cannot be recorded is taken back": {
			fails: map[string]error{"done b": errBoom},
			want:  "intent a, do a, done a, intent b, do b, done b, undo b, undo a",
			err:   "record result of b: boom (step b of spawn)",
		},
		"an undo that fails does not stop the others": {
			fails: map[string]error{"do c": errBoom, "undo c": errors.New("c stays"), "undo a": errors.New("a stays")},
			want:  "intent a, do a, done a, intent b, do b, done b, intent c, do c, undo c, undo b, undo a",
			err:   "boom (step c of spawn); not everything could be taken back: undo c: c stays; undo a: a stays",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{fails: tc.fails}
			err := Run(context.Background(), "spawn", s, []Step{s.step("a"), s.step("b"), s.step("c")})
			if got := strings.Join(s.log, ", "); got != tc.want {
				t.Errorf("happened: %s\nwant:     %s", got, tc.want)
			}
			if got := text(err); got != tc.err {
				t.Errorf("error %q, want %q", got, tc.err)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The third step of a provisioning fails: what the first two made is gone, and the message starts
// with the third step's error although an undo failed as well.
func TestFieldC6_FailedStepUndoesTheOthersAndIsTheHeadline(t *testing.T) {
	dir := t.TempDir()
	mk := func(name string) Step {
		path := filepath.Join(dir, name)
		return Step{
			Name: name,
			Do:   func(context.Context) error { return os.Mkdir(path, 0o700) },
			Undo: func(context.Context) error { return os.RemoveAll(path) },
		}
	}
	third := Step{
		Name: "start",
		Do:   func(context.Context) error { return errBoom },
		Undo: func(context.Context) error { return sdk.ErrUnproven },
	}
	err := Run(context.Background(), "spawn", nil, []Step{mk("one"), mk("two"), third})
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if !strings.HasPrefix(err.Error(), "boom") || !strings.Contains(err.Error(), "unproven") {
		t.Errorf("message: %q", err)
	}
	if !errors.Is(err, errBoom) || !errors.Is(err, sdk.ErrUnproven) {
		t.Error("cause and undo error must both be found")
	}
	var se *Error
	if !errors.As(err, &se) || se.Step != "start" || len(se.Undo) != 1 || se.Undo[0].Step != "start" {
		t.Errorf("%+v", se)
	}
}

func TestTheCauseIsFoundBeforeTheUndoErrors(t *testing.T) {
	first := sdk.Errorf(sdk.ErrInvalid, "first")
	err := Run(context.Background(), "spawn", nil, []Step{
		{Name: "a", Undo: func(context.Context) error { return sdk.Errorf(sdk.ErrUnproven, "second") }},
		{Name: "b", Do: func(context.Context) error { return first }},
	})
	var e *sdk.Error
	if !errors.As(err, &e) || e.Detail != "first" {
		t.Fatalf("found %+v", e)
	}
}

func TestPanicsAreErrorsAndAreTakenBack(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(context.Context) error
		want string
	}{
		"a panic with text":     {func(context.Context) error { panic("at the disco") }, "panic: at the disco"},
		"a panic with an error": {func(context.Context) error { panic(errBoom) }, "panic: boom"},
		"a nil dereference":     {func(context.Context) error { var p *script; return p.event("x") }, "panic: runtime error"},
	} {
		t.Run(name, func(t *testing.T) {
			undone := false
			err := Run(context.Background(), "spawn", nil, []Step{
				{Name: "a", Do: tc.do, Undo: func(context.Context) error { undone = true; panic("again") }},
			})
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || !strings.Contains(err.Error(), "undo a: panic: again") {
				t.Errorf("%v", err)
			}
			if !undone {
				t.Error("not undone")
			}
			var pe *PanicError
			if !errors.As(err, &pe) || len(pe.Stack) == 0 {
				t.Error("no stack for the log")
			}
		})
	}
}

func TestCancelBetweenStepsIsAFailure(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &script{}
	b := s.step("b")
	b.Do = func(context.Context) error { cancel(errors.New("client left")); return s.event("do b") }
	b.Undo = func(uctx context.Context) error {
		if uctx.Err() != nil {
			t.Error("the undo got the cancelled context")
		}
		return s.event("undo b")
	}
	err := Run(ctx, "spawn", s, []Step{s.step("a"), b, s.step("c")})
	want := []string{"intent a", "do a", "done a", "intent b", "do b", "done b", "undo b", "undo a"}
	if !slices.Equal(s.log, want) {
		t.Errorf("happened %v", s.log)
	}
	if text(err) != "stop before c: client left (step c of spawn)" {
		t.Errorf("%q", text(err))
	}
}

func TestEachUndoHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := Run(ctx, "spawn", nil, []Step{
			{Name: "a", Undo: wait},
			{Name: "b", Undo: wait},
			{Name: "c", Do: wait},
		})
		if d := time.Since(start); d != time.Second+2*UndoTimeout {
			t.Errorf("took %v", d)
		}
		var se *Error
		if !errors.As(err, &se) || len(se.Undo) != 2 {
			t.Fatalf("%v", err)
		}
	})
}

func TestFailpointsStandAroundTheAct(t *testing.T) {
	for name, tc := range map[string]struct{ arm, want string }{
		"before: the intent is recorded and nothing is done": {
			"host.sagatest.before=error(x)", "intent a, undo a",
		},
		"after: it is done and not recorded": {
			"host.sagatest.after=error(x)", "intent a, do a, undo a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer failpoint.Disarm()
			if err := failpoint.Arm(tc.arm); err != nil {
				t.Fatal(err)
			}
			s := &script{}
			a := s.step("a")
			a.Before, a.After = fpBefore, fpAfter
			err := Run(context.Background(), "spawn", s, []Step{a})
			if got := strings.Join(s.log, ", "); got != tc.want || err == nil {
				t.Errorf("%s; %v", got, err)
			}
		})
	}
	for _, n := range []string{"host.sagatest.before", "host.sagatest.after"} {
		if !slices.Contains(failpoint.Names(), n) {
			t.Errorf("%s cannot be listed", n)
		}
	}
}
