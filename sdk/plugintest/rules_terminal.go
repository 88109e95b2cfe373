package plugintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// collect reads everything a seat has printed, until done says that it has seen enough.
func (s *Seat) collect(ctx context.Context, done func(p []byte) bool) ([]byte, error) {
	conn, err := s.dial(ctx, seat.RoleOutput)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, stretched(s.e.patience()))
	defer cancel()
	enough := errors.New("enough")
	var got []byte
	next := uint64(0)
	err = conn.Run(ctx, seat.Handler{
		Output: func(seq uint64, p []byte) error {
			if seq != next {
				return fmt.Errorf("output goes on at %d after %d", seq, next)
			}
			next = seq + uint64(len(p))
			got = append(got, p...)
			if done(got) {
				return enough
			}
			return nil
		},
		Gap: func(from, to uint64) error { return fmt.Errorf("the bytes %d to %d are lost", from, to) },
	})
	if err != nil && !errors.Is(err, enough) {
		return got, fmt.Errorf("read output: %w (%d bytes came, last %q)", err, len(got), short(string(got[max(0, len(got)-80):])))
	}
	return got, nil
}

func checkOutput(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"ticks", "@stop"}, step{"hang"})
	if err != nil {
		return err
	}
	if _, err := s.pid(ctx, "ran"); err != nil {
		return err
	}
	ended := func(p []byte) bool { return bytes.Contains(p, []byte("last")) }
	if _, err := s.collect(ctx, func(p []byte) bool { return bytes.Count(p, []byte("\n")) > 20 }); err != nil {
		return err
	}
	for range 2 {
		if _, err := e.restart(ctx); err != nil {
			return err
		}
		if _, err := s.adopt(ctx, false); err != nil {
			return found("Adopt: %w", err)
		}
	}
	if err := os.WriteFile(s.file("stop"), nil, 0o600); err != nil {
		return fmt.Errorf("tell the agent to stop: %w", err)
	}
	got, err := s.collect(ctx, ended)
	if err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(strings.ReplaceAll(string(got), "\r", "")) {
		line = strings.TrimSpace(line)
		if line == "last" {
			break
		}
		if want := fmt.Sprintf("%012d", n); line != want {
			return fmt.Errorf("line %d of the output is %q, want %q", n, short(line), want)
		}
		n++
	}
	e.Note("%d lines over two restarts", n)
	return nil
}

func checkResize(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"size", "@size"}, step{"hang"})
	if err != nil {
		return err
	}
	if err := s.holds(ctx, "size", "x"); err != nil {
		return err
	}
	conn, err := s.dial(ctx, seat.RoleInput|seat.RoleTerminal)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Resize(ctx, 31, 101); err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	if err := s.holds(ctx, "size", "31x101\n"); err != nil {
		return err
	}
	st, err := s.adopt(ctx, false)
	if err != nil || st.Rows != 31 || st.Cols != 101 {
		return fmt.Errorf("after a resize to 31x101 Adopt says %dx%d, %w", st.Rows, st.Cols, orNone(err))
	}
	return nil
}

const burst = 4 << 20

func checkBurst(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"burst", fmt.Sprint(burst)}, step{"append", "@done", "done"}, step{"hang"})
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := s.holds(ctx, "done", "done"); err != nil {
		return fmt.Errorf("4 MB with no reader: %w", err)
	}
	e.Note("4 MB in %d ms", time.Since(begin).Milliseconds())
	return nil
}

func checkSlowReader(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"wait", "@go"}, step{"burst", fmt.Sprint(burst)}, step{"append", "@done", "done"}, step{"hang"})
	if err != nil {
		return err
	}
	conn, err := s.dial(ctx, seat.RoleOutput) // and never reads
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := os.WriteFile(s.file("go"), nil, 0o600); err != nil {
		return fmt.Errorf("tell the agent to go on: %w", err)
	}
	if err := s.holds(ctx, "done", "done"); err != nil {
		return fmt.Errorf("4 MB beside a viewer that does not read: %w", err)
	}
	return nil
}

