package seat

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var sampleStatus = Status{
	State: StateDraining, First: 1, Next: 1 << 40,
	Seat: Identity{PID: 12, StartTicks: 34, BootID: "boot"}, Agent: Identity{PID: 56, StartTicks: 78, BootID: "boot"},
	Code: 143, CodeKnown: true, Signal: 15, Rows: 24, Cols: 80, Attached: 2, Answerer: AnswererMirror,
	Role: RoleOutput | RoleControl, Modes: 5, Fence: 9, InputPending: 11,
}

var sampleExit = ExitRecord{
	Code: 137, CodeKnown: true, Signal: "SIGKILL", AtUnixNs: 1234567890, Asked: true, Evidence: EvidenceReaped,
	Detail: "d", Reaped: []Killed{{PID: 3, Command: "sleep", Signal: "SIGTERM"}}, Last: "bye",
}

func TestEveryFrameComesBackAsItWent(t *testing.T) {
	payload := func(b []byte, want Type) []byte {
		t.Helper()
		typ, p, n, err := NextFrame(b)
		if err != nil || n != len(b) || typ != want {
			t.Fatalf("frame %x: type %x size %d of %d: %v", want, typ, n, len(b), err)
		}
		return p
	}
	h := Hello{VersionMin: 1, VersionMax: 3, Role: RoleInput | RoleTakeover, Fence: 7, From: FromLive, Rows: 5, Cols: 6}
	copy(h.Token[:], "0123456789abcdef0123456789abcdef")
	if got, err := DecodeHello(payload(AppendHello(nil, h), TypeHello)); err != nil || got != h {
		t.Errorf("hello %+v %v", got, err)
	}
	news := sampleStatus
	news.Typed, news.Lines, news.Line, news.AskFrom, news.AskTo = 1500, LinesOn, 4095, 1<<40, FromLive
	welcome := payload(AppendWelcome(nil, 1, news), TypeWelcome)
	if v, s, err := DecodeWelcome(welcome); err != nil || v != 1 || s != news {
		t.Errorf("welcome %d %+v %v", v, s, err)
	}
	if v, s, err := DecodeWelcome(welcome[:len(welcome)-7-16]); err != nil || v != 1 || s != sampleStatus {
		t.Errorf("welcome of a seat from before the last fields: %d %+v %v", v, s, err)
	}
	status := payload(AppendStatus(nil, 8, news), TypeStatus)
	if id, s, err := DecodeStatus(status); err != nil || id != 8 || s != news {
		t.Errorf("status %d %+v %v", id, s, err)
	}
	if id, s, err := DecodeStatus(status[:len(status)-7-16]); err != nil || id != 8 || s != sampleStatus {
		t.Errorf("status of a seat from before the last fields: %d %+v %v", id, s, err)
	}
	e := &Error{Code: CodeExec, Outcome: OutcomeNotExecuted, Text: "no such file"}
	if id, got, err := DecodeError(payload(AppendError(nil, 4, e), TypeError)); err != nil || id != 4 || *got != *e {
		t.Errorf("error %d %+v %v", id, got, err)
	}
	if seq, data, err := DecodeOutput(payload(append(AppendOutputHeader(nil, 77, 3), "abc"...), TypeOutput)); err != nil || seq != 77 || string(data) != "abc" {
		t.Errorf("output %d %q %v", seq, data, err)
	}
	if from, to, why, err := DecodeGap(payload(AppendGap(nil, 5, 9, GapGone), TypeGap)); err != nil || from != 5 || to != 9 || why != GapGone {
		t.Errorf("gap %d %d %d %v", from, to, why, err)
	}
	if id, res, n, err := DecodeInputAck(payload(AppendInputAck(nil, 5, InputBusy, 9), TypeInputAck)); err != nil || id != 5 || res != InputBusy || n != 9 {
		t.Errorf("ack %d %d %d %v", id, res, n, err)
	}
	if s, x, err := DecodeExit(payload(AppendExit(nil, sampleStatus, sampleExit), TypeExit)); err != nil || s != sampleStatus || !reflect.DeepEqual(x, sampleExit) {
		t.Errorf("exit %+v %+v %v", s, x, err)
	}
	if id, body, err := DecodeRequest(payload(AppendRequest(nil, TypeResize, 3, AppendSize(nil, 1, 2)), TypeResize)); err != nil || id != 3 {
		t.Errorf("request %d %v", id, err)
	} else if r, c, err := DecodeSize(body); err != nil || r != 1 || c != 2 {
		t.Errorf("size %d %d %v", r, c, err)
	}
}

