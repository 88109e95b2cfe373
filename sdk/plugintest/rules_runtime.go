package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const run = sdk.KindRuntime

// runtimeRules hold for runtimes, up to the end of a seat.
var runtimeRules = []Rule{
	{ID: "spawn-executes-nothing", Kind: run, Check: checkPrepared, Text: "After Spawn the seat is prepared and nothing of the agent has executed."},
	{ID: "spawn-twice-is-one-seat", Kind: run, Check: checkSpawnTwice, Text: "Spawn of the same seat again gives the same handle, and one seat."},
	{ID: "spawn-refuses-nonsense", Kind: run, Check: checkSpawnNonsense, Text: "A request that cannot be right is refused with a typed error, and leaves nothing."},
	{ID: "oversize-spawn-is-refused", Kind: run, Check: checkRuntimeOversize, Text: "A request above the message limit is refused, and the plugin goes on."},
	{ID: "commit-starts-the-agent", Kind: run, Check: checkCommit, Text: "Adopt with Commit starts the agent: the program, its arguments, its working directory."},
	{ID: "commit-twice-is-one-process", Kind: run, Check: checkCommitTwice, Text: "A second commit changes nothing: one process, the same answer."},
	{ID: "agent-gets-its-environment", Kind: run, Check: checkAgentEnv, Text: "The agent's environment is that of the launch and COTAL_SEAT_NONCE, and nothing else."},
	{ID: "spawn-sets-the-size", Kind: run, Check: checkSize, Text: "The terminal has the size that Spawn was asked for."},
	{ID: "adopt-after-kill", Kind: run, Check: checkAdoptAfterKill, Text: "A seat outlives the kill of its plugin, and a new process adopts it by its handle."},
	{ID: "adopt-by-id-alone", Kind: run, Check: checkAdoptByID, Text: "A seat is found and committed by its id alone, without a handle."},
	{ID: "adopt-not-ours", Kind: run, Check: checkNotOurs, Text: "Another instance's seat is ErrNotOurs, whatever is asked, and nothing happens to it."},
	{ID: "adopt-stale-fence", Kind: run, Check: checkStaleFence, Text: "A host of an earlier epoch is refused with ErrStaleFence once a later one was there."},
	{ID: "adopt-unknown-is-not-found", Kind: run, Check: checkNotFound, Text: "Of a seat that never was, Adopt says not_found, without an error."},
	{ID: "adopt-honours-its-deadline", Kind: run, Check: checkAdoptDeadline, Text: "Adopt is over within twice its deadline."},
	{ID: "exec-failure-is-typed", Kind: run, Check: checkExecFailure, Text: "A program that cannot be executed is ErrExecFailed at the commit, and the seat is still prepared."},
	{ID: "handle-round-trips", Kind: run, Check: checkHandle, Text: "A handle survives JSON, fits into 16 KiB and has a printable reference."},
	{ID: "handle-version-is-checked", Kind: run, Check: checkHandleVersion, Text: "A handle of another version is read or refused with a typed error, never mistaken for a seat that is gone."},
	{ID: "attach-gives-one-target", Kind: run, Check: checkAttach, Text: "Attach gives a seat socket that can be dialled with its token alone, or the argv of a program that exists."},
	{ID: "attach-of-an-ended-seat-is-gone", Kind: run, Check: checkAttachGone, Text: "Attach of a seat that was stopped, or never was, is ErrGone; one that ended by itself can still be looked at, or is ErrGone."},
	{ID: "output-survives-a-restart", Kind: run, Check: checkOutput, Text: "What the agent prints while the plugin is killed and started again is there afterwards, without a gap."},
	{ID: "resize-reaches-the-agent", Kind: run, Check: checkResize, Text: "A new size of the terminal reaches the agent."},
	{ID: "burst-needs-no-reader", Kind: run, Check: checkBurst, Text: "An agent that prints 4 MB while nobody reads is not held up."},
	{ID: "slow-reader-stalls-nobody", Kind: run, Check: checkSlowReader, Text: "A viewer that stopped reading does not hold up the agent."},
	{ID: "write-is-byte-exact", Kind: run, Needs: sdk.CapWrite, Check: checkWrite, Text: "What Write takes arrives byte for byte and in order, and Write says how many bytes that were."},
	{ID: "write-to-ended-is-gone", Kind: run, Needs: sdk.CapWrite, Check: checkWriteGone, Text: "Write to a seat whose agent has ended is ErrGone."},
	{ID: "snapshot-shows-the-screen", Kind: run, Needs: sdk.CapSnapshot, Check: checkSnapshot, Text: "Snapshot shows what the agent printed, in the size of the terminal."},
	{ID: "watch-tells-the-end", Kind: run, Needs: sdk.CapWatch, Check: checkWatch, Text: "Watch tells the status at once, then the exit, and returns."},
	{ID: "watch-ends-with-its-caller", Kind: run, Needs: sdk.CapWatch, Check: checkWatchEnds, Text: "Watch of a running seat is over when its caller gives up, and the seat goes on."},
	{ID: "list-shows-the-seat", Kind: run, Needs: sdk.CapList, Check: checkList, Text: "List shows every seat, ours as ours and another instance's as foreign."},
}

