package attach

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// mesh is an authenticated space, with an authority that remembers what it made for sessions.
type mesh struct {
	*trust.Static
	t        testing.TB
	br       *broker.Broker
	keys     *trust.Keyring
	instance string

	mu   sync.Mutex
	made []trust.Credential // of sessions
}

func (m *mesh) Mint(ctx context.Context, r trust.Request) (trust.Credential, error) {
	c, err := m.Static.Mint(ctx, r)
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.made = append(m.made, c)
	}
	return c, err
}

// of is the credential that was made at that place.
func (m *mesh) of(i int) trust.Credential {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made[i]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newMesh(t testing.TB) *mesh {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	m := &mesh{t: t, instance: wire.NewUID()}
	store, err := trust.OpenFileStore(ctx, t.TempDir())
	must(t, err)
	m.keys, err = trust.MakeKeyring(ctx, store, "main")
	must(t, err)
	b, err := m.keys.Bundle()
	must(t, err)
	m.br, err = broker.Start(ctx, broker.Config{
		StoreDir: t.TempDir(),
		Operator: &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: t.TempDir()},
	})
	must(t, err)
	t.Cleanup(m.br.Shutdown)
	m.Static, err = trust.NewStatic(trust.StaticConfig{
		Keys: m.keys, Instance: m.instance, Commands: []string{wire.CmdDescribe}, Reach: bus.Config{InProcess: m.br.InProcess()},
	})
	must(t, err)
	nothing, anything := func(string) bool { return false }, func(string) error { return nil }
	must(t, m.With(ctx, trust.Request{Profile: trust.SetUp}, func(ctx context.Context, b *bus.Bus) error {
		_, err := b.Records(ctx, "main", nothing, anything)
		return err
	}))
	contract, err := control.Contract(wire.OwnerLocal)
	must(t, err)
	must(t, m.rows(ctx, func(b *bus.Bus, rec *bus.Records) error {
		_, err := b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: m.instance, Epoch: 7, Principal: "local.manager", Contract: contract,
		})
		return err
	}))
	return m
}

func (m *mesh) rows(ctx context.Context, do func(*bus.Bus, *bus.Records) error) error {
	return m.With(ctx, trust.Request{Profile: trust.Executor}, func(_ context.Context, b *bus.Bus) error {
		rec, err := b.Rows("main")
		if err != nil {
			return err
		}
		return do(b, rec)
	})
}

// state is what the ledger says of a credential.
func (m *mesh) state(c trust.Credential) (row wire.CredentialRow, err error) {
	key := wire.CredentialRow{CredentialID: c.ID, LifecycleUID: m.instance, Endpoint: wire.EndpointManager}.Key()
	err = m.rows(m.t.Context(), func(_ *bus.Bus, rec *bus.Records) error {
		e, err := rec.Get(m.t.Context(), key)
		if err == nil {
			row, err = wire.DecodeCredentialRow(key, e.Value)
		}
		return err
	})
	return row, err
}

// over says whether the ledger says that nobody holds a credential any more. A while after that it has forgotten it.
func (m *mesh) over(c trust.Credential) bool {
	row, err := m.state(c)
	return errors.Is(err, bus.ErrAbsent) || err == nil && row.State == wire.CredentialRevoked
}

// connected says whether the holder of a credential is.
func (m *mesh) connected(c trust.Credential) bool {
	m.t.Helper()
	live, err := m.Live(m.t.Context(), m.Principal(c.Public))
	must(m.t, err)
	return live == trust.Live
}

// sessions are sessions with rails of their own.
func (m *mesh) sessions(max int) *Sessions {
	set := New(Config{
		Space: "main", InstanceID: m.instance, Epoch: 7, SeatRoot: m.t.TempDir(), MaxSessions: max,
		Seats: &seats{rows: []wire.AgentRow{{Name: "x", SeatID: "one"}}}, LedgerPath: filepath.Join(m.t.TempDir(), "sessions"),
		Lines: Own(OwnConfig{Authority: m, Reach: bus.Config{InProcess: m.br.InProcess()}, CloseWait: busy.Limit(10 * time.Second)}),
	})
	m.t.Cleanup(set.Close)
	return set
}