func TestFieldsAddedByANewerPeerAreIgnored(t *testing.T) {
	b := AppendStatus(nil, 8, sampleStatus)
	_, p, _, _ := NextFrame(b)
	if _, s, err := DecodeStatus(append(p, "more"...)); err != nil || s != sampleStatus {
		t.Errorf("%+v %v", s, err)
	}
}

func TestACutPayloadIsAnErrorAndNeverAPanic(t *testing.T) {
	for _, b := range [][]byte{
		AppendHello(nil, Hello{VersionMin: 1, VersionMax: 1}), AppendStatus(nil, 1, sampleStatus), AppendWelcome(nil, 1, sampleStatus),
		AppendExit(nil, sampleStatus, sampleExit), AppendGap(nil, 1, 2, 1), AppendInputAck(nil, 1, 1, 1), AppendError(nil, 1, Refuse(CodeBusy, "x")),
	} {
		typ, p, _, _ := NextFrame(b)
		for n := range p {
			// Of seats that do not say more.
			old := (typ == TypeStatus || typ == TypeWelcome) && (n == len(p)-16 || n == len(p)-16-7)
			if decodeAny(typ, p[:n]) == nil && !old {
				t.Errorf("type %x cut to %d of %d bytes is no error", typ, n, len(p))
			}
		}
	}
}

// decodeAny decodes the payload of any known type.
func decodeAny(t Type, p []byte) (err error) {
	switch t {
	case TypeHello:
		_, err = DecodeHello(p)
	case TypeWelcome:
		_, _, err = DecodeWelcome(p)
	case TypeStatus:
		_, _, err = DecodeStatus(p)
	case TypeError:
		_, _, err = DecodeError(p)
	case TypeOutput:
		_, _, err = DecodeOutput(p)
	case TypeGap:
		_, _, _, err = DecodeGap(p)
	case TypeExit:
		_, _, err = DecodeExit(p)
	case TypeInputAck:
		_, _, _, err = DecodeInputAck(p)
	default:
		_, _, err = DecodeRequest(p)
	}
	return err
}

func sampleLaunch() Launch {
	return Launch{
		Dir: "/s/x", Socket: "/r/x.sock", Nonce: "n", Token: bytes.Repeat([]byte{7}, TokenBytes), Path: "/bin/agent",
		Args: []string{"-a", "", "b c"}, Env: []string{"A=b", "C="}, Cwd: "/w", Rows: 1, Cols: 2, Fence: 3,
		Record: []byte(`{"owner":{}}`), RingBytes: 4, SpillBytes: 5, PrepareTimeoutMs: 6, ExitLingerMs: 7,
	}
}

func TestALaunchRecordComesBackAsItWent(t *testing.T) {
	want := sampleLaunch()
	r := bytes.NewReader(append(EncodeLaunch(want), "rest"...))
	got, err := ReadLaunch(r)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v %v", got, err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "rest" {
		t.Errorf("left %q", rest)
	}
}