// together makes one error of findings.
type findings []error

func (f *findings) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

func (f findings) err() error { return errors.Join(f...) }

func checkPrepared(ctx context.Context, e *Env) error {
	s, err := e.spawned(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	st, err := s.adopt(ctx, false)
	if err != nil {
		return found("Adopt: %w", err)
	}
	if st.State != sdk.SeatPrepared {
		return fmt.Errorf("after Spawn the seat is %s (%s), want prepared", st.State, st.Reason)
	}
	// An agent that was started would have written by then: it takes milliseconds.
	if eventually(ctx, 400*time.Millisecond, func() bool { return exists(s.file("ran")) }) {
		return errors.New("the agent ran before the commit")
	}
	return nil
}

func checkSpawnTwice(ctx context.Context, e *Env) error {
	s, err := e.spawned(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	for _, when := range []string{"prepared", "running"} {
		first := s.handle
		if err := s.spawn(ctx); err != nil {
			return fmt.Errorf("again, while %s: %w", when, err)
		}
		if !reflect.DeepEqual(first, s.handle) {
			return fmt.Errorf("again, while %s: another handle: first %s, then %s", when, asText(first), asText(s.handle))
		}
		if _, err := s.adopt(ctx, true); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		if _, err := s.pid(ctx, "ran"); err != nil {
			return err
		}
	}
	if n := strings.Count(s.read("ran"), "\n"); n != 1 {
		return fmt.Errorf("the agent was started %d times", n)
	}
	return nil
}

func checkSpawnNonsense(ctx context.Context, e *Env) error {
	var bad findings
	for _, c := range []struct {
		what   string
		change func(*sdk.SpawnRequest)
	}{
		{"an id that climbs out", func(r *sdk.SpawnRequest) { r.SeatID = "../../escaped" }},
		{"an empty id", func(r *sdk.SpawnRequest) { r.SeatID = "" }},
		{"a program without a path", func(r *sdk.SpawnRequest) { r.Launch.Path = "sh" }},
		{"a working directory that does not exist", func(r *sdk.SpawnRequest) { r.Cwd = "/none/such" }},
		{"a zero byte in an argument", func(r *sdk.SpawnRequest) { r.Launch.Args = []string{"a\x00b"} }},
		{"an environment entry without a value", func(r *sdk.SpawnRequest) { r.Launch.Env = []string{"NOVALUE"} }},
	} {
		s, err := e.newSeat(step{"hang"})
		if err != nil {
			return err
		}
		c.change(&s.req)
		before := e.tree()
		r, err := e.Plugin(ctx)
		if err != nil {
			return err
		}
		_, err = r.client.Runtime().Spawn(ctx, s.req)
		switch {
		case err == nil:
			bad.add("%s was accepted", c.what)
		case !typedRefusal(err):
			bad.add("%s: %w, want ErrInvalid", c.what, err)
		}
		if err := e.survived(ctx, r, c.what, err); err != nil {
			bad = append(bad, err)
		}
		if err != nil {
			for _, d := range differences(before, e.tree()) {
				if strings.HasPrefix(d, "new: ") && (strings.Contains(d, e.dir.seats) || strings.Contains(d, e.dir.sockets)) {
					bad.add("%s, refused, left %s", c.what, d)
				}
			}
		}
	}
	return bad.err()
}

func checkCommit(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"append", "here", "x"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "ran")
	if err != nil {
		return err
	}
	if err := s.holds(ctx, "here", "x"); err != nil {
		return fmt.Errorf("the working directory: %w", err)
	}
	st, err := s.adopt(ctx, false)
	if err != nil {
		return found("Adopt: %w", err)
	}
	if st.State != sdk.SeatRunning {
		return fmt.Errorf("the agent runs as process %d and Adopt says %s (%s)", pid, st.State, st.Reason)
	}
	if st.Agent.PID != 0 && st.Agent.PID != pid {
		return fmt.Errorf("the agent is process %d and Adopt says %d", pid, st.Agent.PID)
	}
	return nil
}

func checkCommitTwice(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	if _, err := s.pid(ctx, "ran"); err != nil {
		return err
	}
	first, err := s.adopt(ctx, true)
	if err != nil {
		return fmt.Errorf("commit again: %w", err)
	}
	if _, err := e.restart(ctx); err != nil {
		return err
	}
	second, err := s.adopt(ctx, true)
	if err != nil {
		return fmt.Errorf("commit again, by a new process: %w", err)
	}
	if first.State != sdk.SeatRunning || second.State != sdk.SeatRunning || first.Agent != second.Agent {
		return fmt.Errorf("the commits say %s, then %s", asText(first), asText(second))
	}
	if eventually(ctx, 300*time.Millisecond, func() bool { return strings.Count(s.read("ran"), "\n") > 1 }) {
		return fmt.Errorf("the agent was started %d times", strings.Count(s.read("ran"), "\n"))
	}
	return nil
}

func checkAgentEnv(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"env", "@env"}, step{"hang"})
	if err != nil {
		return err
	}
	if err := s.holds(ctx, "env", "]"); err != nil {
		return err
	}
	var got []string
	if err := json.Unmarshal([]byte(s.read("env")), &got); err != nil {
		return fmt.Errorf("read the agent's environment: %w", err)
	}
	want := append(slices.Clone(s.req.Launch.Env), seat.NonceVar+"="+s.req.Nonce)
	var bad findings
	for _, kv := range want {
		if !slices.Contains(got, kv) {
			bad.add("the agent does not have %s", short(kv))
		}
	}
	for _, kv := range got {
		if !slices.Contains(want, kv) {
			bad.add("the agent has %s, which the launch does not give", short(kv))
		}
	}
	return bad.err()
}

