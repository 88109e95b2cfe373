package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestGateMoves(t *testing.T) {
	type move struct{ from, to, kind string }
	agent := map[move]bool{
		{"", GateFrozen, OpActivation}:          true,
		{GateOpen, GateFrozen, OpTakeover}:      true,
		{GateOpen, GateFrozen, OpRegistration}:  true,
		{GateOpen, GateFrozen, OpRetirement}:    true,
		{GateFrozen, GateOpen, OpActivation}:    true,
		{GateFrozen, GateOpen, OpTakeover}:      true,
		{GateFrozen, GateOpen, OpRegistration}:  true,
		{GateFrozen, GateRetired, OpActivation}: true,
		{GateFrozen, GateRetired, OpRetirement}: true,
	}
	for _, from := range append([]string{""}, gateStates...) {
		for _, to := range append([]string{""}, gateStates...) {
			for _, kind := range append([]string{""}, gateOps...) {
				want := agent[move{from, to, kind}]
				if got := GateMove(false, from, to, kind); got != want {
					t.Errorf("a life's gate from %q to %q by %q: %v", from, to, kind, got)
				}
				switch (move{from, to, kind}) {
				case move{"", GateFrozen, OpActivation}:
					want = false
				case move{"", GateOpen, OpRegistration}:
					want = true // the first registration of an instance
				}
				if got := GateMove(true, from, to, kind); got != want {
					t.Errorf("an endpoint's gate from %q to %q by %q: %v", from, to, kind, got)
				}
			}
		}
	}
}

func TestGatesInImpossibleStatesAreRefused(t *testing.T) {
	row := func(state, op string) string {
		s := `{"lifecycleUid":"` + testUID + `","state":"` + state + `","generation":1`
		if op != "" {
			s += `,"op":` + op
		}
		return s + "}"
	}
	op := func(kind, more string) string { return `{"opId":"` + testUID2 + `","kind":"` + kind + `"` + more + `}` }
	for _, c := range []struct {
		name, text string
		ok         bool
	}{
		{"open and free", row(GateOpen, ""), true},
		{"open and held", row(GateOpen, op(OpTakeover, "")), false},
		{"frozen by nobody", row(GateFrozen, ""), false},
		{"frozen by a takeover with a successor", row(GateFrozen, op(OpTakeover, `,"successor":"x"`)), true},
		{"frozen by an activation with a successor", row(GateFrozen, op(OpActivation, `,"successor":"x"`)), false},
		{"frozen by a retirement with an empty successor", row(GateFrozen, op(OpRetirement, `,"successor":""`)), false},
		{"retired by a retirement", row(GateRetired, op(OpRetirement, "")), true},
		{"retired by the loser of an activation", row(GateRetired, op(OpActivation, "")), true},
		{"retired by a takeover", row(GateRetired, op(OpTakeover, "")), false},
		{"retired by a registration", row(GateRetired, op(OpRegistration, "")), false},
		{"retired without saying by what", row(GateRetired, ""), false},
		{"held by an operation nobody knows", row(GateFrozen, op("repair", "")), false},
		{"held under an id that is none", row(GateFrozen, `{"opId":"x","kind":"takeover"}`), false},
		{"in a state nobody knows", row("ajar", ""), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := DecodeGate(testUID, []byte(c.text))
			if (err == nil) != c.ok {
				t.Fatalf("%+v, %v", g, err)
			}
		})
	}
}

func TestOnlyAnActiveHeadIsCurrent(t *testing.T) {
	for state, want := range map[string]bool{LifeActive: true, LifeRetiring: false, LifeRetired: false} {
		if (LifecycleHead{State: state}).Current() != want {
			t.Error(state)
		}
	}
	h := LifecycleHead{Owner: "local", Actor: "bob", LifecycleUID: testUID, ManagerInstance: testInst, ProcessEpoch: 1, State: LifeActive}
	if _, err := h.Encode(); err != nil {
		t.Error(err)
	}
	for name, f := range map[string]func(*LifecycleHead){
		"an active head that is held":        func(h *LifecycleHead) { h.Op = &GateOp{OpID: testUID2, Kind: OpRetirement} },
		"a retiring head held by nobody":     func(h *LifecycleHead) { h.State = LifeRetiring },
		"a retiring head held by a takeover": func(h *LifecycleHead) { h.State, h.Op = LifeRetiring, &GateOp{OpID: testUID2, Kind: OpTakeover} },
		"a head in epoch 0":                  func(h *LifecycleHead) { h.ProcessEpoch = 0 },
		"a retired head that is held":        func(h *LifecycleHead) { h.State, h.Op = LifeRetired, &GateOp{OpID: testUID2, Kind: OpRetirement} },
	} {
		bad := h
		f(&bad)
		if p, err := bad.Encode(); err == nil {
			t.Errorf("%s: %s", name, p)
		}
	}
}

