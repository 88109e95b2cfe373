package lease

import (
	"errors"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	instance   = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	claimMine  = "mmmmmmmmmmmmmmmmmmmmmmmmmm"
	claimOther = "oooooooooooooooooooooooooo"
)

var mine = wire.ManagerLease{
	Holder: "local.manager_" + instance, InstanceID: instance, Runtime: "pty", Root: "/work", PID: 7, Since: 1, Claim: claimMine, Epoch: 4,
	StartTicks: 11, BootID: "boot", PIDSpace: "pid:[1]",
}

func other(change func(*wire.ManagerLease)) wire.ManagerLease {
	row := mine
	row.Claim, row.PID, row.Root, row.StartTicks = claimOther, 8, "/copy", 12
	if change != nil {
		change(&row)
	}
	return row
}

// proves: LEASE-6, LEASE-1
func TestVerdicts(t *testing.T) {
	at := func(row wire.ManagerLease) Sight { return Sight{Row: row, Rev: 5} }
	for _, c := range []struct {
		name    string
		seen    Sight
		process seat.Liveness
		want    Verdict
	}{
		{"a row with our claim is ours, at whatever revision", at(mine), seat.Unknown, HeldUnrenewed},
		{"a row that is not there is gone, and proves nothing else", Sight{}, seat.Unknown, Gone},
		{"a store that does not answer says nothing", Sight{Err: bus.ErrUnavailable}, seat.Unknown, Unreadable},
		{"a row that is no lease says nothing", Sight{Rev: 5, Err: errors.New("the row is not a lease")}, seat.Unknown, Unreadable},
		{"a row of another process that lives has replaced us", at(other(nil)), seat.Alive, Replaced},
		{"a row of another process of which nothing is known has replaced us", at(other(nil)), seat.Unknown, Replaced},
		{"a row of a process that is proved dead holds nothing", at(other(nil)), seat.Dead, Gone},
		{"a dead process of an earlier epoch wrote late", at(other(func(r *wire.ManagerLease) { r.Epoch = 3 })), seat.Dead, Gone},
		{"a dead process of a later epoch has been there: ours is over", at(other(func(r *wire.ManagerLease) { r.Epoch = 5 })), seat.Dead, Replaced},
		{"our number and another claim is another process", at(other(func(r *wire.ManagerLease) { r.PID = mine.PID })), seat.Unknown, Replaced},
		{"our number and no claim is another process", at(other(func(r *wire.ManagerLease) { *r = mine; r.Claim = "" })), seat.Unknown, Replaced},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := judge(c.seen, mine, c.process); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	self := mine
	self.Claim = ""
	if s := at(self); s.ours(self) {
		t.Error("two empty claims are equal")
	}
}

// proves: LEASE-11
func TestWhatAProcessDoesThatComesToALease(t *testing.T) {
	at := func(row wire.ManagerLease) Sight { return Sight{Row: row, Rev: 5} }
	garbled := Sight{Rev: 5, Err: errors.New("the row is not a lease")}
	sameRoot := other(func(r *wire.ManagerLease) { r.Root = mine.Root })
	for _, c := range []struct {
		name string
		f    found
		want step
	}{
		{"nobody holds it", found{}, stepTake},
		{"the answer to our own write was lost", found{seen: at(mine)}, stepTake},
		{"the store does not answer", found{seen: Sight{Err: bus.ErrUnavailable}}, stepFail},
		{"its process is proved dead", found{seen: at(other(nil)), process: seat.Dead}, stepTake},
		{"its process is proved dead, and it was written late", found{seen: at(other(nil)), process: seat.Dead, moved: true}, stepTake},
		{"its process lives in another workspace", found{seen: at(other(nil)), process: seat.Alive}, stepRefuse},
		{"its process lives in another workspace, and has not renewed for a whole TTL", found{seen: at(other(nil)), process: seat.Alive, aged: true}, stepRefuse},
		{"its process had this workspace and has let go of its lock: it is on its way out", found{seen: at(sameRoot), process: seat.Alive}, stepWait},
		{"it is on its way out for a whole TTL", found{seen: at(sameRoot), process: seat.Alive, aged: true}, stepTake},
		{"it had this workspace, and renews", found{seen: at(sameRoot), process: seat.Alive, moved: true}, stepRefuse},
		{"its process may live on another machine", found{seen: at(other(nil))}, stepWait},
		{"its process may live on another machine, and renews", found{seen: at(other(nil)), moved: true}, stepRefuse},
		{"its process may live on another machine, and has not renewed for a whole TTL", found{seen: at(other(nil)), aged: true}, stepTake},
		{"the row is no lease", found{seen: garbled}, stepWait},
		{"the row is no lease, and is written again and again", found{seen: garbled, moved: true}, stepRefuse},
		{"the row is no lease, and nobody wrote it for a whole TTL", found{seen: garbled, aged: true}, stepTake},
		{"nobody holds it as far as one can tell: its bucket was lost", found{remade: true}, stepWait},
		{"its bucket was lost a whole TTL ago", found{remade: true, aged: true}, stepTake},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := approach(c.f, mine); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestWhichProcessesCanBeProvedDead(t *testing.T) {
	self, err := Self(wire.ManagerLease{Holder: "local.x", InstanceID: instance, Runtime: "pty", Root: "/work"})
	if err != nil {
		t.Fatal(err)
	}
	if self.StartTicks == 0 {
		t.Skip("this system does not tell exact process identities")
	}
	for _, c := range []struct {
		name   string
		change func(*wire.ManagerLease)
		want   seat.Liveness
	}{
		{"this one lives", func(*wire.ManagerLease) {}, seat.Alive},
		{"one whose number was given to another is dead", func(r *wire.ManagerLease) { r.StartTicks++ }, seat.Dead},
		{"one of another boot may be of another machine", func(r *wire.ManagerLease) { r.StartTicks++; r.BootID = "another" }, seat.Unknown},
		{"one of another container has numbers of its own", func(r *wire.ManagerLease) { r.StartTicks++; r.PIDSpace = "pid:[2]" }, seat.Unknown},
		{"one that does not say where its number counts", func(r *wire.ManagerLease) { r.StartTicks++; r.PIDSpace = "" }, seat.Unknown},
		{"one that says its number alone", func(r *wire.ManagerLease) { r.StartTicks = 0 }, seat.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			row := self
			c.change(&row)
			if got := process(row, self); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A lease that may be over counts as over: by the clock that stands still while the machine sleeps, and by the one
// that people set.
func TestTimeIsWhatPassedByEitherClock(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	then := Moment{Mono: time.Minute, Wall: noon}
	for _, c := range []struct {
		name string
		now  Moment
		want time.Duration
	}{
		{"both clocks went", Moment{time.Minute + time.Second, noon.Add(time.Second)}, time.Second},
		{"the machine slept", Moment{time.Minute + time.Second, noon.Add(time.Hour)}, time.Hour},
		{"the clock was set forward", Moment{time.Minute, noon.Add(time.Hour)}, time.Hour},
		{"the clock was set back", Moment{time.Minute + 3*time.Second, noon.Add(-time.Hour)}, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.now.Since(then); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