func checkSize(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"size", "@size"}, step{"hang"})
	if err != nil {
		return err
	}
	return s.holds(ctx, "size", fmt.Sprintf("%dx%d\n", ourRows, ourCols))
}

func checkAdoptAfterKill(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"wait", "@go"}, step{"append", "@done", "done"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "ran")
	if err != nil {
		return err
	}
	before, err := s.adopt(ctx, false)
	if err != nil {
		return found("Adopt: %w", err)
	}
	if _, err := e.restart(ctx); err != nil {
		return err
	}
	after, err := s.adopt(ctx, false)
	if err != nil {
		return found("Adopt by a new process: %w", err)
	}
	if after.State != sdk.SeatRunning || after.Agent != before.Agent || after.Identity != before.Identity {
		return fmt.Errorf("before the kill Adopt said %s, after it %s", asText(before), asText(after))
	}
	if err := os.WriteFile(s.file("go"), nil, 0o600); err != nil {
		return fmt.Errorf("tell the agent to go on: %w", err)
	}
	if err := s.holds(ctx, "done", "done"); err != nil {
		return fmt.Errorf("the agent (process %d) did not go on: %w", pid, err)
	}
	return nil
}

func checkAdoptByID(ctx context.Context, e *Env) error {
	s, err := e.spawned(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	handle := s.handle
	s.handle = sdk.Handle{}
	if _, err := e.restart(ctx); err != nil {
		return err
	}
	st, err := s.adopt(ctx, false)
	if err != nil || st.State != sdk.SeatPrepared {
		return fmt.Errorf("by its id alone the prepared seat is %q (%s), %w", st.State, st.Reason, orNone(err))
	}
	if !reflect.DeepEqual(st.Handle, handle) {
		return found("Spawn gave the handle %s, Adopt by id gives %s", asText(handle), asText(st.Handle))
	}
	if st.Owner != s.req.Owner {
		return fmt.Errorf("the owner is %s, Adopt by id says %s", asText(s.req.Owner), asText(st.Owner))
	}
	if st, err = s.adopt(ctx, true); err != nil || st.State != sdk.SeatRunning {
		return fmt.Errorf("committed by its id alone the seat is %q (%s), %w", st.State, st.Reason, orNone(err))
	}
	_, err = s.pid(ctx, "ran")
	return err
}

var errNone = errors.New("no error")

func orNone(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

func checkNotOurs(ctx context.Context, e *Env) error {
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
	var bad findings
	foreign := func(what string, err error) {
		if !errors.Is(err, sdk.ErrNotOurs) {
			bad.add("%s by another instance: %w, want ErrNotOurs", what, orNone(err))
		}
	}
	adopt, stop := s.question(true), s.stop(sdk.StopNow)
	adopt.InstanceID, stop.InstanceID = "somebody-else", "somebody-else"
	_, err = r.Adopt(ctx, adopt)
	foreign("Adopt", err)
	_, err = r.Attach(ctx, sdk.AttachRequest{SeatID: s.req.SeatID, InstanceID: "somebody-else", Handle: s.handle})
	foreign("Attach", err)
	_, err = r.Reap(ctx, stop)
	foreign("Reap", err)
	if !alive(pid) {
		bad.add("the agent was ended by another instance")
	}
	return bad.err()
}

func checkStaleFence(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "ran")
	if err != nil {
		return err
	}
	s.req.Fence = ourFence + 1 // a later host
	if _, err := s.adopt(ctx, true); err != nil {
		return found("Adopt by a later host: %w", err)
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	var bad findings
	adopt, stop := s.question(true), s.stop(sdk.StopNow)
	adopt.Fence, stop.Fence = ourFence, ourFence
	if _, err := r.Adopt(ctx, adopt); !errors.Is(err, sdk.ErrStaleFence) {
		bad.add("Adopt with the fence of the earlier host: %w, want ErrStaleFence", orNone(err))
	}
	if _, err := r.Reap(ctx, stop); !errors.Is(err, sdk.ErrStaleFence) {
		bad.add("Reap with the fence of the earlier host: %w, want ErrStaleFence", orNone(err))
	}
	if !alive(pid) {
		bad.add("the agent was ended by the earlier host")
	}
	return bad.err()
}

func checkNotFound(ctx context.Context, e *Env) error {
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	st, err := r.Adopt(ctx, sdk.AdoptRequest{SeatID: randomHex(16), InstanceID: "verify", Nonce: randomHex(16), Fence: ourFence, Commit: true})
	if err != nil {
		return found("Adopt: %w", err)
	}
	if st.State != sdk.SeatNotFound {
		return found("Adopt says %q (%s)", st.State, st.Reason)
	}
	return nil
}

func checkAdoptDeadline(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"hang"})
	if err != nil {
		return err
	}
	const deadline = 2 * time.Second
	begin := time.Now()
	dctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	_, err = s.adopt(dctx, false)
	e.Note("%d ms of a deadline of %s", time.Since(begin).Milliseconds(), deadline)
	if !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	rest := time.NewTimer(time.Until(begin.Add(2 * deadline)))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	}
	if err := e.idle(ctx); err != nil {
		return fmt.Errorf("twice the deadline of %s was over: %w", deadline, err)
	}
	return nil
}

