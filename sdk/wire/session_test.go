package wire

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func newGrant(t testing.TB) SessionGrant {
	t.Helper()
	g, err := NewSessionGrant("main", "manager", SessionHolder{testPrincipal, testUID, 0}, SessionServer{testInst, 7}, time.UnixMilli(1000), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestSessionGrants(t *testing.T) {
	g := newGrant(t)
	if g.Signed() || g.Window != 64 || g.Exp != 61000 || !strings.HasSuffix(g.Subjects.In, "."+g.SessionID+".7.in") {
		t.Errorf("a bare grant: %+v", g)
	}
	p, err := g.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := DecodeSessionGrant(p); err != nil || back != g {
		t.Fatalf("%+v, %v", back, err)
	}
	for _, c := range []struct {
		name  string
		field string
		f     func(*SessionGrant)
	}{
		{"a subject of another session", "subjects", func(g *SessionGrant) {
			g.Subjects.Out = strings.Replace(g.Subjects.Out, g.SessionID, NewSessionID(), 1)
		}},
		{"a subject of another epoch", "subjects", func(g *SessionGrant) { g.Serving.Epoch++ }},
		{"rails that are swapped", "subjects", func(g *SessionGrant) { g.Subjects.In, g.Subjects.Out = g.Subjects.Out, g.Subjects.In }},
		{"another space", "subjects", func(g *SessionGrant) { g.Space = "other" }},
		{"no window", "window", func(g *SessionGrant) { g.Window = 0 }},
		{"a window beyond 1024", "window", func(g *SessionGrant) { g.Window = MaxSessionWindow + 1 }},
		{"a day and a millisecond", "exp", func(g *SessionGrant) { g.Exp = g.IAT + MaxSessionTTL.Milliseconds() + 1 }},
		{"an end before its beginning", "exp", func(g *SessionGrant) { g.Exp = g.IAT }},
		{"an id that can be guessed", "sessionId", func(g *SessionGrant) { g.SessionID = "s1" }},
		{"a holder that is no principal", "holder.id", func(g *SessionGrant) { g.Holder.ID = "alice" }},
		{"a signature of nobody", "sig", func(g *SessionGrant) { g.Sig = "AAAA" }},
		{"a signer without signature", "sig", func(g *SessionGrant) { g.Issuer = &SessionIssuer{"k1"} }},
	} {
		t.Run(c.name+" is refused", func(t *testing.T) {
			bad := g
			c.f(&bad)
			var fe *FieldError
			if p, err := bad.Encode(); !errors.As(err, &fe) || fe.Field != c.field {
				t.Fatalf("%s, %v; want a refusal that names %s", p, err, c.field)
			}
		})
	}
	t.Run("a grant has its time", func(t *testing.T) {
		g := g
		g.NBF = 2000
		for ms, ok := range map[int64]bool{1999: false, 2000: true, 60999: true, 61000: false} {
			err := g.Current(time.UnixMilli(ms))
			if (err == nil) != ok || err != nil && (err.Code != CodeExpired || err.Outcome != OutcomeNotExecuted) {
				t.Errorf("at %d: %v", ms, err)
			}
		}
	})
}

func TestSessionGrantSignature(t *testing.T) {
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(p []byte) ([]byte, error) { return ed25519.Sign(priv, p), nil }
	g, err := newGrant(t).Sign("k1", sign)
	if err != nil || !g.Signed() {
		t.Fatalf("%+v, %v", g, err)
	}
	p, err := g.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeSessionGrant(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := back.Verify(pub); err != nil {
		t.Fatal(err)
	}
	// What is signed is the canonical JSON without sig, whatever the order it came in.
	var m map[string]json.RawMessage
	if err := json.Unmarshal(p, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "sig")
	canonical, err := CanonicalJSON(m)
	if err != nil {
		t.Fatal(err)
	}
	if sig, err := base64.RawURLEncoding.DecodeString(g.Sig); err != nil || !ed25519.Verify(pub, canonical, sig) {
		t.Error("the signature is over something else")
	}
	for name, f := range map[string]func(*SessionGrant){
		"a later end":        func(g *SessionGrant) { g.Exp++ },
		"another holder":     func(g *SessionGrant) { g.Holder.LifecycleUID = testUID2 },
		"another key id":     func(g *SessionGrant) { g.Issuer = &SessionIssuer{"k2"} },
		"a padded signature": func(g *SessionGrant) { g.Sig += "==" },
		"no signature":       func(g *SessionGrant) { g.Sig = "" },
	} {
		bad := back
		f(&bad)
		if err := bad.Verify(pub); !errors.Is(err, ErrBadSignature) {
			t.Errorf("%s verifies: %v", name, err)
		}
	}
	other, _, _ := ed25519.GenerateKey(nil)
	if err := back.Verify(other); !errors.Is(err, ErrBadSignature) {
		t.Errorf("another key verifies: %v", err)
	}
	if err := back.Verify(nil); !errors.Is(err, ErrBadSignature) {
		t.Errorf("no key verifies: %v", err)
	}
	if _, err := newGrant(t).Sign("k1", func([]byte) ([]byte, error) { return nil, errors.New("no key") }); err == nil {
		t.Error("a grant without signature is signed")
	}
}

func TestSessionMoves(t *testing.T) {
	end := " closed expired superseded retired "
	for _, from := range append([]string{""}, sessionStates...) {
		for _, to := range append([]string{""}, sessionStates...) {
			want := false
			switch from {
			case "":
				want = to == SessionIssuing
			case SessionIssuing:
				want = to == SessionActive || strings.Contains(end, " "+to+" ") && to != ""
			case SessionActive:
				want = strings.Contains(end, " "+to+" ") && to != ""
			}
			if got := SessionMove(from, to); got != want {
				t.Errorf("%q to %q: %v", from, to, got)
			}
		}
	}
}

func TestFrames(t *testing.T) {
	n := func(v uint64) *uint64 { return &v }
	for want, f := range map[string]Frame{
		`{"t":"f","seq":1,"data":{"k":"ready"}}`:    {T: FrameData, Seq: 1, Data: json.RawMessage(`{"k":"ready"}`)},
		`{"t":"f","seq":2,"data":[1,null],"ack":0}`: {T: FrameData, Seq: 2, Data: json.RawMessage(`[1,null]`), Ack: n(0)},
		`{"t":"f","seq":3,"data":null,"ack":7}`:     {T: FrameData, Seq: 3, Ack: n(7)},
		`{"t":"credit","ack":9007199254740991}`:     {T: FrameCredit, Ack: n(MaxInteger)},
		`{"t":"close"}`:                             {T: FrameClose},
	} {
		if got := string(f.Append(nil)); got != want {
			t.Errorf("%s; want %s", got, want)
		}
		back, err := DecodeFrame([]byte(want))
		if err != nil || string(back.Append(nil)) != want {
			t.Errorf("%s: %+v, %v", want, back, err)
		}
	}
	for _, bad := range []string{
		`{"t":"f","seq":0,"data":1}`, `{"t":"f","seq":1}`, `{"t":"f","data":1}`, `{"t":"f","seq":1,"data":1,"x":1}`, `{"t":"f","seq":1.5,"data":1}`,
		`{"t":"f","seq":1,"data":1,"ack":-1}`, `{"t":"f","seq":9007199254740992,"data":1}`, `{"t":"credit"}`, `{"t":"credit","ack":1,"seq":1}`,
		`{"t":"close","ack":1}`, `{"t":"open"}`, `{}`, `[]`, ``, `{"t":"f","seq":1,"data":1}x`, `{"t":"f","t":"close","seq":1,"data":1}`,
		`{"t":"close","x":"` + strings.Repeat("a", MaxSessionFrame) + `"}`,
	} {
		if f, err := DecodeFrame([]byte(bad)); err == nil {
			t.Errorf("%.60s is %+v", bad, f)
		}
	}
}

func TestTerminalFrames(t *testing.T) {
	for want, f := range map[string]TerminalFrame{
		`{"k":"ready"}`:                       {Kind: TerminalReady},
		`{"k":"data","b":"G1syShsA/w=="}`:     {Kind: TerminalData, Bytes: []byte("\x1b[2J\x1b\x00\xff")},
		`{"k":"data","b":""}`:                 {Kind: TerminalData, Bytes: []byte{}},
		`{"k":"resize","cols":80,"rows":24}`:  {Kind: TerminalResize, Cols: 80, Rows: 24},
		`{"k":"end","reason":"process-exit"}`: {Kind: TerminalEnd, Reason: EndProcessExit},
		`{"k":"drop","bytes":65536}`:          {Kind: TerminalDrop, Dropped: 65536},
	} {
		p, err := f.MarshalJSON()
		if err != nil || string(p) != want {
			t.Errorf("%s, %v; want %s", p, err, want)
		}
		back, err := DecodeTerminalFrame([]byte(want))
		if err != nil || back.Kind != f.Kind || !bytes.Equal(back.Bytes, f.Bytes) || back.Cols != f.Cols || back.Rows != f.Rows || back.Reason != f.Reason || back.Dropped != f.Dropped {
			t.Errorf("%s: %+v, %v", want, back, err)
		}
	}
	for _, bad := range []string{
		`{"k":"data"}`, `{"k":"data","b":"G1s"}`, `{"k":"data","b":"G1sy\nSg=="}`, `{"k":"data","b":"G1sySg==="}`, `{"k":"data","b":"G1s-"}`, `{"k":"data","b":"/x=="}`,
		`{"k":"data","b":"","x":1}`, `{"k":"resize","cols":0,"rows":24}`, `{"k":"resize","cols":80}`, `{"k":"resize","cols":80,"rows":100001}`, `{"k":"resize","cols":"80","rows":24}`,
		`{"k":"end"}`, `{"k":"end","reason":"Gone"}`, `{"k":"drop","bytes":0}`, `{"k":"ready","x":1}`, `{"k":"bell"}`, `{}`, `"ready"`,
	} {
		if f, err := DecodeTerminalFrame([]byte(bad)); err == nil {
			t.Errorf("%s is %+v", bad, f)
		}
	}
	t.Run("the short way writes the same frame", func(t *testing.T) {
		p := bytes.Repeat([]byte("\x1b[0mö\xff"), 10000)[:MaxSessionData]
		ack := uint64(3)
		data, err := TerminalFrame{Kind: TerminalData, Bytes: p}.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []*uint64{nil, &ack} {
			long := Frame{T: FrameData, Seq: 9, Data: data, Ack: a}.Append(nil)
			short := AppendTerminalFrame(nil, 9, a, p)
			if !bytes.Equal(long, short) {
				t.Fatal("they differ")
			}
			f, err := DecodeFrame(short)
			if err != nil {
				t.Fatal(err)
			}
			if tf, err := DecodeTerminalFrame(f.Data); err != nil || !bytes.Equal(tf.Bytes, p) {
				t.Fatal("the bytes changed")
			}
			g, tf, err := DecodeTerminal(short, nil)
			if err != nil || g.Seq != 9 || (g.Ack == nil) != (a == nil) || tf == nil || !bytes.Equal(tf.Bytes, p) {
				t.Fatalf("the short way reads another frame: %v", err)
			}
		}
	})
}

// The two ways to read a frame have to agree on everything that either of them takes.
func sameTerminal(t *testing.T, p []byte) {
	t.Helper()
	f, tf, err := DecodeTerminal(p, nil)
	g, slowErr := DecodeFrame(p)
	var slow TerminalFrame
	if slowErr == nil && g.T == FrameData {
		slow, slowErr = DecodeTerminalFrame(g.Data)
	}
	switch {
	case (err == nil) != (slowErr == nil):
		t.Fatalf("%q: %v, but %v", p, err, slowErr)
	case err != nil:
		return
	case f.T != g.T || f.Seq != g.Seq || (f.Ack == nil) != (g.Ack == nil) || f.Ack != nil && *f.Ack != *g.Ack || (tf != nil) != (g.T == FrameData):
		t.Fatalf("%q: %+v, but %+v", p, f, g)
	case tf != nil && (tf.Kind != slow.Kind || !bytes.Equal(tf.Bytes, slow.Bytes)):
		t.Fatalf("%q: %+v, but %+v", p, tf, slow)
	}
}

func TestBothWaysToReadAFrameAgree(t *testing.T) {
	for _, s := range []string{
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1syShsA/w=="}}`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1syShsA\\/w=="},"ack":2}`,
		`{"t":"f","seq":01,"data":{"k":"data","b":""}}`,
		`{"t":"f","seq":0,"data":{"k":"data","b":""}}`,
		`{"t":"f","seq":9007199254740992,"data":{"k":"data","b":""}}`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1sySg=="},"ack":}`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1sySg=="},"ack":1}x`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1sySg=="},"ack":1,"x":2}`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1sy` + "\n" + `Sg=="}}`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1sySg="}}`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"/x=="}}`,
		`{"t":"f","seq":1,"data":{"k":"resize","cols":80,"rows":24}}`,
		`{ "t":"f","seq":1,"data":{"k":"data","b":"G1sySg=="}}`,
		`{"seq":1,"t":"f","data":{"b":"G1sySg==","k":"data"},"ack":3}`,
		`{"t":"f","seq":1,"data":{"k":"data","b":"`, `{"t":"credit","ack":4}`, `{"t":"close"}`, `{"t":"f","seq":1,"data":7}`,
	} {
		sameTerminal(t, []byte(s))
	}
}

