package seatview

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Working returns the argv of an agent that works: it prints "tick N" every everyMs milliseconds,
// counting from 1, and answers each line that is typed with "got <line>". Its terminal does not echo, so
// those two are all it ever prints.
func Working(w *harness.World, everyMs int) []string {
	script := fmt.Sprintf(`[{"fork": {"steps": [{"tick": {"everyMs": %d, "text": "tick"}}]}}, {"lines": {"count": 0, "reply": "got {line}\n"}}]`, everyMs)
	return append([]string{"sh", "-c", `stty -echo && exec "$0" "$1"`}, w.FakeAgent(script)...)
}

// View follows the output of one seat from its first byte. It looks at the seat's own socket, as every
// attach does, and it is never connected again: a seat that drops it is at fault.
type View struct {
	name string

	mu      sync.Mutex
	next    uint64 // output offset after the last byte seen
	ticks   int
	replies []string
	part    []byte // a line that is not complete yet
	err     error
	ended   chan struct{}
}

// Watch begins to follow a seat with a Working agent and waits for its first line: before that, its
// terminal still echoes. It ends with the test.
func Watch(t testing.TB, w *harness.World, row wire.AgentRow) *View {
	t.Helper()
	c := Dial(t, w, row, seat.RoleOutput, 0)
	v := &View{name: row.Name, ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(v.ended)
		err := c.Run(ctx, seat.Handler{Output: v.output, Gap: v.gap})
		if ctx.Err() == nil && err != nil {
			v.fault(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-v.ended
		c.Close()
	})
	v.await(t, "prints", func() (bool, string) { return v.Ticks() > 0, "nothing so far" })
	return v
}

// Dial connects to a seat's own socket, with RoleControl as its first host. The test closes it.
func Dial(t testing.TB, w *harness.World, row wire.AgentRow, role seat.Role, from uint64) *seat.Conn {
	t.Helper()
	dir := filepath.Join(w.SeatRoot, row.SeatID)
	rec, err := record.ReadSeat(dir)
	if err != nil {
		t.Fatalf("find socket of seat %s: %v", row.Name, err)
	}
	token, err := record.ReadToken(dir)
	if err != nil {
		t.Fatalf("find token of seat %s: %v", row.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.DefaultWait)
	defer cancel()
	c, err := seat.Dial(ctx, seat.DialConfig{Socket: rec.Socket, Token: token, Role: role, From: from, Fence: 1})
	if err != nil {
		t.Fatalf("dial seat %s: %v", row.Name, err)
	}
	return c
}

func (v *View) output(at uint64, p []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at != v.next {
		return fmt.Errorf("bytes %d to %d never came: the next ones are at %d", v.next, at, at)
	}
	v.next += uint64(len(p))
	v.part = append(v.part, p...)
	for {
		i := bytes.IndexByte(v.part, '\n')
		if i < 0 {
			return nil
		}
		if err := v.line(strings.TrimSuffix(string(v.part[:i]), "\r")); err != nil {
			return err
		}
		v.part = v.part[i+1:]
	}
}

func (v *View) line(text string) error {
	if reply, ok := strings.CutPrefix(text, "got "); ok {
		v.replies = append(v.replies, reply)
		return nil
	}
	var n int
	if _, err := fmt.Sscanf(text, "tick %d", &n); err != nil || len(text) != len("tick 000000000000") {
		return fmt.Errorf("after tick %d the seat printed %q", v.ticks, text)
	}
	if n != v.ticks+1 {
		return fmt.Errorf("tick %d follows tick %d", n, v.ticks)
	}
	v.ticks = n
	return nil
}

func (v *View) gap(from, to uint64) error { return fmt.Errorf("bytes %d to %d are lost", from, to) }

func (v *View) fault(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = errors.Join(v.err, err)
}

// Err returns the first fault that was seen in the output, nil if there was none so far.
func (v *View) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err != nil {
		return fmt.Errorf("seat %s: %w", v.name, v.err)
	}
	return nil
}

// Next returns how many bytes of output have been seen, every one of them.
func (v *View) Next() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.next
}

// Ticks returns the number of the last line that was seen. All before it were seen too, once each.
func (v *View) Ticks() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ticks
}

// Replies returns what the agent says it was typed, in its order.
func (v *View) Replies() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.replies...)
}

// AwaitMore waits until the seat has printed some more lines, and fails the test at a fault.
func (v *View) AwaitMore(t testing.TB) {
	t.Helper()
	from := v.Ticks()
	v.await(t, "goes on printing", func() (bool, string) {
		n := v.Ticks()
		return n > from+3, fmt.Sprintf("tick %d, was %d", n, from)
	})
}

// AwaitReplies waits until the agent has said that it was typed exactly these lines, in this order.
func (v *View) AwaitReplies(t testing.TB, lines []string) {
	t.Helper()
	v.await(t, "was typed everything once", func() (bool, string) {
		got := v.Replies()
		return strings.Join(got, "\n") == strings.Join(lines, "\n"), fmt.Sprintf("got %q, want %q", got, lines)
	})
}

func (v *View) await(t testing.TB, what string, check func() (bool, string)) {
	t.Helper()
	ok, state := harness.Poll(harness.DefaultWait, func() (bool, string) {
		if err := v.Err(); err != nil {
			return true, ""
		}
		return check()
	})
	if err := v.Err(); err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Fatalf("after %v still not: seat %s %s (%s)", harness.DefaultWait, v.name, what, state)
	}
}
