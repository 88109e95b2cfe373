//go:build linux

package upgrade

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// workers is how many seats work while their plugins are exchanged.
const workers = 20

// fleet is a world of working seats whose plugins are exchanged.
type fleet struct {
	*harness.World
	t     *testing.T
	host  *harness.Host
	dir   string            // the bundle the host runs from
	first map[string]string // the plugins it began with, by name of the command
	rows  []wire.AgentRow
	views []*seatview.View
	typed [][]string
	said  int
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{World: harness.New(t), t: t, first: map[string]string{}, typed: make([][]string, workers)}
	for _, command := range versioned {
		f.first[command] = filepath.Join(f.Bin, command)
	}
	f.dir = bundle(t, f.World, "bundle", nil)
	f.Bin = f.dir
	f.host = f.Start(harness.HostOptions{})
	for i := range workers {
		row := f.Spawn(fmt.Sprintf("w%02d", i), seatview.Working(f.World, 10)...)
		f.rows = append(f.rows, row)
		f.views = append(f.views, seatview.Watch(t, f.World, row))
	}
	return f
}

// say types one line into a seat, once.
func (f *fleet) say(i int) {
	f.t.Helper()
	f.said++
	text := fmt.Sprintf("line %d", f.said)
	f.CLI("input", f.rows[i].Name, "--text", text).OK()
	f.typed[i] = append(f.typed[i], text)
}

// check fails the test unless every seat is the process it was, works on, and has lost and doubled nothing,
// neither of what it printed nor of what it was typed.
func (f *fleet) check(when string) {
	f.t.Helper()
	rows := map[string]wire.AgentRow{}
	for _, row := range f.Ps() {
		if row.Status != "exited" { // one that was stopped is listed with its end
			rows[row.Name] = row
		}
	}
	if len(rows) != workers {
		f.t.Errorf("%s: %d seats are listed as alive, want %d", when, len(rows), workers)
	}
	for i, was := range f.rows {
		got := rows[was.Name]
		if got.Status != "running" || got.PID != was.PID || got.SeatPID != was.SeatPID || got.LifecycleUID != was.LifecycleUID {
			f.t.Errorf("%s: seat %+v, was %+v", when, got, was)
		}
		f.views[i].AwaitMore(f.t)
		f.views[i].AwaitReplies(f.t, f.typed[i])
	}
	if n := len(f.ProcsLike("cotal-seat")); n != workers {
		f.t.Errorf("%s: %d custody processes run, want %d", when, n, workers)
	}
}

// plugins waits until every plugin is ready as a version, and returns its processes by name.
func (f *fleet) plugins(version string) map[string]int {
	f.t.Helper()
	pids := map[string]int{}
	harness.Eventually(f.t, harness.DefaultWait, "every plugin is ready as version "+version, func() (bool, string) {
		clear(pids)
		for _, p := range f.Status().Plugins {
			if p.State != "ready" || p.Version != version {
				return false, fmt.Sprintf("%s %s is %s %s", p.Name, p.Version, p.State, p.Reason)
			}
			pids[p.Name] = p.PID
		}
		return len(pids) >= len(versioned), fmt.Sprint(pids)
	})
	return pids
}

// exchange replaces the plugins of the bundle and has route bring them in; they are new processes then.
func (f *fleet) exchange(what string, files map[string]string, version string, route func()) {
	f.t.Helper()
	before := f.plugins(other(version))
	swap(f.t, f.dir, files)
	f.check(what + ", files replaced under the host")
	route()
	after := f.plugins(version)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] == before[name] {
			f.t.Errorf("%s: %s is still process %d", what, name, before[name])
		}
	}
	for i := range f.rows {
		f.say(i)
	}
	f.check(what)
	const name = "extra"
	row := f.Spawn(name, seatview.Working(f.World, 20)...)
	v := seatview.Watch(f.t, f.World, row)
	f.CLI("input", name, "--text", "hello").OK()
	v.AwaitReplies(f.t, []string{"hello"})
	f.CLI("stop", name).OK()
}

func other(version string) string {
	if version == nextVersion {
		return "0.1.0"
	}
	return nextVersion
}

// TestPluginsAreExchangedUnderWorkingSeats, all of them, forth and back, by a restart of the host.
func TestPluginsAreExchangedUnderWorkingSeats(t *testing.T) {
	f := newFleet(t)
	restart := func() {
		f.host.Stop()
		f.host = f.Start(harness.HostOptions{})
	}
	f.exchange("upgrade", nextPlugins(t), nextVersion, restart)
	f.exchange("back", f.first, "0.1.0", restart)
}
