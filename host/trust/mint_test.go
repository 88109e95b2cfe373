package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// ledger lists the rows of a life.
func (r *rig) ledger(of Life) map[string]wire.CredentialRow {
	r.t.Helper()
	out := map[string]wire.CredentialRow{}
	r.rows(of, func(ctx context.Context, rec *bus.Records) error {
		family, err := of.family()
		if err != nil {
			return err
		}
		rows, err := rec.Scan(ctx, family)
		if err != nil {
			return err
		}
		for _, row := range rows {
			c, err := wire.DecodeCredentialRow(row.Key, row.Value)
			if err != nil {
				return err
			}
			out[c.CredentialID] = c
		}
		return nil
	})
	return out
}

// proves: CRED-17, SLOT-5
func TestEveryCredentialHasItsRowBeforeItIsReleased(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	var recorded string
	c := r.mint(Request{Profile: Agent, UID: uid, Scope: Scope{Read: []string{"dev"}}, Record: func(_ context.Context, id string, exp time.Time) error {
		if len(r.ledger(Life{UID: uid})) != 0 {
			t.Error("the row was written before the holder's record")
		}
		recorded = fmt.Sprint(id, exp.UnixMilli())
		return nil
	}})
	if want := fmt.Sprint(c.ID, c.Expires.UnixMilli()); recorded != want {
		t.Errorf("recorded %q, want %q", recorded, want)
	}
	row, ok := r.ledger(Life{UID: uid})[c.ID]
	if !ok || row.State != wire.CredentialActive || row.HolderPrincipal != "local."+c.Public || row.Exp != c.Expires.UnixMilli() || !slices.Equal(row.SourceChain, []string{"root"}) {
		t.Errorf("row %+v, %v", row, ok)
	}
	cl := r.dial(c)
	if refused := cl.take(t); len(refused) != 0 {
		t.Error(refused)
	}
	// Every credential of the host itself, those that wrote this row among them, has a row too.
	own := r.ledger(r.auth.own())
	profiles := map[Profile]bool{}
	for _, p := range []Profile{Supervisor, GoalWriter, Purger, Observer, Operator, Deliverer, Evictor} {
		req := Request{Profile: p}
		if slices.Contains(p.row().needs, fEpoch) {
			req.Scope.Epoch = 1
		}
		if id := r.mint(req).ID; own[id].CredentialID != "" {
			t.Errorf("%s had its row before it was made", p)
		} else if r.ledger(r.auth.own())[id].State != wire.CredentialActive {
			t.Errorf("%s has no row", p)
		}
		profiles[p] = true
	}
	if len(own) < 3 {
		t.Errorf("%d rows of executors and of set-up, want at least 3", len(own))
	}
}

func TestTheSameRequestTwiceIsTwoCredentialsOfOneKey(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	key, err := r.auth.NewKey()
	must(t, err)
	one := r.mint(Request{Profile: Agent, UID: uid, Key: key})
	r.clock.add(time.Second)
	two := r.mint(Request{Profile: Agent, UID: uid, Key: key})
	if one.ID == two.ID || one.Public != two.Public || one.Public != key.Public {
		t.Errorf("%v, %v", one, two)
	}
}