// client is a bare connection, which notes what it is refused.
func (m *mesh) client(c bus.Credentials) (*nats.Conn, func() []string) {
	m.t.Helper()
	var mu sync.Mutex
	var refused []string
	nc, err := nats.Connect(m.br.URL(), nats.UserJWT(c.Token, c.Sign), nats.CustomInboxPrefix(c.Inbox()), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, err.Error())
		}))
	must(m.t, err)
	m.t.Cleanup(nc.Close)
	return nc, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(refused)
	}
}

// operator is the holder of sessions.
func (m *mesh) operator() (*nats.Conn, wire.Caller) {
	m.t.Helper()
	c, err := m.Static.Mint(m.t.Context(), trust.Request{Profile: trust.Operator})
	must(m.t, err)
	nc, _ := m.client(c)
	p := m.Principal(c.Public)
	return nc, wire.Caller{Owner: p.Owner, Actor: p.Actor, UID: m.instance}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(2 * time.Millisecond) { // a look at the broker
		if busy.Over(begin, 10*time.Second) {
			t.Fatalf("does not come true: %s", what)
		}
	}
}

func anyTarget() wire.Target {
	return wire.Target{Owner: wire.OwnerLocal, Actor: "B", LifecycleUID: wire.NewUID()}
}

// Whatever ends a session ends its connection and its credential, and so does whatever refuses an attach for which they
// were made. The ledger had the row of the credential before, with the session in its lineage, for as long as the
// session may last.
func TestTheRailsAndTheCredentialOfASessionEndWithIt(t *testing.T) {
	m := newMesh(t)
	nc, caller := m.operator()
	set := m.sessions(4)
	for i, c := range []struct {
		name string
		end  func(*session)
	}{
		{"its holder leaves", func(x *session) {
			must(t, nc.Publish(x.grant.Subjects.In, wire.Frame{T: wire.FrameClose}.Append(nil)))
		}},
		{"its holder comes back with another one", func(x *session) { succeed([]*session{x}) }},
		{"the grant is over", func(x *session) { x.happen(evExpired) }},
		{"the seat ends", func(x *session) { x.happen(evExit) }},
		{"nobody came", func(x *session) { x.mu.Lock(); x.phase = offered; x.mu.Unlock(); x.happen(evUnredeemed) }},
		{"its connection is lost", func(x *session) { m.kick(m.of(len(m.made) - 1)) }},
		{"the host stops", func(*session) { set.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := standingSession(t, set, caller, anyTarget())
			cred := m.of(i)
			row, err := m.state(cred)
			if err != nil || row.State != wire.CredentialActive || !slices.Equal(row.SourceChain, []string{"session." + x.id}) {
				t.Errorf("while it lasts the ledger says %+v, %v", row, err)
			}
			if exp := time.UnixMilli(x.grant.Exp); cred.Expires.Before(exp) || cred.Expires.After(exp.Add(time.Minute)) {
				t.Errorf("the session lasts until %s, its credential until %s", exp, cred.Expires)
			}
			if !m.connected(cred) {
				t.Fatal("nobody is connected with its credential: this test shows nothing")
			}
			c.end(x)
			<-x.done
			eventually(t, "its connection is gone", func() bool { return !m.connected(cred) })
			eventually(t, "the ledger says so", func() bool { return m.over(cred) })
		})
	}
	if n := len(m.made); n != 7 {
		t.Errorf("%d credentials were made for 7 sessions", n)
	}
}

// kick ends the connection of a holder, as a network does.
func (m *mesh) kick(c trust.Credential) {
	m.t.Helper()
	b, err := m.keys.Bundle()
	must(m.t, err)
	must(m.t, m.With(m.t.Context(), trust.Request{Profile: trust.Evictor}, func(ctx context.Context, sys *bus.Bus) error {
		all, _, err := sys.System().Connections(ctx, b.Account)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(o bus.Conn) bool { return o.User == c.Public })
		if i < 0 {
			return errors.New("it is not connected")
		}
		return sys.System().Kick(ctx, all[i])
	}))
}

