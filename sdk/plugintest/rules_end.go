package plugintest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// runtimeEndRules hold for runtimes, about how a seat ends.
var runtimeEndRules = []Rule{
	{ID: "exit-code-is-exact", Kind: run, Check: checkExitCode, Text: "The exit code is the agent's: 0, 3, and 137 that no signal made."},
	{ID: "exit-signal-is-exact", Kind: run, Check: checkExitSignal, Text: "An agent that died of a signal is reported with its name, and with the code 137 or 143 or none, never as a clean end."},
	{ID: "stop-asks-first", Kind: run, Check: checkPolite, Text: "A graceful stop asks the agent, and an agent that heeds it has its time to end."},
	{ID: "stop-kills-after-the-grace", Kind: run, Check: checkGrace, Text: "An agent that ignores being asked is killed once the grace is over, not before it and not long after."},
	{ID: "stop-now-does-not-ask", Kind: run, Check: checkNow, Text: "A stop without grace kills at once."},
	{ID: "reap-ends-escaped-processes", Kind: run, Check: checkEscaped, Text: "Reap ends also what forked twice into a session of its own and forgot its nonce, or says unproven."},
	{ID: "reap-keeps-when-asked", Kind: run, Check: checkKeep, Text: "Reap with Keep ends the seat and leaves its record, which Adopt then tells."},
	{ID: "reap-is-repeatable", Kind: run, Check: checkReapAgain, Text: "Reap of a seat that was reaped is success."},
	{ID: "reap-of-absent-is-evidence", Kind: run, Check: checkReapAbsent, Text: "Reap of a seat that never was is absent, with evidence."},
	{ID: "reap-leaves-nothing", Kind: run, Check: checkReapLeaves, Text: "After Reap nothing of the seat is left: no process, directory or socket."},
	{ID: "seats-leak-no-descriptors", Kind: run, Check: checkDescriptors, Text: "Seats that came and went leave no open file in the plugin."},
}

func checkExitCode(ctx context.Context, e *Env) error {
	var bad findings
	for _, code := range []int{0, 3, 137} {
		s, err := e.started(ctx, step{"exit", fmt.Sprint(code)})
		if err != nil {
			return err
		}
		exit, err := s.exited(ctx)
		if err != nil {
			return err
		}
		if exit.Code == nil || *exit.Code != code || exit.Signal != "" {
			bad.add("the agent exited with %d and the record is %s", code, asText(exit))
		}
	}
	return bad.err()
}

func checkExitSignal(ctx context.Context, e *Env) error {
	var bad findings
	for name, code := range map[string]int{"KILL": 137, "TERM": 143} {
		s, err := e.started(ctx, step{"die", name})
		if err != nil {
			return err
		}
		exit, err := s.exited(ctx)
		if err != nil {
			return err
		}
		if exit.Signal != "SIG"+name || exit.Code != nil && *exit.Code != code {
			bad.add("the agent died of SIG%s and the record is %s", name, asText(exit))
		}
	}
	return bad.err()
}

func checkPolite(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"polite", "@asked"}, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	if _, err := s.pid(ctx, "ran"); err != nil {
		return err
	}
	s.req.StopGraceMs = 10_000
	stop := s.stop(sdk.StopGraceful)
	stop.GraceMs = 10_000
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	report, err := r.Reap(ctx, stop)
	if err != nil {
		return found("Reap: %w", err)
	}
	s.gone = true
	if s.read("asked") == "" {
		return fmt.Errorf("the agent ended without being asked: %s", asText(report))
	}
	if took := time.Since(begin); took > stretched(8*time.Second) {
		return fmt.Errorf("the agent ended at once and the stop took %s", took.Round(time.Millisecond))
	}
	return nil
}

func checkGrace(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"ignore"}, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "ran")
	if err != nil {
		return err
	}
	const grace = 1500 * time.Millisecond
	stop := s.stop(sdk.StopGraceful)
	stop.GraceMs = int(grace / time.Millisecond)
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	report, err := r.Reap(ctx, stop)
	took := time.Since(begin)
	switch {
	case err != nil:
		return found("Reap: %w", err)
	case alive(pid):
		return found("Reap says %s and the agent (process %d) lives", report.Outcome, pid)
	case report.Outcome != sdk.ReapStopped:
		return found("Reap ended the agent and says %q", report.Outcome)
	case took < grace*9/10:
		return fmt.Errorf("the grace is %s and the agent was killed after %s", grace, took.Round(time.Millisecond))
	case took > stretched(grace+e.patience()/2):
		return fmt.Errorf("the grace is %s and the stop took %s", grace, took.Round(time.Millisecond))
	}
	s.gone = true
	return nil
}

func checkNow(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"ignore"}, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "ran")
	if err != nil {
		return err
	}
	grace := stretched(6 * time.Second)
	stop := s.stop(sdk.StopNow)
	stop.GraceMs = int(grace / time.Millisecond)
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err = r.Reap(ctx, stop); err != nil {
		return found("Reap: %w", err)
	}
	s.gone = true
	if alive(pid) {
		return found("Reap succeeded and the agent (process %d) lives", pid)
	}
	if took := time.Since(begin); took >= grace {
		return fmt.Errorf("a stop that was to kill at once took %s", took.Round(time.Millisecond))
	}
	return nil
}

