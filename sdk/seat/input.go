package seat

import (
	"context"
	"time"
	"unicode/utf8"
)

// MaxSlice is the largest write to a terminal of what a host types, in bytes. The kernel's input queue has
// 4,096 bytes: a slice below that is taken whole by a program that keeps up, and what follows it can still be
// held back.
const MaxSlice = 4000

// Slices cuts p into writes to a terminal: when sliced, of at most MaxSlice bytes, never within a character,
// about as long as each other; else, and when p is empty, into one. They alias p.
func Slices(p []byte, sliced bool) (out [][]byte) {
	for sliced && len(p) > MaxSlice {
		k := (len(p) + MaxSlice - 1) / MaxSlice
		n := (len(p) + k - 1) / k
		for least := n - utf8.UTFMax; n > least && !utf8.RuneStart(p[n]); {
			n--
		}
		out, p = append(out, p[:n]), p[n:]
	}
	return append(out, p)
}

// SliceAck is what a seat answers when a slice was written: the INPUT_ACK of the frame with its last one, else
// nothing.
func SliceAck(last bool, id uint32, result uint8, written uint32) []byte {
	if !last {
		return nil
	}
	return AppendInputAck(nil, id, result, written)
}

// countWait bounds how long Input waits for the count of what it typed after its context has ended.
const countWait = 250 * time.Millisecond

// Input types p and returns how many bytes the terminal took. Up to MaxInput bytes are atomic: no
// other writer's bytes come between them. More is sent in parts, and the first refusal ends it.
//
// Errors: *Error wrapping ErrBusy (queue full: that part was not written), ErrLineTooLong (the
// terminal would truncate the line: that part was not written), ErrNotRunning, ErrForbidden,
// ErrStaleFence, ErrClosed (outcome unknown). When ctx ends first the outcome is unknown too; at least as
// many bytes as are returned were typed, and those slices of a host (Slices) that were not begun are dropped with the Conn.
func (c *Conn) Input(ctx context.Context, p []byte) (int, error) {
	total := 0
	for {
		part := p[total:min(len(p), total+MaxInput)]
		r, err := c.inputPart(ctx, part)
		total += int(r.written)
		if err != nil {
			return total, err
		}
		switch r.result {
		case InputBusy:
			return total, Refuse(CodeBusy, "the agent is not reading and the input queue is full")
		case InputEnded:
			e := Refuse(CodeNotRunning, "the agent ended before it took all input")
			if r.written > 0 {
				e.Outcome = OutcomeExecuted
			}
			return total, e
		}
		if total >= len(p) || int(r.written) != len(part) {
			return total, nil
		}
	}
}

// inputPart sends one INPUT. After the end of ctx the reply counts what is known to be typed.
func (c *Conn) inputPart(ctx context.Context, p []byte) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, err
	}
	id, ch, err := c.send(TypeInput, p)
	if err != nil {
		return reply{}, err
	}
	defer c.forget(id)
	r, err := c.await(ctx, ch)
	if err == nil || ctx.Err() == nil || c.version < VersionSlices {
		return r, err
	}
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), countWait)
	defer cancel()
	st, gone := c.Get(ask)
	select {
	case late, ok := <-ch: // the seat answers in order: it was typed, or refused, before it was counted
		if ok && late.err == nil {
			return late, nil
		}
		if ok {
			return reply{}, late.err
		}
	default:
		if gone == nil && st.State == StateRunning {
			r.written = uint32(len(p) - min(len(p), int(st.InputPending)))
		}
	}
	return r, err
}