// proves: ATTACH-4
func TestARefusedAttachLeavesNoConnectionAndNoCredential(t *testing.T) {
	m := newMesh(t)
	set := m.sessions(1)
	if err := attach(set); err == nil || err.Code != wire.CodeUnavailable || err.Outcome != wire.OutcomeNotExecuted { // no such seat directory
		t.Fatalf("%v", err)
	}
	cred := m.of(0)
	if m.connected(cred) {
		t.Error("its connection is there when it is refused")
	}
	eventually(t, "the ledger says that nobody holds it", func() bool { return m.over(cred) })
}

// A host that must not make credentials now, since its registration is frozen, refuses the attach and says why.
func TestAnAttachIsRefusedWhileCredentialsAreNotMade(t *testing.T) {
	m := newMesh(t)
	key := wire.EndpointGateKey(wire.EndpointManager, m.instance)
	must(t, m.rows(t.Context(), func(_ *bus.Bus, rec *bus.Records) error {
		e, err := rec.Get(t.Context(), key)
		if err != nil {
			return err
		}
		g, err := wire.DecodeEndpointGate(e.Value)
		if err != nil {
			return err
		}
		g.State, g.Op = wire.GateFrozen, &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpTakeover}
		p, err := g.Encode()
		if err != nil {
			return err
		}
		_, err = rec.Update(t.Context(), key, p, e.Rev)
		return err
	}))
	set := m.sessions(1)
	err := attach(set)
	if err == nil || err.Code != wire.CodeUnavailable || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, "frozen") {
		t.Errorf("%v", err)
	}
	if n := set.Count(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// Who copies the credential of a session hears what its holder types and speaks to its holder, and no more: no other
// session, no wildcard over them, not the other side of its own, nothing else of the space.
func TestAStolenSessionCredentialReachesNoOtherSession(t *testing.T) {
	m := newMesh(t)
	holder, caller := m.operator()
	set := m.sessions(4)
	mine := standingSession(t, set, caller, anyTarget())
	stolen := m.of(0)
	other := standingSession(t, set, caller, anyTarget())
	thief, refused := m.client(stolen)
	ownIn, err := thief.SubscribeSync(mine.grant.Subjects.In)
	must(t, err)
	heard, err := holder.SubscribeSync(other.grant.Subjects.Out)
	must(t, err)
	must(t, holder.Flush())

	var tried []string
	for _, s := range []string{
		other.grant.Subjects.In, other.grant.Subjects.Out, mine.grant.Subjects.Out, "cotal.main.eps.manager.*.*.in", "cotal.main.eps.manager.*.*.out",
		"cotal.main.eps.manager." + mine.id + ".*.in", "cotal.main.eps.>", "cotal.main.>", ">", "_INBOX.>", "$SYS.>",
		"cotal.main.ep.one.manager.attach.>", "cotal.main.ep.reply.>",
	} {
		_, err := thief.SubscribeSync(s)
		must(t, err)
		tried = append(tried, `Subscription to "`+s+`"`)
	}
	end, err := endFrame(1, wire.EndProcessExit)
	must(t, err)
	for _, s := range []string{
		other.grant.Subjects.In, other.grant.Subjects.Out, mine.grant.Subjects.In, "$JS.API.INFO", "$JS.API.STREAM.INFO.KV_cotal_auth_main",
		"$JS.API.STREAM.MSG.GET.KV_cotal_auth_main", "$KV.cotal_presence_main." + m.Principal(stolen.Public).String(),
		"cotal.main.ep.one.manager.ps." + caller.Owner + "." + caller.Actor + "." + caller.UID + ".n", "$SYS.REQ.SERVER.PING",
	} {
		must(t, thief.Publish(s, end))
		tried = append(tried, `Publish to "`+s+`"`)
	}
	must(t, thief.Flush())
	eventually(t, "all of it is refused", func() bool { return len(refused()) >= len(tried) })
	all := strings.Join(refused(), "\n")
	for _, what := range tried {
		if !strings.Contains(all, what) {
			t.Errorf("the broker did not refuse %s", what)
		}
	}
	select {
	case <-other.done:
		t.Error("the other session was ended")
	default:
	}
	if n, _, _ := heard.Pending(); n != 0 {
		t.Errorf("the holder of the other session heard %d frames", n)
	}
	// Its own rails it has: else what was refused shows nothing.
	must(t, holder.Publish(mine.grant.Subjects.In, wire.Frame{T: wire.FrameCredit, Ack: new(uint64)}.Append(nil)))
	if _, err := ownIn.NextMsg(busy.Limit(10 * time.Second)); err != nil {
		t.Errorf("the copy does not hear its own session: %v", err)
	}
}

// A connection that is lost ends its own session, whose holder finds nobody and comes back; all others go on.
func TestALostConnectionEndsItsSessionAlone(t *testing.T) {
	m := newMesh(t)
	nc, caller := m.operator()
	set := m.sessions(4)
	one, two := standingSession(t, set, caller, anyTarget()), standingSession(t, set, caller, anyTarget())
	two.goSafe(two.beats)
	beats, err := nc.SubscribeSync(two.grant.Subjects.Out)
	must(t, err)
	gone, err := nc.SubscribeSync(one.grant.Subjects.Out)
	must(t, err)
	must(t, nc.Flush())
	m.kick(m.of(0))
	<-one.done
	// What its holder says next finds nobody, and the server says so.
	eventually(t, "the holder is told that nobody is there", func() bool {
		must(t, nc.PublishMsg(&nats.Msg{Subject: one.grant.Subjects.In, Reply: one.grant.Subjects.Out, Data: wire.Frame{T: wire.FrameCredit, Ack: new(uint64)}.Append(nil)}))
		_, err := gone.NextMsg(100 * time.Millisecond)
		return errors.Is(err, nats.ErrNoResponders)
	})
	if over(two) {
		t.Fatal("the other session has ended")
	}
	for range 2 {
		if _, err := beats.NextMsg(busy.Limit(5 * time.Second)); err != nil {
			t.Fatalf("the other session is not heard: %v", err)
		}
	}
	// Its holder attaches anew, and has another one.
	again := standingSession(t, set, caller, one.target)
	if over(again) || again.id == one.id || set.Count() != 2 {
		t.Errorf("%d sessions are there", set.Count())
	}
}

// A host has as many sessions at once as it says, each with its own connection, opened side by side and ended in a moment.
func TestSixtyFourSessionsAtOnceHaveTheirOwnRails(t *testing.T) {
	m := newMesh(t)
	nc, caller := m.operator()
	set := m.sessions(DefaultMaxSessions)
	before := m.br.Clients()
	open := make([]*session, DefaultMaxSessions)
	var wg sync.WaitGroup
	var failed sync.Map
	for i := range open {
		wg.Go(func() {
			o, err := set.offer(t.Context(), caller, anyTarget())
			if err != nil {
				failed.Store(i, err)
				return
			}
			release, refused := set.claim(nil)
			if refused != nil {
				failed.Store(i, refused)
				return
			}
			x := newSession(set, o.rails, o.grant, *o.grant.Target, wire.AgentRow{Name: "x"}, &view{conn: &seat.Conn{}}, release)
			if err := set.establish(x, o); err != nil {
				failed.Store(i, err)
				return
			}
			x.mu.Lock()
			x.phase = live
			x.mu.Unlock()
			open[i] = x
		})
	}
	wg.Wait()
	failed.Range(func(i, err any) bool { t.Fatalf("session %v: %v", i, err); return false })
	if n := m.br.Clients() - before; n < len(open) {
		t.Errorf("%d connections carry %d sessions", n, len(open))
	}
	ends, err := nc.SubscribeSync("cotal.main.eps.manager.*.*.out")
	must(t, err)
	must(t, nc.Flush())
	set.Close()
	told := map[string]bool{}
	for len(told) < len(open) {
		msg, err := ends.NextMsg(busy.Limit(10 * time.Second))
		if err != nil {
			t.Fatalf("%d of %d holders are told that the host stops: %v", len(told), len(open), err)
		}
		f, err := wire.DecodeFrame(msg.Data)
		must(t, err)
		if e, err := wire.DecodeTerminalFrame(f.Data); err == nil && e.Kind == wire.TerminalEnd && e.Reason == wire.EndManagerRestart {
			told[msg.Subject] = true
		}
	}
	eventually(t, "no connection is left", func() bool { return m.br.Clients() <= before })
	for i := range open {
		if !m.over(m.of(i)) {
			row, err := m.state(m.of(i))
			t.Errorf("when the host has closed them the ledger says of one %+v, %v", row, err)
			break
		}
	}
}

// The holders of sessions of earlier incarnations are told over rails that the successor has a credential for, however
// many there are and of whichever epoch; it can speak for no session of a sibling.
func TestASuccessorInAnAuthenticatedSpaceTellsTheHoldersOfEarlierSessions(t *testing.T) {
	m := newMesh(t)
	nc, _ := m.operator()
	set := m.sessions(0)
	before := ledger{path: set.cfg.LedgerPath}
	left := map[string]bool{}
	var some standing
	for i := range 2*pastAtOnce + 3 {
		some = standing{wire.NewSessionID(), uint64(5 + i%2)}
		must(t, before.add(some, nil))
		_, out, err := set.subjects(some.id, some.epoch)
		must(t, err)
		left[out] = true
	}
	ends, err := nc.SubscribeSync("cotal.main.eps.manager.*.*.out")
	must(t, err)
	must(t, nc.Flush())
	told := func(want int) {
		t.Helper()
		seen := map[string]bool{}
		for len(seen) < want {
			msg, err := ends.NextMsg(busy.Limit(10 * time.Second))
			if err != nil {
				t.Fatalf("%d of %d are told: %v", len(seen), want, err)
			}
			f, err := wire.DecodeFrame(msg.Data)
			must(t, err)
			e, err := wire.DecodeTerminalFrame(f.Data)
			if err != nil || e.Kind != wire.TerminalEnd || e.Reason != wire.EndManagerRestart || !left[msg.Subject] {
				t.Errorf("%s is told %+v, %v", msg.Subject, e, err)
			}
			seen[msg.Subject] = true
		}
	}
	must(t, set.Recover(t.Context()))
	told(len(left))
	if n := len(m.made); n != 3 {
		t.Errorf("%d credentials speak for %d sessions, want 3", n, len(left))
	}
	// A holder that heard nothing says something, and is told.
	in, _, err := set.subjects(some.id, some.epoch)
	must(t, err)
	must(t, nc.Publish(in, wire.Frame{T: wire.FrameCredit, Ack: new(uint64)}.Append(nil)))
	told(1)
	// The credential is for these and no other.
	thief, refused := m.client(m.of(0))
	stranger := "cotal.main.eps.manager." + wire.NewSessionID() + ".5.out"
	must(t, thief.Publish(stranger, nil))
	must(t, thief.Flush())
	eventually(t, "it speaks for no other session", func() bool { return strings.Contains(fmt.Sprint(refused()), stranger) })
	thief.Close()
	set.Close()
	for i := range m.made {
		eventually(t, "the connections of the successor are gone", func() bool { return !m.connected(m.of(i)) })
	}
}

// BenchmarkRails is what a session costs beside its seat: to open its rails, and to have them.
func BenchmarkRails(b *testing.B) {
	for _, mode := range []string{"shared", "own"} {
		b.Run(mode, func(b *testing.B) {
			m := newMesh(b)
			c, err := m.Static.Mint(b.Context(), trust.Request{Profile: trust.Operator})
			must(b, err)
			lines := Own(OwnConfig{Authority: m, Reach: bus.Config{InProcess: m.br.InProcess()}})
			if mode == "shared" {
				lines = Shared(func(ctx context.Context, _ func()) (Rails, error) {
					return bus.Connect(ctx, bus.Config{InProcess: m.br.InProcess(), Credentials: c})
				})
			}
			defer lines.Close()
			var open []Rails
			one := func() {
				r, err := lines.Open(b.Context(), Rail{Session: wire.NewSessionID(), Epoch: 7, Until: time.Now().Add(sessionTime)}, func() {})
				must(b, err)
				open = append(open, r)
			}
			one() // shared: the one connection
			heap := inUse()
			for b.Loop() {
				one()
				if len(open) > DefaultMaxSessions {
					b.StopTimer()
					for _, r := range open[1:] {
						r.Close()
					}
					open = open[:1]
					b.StartTimer()
				}
			}
			b.StopTimer()
			for len(open) <= DefaultMaxSessions {
				one()
			}
			b.ReportMetric(float64(inUse()-heap)/float64(len(open)-1)/1024, "KiB/session")
			for _, r := range open {
				r.Close()
			}
		})
	}
}

// inUse is the memory of this process that is in use, broker and stacks included.
func inUse() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapInuse + s.StackInuse)
}
