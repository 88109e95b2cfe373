//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

const (
	working  = 20
	killsRun = 500 // under COTAL_LONG=1
	killsCut = 30  // otherwise

	// Growth of the host that is allowed between the second quarter of the kills and the last, each by the
	// median of the samples taken behind every kill: anonymous memory by a tenth, and by as much as the
	// collector may be late with; descriptors by three.
	memoryGrowth = 1.10
	memoryLate   = 2048 // KiB
	fdGrowth     = 3
	// goroutineGrowth is how many more goroutines a host may have behind all kills than a host that has
	// just adopted the same seats.
	goroutineGrowth = 15
)

// storm is one host under which plugins are killed.
type storm struct {
	*harness.World
	t     *testing.T
	rand  *rand.Rand
	host  *harness.Host
	rows  []wire.AgentRow
	views []*seatview.View
	typed [][]string
	said  int
	names []string // of the plugins

	mem, fds    []int // of the host, behind each kill
	quarantines int
	passing     int // seats that were started and stopped meanwhile
}

// TestFieldA9_RandomKillsOfPluginsHarmNoSeatAndLeaveTheHostAsItWas. Twenty seats print numbered lines and
// are typed into while plugins die at random; between the deaths seats are listed, typed into, started and
// stopped. A plugin that died too often is quarantined: that is told, the seats do not notice, and a
// restart by hand brings it back.
//
// proves: RT-1, RT-7
func TestFieldA9_RandomKillsOfPluginsHarmNoSeatAndLeaveTheHostAsItWas(t *testing.T) {
	kills, seed := killsCut, uint64(1)
	if os.Getenv("COTAL_LONG") != "" {
		kills, seed = killsRun, uint64(time.Now().UnixNano())
	}
	if s := os.Getenv("COTAL_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatalf("COTAL_SEED: %v", err)
		}
	}
	t.Logf("COTAL_SEED=%d", seed)
	s := &storm{World: harness.New(t), t: t, rand: rand.New(rand.NewPCG(seed, 0)), typed: make([][]string, working)}
	s.host = s.Start(harness.HostOptions{})
	for i := range working {
		row := s.Spawn(fmt.Sprintf("w%02d", i), seatview.Working(s.World, 10)...)
		s.rows = append(s.rows, row)
		s.views = append(s.views, seatview.Watch(t, s.World, row))
	}
	for _, p := range s.Status().Plugins {
		s.names = append(s.names, p.Name)
		s.PluginPID(p.Name)
	}
	for i := range kills {
		s.kill(s.names[s.rand.IntN(len(s.names))])
		s.work(i)
		s.sample()
	}
	for _, name := range s.names {
		s.ready(name)
	}
	s.settled()
	s.flat("anonymous memory, KiB", s.mem, memoryGrowth, memoryLate)
	s.flat("descriptors", s.fds, 1, fdGrowth)
	after := s.goroutines()
	s.host = s.Start(harness.HostOptions{})
	for _, name := range s.names {
		s.ready(name)
	}
	s.settled()
	fresh := s.goroutines()
	t.Logf("goroutines: %d behind the kills, %d in a fresh host with the same seats", len(after), len(fresh))
	if len(after) > len(fresh)+goroutineGrowth {
		t.Errorf("%d goroutines are left behind the kills, %d run in a fresh host; too many of:\n%s", len(after), len(fresh), surplus(after, fresh))
	}
	t.Logf("%d kills, %d quarantines, %d seats came and went, %d lines typed, %d lines printed by the first seat",
		kills, s.quarantines, s.passing, s.said, s.views[0].Ticks())
	s.host = s.Start(harness.HostOptions{})
}

// kill ends one plugin with SIGKILL, wherever it is in its life, and brings it back when it has died too
// often for that to happen by itself. It does not wait for it otherwise: the next kill, and all work in
// between, may fall on a plugin that is starting.
func (s *storm) kill(name string) {
	s.t.Helper()
	p := s.plugin(name)
	switch {
	case p.State == "quarantined":
		s.quarantines++
		s.alive("with " + name + " in quarantine")
		s.CLI("ext", "restart", name).OK()
		if p = s.plugin(name); p.State != "ready" {
			s.t.Fatalf("plugin %s is %s behind a restart by hand: %s", name, p.State, p.Reason)
		}
	case p.PID == 0:
		s.ready(name)
		p = s.plugin(name)
	}
	if p.PID > 0 {
		s.KillRest(p.PID)
	}
}