func checkExecFailure(ctx context.Context, e *Env) error {
	for what, make := range map[string]func(path string) error{
		"a file that is no program":         func(path string) error { return os.WriteFile(path, []byte{0, 1, 2, 3}, 0o700) },
		"a file that may not be executed":   func(path string) error { return os.WriteFile(path, []byte("#!/bin/sh\n"), 0o600) },
		"a program that does not exist any": func(string) error { return nil },
	} {
		s, err := e.newSeat(step{"hang"})
		if err != nil {
			return err
		}
		s.req.Launch.Path = s.file("program")
		if err := make(s.req.Launch.Path); err != nil {
			return fmt.Errorf("make %s: %w", what, err)
		}
		if err := s.spawn(ctx); err != nil {
			if typedRefusal(err) {
				continue // refused before anything was made
			}
			return fmt.Errorf("%s: %w", what, err)
		}
		st, err := s.adopt(ctx, true)
		if !errors.Is(err, sdk.ErrExecFailed) {
			return fmt.Errorf("%s: the commit says %q, %w, want ErrExecFailed", what, st.State, orNone(err))
		}
		if st, err = s.adopt(ctx, false); err != nil || st.State != sdk.SeatPrepared {
			return fmt.Errorf("%s: after the commit the seat is %q (%s), %w, want prepared", what, st.State, st.Reason, orNone(err))
		}
	}
	return nil
}