func checkEscaped(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"daemon", "@daemon"}, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "daemon")
	if err != nil {
		return err
	}
	report, err := s.reap(ctx, sdk.StopGraceful)
	switch {
	case errors.Is(err, sdk.ErrUnproven):
		e.Note("unproven, as it may say: %v", err)
		return nil
	case err != nil:
		return found("Reap: %w", err)
	case alive(pid):
		return found("Reap claims the end (%s) and process %d, which the agent detached, lives", asText(report), pid)
	}
	return nil
}

func checkKeep(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "ran")
	if err != nil {
		return err
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	stop := s.stop(sdk.StopNow)
	stop.Keep = true
	report, err := r.Reap(ctx, stop)
	if err != nil {
		return found("Reap with Keep: %w", err)
	}
	if alive(pid) {
		return found("Reap with Keep says %s and the agent lives", report.Outcome)
	}
	st, err := s.adopt(ctx, false)
	if err != nil || st.State != sdk.SeatExited || st.Exit == nil {
		return fmt.Errorf("after Reap with Keep the seat is %q (%s), %w, want exited with a record", st.State, st.Reason, orNone(err))
	}
	if !st.Exit.Asked {
		return fmt.Errorf("the end was asked for and the record says not: %s", asText(st.Exit))
	}
	if _, err := s.reap(ctx, sdk.StopNow); err != nil {
		return found("Reap after Reap with Keep: %w", err)
	}
	if st, err = s.adopt(ctx, false); err != nil || st.State != sdk.SeatNotFound {
		return fmt.Errorf("after the last Reap the seat is %q (%s), %w, want not_found", st.State, st.Reason, orNone(err))
	}
	return nil
}

func checkReapAgain(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"hang"})
	if err != nil {
		return err
	}
	for i := range 3 {
		report, err := s.reap(ctx, sdk.StopNow)
		if err != nil {
			return found("Reap, call %d: %w", i+1, err)
		}
		if i > 0 && report.Outcome == sdk.ReapStopped {
			return found("Reap, call %d, says again that it stopped the seat", i+1)
		}
	}
	return nil
}

func checkReapAbsent(ctx context.Context, e *Env) error {
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	report, err := r.Reap(ctx, sdk.StopRequest{SeatID: randomHex(16), InstanceID: "verify", Nonce: randomHex(16), Fence: ourFence, Mode: sdk.StopGraceful, GraceMs: shortGrace})
	switch {
	case err != nil:
		return found("Reap: %w", err)
	case report.Outcome != sdk.ReapAbsent:
		return found("Reap says %q of a seat that never was", report.Outcome)
	case len(report.Evidence) == 0 || slices.Contains(report.Evidence, ""):
		return found("Reap gives no evidence: %s", asText(report))
	}
	return nil
}

func checkReapLeaves(ctx context.Context, e *Env) error {
	var bad findings
	before := e.tree(e.dir.work)
	for _, steps := range [][]step{
		{{"append", "@ran", "{pid}"}, {"hang"}},
		{{"append", "@ran", "{pid}"}, {"exit", "0"}},
	} {
		s, err := e.started(ctx, steps...)
		if err != nil {
			return err
		}
		pid, err := s.pid(ctx, "ran")
		if err != nil {
			return err
		}
		t, err := s.target(ctx)
		if _, err := s.reap(ctx, sdk.StopNow); err != nil {
			return found("Reap: %w", err)
		}
		if alive(pid) {
			bad.add("the agent (process %d) lives", pid)
		}
		var left []string
		eventually(ctx, 2*time.Second, func() bool { left = withNonce(s.req.Nonce); return len(left) == 0 })
		if len(left) > 0 {
			bad.add("processes with the seat's nonce live: %s", strings.Join(left, ", "))
		}
		if err == nil && t.Seat != nil && exists(t.Seat.Socket) {
			bad.add("the socket %s is there", t.Seat.Socket)
		}
		if dir := filepath.Join(e.dir.seats, s.req.SeatID); exists(dir) {
			bad.add("the directory %s is there", dir)
		}
	}
	// What a plugin keeps for itself it may keep: only the seat's places count.
	for _, d := range differences(before, e.tree(e.dir.work)) {
		if path, ok := strings.CutPrefix(d, "new: "); ok && (under(path, e.dir.seats) || under(path, e.dir.sockets)) {
			if st, err := os.Lstat(path); err == nil && !st.IsDir() {
				bad.add("%s is there", path)
			}
		}
	}
	return bad.err()
}

func under(path, dir string) bool { return strings.HasPrefix(path, dir+string(filepath.Separator)) }

func checkDescriptors(ctx context.Context, e *Env) error {
	if !canLook {
		return skip("this system does not show what a process holds")
	}
	r, err := e.Plugin(ctx)
	if err != nil {
		return err
	}
	cycle := func() error {
		s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
		if err == nil {
			_, err = s.target(ctx)
		}
		if err == nil {
			_, err = s.reap(ctx, sdk.StopNow)
		}
		return err
	}
	if err := cycle(); err != nil { // what is opened once
		return err
	}
	before, err := descriptors(r.pid)
	if err != nil {
		return skip("%v", err)
	}
	const cycles = 5
	for range cycles {
		if err := cycle(); err != nil {
			return err
		}
	}
	after := 0
	// A descriptor that is only collected may be closed a little later.
	if !eventually(ctx, 3*time.Second, func() bool { after, err = descriptors(r.pid); return err == nil && after < before+cycles-1 }) {
		return fmt.Errorf("%d seats came and went, and the plugin has %d open files instead of %d", cycles, after, before)
	}
	return nil
}