func TestALaunchRecordThatCannotWorkNamesItsField(t *testing.T) {
	for _, c := range []struct {
		field string
		edit  func(*Launch)
	}{
		{"dir", func(l *Launch) { l.Dir = "relative" }},
		{"socket", func(l *Launch) { l.Socket = "/" + strings.Repeat("x", MaxSocket) }},
		{"socket", func(l *Launch) { l.Socket = "" }},
		{"path", func(l *Launch) { l.Path = "agent" }},
		{"cwd", func(l *Launch) { l.Cwd = "" }},
		{"nonce", func(l *Launch) { l.Nonce = "" }},
		{"token", func(l *Launch) { l.Token = l.Token[1:] }},
		{"args", func(l *Launch) { l.Args = []string{"a\x00b"} }},
		{"env", func(l *Launch) { l.Env = []string{"A=\x00"} }},
		{"record", func(l *Launch) { l.Record = []byte("[]") }},
		{"ringBytes", func(l *Launch) { l.RingBytes = 1 << 30 }},
	} {
		l := sampleLaunch()
		c.edit(&l)
		if _, err := ReadLaunch(bytes.NewReader(EncodeLaunch(l))); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v", c.field, err)
		}
	}
	whole := EncodeLaunch(sampleLaunch())
	for n := range whole {
		if _, err := ReadLaunch(bytes.NewReader(whole[:n])); err == nil {
			t.Errorf("a record cut to %d of %d bytes is no error", n, len(whole))
		}
	}
}

// peer is the seat's side of a connection, scripted by a test.
type peer struct {
	t *testing.T
	f *os.File
	r []byte
}

func pair(t *testing.T, role Role, script func(*peer)) *Conn {
	return pairOf(t, 1, role, script)
}

// pairOf is pair with a seat that chose a version.
func pairOf(t *testing.T, version uint16, role Role, script func(*peer)) *Conn {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := socket()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(l, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 1); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			fd, _, err := unix.Accept(l)
			if errors.Is(err, unix.EAGAIN) {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}, 100)
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			_ = unix.SetNonblock(fd, true)
			p := &peer{t: t, f: os.NewFile(uintptr(fd), "peer")}
			p.expect(TypeHello)
			p.send(AppendWelcome(nil, version, sampleStatus))
			script(p)
			_ = p.f.Close()
			return
		}
	}()
	c, err := Dial(context.Background(), DialConfig{Socket: path, Token: make([]byte, TokenBytes), Role: role})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		<-done
		_ = unix.Close(l)
	})
	return c
}

func (p *peer) send(b []byte) { _, _ = p.f.Write(b) }

// expect returns the payload of the next frame, nil when the connection ended.
func (p *peer) expect(want Type) []byte {
	for {
		typ, payload, n, err := NextFrame(p.r)
		if err != nil {
			p.t.Error(err)
			return nil
		}
		if n > 0 {
			payload = append([]byte(nil), payload...)
			p.r = p.r[n:]
			if typ != want {
				p.t.Errorf("frame %x, expected %x", typ, want)
			}
			return payload
		}
		buf := make([]byte, 4096)
		m, err := p.f.Read(buf)
		if err != nil {
			return nil
		}
		p.r = append(p.r, buf[:m]...)
	}
}

func (p *peer) request(want Type) uint32 {
	id, _, _ := DecodeRequest(p.expect(want))
	return id
}

func TestRequestsWithoutOutputNeedNobodyToRead(t *testing.T) {
	c := pair(t, RoleControl, func(p *peer) {
		id := p.request(TypeCommit)
		p.send(AppendStatus(nil, 0, sampleStatus)) // news in between
		p.send(AppendStatus(nil, id, sampleStatus))
		id = p.request(TypeSignal)
		p.send(AppendError(nil, id, Refuse(CodeStaleFence, "old")))
		p.request(TypeGet) // and the seat dies
	})
	ctx := context.Background()
	if st, err := c.Commit(ctx); err != nil || st != sampleStatus {
		t.Errorf("commit: %+v %v", st, err)
	}
	if err := c.Signal(ctx, ActionTerm); !errors.Is(err, ErrStaleFence) {
		t.Errorf("signal: %v", err)
	}
	_, err := c.Get(ctx)
	var e *Error
	if !errors.Is(err, ErrClosed) || !errors.As(err, &e) || e.Outcome != OutcomeUnknown {
		t.Errorf("get: %v", err)
	}
	if _, err := c.Get(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("get again: %v", err)
	}
}