func checkHandle(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"hang"})
	if err != nil {
		return err
	}
	h := s.handle
	switch {
	case len(h.State) > sdk.MaxHandleState:
		return fmt.Errorf("its state has %d bytes, the limit is %d", len(h.State), sdk.MaxHandleState)
	case h.Ref == "" || printable(h.Ref) != h.Ref:
		return fmt.Errorf("its reference %q is empty or not printable", h.Ref)
	case h.Version == 0:
		return errors.New("its version is 0, which cannot be told from no handle")
	}
	s.handle = sdk.Handle{}
	if err := json.Unmarshal([]byte(asText(h)), &s.handle); err != nil {
		return fmt.Errorf("read the handle: %w", err)
	}
	st, err := s.adopt(ctx, false)
	if err != nil || st.State != sdk.SeatRunning {
		return fmt.Errorf("after JSON the seat is %q (%s), %w", st.State, st.Reason, orNone(err))
	}
	return nil
}

func checkHandleVersion(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"hang"})
	if err != nil {
		return err
	}
	h := s.handle
	for _, version := range []uint32{h.Version - 1, h.Version + 1000} {
		s.handle = h
		s.handle.Version = version
		st, err := s.adopt(ctx, false)
		switch {
		case err != nil && !typedRefusal(err):
			return fmt.Errorf("version %d where it makes %d: %w, want a typed refusal", version, h.Version, err)
		case err == nil && st.State != sdk.SeatRunning && st.State != sdk.SeatUnknown:
			return fmt.Errorf("version %d where it makes %d: the running seat is %s (%s)", version, h.Version, st.State, st.Reason)
		}
		e.Note("version %d: %s %v", version, st.State, err)
	}
	s.handle = h
	return nil
}

func checkAttach(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"hang"})
	if err != nil {
		return err
	}
	t, err := s.target(ctx)
	if err != nil {
		return found("Attach: %w", err)
	}
	if t.Seat == nil {
		st, err := os.Stat(t.Argv[0])
		if !filepath.IsAbs(t.Argv[0]) || err != nil || st.Mode().Perm()&0o111 == 0 {
			return fmt.Errorf("the argv begins with %q, which is no executable file", t.Argv[0])
		}
		return nil
	}
	conn, err := s.dial(ctx, seat.RoleOutput)
	if err != nil {
		return err
	}
	_ = conn.Close()
	wrong := slices.Clone(t.Seat.Token)
	wrong[0] ^= 1
	if conn, err := seat.Dial(ctx, seat.DialConfig{Socket: t.Seat.Socket, Token: wrong, Role: seat.RoleOutput}); err == nil {
		_ = conn.Close()
		return errors.New("the seat socket takes a wrong token")
	}
	return nil
}