func checkWrite(ctx context.Context, e *Env) error {
	var data []byte
	for i := range 256 {
		data = append(data, byte(i))
	}
	data = append(data, "grüße, 世界\r\n\x1b[200~x\x1b[201~"...)
	// Several times what a terminal takes at once.
	data = bytes.Repeat(data, 40)
	s, err := e.started(ctx, step{"input", "@input", fmt.Sprint(len(data))}, step{"hang"})
	if err != nil {
		return err
	}
	if err := s.holds(ctx, "input.ready", "ready"); err != nil {
		return err
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	for rest := data; len(rest) > 0; {
		part := rest[:min(len(rest), 3000)]
		n, err := r.Write(ctx, sdk.WriteRequest{SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle, Fence: s.req.Fence, Data: part})
		if err != nil {
			return found("Write: %w", err)
		}
		if n != len(part) {
			return found("Write of %d bytes says %d", len(part), n)
		}
		rest = rest[len(part):]
	}
	if !eventually(ctx, e.patience(), func() bool { return exists(s.file("input")) }) {
		return fmt.Errorf("of %d bytes written fewer arrived", len(data))
	}
	got := []byte(s.read("input"))
	for i := range data {
		if i >= len(got) || got[i] != data[i] {
			return fmt.Errorf("byte %d of %d differs: wrote %q, arrived %q", i, len(data), data[i:min(i+20, len(data))], got[min(i, len(got)):min(i+20, len(got))])
		}
	}
	return nil
}

func checkWriteGone(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"exit", "0"})
	if err != nil {
		return err
	}
	if _, err := s.exited(ctx); err != nil {
		return err
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	_, err = r.Write(ctx, sdk.WriteRequest{SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle, Fence: s.req.Fence, Data: []byte("x")})
	if !errors.Is(err, sdk.ErrGone) {
		return found("Write after the end: %w, want ErrGone", orNone(err))
	}
	return nil
}

func checkSnapshot(ctx context.Context, e *Env) error {
	word := "shown-" + randomHex(4)
	s, err := e.started(ctx, step{"print", "first line\r\n" + word}, step{"append", "@done", "done"}, step{"hang"})
	if err != nil {
		return err
	}
	if err := s.holds(ctx, "done", "done"); err != nil {
		return err
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	var snap sdk.Snapshot
	shown := eventually(ctx, e.patience(), func() bool {
		snap, err = r.Snapshot(ctx, sdk.SnapshotRequest{SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle})
		return err == nil && bytes.Contains(snap.Data, []byte(word))
	})
	switch {
	case err != nil:
		return found("Snapshot: %w", err)
	case !shown:
		return fmt.Errorf("the agent printed %q and the screen is %q", word, short(string(snap.Data)))
	case snap.Rows != ourRows || snap.Cols != ourCols:
		return fmt.Errorf("the terminal has %dx%d and the screen %dx%d", ourRows, ourCols, snap.Rows, snap.Cols)
	}
	return nil
}

func checkWatch(ctx context.Context, e *Env) error {
	s, err := e.started(ctx, step{"wait", "@go"}, step{"exit", "7"})
	if err != nil {
		return err
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var states []sdk.SeatStatus
	done := make(chan error, 1)
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		done <- r.Watch(wctx, sdk.WatchRequest{SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle, Fence: s.req.Fence}, func(st sdk.SeatStatus) error {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, st)
			return nil
		})
	}()
	seen := func(want sdk.SeatState) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(states) > 0 && states[len(states)-1].State == want
		}
	}
	if !eventually(ctx, e.patience(), seen(sdk.SeatRunning)) {
		return found("Watch of a running seat told nothing of that within %s", e.patience())
	}
	if err := os.WriteFile(s.file("go"), nil, 0o600); err != nil {
		return fmt.Errorf("tell the agent to end: %w", err)
	}
	if !eventually(ctx, e.patience(), seen(sdk.SeatExited)) {
		return fmt.Errorf("the agent has ended and Watch told nothing of that within %s", e.patience())
	}
	mu.Lock()
	last := states[len(states)-1]
	mu.Unlock()
	if last.Exit == nil || last.Exit.Code == nil || *last.Exit.Code != 7 {
		return fmt.Errorf("the agent exited with 7 and Watch says %s", asText(last))
	}
	t := time.NewTimer(stretched(e.patience()))
	defer t.Stop()
	select {
	case err := <-done:
		if err != nil {
			return found("Watch, after the exit: %w", err)
		}
	case <-t.C:
		return found("Watch told the exit and did not return within %s", e.patience())
	}
	return nil
}