func TestFlow(t *testing.T) {
	t.Run("a full window holds the sender, and only a total moves it", func(t *testing.T) {
		s := NewSender(3)
		for want := uint64(1); want <= 3; want++ {
			if seq, ok := s.Next(); !ok || seq != want {
				t.Fatalf("%d, %v", seq, ok)
			}
		}
		if _, ok := s.Next(); ok || s.InFlight() != 3 {
			t.Fatal("a fourth frame is in flight")
		}
		if moved, err := s.Ack(2); !moved || err != nil || s.InFlight() != 1 {
			t.Fatalf("%v, %v", moved, err)
		}
		for _, again := range []uint64{2, 1, 0} { // a repeated or overtaken credit
			if moved, err := s.Ack(again); moved || err != nil {
				t.Fatalf("%d: %v, %v", again, moved, err)
			}
		}
		if _, err := s.Ack(4); err == nil {
			t.Fatal("a frame that was never sent is acknowledged")
		}
		if seq, ok := s.Next(); !ok || seq != 4 {
			t.Fatalf("%d, %v", seq, ok)
		}
	})
	t.Run("a credit says that there is room, every half window", func(t *testing.T) {
		r := NewReceiver(4)
		due := []bool{}
		for seq := uint64(1); seq <= 4; seq++ {
			if a := r.Arrive(seq); a != FrameNext {
				t.Fatalf("%d: %v", seq, a)
			}
			d := r.Taken()
			due = append(due, d)
			if d {
				if total := r.Total(); total != seq {
					t.Fatalf("%d after %d", total, seq)
				}
			}
		}
		if due[0] || !due[1] || due[2] || !due[3] {
			t.Fatalf("credits are due at %v", due)
		}
	})
	t.Run("what is not the next frame is told apart", func(t *testing.T) {
		r := NewReceiver(2)
		if a := r.Arrive(2); a != FrameGap {
			t.Errorf("%v", a)
		}
		if a := r.Arrive(1); a != FrameNext {
			t.Errorf("%v", a)
		}
		if a := r.Arrive(1); a != FrameDuplicate {
			t.Errorf("%v", a)
		}
		if a := r.Arrive(2); a != FrameNext {
			t.Errorf("%v", a)
		}
		if a := r.Arrive(3); a != FrameFlood { // nothing was taken yet
			t.Errorf("%v", a)
		}
	})
	t.Run("both sides together never lose the count, whatever credits are lost", func(t *testing.T) {
		s, r := NewSender(5), NewReceiver(5)
		sent := 0
		for step := 0; sent < 1000; step++ {
			seq, ok := s.Next()
			if !ok { // the window is full: the receiver repeats its total
				if moved, err := s.Ack(r.Total()); !moved || err != nil {
					t.Fatalf("stuck at %d: %v", sent, err)
				}
				continue
			}
			sent++
			if a := r.Arrive(seq); a != FrameNext {
				t.Fatalf("%d: %v", seq, a)
			}
			if r.Taken() && step%3 == 0 { // the others are lost
				if _, err := s.Ack(r.Total()); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func BenchmarkTerminalFrame(b *testing.B) {
	p := bytes.Repeat([]byte("terminal output \x1b[0m\r\n"), 4096)[:MaxSessionData]
	ack := uint64(1 << 20)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		buf := make([]byte, 0, 100<<10)
		for b.Loop() {
			buf = AppendTerminalFrame(buf[:0], 1<<30, &ack, p)
		}
	})
	frame := AppendTerminalFrame(nil, 1<<30, &ack, p)
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		buf := make([]byte, 0, 100<<10)
		for b.Loop() {
			if _, _, err := DecodeTerminal(frame, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
