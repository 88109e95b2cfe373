package seat

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSlicesStayBelowTheTerminalsQueue(t *testing.T) {
	for _, c := range []struct {
		name   string
		p      string
		sliced bool
		want   int
	}{
		{"nothing is one slice: it is answered", "", true, 1},
		{"a short text is one slice", "hello", true, 1},
		{"what just fits is one slice", strings.Repeat("x", MaxSlice), true, 1},
		{"one byte more is two halves, not a slice and a rest", strings.Repeat("x", MaxSlice+1), true, 2},
		{"a full frame", strings.Repeat("x", MaxInput), true, 17},
		{"no character is cut", strings.Repeat("\u20ac", MaxInput/3), true, 17},
		{"bytes that are no characters are cut anywhere", strings.Repeat("\x80", MaxInput), true, 17},
		{"what a terminal sends is not sliced", strings.Repeat("x", MaxInput), false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Slices([]byte(c.p), c.sliced)
			if len(got) != c.want || string(bytes.Join(got, nil)) != c.p {
				t.Errorf("%d slices, want %d; whole: %v", len(got), c.want, string(bytes.Join(got, nil)) == c.p)
			}
			for i, s := range got {
				if c.sliced && (len(s) > MaxSlice || len(got) > 1 && len(s) < MaxSlice/2-utf8.UTFMax || utf8.ValidString(c.p) && !utf8.Valid(s)) {
					t.Errorf("slice %d has %d bytes, UTF-8: %v", i, len(s), utf8.Valid(s))
				}
			}
		})
	}
}

// When its caller stops waiting, an input says how much of it was typed, as far as the seat can tell.
func TestAnInputThatIsGivenUpIsCounted(t *testing.T) {
	running := sampleStatus
	running.State, running.InputPending = StateRunning, 700
	for _, c := range []struct {
		name    string
		version uint16
		late    func(p *peer, input, get uint32) // what the seat answers
		want    int
		err     error
	}{
		{"the seat says how much waits", 2, func(p *peer, _, get uint32) { p.send(AppendStatus(nil, get, running)) }, 300, context.Canceled},
		{"more waits than was sent: others type too", 2, func(p *peer, _, get uint32) {
			st := running
			st.InputPending = 5000
			p.send(AppendStatus(nil, get, st))
		}, 0, context.Canceled},
		{"it was typed meanwhile", 2, func(p *peer, input, get uint32) {
			p.send(AppendInputAck(nil, input, InputWritten, 1000))
			p.send(AppendStatus(nil, get, running))
		}, 1000, nil},
		{"the agent ended meanwhile, and nothing waits any more", 2, func(p *peer, input, get uint32) {
			p.send(AppendInputAck(nil, input, InputEnded, 12))
			p.send(AppendStatus(nil, get, sampleStatus))
		}, 12, ErrNotRunning},
		{"it was refused meanwhile", 2, func(p *peer, input, get uint32) {
			p.send(AppendError(nil, input, Refuse(CodeStaleFence, "")))
			p.send(AppendStatus(nil, get, running))
		}, 0, ErrStaleFence},
		{"the seat has gone", 2, func(*peer, uint32, uint32) {}, 0, context.Canceled},
		{"an older seat is not asked", 1, nil, 0, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan struct{})
			defer close(done)
			conn := pairOf(t, c.version, RoleInput|RoleControl, func(p *peer) {
				input, _, _ := DecodeRequest(p.expect(TypeInput))
				cancel()
				if c.late == nil {
					<-done // a connection that ends now would be the answer as well
					return
				}
				get, _, _ := DecodeRequest(p.expect(TypeGet))
				c.late(p, input, get)
			})
			if n, err := conn.Input(ctx, make([]byte, 1000)); n != c.want || !errors.Is(err, c.err) {
				t.Errorf("%d %v, want %d %v", n, err, c.want, c.err)
			}
		})
	}
}