// proves: CRED-1
func TestFieldG17_ARequestThatItsProfileDoesNotTakeIsRefusedWithoutATrace(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	target := wire.Caller{Owner: "local", Actor: "x", UID: uid}
	before := len(r.ledger(r.auth.own()))
	for name, req := range map[string]Request{
		"no profile":                      {},
		"an unknown profile":              {Profile: "root"},
		"a mistyped profile":              {Profile: "Agent"},
		"an agent without a life":         {Profile: Agent},
		"an agent with a bad life":        {Profile: Agent, UID: "x.>"},
		"a life for the host":             {Profile: Purger, UID: uid},
		"a life that is too long":         {Profile: Purger, Life: 5*time.Minute + 1},
		"a negative life":                 {Profile: Purger, Life: -1},
		"a supervisor without epoch":      {Profile: Supervisor},
		"a purger with a target":          {Profile: Purger, Scope: Scope{Target: target}},
		"a provisioner without target":    {Profile: Provisioner},
		"a wildcard as the target":        {Profile: Provisioner, Scope: Scope{Target: wire.Caller{Owner: "local", Actor: "*", UID: uid}}},
		"a deprovisioner with a role":     {Profile: Deprovisioner, Scope: Scope{Target: target, Role: "r"}},
		"a role with a dot":               {Profile: Agent, UID: uid, Scope: Scope{Role: "a.b"}},
		"a role that is a wildcard":       {Profile: Agent, UID: uid, Scope: Scope{Role: ">"}},
		"a channel with a bad wildcard":   {Profile: Agent, UID: uid, Scope: Scope{Read: []string{"a.>.b"}}},
		"a channel with a space":          {Profile: Agent, UID: uid, Scope: Scope{Write: []string{"a b"}}},
		"a session id that is too short":  {Profile: Session, Scope: Scope{Epoch: 1, Session: "x"}},
		"a session id that is a wildcard": {Profile: Session, Scope: Scope{Epoch: 1, Session: "*"}},
		"no past session":                 {Profile: Farewell},
		"a past session without an epoch": {Profile: Farewell, Scope: Scope{Past: []PastSession{{ID: session}}}},
		"a past session of every id":      {Profile: Farewell, Scope: Scope{Past: []PastSession{{ID: session, Epoch: 1}, {ID: ">", Epoch: 1}}}},
		"an alias without a target":       {Profile: Executor, Scope: Scope{Alias: "a"}},
		"a seed that is not the key's":    {Profile: Purger, Key: Key{Public: revokedKey, Seed: []byte("SUAA")}},
		"set-up outside of With":          {Profile: SetUp},
	} {
		req.Record = func(context.Context, string, time.Time) error { t.Errorf("%s: recorded", name); return nil }
		_, err := r.auth.Mint(t.Context(), req)
		wantErr(t, name, err, ErrRefused)
	}
	var channels []string
	for i := range 400 {
		channels = append(channels, fmt.Sprintf("team.with.a.long.name.%d", i))
	}
	_, err := r.auth.Mint(t.Context(), Request{Profile: Agent, UID: uid, Scope: Scope{Read: channels}})
	wantErr(t, "too many channels", err, ErrTooLarge)
	// The two looks at the ledger have an executor's row each.
	if after := len(r.ledger(r.auth.own())); after != before+1 {
		t.Errorf("%d rows before, %d after", before, after)
	}
	if n := len(r.ledger(Life{UID: uid})); n != 0 {
		t.Errorf("%d rows of the life", n)
	}
}

// The largest that are made in practice fit the gate (mint refuses what does not), and the control line of the broker.
func TestTheLargestCredentialsFitTheGateAndTheBroker(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	var channels []string
	for i := range 12 {
		channels = append(channels, fmt.Sprintf("team.area-%d.>", i))
	}
	for _, req := range []Request{
		{Profile: Supervisor, Scope: Scope{Epoch: wire.MaxInteger}},
		{Profile: Agent, UID: uid, Scope: Scope{Read: channels, Write: channels, Role: "reviewer", Spawn: true}},
		{Profile: Operator},
		{Profile: Executor, Scope: Scope{Target: wire.Caller{Owner: "local", Actor: strings.Repeat("A", 56), UID: uid}, Alias: "reviewer", OpID: wire.NewUID()}},
	} {
		c := r.mint(req)
		t.Logf("%s: %d bytes", c.Profile, len(c.token))
		r.dial(c).take(t)
	}
}

// A renewal that is in flight when its life is retired brings no credential back.
func TestNothingIsReleasedUnderAGateThatIsNotOpen(t *testing.T) {
	r := newRig(t)
	op := &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpRetirement}
	for name, gate := range map[string]wire.Gate{
		"frozen":  {State: wire.GateFrozen, Generation: 1, Op: op},
		"retired": {State: wire.GateRetired, Generation: 1, Op: op},
	} {
		uid := r.activate()
		gate.LifecycleUID = uid
		r.setGate(gate)
		_, err := r.auth.Mint(t.Context(), Request{Profile: Agent, UID: uid})
		wantErr(t, name, err, ErrGate)
		if got := errors.Is(err, ErrRetired); got != (name == "retired") {
			t.Errorf("%s: %v", name, err)
		}
		if n := len(r.ledger(Life{UID: uid})); n != 0 {
			t.Errorf("%s: %d rows", name, n)
		}
	}
	_, err := r.auth.Mint(t.Context(), Request{Profile: Agent, UID: wire.NewUID()})
	wantErr(t, "a life that was never activated", err, ErrGate)
}

