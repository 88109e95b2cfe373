package seat

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The whole decision on a name.
//
// proves: NAME-1, NAME-2, NAME-4, NAME-5, NAME-6, NAME-7, NAME-8, NAME-9
func TestChooseName(t *testing.T) {
	running := claim{kind: claimSeat, who: "running"}
	elsewhere := claim{kind: claimElsewhere, who: "alice.x"}
	cases := []struct {
		name   string
		base   string
		pinned bool
		issued []string
		held   map[string]claim
		want   string
		err    string
	}{
		{"the first holder gets the bare name", "socrates", false, nil, nil, "socrates", ""},
		{"a collision with a seat of this host is numbered", "socrates", false, nil, map[string]claim{"socrates": running}, "socrates_2", ""},
		{"a collision with somebody on the mesh is numbered", "socrates", false, nil, map[string]claim{"socrates": elsewhere}, "socrates_2", ""},
		{"a number that somebody on the mesh has is passed over", "socrates", false, nil, map[string]claim{"socrates": running, "socrates_2": elsewhere}, "socrates_3", ""},
		{"a number that was issued is never issued again", "socrates", false, []string{"socrates_2"}, map[string]claim{"socrates": running}, "socrates_3", ""},
		{"a base name is reusable for ever, also where a number once made the same text", "socrates_2", false, []string{"socrates_2"}, nil, "socrates_2", ""},
		{"a pinned name that is free is given", "socrates", true, nil, nil, "socrates", ""},
		{"a pinned name that a seat has is refused", "socrates", true, nil, map[string]claim{"socrates": running}, "", "is held by a seat that is running"},
		{"a pinned name that somebody on the mesh has is refused, under whatever manager", "socrates", true, nil, map[string]claim{"socrates": elsewhere}, "", "in use on the mesh by alice.x"},
		{"a name whose holder is being removed is refused and not numbered, with the last error", "socrates", false, nil, map[string]claim{"socrates": {kind: claimRetiring, who: "exited", cause: "disk full"}}, "", "is being removed (disk full); try again"},
		{"a name of a spawn that is being undone is refused and not numbered", "socrates", false, nil, map[string]claim{"socrates": {kind: claimReconciling, who: "unknown"}}, "", "was interrupted and is being undone; try again"},
		{"a number whose holder is being removed is passed over", "socrates", false, nil, map[string]claim{"socrates": running, "socrates_2": {kind: claimRetiring}}, "socrates_3", ""},
		{"the reserved prefix is refused for a persona", "chat_x", false, nil, nil, "", "reserved"},
		{"and for a pin", "chat_x", true, nil, nil, "", "reserved"},
		{"and for what numbering makes of it", "chat_x", false, nil, map[string]claim{"chat_x": running}, "", "reserved"},
		{"no name", "", false, nil, nil, "", "name"},
		{"a name with a space", "a b", false, nil, nil, "", "name"},
		{"a path", "../x", false, nil, nil, "", "name"},
		{"a slash", "a/b", false, nil, nil, "", "name"},
		{"a dot", "a.b", false, nil, nil, "", "name"},
		{"a letter beyond ASCII", "é", false, nil, nil, "", "name"},
		{"a name that is too long", strings.Repeat("x", 129), false, nil, nil, "", "name"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := chooseName(c.base, c.pinned, func(n string) bool { return slices.Contains(c.issued, n) }, func(n string) claim { return c.held[n] })
			if got != c.want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %q, %v; want %q, %q", got, err, c.want, c.err)
			}
		})
	}
}

// Numbers are remembered over the ends of their holders, and given back only when nobody was told of them.
//
// proves: NAME-4
func TestANumberIsIssuedOnce(t *testing.T) {
	var n names
	held := func(name string) claim {
		if name == "parrot" {
			return claim{kind: claimSeat, who: "running"}
		}
		return claim{}
	}
	for i, step := range []struct {
		told bool
		want string
	}{{false, "parrot_2"}, {false, "parrot_2"}, {true, "parrot_2"}, {true, "parrot_3"}, {true, "parrot_4"}} {
		got, err := n.allocate("parrot", false, held)
		if err != nil || got != step.want {
			t.Errorf("spawn %d: %q, %v; want %q", i, got, err, step.want)
		}
		if !step.told {
			n.giveBack(got)
		}
	}
}