func (s *storm) plugin(name string) wire.PluginStatus {
	s.t.Helper()
	for _, p := range s.Status().Plugins {
		if p.Name == name {
			return p
		}
	}
	s.t.Fatalf("status does not list plugin %s", name)
	return wire.PluginStatus{}
}

// ready waits until a plugin serves, by hand if it is quarantined.
func (s *storm) ready(name string) {
	s.t.Helper()
	harness.Eventually(s.t, harness.DefaultWait, "plugin "+name+" is ready", func() (bool, string) {
		p := s.plugin(name)
		if p.State == "quarantined" {
			s.CLI("ext", "restart", name).OK()
		}
		return p.State == "ready" && p.PID > 0, p.State + " " + p.Reason
	})
}

// work does something people do: list, type, start and stop a seat.
func (s *storm) work(i int) {
	s.t.Helper()
	switch s.rand.IntN(4) {
	case 0:
		s.alive(fmt.Sprintf("behind kill %d", i+1))
	case 1, 2:
		s.say(s.rand.IntN(working))
	case 3:
		s.pass(i)
	}
}

// say types one line. A runtime that is not there right now may refuse it; what was refused as not
// executed is typed again, and nothing arrives twice.
func (s *storm) say(i int) {
	s.t.Helper()
	s.said++
	text := fmt.Sprintf("line %d", s.said)
	harness.Eventually(s.t, harness.DefaultWait, "a line is typed", func() (bool, string) {
		r := s.CLI("input", s.rows[i].Name, "--text", text)
		if r.Code == 75 {
			s.t.Fatalf("whether it was typed is not known: %v", r)
		}
		return r.Code == 0, r.String()
	})
	s.typed[i] = append(s.typed[i], text)
	s.views[i].AwaitReplies(s.t, s.typed[i])
}

// pass starts a seat and stops it, under whatever is just dying. Once it was accepted it must come to be:
// the host waits for its plugins. One that was refused left nothing.
func (s *storm) pass(i int) {
	s.t.Helper()
	name := fmt.Sprintf("p%d", i)
	harness.Eventually(s.t, harness.DefaultWait, "a seat starts", func() (bool, string) {
		for _, p := range s.names {
			if s.plugin(p).State == "quarantined" {
				s.ready(p)
			}
		}
		r := s.CLI(append([]string{"spawn", "--agent", "command", "--name", name, "--detach", "--"}, s.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)...)
		if r.Code == 75 {
			row, ok := s.Seat(name)
			return ok && row.Status == "running", r.String()
		}
		return r.Code == 0, r.String()
	})
	row := s.AwaitStatus(name, "running")
	if len(s.ProcsLike("print")) != 1 {
		s.t.Fatalf("%d agents of seat %s run", len(s.ProcsLike("print")), name)
	}
	harness.Eventually(s.t, harness.DefaultWait, "the seat stops", func() (bool, string) {
		r := s.CLI("stop", name)
		return r.Code == 0 || r.Code == 4, r.String()
	})
	if s.Alive(row.PID) || s.Alive(row.SeatPID) {
		s.t.Fatalf("seat %s was stopped and lives", name)
	}
	s.passing++
}

// alive fails the test unless ps lists every working seat as the process it was.
func (s *storm) alive(when string) {
	s.t.Helper()
	rows := map[string]wire.AgentRow{}
	for _, row := range s.Ps() {
		rows[row.Name] = row
	}
	for i, was := range s.rows {
		got := rows[was.Name]
		if got.Status != "running" || got.PID != was.PID || got.SeatPID != was.SeatPID {
			s.t.Fatalf("%s: seat %+v, was %+v", when, got, was)
		}
		if err := s.views[i].Err(); err != nil {
			s.t.Fatalf("%s: %v", when, err)
		}
	}
}

// settled fails the test unless all is as it was in the beginning: the same seats, every byte of them, one
// process of each plugin.
func (s *storm) settled() {
	s.t.Helper()
	s.alive("in the end")
	for i, v := range s.views {
		v.AwaitMore(s.t)
		v.AwaitReplies(s.t, s.typed[i])
	}
	if n := len(s.ProcsLike("cotal-seat")); n != working {
		s.t.Errorf("%d custody processes run, want %d", n, working)
	}
	harness.Eventually(s.t, harness.DefaultWait, "each plugin is one process", func() (bool, string) {
		var live []string
		for _, p := range s.Status().Plugins {
			live = append(live, fmt.Sprint(p.PID))
		}
		for _, p := range s.Procs() {
			if p.PPID == s.host.PID && !slices.Contains(live, fmt.Sprint(p.PID)) {
				return false, "this one too: " + p.String()
			}
		}
		return len(live) == len(s.names), fmt.Sprint(live)
	})
	if entries, err := os.ReadDir(s.SeatRoot); err != nil || len(entries) != working {
		s.t.Errorf("%d seat directories, %v; want %d", len(entries), err, working)
	}
}