// Between the row and the gate a barrier may come: it wins, and the row says that nothing was released.
func TestFieldG6_ABarrierThatComesWhileTheRowIsWrittenWins(t *testing.T) {
	defer failpoint.Disarm()
	r := newRig(t)
	for name, after := range map[string]wire.Gate{
		"frozen":             {State: wire.GateFrozen, Generation: 1, Op: &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpRetirement}},
		"frozen and open":    {State: wire.GateOpen, Generation: 2},
		"open, and no other": {State: wire.GateOpen, Generation: 1},
	} {
		uid := r.activate()
		after.LifecycleUID = uid
		file := t.TempDir() + "/go"
		done := make(chan error, 1)
		// The executor's own row passes the same place first.
		must(t, failpoint.Arm("host.mint.ledgered=1*off->1*pause("+file+")"))
		go func() {
			_, err := r.auth.Mint(t.Context(), Request{Profile: Agent, UID: uid})
			done <- err
		}()
		waitFor(t, file+".reached")
		failpoint.Disarm()
		r.setGate(after)
		touch(t, file)
		err := <-done
		rows := r.ledger(Life{UID: uid})
		if len(rows) != 1 {
			t.Fatalf("%s: rows %+v", name, rows)
		}
		for _, row := range rows {
			switch {
			case name == "open, and no other" && (err != nil || row.State != wire.CredentialActive):
				t.Errorf("%s: %v, row %s; nothing about the gate had changed", name, err, row.State)
			case name != "open, and no other" && (!errors.Is(err, ErrGate) || row.State != wire.CredentialRevoked):
				t.Errorf("%s: %v, row %s; want %v and a revoked row", name, err, row.State, ErrGate)
			}
		}
	}
}

func TestManyMintsUnderOneGateAtOnceAllSucceed(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := r.auth.Mint(t.Context(), Request{Profile: Agent, UID: uid}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(r.ledger(Life{UID: uid})); n != 20 {
		t.Errorf("%d rows, want 20", n)
	}
	if n := len(r.auth.turns.gate); n != 0 {
		t.Errorf("%d gates are remembered", n)
	}
}

// proves: START-26, CRED-2
func TestAOneShotConnectionIsGoneWhateverItsStepDid(t *testing.T) {
	r := newRig(t)
	target := wire.Caller{Owner: "local", Actor: "x", UID: wire.NewUID()}
	boom := errors.New("boom")
	for _, want := range []error{nil, boom} {
		err := r.auth.With(t.Context(), Request{Profile: Provisioner, Scope: Scope{Target: target}}, func(context.Context, *bus.Bus) error { return want })
		if !errors.Is(err, want) {
			t.Error(err)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = r.auth.With(t.Context(), Request{Profile: Purger}, func(context.Context, *bus.Bus) error { panic("boom") })
	}()
	for begin := time.Now(); r.br.Clients() != 0; {
		if busy.Over(begin, 5*time.Second) {
			t.Fatalf("%d connections are left", r.br.Clients())
		}
		time.Sleep(time.Millisecond) // the server counts a connection for a moment after its end
	}
}

// proves: CRED-19
func TestACredentialShowsItsSecretToNobody(t *testing.T) {
	r := newRig(t)
	c := r.mint(Request{Profile: Purger})
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%v", c), c.String()} {
		if strings.Contains(text, string(c.seed)) || strings.Contains(text, c.token) {
			t.Errorf("%q", text)
		}
	}
	file, err := c.File()
	must(t, err)
	if tok, err := jwt.ParseDecoratedJWT(file); err != nil || tok != c.token {
		t.Errorf("file: %v", err)
	}
}

func TestFieldG5_AnExpiredCredentialIsNotShownToTheBroker(t *testing.T) {
	r := newRig(t)
	c := r.mint(Request{Profile: Purger})
	r.clock.add(5*time.Minute + time.Second)
	if _, err := c.Token(); !errors.Is(err, ErrExpired) {
		t.Errorf("token: %v", err)
	}
	if _, err := dialAs(r.br.URL(), c); !errors.Is(err, ErrExpired) {
		t.Errorf("dial: %v", err)
	}
}