func TestCredentialRowsKnowTheirFamily(t *testing.T) {
	row := CredentialRow{CredentialID: "c1", HolderPrincipal: testPrincipal, LifecycleUID: testUID, SourceChain: []string{SourceRoot}, State: CredentialActive}
	if k := row.Key(); k.Kind != KindCredential || k.Qualifiers[0] != testUID {
		t.Errorf("%+v", k)
	}
	p, err := row.Encode()
	if err != nil {
		t.Fatal(err)
	}
	row.Endpoint = "manager"
	if k := row.Key(); k.Kind != KindEndpointCred {
		t.Errorf("%+v", k)
	}
	if r, err := DecodeCredentialRow(row.Key(), p); err == nil {
		t.Errorf("an agent's row is taken under an endpoint's key: %+v", r)
	}
	row.SourceChain = nil
	if p, err := row.Encode(); err == nil {
		t.Errorf("a row without lineage: %s", p)
	}
}

func TestRepairCursors(t *testing.T) {
	c := RepairCursor{OpID: testUID2, FreezeToken: 4, Holders: []string{"local.a", "local.b"}, Verified: []string{"local.a"}}
	p, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeRepairCursor(p)
	if err != nil || !back.Continues(testUID2, 4, c.Holders) {
		t.Fatalf("%+v, %v", back, err)
	}
	if back.Continues(testUID, 4, c.Holders) || back.Continues(testUID2, 5, c.Holders) || back.Continues(testUID2, 4, c.Holders[:1]) {
		t.Error("a cursor counts for another repair")
	}
	for name, f := range map[string]func(*RepairCursor){
		"unsorted holders":               func(c *RepairCursor) { c.Holders = []string{"local.b", "local.a"} },
		"a holder twice":                 func(c *RepairCursor) { c.Holders = []string{"local.a", "local.a"} },
		"a verified holder that is none": func(c *RepairCursor) { c.Verified = []string{"local.z"} },
		"a freeze that never was":        func(c *RepairCursor) { c.FreezeToken = 0 },
	} {
		bad := c
		f(&bad)
		if p, err := bad.Encode(); err == nil {
			t.Errorf("%s: %s", name, p)
		}
	}
}

func TestServiceRecords(t *testing.T) {
	t.Run("a status keeps what it does not know", func(t *testing.T) {
		in := `{"epoch":7,"state":"ready","observedSpecRevision":3,"connectors":[{"agent":"claude"}],"zeal":1}`
		s, err := DecodeServiceStatus([]byte(in))
		if err != nil || len(s.More) != 2 {
			t.Fatalf("%+v, %v", s, err)
		}
		s.State = ServiceDegraded
		s.More["epoch"] = json.RawMessage("99") // a name of its own wins
		p, err := s.Encode()
		if err != nil || !strings.Contains(string(p), `"zeal":1`) || strings.Contains(string(p), "99") {
			t.Fatalf("%s, %v", p, err)
		}
	})
	t.Run("an epoch dies once", func(t *testing.T) {
		s := ServiceStatus{Epoch: 7, State: ServiceReady, Restarts: []ServiceRestart{{1, 5}, {2, 5}}}
		if p, err := s.Encode(); err == nil {
			t.Fatalf("%s", p)
		}
	})
	t.Run("only an escalated instance is retired", func(t *testing.T) {
		s := ServiceStatus{Epoch: 7, State: ServiceReady, RetiredAt: 5}
		if p, err := s.Encode(); err == nil {
			t.Fatalf("%s", p)
		}
	})
	t.Run("a spec of a later protocol is not understood", func(t *testing.T) {
		_, err := DecodeServiceSpec(ServiceKey("manager", testInst), []byte(`{"endpoint":"manager","owner":"local","clusterDigests":["`+testDigestA+`"],"protocol":{"v":2}}`))
		if e := ErrorFrom(err); e == nil || e.Code != CodeUnsupportedVersion {
			t.Fatalf("%v", err)
		}
	})
	t.Run("a spec that serves nothing is refused", func(t *testing.T) {
		if p, err := (ServiceSpec{Endpoint: "manager", Owner: "local", ClusterDigests: []string{}, Protocol: Protocol{1}}).Encode(); err == nil {
			t.Fatalf("%s", p)
		}
	})
	for _, c := range []struct {
		spec, observed uint64
		want           Freshness
	}{{5, 5, StatusCurrent}, {5, 4, StatusStale}, {4, 5, SpecStale}} {
		if got := CompareRevisions(c.spec, c.observed); got != c.want {
			t.Errorf("%d, %d: %d", c.spec, c.observed, got)
		}
	}
	for _, c := range []struct {
		name string
		st   ServiceStatus
		want bool
	}{
		{"a ready instance is expected to answer", ServiceStatus{State: ServiceReady, Epoch: 7, ObservedSpecRevision: 5}, true},
		{"one whose status lags is not", ServiceStatus{State: ServiceReady, ObservedSpecRevision: 4}, false},
		{"an ended one is not", ServiceStatus{State: ServiceExited, ObservedSpecRevision: 5}, false},
		{"an escalated one is not", ServiceStatus{State: ServiceEscalated, ObservedSpecRevision: 5}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, ok := ScatterEntry(testInst, 5, c.st)
			if ok != c.want || ok && e != (ExpectedReply{testInst, 5, 7}) {
				t.Fatalf("%+v, %v", e, ok)
			}
		})
	}
}