func TestRunDeliversInOrderAndEndsWithTheExit(t *testing.T) {
	c := pair(t, RoleOutput, func(p *peer) {
		var b []byte
		b = append(AppendOutputHeader(b, 0, 2), "ab"...)
		b = AppendGap(b, 2, 10, GapLagged)
		b = append(AppendOutputHeader(b, 10, 1), "c"...)
		b = AppendFrame(b, 0x90, []byte("from the future"))
		b = AppendStatus(b, 0, sampleStatus)
		b = AppendExit(b, sampleStatus, sampleExit)
		for _, one := range b { // borders anywhere
			p.send([]byte{one})
		}
		id := p.request(TypeAckExit)
		p.send(AppendStatus(nil, id, sampleStatus))
	})
	var got []string
	err := c.Run(context.Background(), Handler{
		Output: func(seq uint64, p []byte) error { got = append(got, itoa(int(seq))+string(p)); return nil },
		Gap:    func(from, to uint64) error { got = append(got, itoa(int(from))+"-"+itoa(int(to))); return nil },
		Status: func(Status) { got = append(got, "status") },
		Exit:   func(_ Status, x ExitRecord) { got = append(got, x.Signal) },
	})
	if want := []string{"0ab", "2-10", "10c", "status", "SIGKILL"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q %v", got, err)
	}
	if err := c.AckExit(context.Background()); err != nil { // Run has ended: it reads for itself
		t.Errorf("ack: %v", err)
	}
}

func TestRunEndsWithItsContextAndCanBeResumed(t *testing.T) {
	c := pair(t, RoleOutput, func(p *peer) {
		id := p.request(TypeGet)
		p.send(AppendStatus(nil, id, sampleStatus))
		p.expect(TypeGet) // until closed
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, Handler{}) }()
	if _, err := c.Get(context.Background()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v", err)
	}
	short, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	if err := c.Run(short, Handler{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("run again: %v", err)
	}
}

func TestALargeInputIsSentInPartsAndTheFirstRefusalEndsIt(t *testing.T) {
	c := pair(t, RoleInput, func(p *peer) {
		id, body, _ := DecodeRequest(p.expect(TypeInput))
		p.send(AppendInputAck(nil, id, InputWritten, uint32(len(body))))
		id, _, _ = DecodeRequest(p.expect(TypeInput))
		p.send(AppendInputAck(nil, id, InputBusy, 0))
	})
	if n, err := c.Input(context.Background(), make([]byte, 3*MaxInput)); n != MaxInput || !errors.Is(err, ErrBusy) {
		t.Errorf("%d %v", n, err)
	}
}

func TestDialSaysWhyThereIsNoSeat(t *testing.T) {
	_, err := Dial(context.Background(), DialConfig{Socket: filepath.Join(t.TempDir(), "none"), Token: make([]byte, TokenBytes)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(AppendExit(AppendStatus(nil, 1, sampleStatus), sampleStatus, sampleExit))
	f.Add(append(AppendOutputHeader(nil, 1, 3), "abc"...))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			typ, p, n, err := NextFrame(b)
			if err != nil || n == 0 {
				return
			}
			if n < 5 || n > len(b) || len(p) != n-5 {
				t.Fatalf("frame of %d bytes, payload %d of %d", n, len(p), len(b))
			}
			_ = decodeAny(typ, p)
			b = b[n:]
		}
	})
}

func FuzzHello(f *testing.F) {
	_, p, _, _ := NextFrame(AppendHello(nil, Hello{VersionMin: 1, VersionMax: 2, Role: RoleControl, Fence: 3, From: FromLive}))
	f.Add(p)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := DecodeHello(p)
		if err != nil {
			return
		}
		_, again, _, _ := NextFrame(AppendHello(nil, h))
		if got, err := DecodeHello(again); err != nil || got != h {
			t.Fatalf("%+v came back as %+v: %v", h, got, err)
		}
	})
}

func FuzzLaunch(f *testing.F) {
	f.Add(EncodeLaunch(sampleLaunch())[4:])
	f.Add([]byte("CSL1"))
	f.Fuzz(func(t *testing.T, p []byte) {
		l, err := DecodeLaunch(p)
		if err != nil {
			return
		}
		if got, err := ReadLaunch(bytes.NewReader(EncodeLaunch(l))); err != nil || !reflect.DeepEqual(got, l) {
			t.Fatalf("%+v came back as %+v: %v", l, got, err)
		}
	})
}
