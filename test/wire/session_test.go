//go:build linux

package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// grant is what attach answers with.
type grant struct {
	V                          int
	SessionID, Space, Endpoint string
	Subjects                   struct{ In, Out string }
	Holder                     struct{ ID, LifecycleUID string }
	Serving                    struct {
		InstanceID string
		Epoch      uint64
	}
	Window   int
	IAT, Exp int64
	Nonce    string
}

// session is one end of the rails of a session, by hand.
type session struct {
	r      *rig
	g      grant
	frames chan *nats.Msg

	sent   int // data frames sent
	taken  int // data frames taken
	acked  int // of those, how many the other end was told of
	output strings.Builder
	ends   []string // reasons
	drops  int64
}

// attach opens a session and listens to it; nothing is redeemed yet.
func (r *rig) attach(to triple, args map[string]any) *session {
	r.t.Helper()
	data := r.must(r.request("attach", args).at("any", to))
	m := r.members("attach", data, "grant", "resumedFrom role")
	s := &session{r: r, frames: make(chan *nats.Msg, 4096)}
	if err := json.Unmarshal([]byte(text(m["grant"])), &s.g); err != nil {
		r.t.Fatalf("grant %s: %v", data, err)
	}
	rails := func(dir string) string {
		return r.subject("eps", "manager", s.g.SessionID, fmt.Sprint(r.epoch), dir)
	}
	if s.g.Subjects.In != rails("in") || s.g.Subjects.Out != rails("out") || s.g.Holder.ID != r.me.principal() || s.g.Holder.LifecycleUID != r.me.uid ||
		s.g.Serving.InstanceID != r.instance || s.g.Serving.Epoch != r.epoch || s.g.Window < 1 || s.g.Exp <= s.g.IAT || s.g.Nonce == "" || s.g.Space != r.space {
		r.t.Errorf("grant %s", text(m["grant"]))
	}
	sub, err := r.nc.ChanSubscribe(s.g.Subjects.Out, s.frames)
	if err == nil {
		err = r.nc.FlushTimeout(patience)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return s
}

// raw sends a text on the rail to the host.
func (s *session) raw(text string) {
	s.r.t.Helper()
	if err := s.r.nc.Publish(s.g.Subjects.In, []byte(text)); err != nil {
		s.r.t.Fatal(err)
	}
}

// frame sends one data frame.
func (s *session) frame(data any) {
	s.r.t.Helper()
	s.sent++
	s.raw(text(map[string]any{"t": "f", "seq": s.sent, "data": data}))
}

func (s *session) ready() { s.r.t.Helper(); s.frame(map[string]any{"k": "ready"}) }

func (s *session) typeIn(text string) {
	s.r.t.Helper()
	s.frame(map[string]any{"k": "data", "b": base64.StdEncoding.EncodeToString([]byte(text))})
}

func (s *session) credit() {
	s.r.t.Helper()
	s.acked = s.taken
	s.raw(fmt.Sprintf(`{"t":"credit","ack":%d}`, s.taken))
}

// take reads one frame of the host and holds it to the contract.
func (s *session) take(m *nats.Msg) {
	s.r.t.Helper()
	var f struct {
		T    string
		Seq  int
		Ack  *int
		Data struct {
			K, B, Reason string
			Bytes        int64
		}
	}
	if err := json.Unmarshal(m.Data, &f); err != nil {
		s.r.t.Fatalf("frame %s: %v", m.Data, err)
	}
	switch {
	case f.T == "credit":
		if f.Ack == nil || *f.Ack > s.sent {
			s.r.t.Errorf("credit %s of %d frames", m.Data, s.sent)
		}
		return
	case f.T == "close":
		return
	case f.T != "f" || f.Seq != s.taken+1:
		s.r.t.Fatalf("frame %s behind %d", m.Data, s.taken)
	}
	s.taken++
	if s.taken-s.acked > s.g.Window {
		s.r.t.Fatalf("%d frames are under way, the window is %d", s.taken-s.acked, s.g.Window)
	}
	switch f.Data.K {
	case "data":
		p, err := base64.StdEncoding.DecodeString(f.Data.B)
		if err != nil || len(p) > 64<<10 {
			s.r.t.Errorf("a frame of %d bytes: %v", len(p), err)
		}
		s.output.Write(p)
	case "drop":
		s.drops += f.Data.Bytes
	case "end":
		s.ends = append(s.ends, f.Data.Reason)
	default:
		s.r.t.Errorf("frame %s", m.Data)
	}
}

// until takes frames, and gives credit for each, until something is true.
func (s *session) until(what string, check func() bool) {
	s.r.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !check() {
		select {
		case m := <-s.frames:
			s.take(m)
			s.credit()
		case <-limit.C:
			s.r.t.Fatalf("%s: not after %v; %d frames, ends %v, output %q", what, patience, s.taken, s.ends, tailOf(s.output.String()))
		}
	}
}

func (s *session) shows(text string) {
	s.r.t.Helper()
	s.until("the terminal shows "+text, func() bool { return strings.Contains(s.output.String(), text) })
}

func tailOf(s string) string { return s[max(0, len(s)-300):] }

const chatty = `[{"print": "up\n"}, {"lines": {"count": 0, "reply": "got {line}\n"}}]`

// TestASessionByHand attaches over the session rails with frames written here: what the screen holds is painted
// on ready, what is typed arrives, a bad frame is dropped and harms nothing, a size reaches the terminal, and a
// stopped seat says so.
func TestASessionByHand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.spawn("chatty", chatty)
	s := r.attach(a.seat(), map[string]any{"rows": 30, "cols": 100})
	s.ready()
	s.shows("up")
	s.typeIn("hello\r")
	s.shows("got hello")
	// Frames that are no terminal frames are dropped, one by one.
	for _, bad := range []any{map[string]any{"k": "nosuch"}, map[string]any{"k": "data", "b": "%%%"}, map[string]any{"k": "resize", "rows": 0, "cols": -1}, 5, nil} {
		s.frame(bad)
	}
	s.frame(map[string]any{"k": "resize", "rows": 40, "cols": 120})
	s.typeIn("again\r")
	s.shows("got again")
	if strings.Count(s.output.String(), "got again") != 1 {
		t.Errorf("output %q", tailOf(s.output.String()))
	}
	r.despawn(a.seat())
	s.until("the session ends", func() bool { return len(s.ends) > 0 })
	if s.ends[0] != "target-despawn" && s.ends[0] != "process-exit" {
		t.Errorf("it ended %v", s.ends)
	}
}

// TestAWindowIsKept: a seat that floods has no more frames under way than the grant says, however
// long the holder takes none; then it goes on, and says what is missing.
func TestAWindowIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	start := r.Path("go")
	a := r.spawn("flood", fmt.Sprintf(`[{"print": "up\n"}, {"waitFile": %q}, {"flood": {"mb": 24}}, {"print": "done\n"}, {"hang": true}]`, start))
	s := r.attach(a.seat(), map[string]any{})
	s.ready()
	s.shows("up")
	s.credit()
	r.Write("go", "")
	harness.Eventually(t, patience, "the program has printed everything", func() (bool, string) {
		var row struct{ Output int }
		r.into(r.request("inspect", map[string]any{"name": "flood"}), &row)
		return row.Output > 24<<20, fmt.Sprint(row.Output)
	})
	r.barrier()
	for len(s.frames) > 0 {
		s.take(<-s.frames) // which holds the window
	}
	if s.taken-s.acked == 0 {
		t.Error("nothing came before a credit was given")
	}
	s.credit()
	s.shows("done")
	t.Logf("%d frames, %d bytes missing", s.taken, s.drops)
}