// Who of the mesh has a name.
//
// proves: NAME-2, NAME-3
func TestNamesOnTheMesh(t *testing.T) {
	row := func(name, id, uid, status string) wire.Presence {
		return wire.Presence{Card: wire.AgentCard{ID: id, Name: name}, LifecycleUID: uid, Status: status, TS: 1}
	}
	gone := life{"ada", "local.a", "u1"}
	cases := []struct {
		name  string
		state string
		row   wire.Presence
		held  bool
	}{
		{"an agent that is there has its name", ViewCurrent, row("ada", "local.b", "u2", wire.StatusIdle), true},
		{"one that works, too", ViewCurrent, row("ada", "local.b", "u2", wire.StatusWorking), true},
		{"one that said good-bye has not", ViewCurrent, row("ada", "local.b", "u2", wire.StatusOffline), false},
		{"one of a view that is stale has, as far as is known", ViewStale, row("ada", "local.b", "u2", wire.StatusIdle), true},
		{"the life that this host retired has not", ViewCurrent, row("ada", "local.a", "u1", wire.StatusIdle), false},
		{"another life of its principal has", ViewCurrent, row("ada", "local.a", "u2", wire.StatusIdle), true},
		{"its life under another principal has", ViewCurrent, row("ada", "local.b", "u1", wire.StatusIdle), true},
		{"its life under another alias has", ViewCurrent, row("eve", "local.a", "u1", wire.StatusIdle), true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			held := onMesh(View{Rows: []wire.Presence{c.row}, State: c.state}, func(l life) bool { return l == gone })
			if got := held[c.row.Card.Name].kind == claimElsewhere; got != c.held {
				t.Errorf("%+v", held)
			}
		})
	}
}

// How a seat of this host holds its name.
//
// proves: NAME-6, NAME-7
func TestClaimOfASeat(t *testing.T) {
	started := journal.SeatRow{Started: time.Unix(1, 0)}
	for name, c := range map[string]struct {
		state State
		row   journal.SeatRow
		want  claimKind
	}{
		"one that starts": {Starting, journal.SeatRow{}, claimSeat},
		"one that runs":   {Running, started, claimSeat},
		"one without a verdict lives, as far as is known": {Unknown, started, claimSeat},
		"one that is being stopped":                       {Stopping, started, claimRetiring},
		"one whose rest is being removed":                 {Exited, started, claimRetiring},
		"one that never ran and cannot be undone":         {Unknown, journal.SeatRow{}, claimReconciling},
	} {
		if got := claimOf(&Snapshot{State: c.state, Row: c.row}); got.kind != c.want {
			t.Errorf("%s: %s, want %s", name, got.kind, c.want)
		}
	}
}

// What is remembered of retired lives does not grow.
func TestRetiredLivesAreBounded(t *testing.T) {
	var r retired
	for i := range 3 * keepRetired {
		r.add(life{uid: fmt.Sprint(i)})
	}
	if len(r.lives) != keepRetired || len(r.order) != keepRetired || !r.lives[life{uid: fmt.Sprint(3*keepRetired - 1)}] || r.lives[life{uid: "0"}] {
		t.Errorf("%d lives, %d in order", len(r.lives), len(r.order))
	}
}

// proves: CAP-1, CAP-2, CAP-3, CAP-4
func TestCapacityCountsEachSeatOnce(t *testing.T) {
	now := time.Unix(1000, 0)
	c := capacity{max: 2, cool: 10 * time.Second}
	none := func() map[string]int { return map[string]int{"running": 1, "stopping": 1} }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.reserve(now, none))
	c.promote()
	must(c.reserve(now, none))
	err := c.reserve(now, none)
	if err == nil || !strings.Contains(err.Error(), "all 2 seats are taken: 1 running, 1 stopping; stop a seat") {
		t.Fatalf("the refusal must carry the counts, got %v", err)
	}
	c.release()
	must(c.reserve(now, none))
	c.release() // a failed launch leaves no cooling slot
	if len(c.cooling) != 0 {
		t.Fatal("a failure before the seat was live left a cooling slot")
	}
	c.free(now, now.Add(time.Second), causeProcessExit)
	must(c.reserve(now.Add(time.Second), none))
	if err := c.reserve(now.Add(time.Second), none); err == nil || !strings.Contains(err.Error(), "1 cooling after a short life (the first place is free in 9s)") {
		t.Fatalf("a seat that ended young by itself must count until it cooled, and say when that is: %v", err)
	}
	must(c.reserve(now.Add(10*time.Second), none))
	c.release()
	c.release()
}

// Which ends leave a place to cool.
//
// proves: CAP-2
func TestWhatCools(t *testing.T) {
	start := time.Unix(1000, 0)
	young, old := start.Add(9*time.Second), start.Add(10*time.Second)
	cases := []struct {
		name  string
		cool  time.Duration
		cause string
		now   time.Time
		want  int
	}{
		{"an end by itself, young", 10 * time.Second, causeProcessExit, young, 1},
		{"an end by itself, old", 10 * time.Second, causeProcessExit, old, 0},
		{"a crash once too often", 10 * time.Second, causeCrashLoop, young, 1},
		{"a stop by the agent itself", 10 * time.Second, causeSelf, young, 1},
		{"a stop of a child by its parent", 10 * time.Second, causeParent, young, 1},
		{"a stop by an operator", 10 * time.Second, causeRequested, young, 0},
		{"a stop with the host", 10 * time.Second, causeShutdown, young, 0},
		{"an end together with its parent", 10 * time.Second, causeReap, young, 0},
		{"where nothing cools", 0, causeProcessExit, young, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k := capacity{max: 2, cool: c.cool, live: 1}
			k.free(start, c.now, c.cause)
			if len(k.cooling) != c.want || k.live != 0 {
				t.Errorf("%+v", k)
			}
		})
	}
}
