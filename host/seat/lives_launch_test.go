package seat_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// What a seat may is what was said of it, and where nothing was said what a seat may by default; its credential and what
// its program is told are the same.
//
// proves: PERS-5
func TestWhatASeatMayIsWhatWasSaid(t *testing.T) {
	w := newWorld(t)
	w.authenticate()
	for _, c := range []struct {
		what          string
		change        func(*wire.SpawnArgs)
		reads, writes []string
	}{
		{"nothing said", func(*wire.SpawnArgs) {}, []string{"general"}, nil},
		{"a role that is no word, to which no task can be sent", func(a *wire.SpawnArgs) { a.Role = "a plain shell" }, []string{"general"}, nil},
		{"channels to read at boot", func(a *wire.SpawnArgs) { a.Subscribe = []string{"team"} }, []string{"team"}, nil},
		{"channels of all kinds", func(a *wire.SpawnArgs) {
			a.Subscribe, a.AllowSubscribe, a.AllowPublish = []string{"team.a"}, []string{"team.>"}, []string{"team.a", "news"}
		}, []string{"team.>"}, []string{"team.a", "news"}},
	} {
		args := w.args("worker", `[{"hang": true}]`)
		c.change(&args)
		id := wire.NewID()
		acc, err := w.spawn(id, args)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if r := w.terminal(id); r.State != wire.GoalSucceeded {
			t.Fatalf("%s: %s %+v", c.what, r.State, r.Error)
		}
		raw, err := os.ReadFile(filepath.Join(w.seatRoot, w.row("worker").SeatID, "launch", "material.json"))
		if err != nil {
			t.Fatal(err)
		}
		mat, err := wire.DecodeLaunchMaterial(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(mat.Seat.AllowSubscribe, " "), strings.Join(c.reads, " "); got != want {
			t.Errorf("%s: the program is told that it may read %q, want %q", c.what, got, want)
		}
		file, err := os.ReadFile(mat.Creds)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.ParseDecoratedJWT(file)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := jwt.DecodeUserClaims(token)
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range c.reads {
			if !claims.Sub.Allow.Contains("cotal.main.chat.*.*." + ch) {
				t.Errorf("%s: it may not read %s", c.what, ch)
			}
		}
		for _, ch := range c.writes {
			if !claims.Pub.Allow.Contains("cotal.main.chat." + acc.Owner + "." + acc.Actor + "." + ch) {
				t.Errorf("%s: it may not post to %s", c.what, ch)
			}
		}
		if c.writes == nil {
			for _, s := range claims.Pub.Allow {
				if strings.HasPrefix(s, "cotal.main.chat.") {
					t.Errorf("%s: it may post: %s", c.what, s)
				}
			}
		}
		if _, err := w.stop(acc, false); err != nil {
			t.Fatal(err)
		}
	}
}

// More channels than a credential holds: refused before there is anything.
func TestALifeThatCannotBeHadIsRefusedBeforeItBegins(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	args := w.args("worker", `[{"hang": true}]`)
	for i := range 250 {
		args.AllowSubscribe = append(args.AllowSubscribe, "a.channel.with.a.name.of.some.length."+string(rune('a'+i%26))+strings.Repeat("x", i/26+1))
	}
	_, err := w.spawn(wire.NewID(), args)
	if e := wire.ErrorFrom(err); e == nil || e.Code != wire.CodeFailedPrecondition || e.Outcome != wire.OutcomeNotExecuted || !strings.Contains(e.Message, "too large") {
		t.Errorf("more channels than a credential holds: %v", err)
	}
	rows, err := m.live.Rows(t.Context())
	if err != nil || len(rows) != 0 {
		t.Errorf("slots: %+v, %v", rows, err)
	}
}

// A seat that is stopped before it runs, at any step of its life.
func TestAStopOfALaunchLeavesNothingOnTheMesh(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	t.Cleanup(failpoint.Disarm)
	for _, fp := range []string{"host.provision.slot", "host.provision.activated", "host.provision.minted", "host.provision.active"} {
		id, acc, gate := w.heldAt(fp, "worker")
		s := m.slot("worker")
		stopped := make(chan error, 1)
		go func() { _, err := w.stop(acc, false); stopped <- err }()
		w.awaitStatus("worker", "stopping")
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-stopped; err != nil {
			t.Errorf("%s: stop: %v", fp, err)
		}
		if r := w.terminal(id); r.State != wire.GoalCancelled {
			t.Errorf("%s: the goal ended %s: %+v", fp, r.State, r.Error)
		}
		m.nothingLeft(fp, s)
	}
}

// A broker that goes away in the middle of a launch: nothing of the launch is executed, which its goal says; what it had
// on the mesh is taken away when the broker is back.
func TestALaunchWhoseBrokerGoesAwayIsUndoneOnceItIsBack(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	t.Cleanup(failpoint.Disarm)
	gate := filepath.Join(w.dir, "go")
	if err := failpoint.Arm("host.provision.minted=pause(" + gate + ");host.provision.filed=1*error(no room)"); err != nil {
		t.Fatal(err)
	}
	id := wire.NewID()
	if _, err := w.spawn(id, w.args("worker", `[{"hang": true}]`)); err != nil {
		t.Fatal(err)
	}
	w.eventually("a credential is minted", func() (bool, string) { _, err := os.Stat(gate + ".reached"); return err == nil, "" })
	s := m.slot("worker")
	m.br.Shutdown()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := w.terminal(id); r.State != wire.GoalFailed || r.Error.Outcome != wire.OutcomeNotExecuted || !strings.Contains(r.Error.Message, "no room") {
		t.Errorf("the goal ended %s: %+v", r.State, r.Error)
	}
	row := w.awaitStatus("worker", "exited")
	w.eventually("ps says why the name is held", func() (bool, string) {
		row = w.row("worker")
		return strings.Contains(row.Reason, "its name is held"), row.Reason
	})
	if _, err := w.spawn(wire.NewID(), w.args("worker", `[{"hang": true}]`)); err == nil {
		t.Error("its name is free")
	}
	var err error
	if m.br, err = broker.Start(t.Context(), m.cfg); err != nil {
		t.Fatal(err)
	}
	w.eventually("the name is free", func() (bool, string) { r := w.row("worker"); return r.Reason == "", r.Reason })
	m.nothingLeft("a launch without broker", s)
	w.run("worker", `[{"hang": true}]`)
}