func (s *storm) sample() {
	s.t.Helper()
	_, anon, err := harness.RSS(s.host.PID)
	if err != nil {
		s.t.Fatal(err)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.host.PID))
	if err != nil {
		s.t.Fatal(err)
	}
	s.mem, s.fds = append(s.mem, anon), append(s.fds, len(fds))
}

// flat fails the test when the median of the last quarter is above that of the second one by more than is
// allowed. The first quarter is left out: there the host is still growing to its working size.
func (s *storm) flat(what string, v []int, factor float64, more int) {
	s.t.Helper()
	q := len(v) / 4
	begin, end := median(v[q:2*q]), median(v[len(v)-q:])
	s.t.Logf("%s: %d in the second quarter, %d in the last", what, begin, end)
	if float64(end) > float64(begin)*factor+float64(more) {
		s.t.Errorf("%s grew from %d to %d: %v", what, begin, end, v)
	}
}

func median(v []int) int { return slices.Sorted(slices.Values(v))[len(v)/2] }

// goroutines ends the host with SIGQUIT and returns the first function of every goroutine it had: the
// only view from outside that needs no door in the host.
func (s *storm) goroutines() []string {
	s.t.Helper()
	before := len(s.host.Stderr())
	s.host.Signal(syscall.SIGQUIT)
	if _, ok := s.host.WaitExit(harness.DefaultWait); !ok {
		s.t.Fatal("the host does not end by SIGQUIT")
	}
	var all []string
	for dump := range strings.SplitSeq(s.host.Stderr()[before:], "\n\n") {
		if head, body, ok := strings.Cut(dump, "\n"); ok && strings.HasPrefix(strings.TrimSpace(head), "goroutine ") {
			lines := strings.Split(strings.TrimSpace(body), "\n")
			at := lines[0]
			for _, l := range lines {
				if strings.HasPrefix(l, "created by ") {
					at = l
				}
			}
			all = append(all, at)
		}
	}
	if len(all) < 10 {
		s.t.Fatalf("%d goroutines are in the crash report: %s", len(all), s.host.Stderr()[before:])
	}
	return all
}

// surplus says which goroutines are more numerous in the first list.
func surplus(after, fresh []string) string {
	n := map[string]int{}
	for _, at := range after {
		n[origin(at)]++
	}
	for _, at := range fresh {
		n[origin(at)]--
	}
	var b strings.Builder
	for at, more := range n {
		if more > 0 {
			fmt.Fprintf(&b, "%4d %s\n", more, at)
		}
	}
	return b.String()
}

func origin(at string) string {
	at, _, _ = strings.Cut(at, " in goroutine ")
	return at
}

// TestFieldA10_RestartsOfAPluginLeaveNothingInTheHost: neither descriptors nor goroutines nor memory nor a
// process.
func TestFieldA10_RestartsOfAPluginLeaveNothingInTheHost(t *testing.T) {
	restarts := 20
	if os.Getenv("COTAL_LONG") != "" {
		restarts = 200
	}
	s := &storm{World: harness.New(t), t: t}
	s.host = s.Start(harness.HostOptions{})
	for _, p := range s.Status().Plugins {
		s.names = append(s.names, p.Name)
		s.PluginPID(p.Name)
	}
	for i := range restarts {
		name := s.names[i%len(s.names)]
		before := s.PluginPID(name)
		s.CLI("ext", "restart", name).OK()
		if now := s.PluginPID(name); now == before {
			t.Fatalf("plugin %s is still process %d", name, now)
		}
		s.AwaitGone(before)
		s.sample()
	}
	s.flat("anonymous memory, KiB", s.mem, memoryGrowth, memoryLate)
	s.flat("descriptors", s.fds, 1, fdGrowth)
	after := s.goroutines()
	s.host = s.Start(harness.HostOptions{})
	for _, name := range s.names {
		s.ready(name)
	}
	fresh := s.goroutines()
	t.Logf("goroutines: %d behind %d restarts, %d in a fresh host", len(after), restarts, len(fresh))
	if len(after) > len(fresh)+fdGrowth {
		t.Errorf("%d goroutines are left behind the restarts, %d run in a fresh host; too many of:\n%s", len(after), len(fresh), surplus(after, fresh))
	}
}