// checkAttachGone leaves open whether the last screen of an agent that ended by itself is still shown: a seat
// that keeps it until it is reaped is as right as one that does not.
func checkAttachGone(ctx context.Context, e *Env) error {
	ended, err := e.started(ctx, step{"exit", "0"})
	if err != nil {
		return err
	}
	if _, err := ended.exited(ctx); err != nil {
		return err
	}
	stopped, err := e.started(ctx, step{"hang"})
	if err != nil {
		return err
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	var bad findings
	if _, err := ended.target(ctx); err != nil && !errors.Is(err, sdk.ErrGone) {
		bad.add("Attach of a seat that ended by itself: %w, want a target or ErrGone", err)
	}
	for _, s := range []*Seat{ended, stopped} {
		stop := s.stop(sdk.StopNow)
		stop.Keep = true
		if _, err := r.Reap(ctx, stop); err != nil {
			return found("Reap with Keep: %w", err)
		}
		if _, err := s.target(ctx); !errors.Is(err, sdk.ErrGone) {
			bad.add("Attach of a seat that was reaped and kept: %w, want ErrGone", orNone(err))
		}
	}
	_, err = r.Attach(ctx, sdk.AttachRequest{SeatID: randomHex(16), InstanceID: stopped.req.Owner.InstanceID})
	if !errors.Is(err, sdk.ErrGone) {
		bad.add("Attach of a seat that never was: %w, want ErrGone", orNone(err))
	}
	return bad.err()
}

// checkWatchEnds looks at what a watch holds open in the plugin: that is what one that goes on costs a host
// that reconnects all day.
func checkWatchEnds(ctx context.Context, e *Env) error {
	if !canLook {
		return skip("this system does not show what a process holds")
	}
	s, err := e.started(ctx, step{"append", "@ran", "{pid}"}, step{"hang"})
	if err != nil {
		return err
	}
	pid, err := s.pid(ctx, "ran")
	if err != nil {
		return err
	}
	if err := e.watchAndLeave(ctx, s); err != nil { // what is opened once
		return err
	}
	r, err := e.Plugin(ctx)
	if err != nil {
		return err
	}
	before, err := descriptors(r.pid)
	if err != nil {
		return skip("%v", err)
	}
	const watches = 6
	for range watches {
		if err := e.watchAndLeave(ctx, s); err != nil {
			return err
		}
	}
	after := 0
	if !eventually(ctx, e.patience(), func() bool { after, err = descriptors(r.pid); return err == nil && after < before+watches-1 }) {
		return fmt.Errorf("%d callers gave up, and the plugin has %d open files instead of %d: the watches go on", watches, after, before)
	}
	if !alive(pid) {
		return errors.New("the agent ended with the watch")
	}
	return nil
}

// watchAndLeave watches a running seat until something is told of it.
func (e *Env) watchAndLeave(ctx context.Context, s *Seat) error {
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stretched(e.patience()))
	defer cancel()
	told := false
	err = r.Watch(ctx, sdk.WatchRequest{SeatID: s.req.SeatID, InstanceID: s.req.Owner.InstanceID, Handle: s.handle, Fence: s.req.Fence}, func(sdk.SeatStatus) error {
		told = true
		cancel()
		return nil
	})
	if !told {
		return found("Watch of a running seat told nothing: %w", orNone(err))
	}
	return nil
}

func checkList(ctx context.Context, e *Env) error {
	prepared, err := e.spawned(ctx, step{"hang"})
	if err != nil {
		return err
	}
	running, err := e.started(ctx, step{"hang"})
	if err != nil {
		return err
	}
	r, err := e.runtime(ctx)
	if err != nil {
		return err
	}
	var bad findings
	for _, instance := range []string{running.req.Owner.InstanceID, "somebody-else"} {
		list, err := r.List(ctx, sdk.ListRequest{InstanceID: instance})
		if err != nil {
			return found("List: %w", err)
		}
		for _, s := range []*Seat{prepared, running} {
			found := 0
			for _, l := range list {
				if l.SeatID != s.req.SeatID {
					continue
				}
				found++
				if l.Problem != "" || l.Owner != s.req.Owner || l.Nonce != s.req.Nonce {
					bad.add("List shows %s of a seat spawned as %s", asText(l), asText(s.req.Owner))
				}
				if ours := instance == s.req.Owner.InstanceID; l.Ours != ours {
					bad.add("List for instance %s says ours = %v of a seat of %s", instance, l.Ours, s.req.Owner.InstanceID)
				}
			}
			if found != 1 {
				bad.add("List for instance %s shows the seat %d times", instance, found)
			}
		}
	}
	return bad.err()
}
