package crash

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/diskfull"
	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// What a fault may strike. The broker of these cells is a process of its own: the one inside the host
// shares the host's fate, so its cells are those of the host.
const (
	theHost   = "host"
	thePlugin = "plugin"
	theSeat   = "seat"
	theBroker = "broker"
)

var processes = []string{theHost, thePlugin, theSeat, theBroker}

// How it may strike.
const (
	kill = "kill" // SIGKILL; a broker comes back within a second
	stop = "stop" // SIGSTOP, and SIGCONT after a while
	full = "full" // no room on the disks it writes to, and room again after a while
)

var faults = []string{kill, stop, full}

// How long a stopped process is stopped: long, and in the slice of a short run. The name of a cell
// tells.
const (
	stopLong  = 15 * time.Second
	stopShort = 2 * time.Second
)

// slice is how many cells a short run takes; every pair of process and fault has its share.
const slice = 48

// cell is one square of the matrix.
type cell struct {
	site    failpoints.Site
	process string
	fault   string
	stop    time.Duration // only of stop
	auth    bool          // in an authenticated world: it is a cell of TestAuthenticatedMatrix
}

// name is the path below its test.
func (c cell) name() string {
	fault := c.fault
	if c.fault == stop {
		fault = fmt.Sprintf("stop-%ds", int(c.stop.Seconds()))
	}
	return c.site.Name + "/" + c.process + "/" + fault
}

// later lets the first times pass at which a place is reached without the process that the cell strikes.
var later = map[string]string{
	"host.journal.commit/" + thePlugin: "1*off->", // a booting host writes before it starts plugins
}

// exclusion is a set of cells that make no sense, and why. This table is the only way for a cell not
// to run; TestMatrixIsTheWholeProduct holds it to that.
type exclusion struct {
	site, process, fault string // empty: any
	why                  string
}

var exclusions = []exclusion{
	{
		"supervise.start.verified", thePlugin, kill,
		"the plugin has no process yet, and nothing else of its kind runs while the first one starts",
	},
	{
		"supervise.start.verified", thePlugin, stop,
		"the plugin has no process yet, and nothing else of its kind runs while the first one starts",
	},
}

func (e exclusion) covers(c cell) bool {
	match := func(want, got string) bool { return want == "" || want == got }
	return match(e.site, c.site.Name) && match(e.process, c.process) && match(e.fault, c.fault)
}

// product is every cell, whether it makes sense or not.
func product(sites []failpoints.Site, stopped time.Duration) []cell {
	var all []cell
	for _, s := range sites {
		for _, p := range processes {
			for _, f := range faults {
				all = append(all, cell{site: s, process: p, fault: f, stop: stopped})
			}
		}
	}
	return all
}

// excluded returns why a cell is not run; empty when it is.
func excluded(t *testing.T, c cell) string {
	if why := unreachable(t, c.site); why != "" {
		return why
	}
	for _, e := range exclusions {
		if e.covers(c) {
			return e.why
		}
	}
	return ""
}

// choose takes n of the cells that make sense: as many of each pair of process and fault as there is
// room for, at failpoints that the seed decides.
func choose(cells []cell, n int, seed uint64) []cell {
	rng := rand.New(rand.NewPCG(seed, 0))
	pairs := map[string][]cell{}
	var order []string
	for _, c := range cells {
		key := c.process + c.fault
		if pairs[key] == nil {
			order = append(order, key)
		}
		pairs[key] = append(pairs[key], c)
	}
	for _, key := range order {
		rng.Shuffle(len(pairs[key]), func(i, j int) { pairs[key][i], pairs[key][j] = pairs[key][j], pairs[key][i] })
	}
	var chosen []cell
	for len(chosen) < min(n, len(cells)) {
		for _, key := range order {
			if rest := pairs[key]; len(rest) > 0 && len(chosen) < n {
				chosen, pairs[key] = append(chosen, rest[0]), rest[1:]
			}
		}
	}
	return chosen
}

// seedOfRun is COTAL_SEED, or another number each time.
func seedOfRun(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("COTAL_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano()) % 1e9
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("COTAL_SEED: %v", err)
	}
	return seed
}

func scan(t *testing.T) []failpoints.Site {
	t.Helper()
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	sites, err := failpoints.Scan(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(sites) < 20 {
		t.Fatalf("only %d failpoints are registered; the scan is broken", len(sites))
	}
	return sites
}

// byHand reports whether -run names cells, so that they run whether the seed chooses them or not.
func byHand() bool {
	f := flag.Lookup("test.run")
	return f != nil && strings.Contains(f.Value.String(), "/")
}

// TestMatrix lets a fault strike a process at the moment a failpoint is reached, by whichever process,
// and holds everything to the invariants. A short run takes a slice of the cells, COTAL_LONG=1 all of
// them; -run 'TestMatrix/<failpoint>/<process>/<fault>' takes one.
func TestMatrix(t *testing.T) {
	seed := seedOfRun(t)
	sites := scan(t)
	var cells []cell
	stops := []time.Duration{stopShort}
	switch {
	case byHand():
		stops = append(stops, stopLong)
	case os.Getenv("COTAL_LONG") != "":
		stops = []time.Duration{stopLong}
	}
	known := map[string]bool{}
	for _, d := range stops {
		for _, c := range product(sites, d) {
			if name := c.name(); !known[name] && excluded(t, c) == "" {
				known[name], cells = true, append(cells, c)
			}
		}
	}
	if os.Getenv("COTAL_LONG") == "" && !byHand() {
		cells = choose(cells, slice, seed)
	}
	t.Logf("%d cells, COTAL_SEED=%d", len(cells), seed)
	runAll(t, cells, seed)
}

// runAll runs cells as subtests of the test that they belong to.
func runAll(t *testing.T, cells []cell, seed uint64) {
	test := t.Name()
	for _, c := range cells {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("again: COTAL_SEED=%d go test ./test/crash -count=1 -v -run '^%s$/^%s$'", seed, test, strings.ReplaceAll(c.name(), "/", "$/^"))
				}
			})
			c.run(t, seed)
		})
	}
}

// run is the life of a few seats with one strike in it.
func (c cell) run(t *testing.T, seed uint64) {
	how := ""
	if c.fault == full {
		var here bool
		if how, here = diskfull.Private(t, fmt.Sprintf("COTAL_SEED=%d", seed)); !here {
			return
		}
	}
	w := newWorldFor(t, c.auth)
	s := newStrike(w, c, how, seed)
	w.bystander()
	w.host = w.Launch(w.armed)
	go s.run()
	defer s.cancel()
	w.ready()

	w.liveOnce()
	s.finish()
	w.checkInvariants("once the fault is over")
	w.lastRestart()
	if !t.Failed() {
		w.spawnAndCheck("after", w.starts("after", `{"hang": true}`))
	}
}

// newStrike prepares a fault: what must be there before the first host, and what is armed.
func newStrike(w *world, c cell, how string, seed uint64) *strike {
	h := fnv.New64a()
	h.Write([]byte(c.name()))
	s := &strike{
		w: w, cell: c, how: how, gate: filepath.Join(w.Dir, "struck"), fullFile: filepath.Join(w.Dir, "no-room"),
		over: make(chan struct{}), healed: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, h.Sum64())),
	}
	w.marker = s.gate
	w.active = s.active
	w.mayDie = func(id string) bool { return s.victim.Load() != nil && *s.victim.Load() == id }
	w.prepare(c.site)
	w.wait = harness.DefaultWait
	if c.fault == stop {
		w.wait += c.stop
	}
	pause, first := "pause("+s.gate+")", later[c.site.Name+"/"+c.process]
	if c.auth {
		first = passes(c.site, s.rng)
	}
	rules := map[string]string{c.site.Name: first + pause}
	for point, action := range s.pretended() {
		if point == c.site.Name {
			action = first + "1*" + pause + "->" + action
		}
		rules[point] = action
	}
	var armed []string
	for point, rule := range rules {
		armed = append(armed, point+"="+rule)
	}
	if more := with[c.site.Name]; more != "" {
		// A second fault that kills custody may take its seat.
		if strings.Contains(more, "seat.") {
			w.mayDie = func(string) bool { return true }
		}
		armed = append(armed, strings.ReplaceAll(more, "MARK", filepath.Join(w.Dir, "killed-too")))
	}
	w.armed.Failpoints = strings.Join(armed, ";")
	if c.process == theBroker {
		if s.how != "" && s.how != diskfull.Injected {
			s.disks = append(s.disks, w.SmallDisk(smallDisk, filepath.Join(w.Dir, "js")))
		}
		s.broker = w.StartBroker()
		return s
	}
	if s.how == "" || s.how == diskfull.Injected {
		return s
	}
	hostDir := w.Path(".cotal", "host")
	switch c.process {
	case theHost:
		s.disks = append(s.disks, w.SmallDisk(smallDisk, hostDir))
	case theSeat:
		s.disks = append(s.disks, w.SmallDisk(smallDisk, w.SeatRoot))
	case thePlugin: // it has no store: it writes into the seats' and for the host
		s.disks = append(s.disks, w.SmallDisk(smallDisk, w.SeatRoot, hostDir))
	}
	return s
}

func TestMatrixIsTheWholeProduct(t *testing.T) {
	sites := scan(t)
	all := product(sites, stopLong)
	if want := len(sites) * 4 * 3; len(all) != want {
		t.Errorf("%d cells, want %d", len(all), want)
	}
	names := map[string]bool{}
	out := 0
	for _, c := range all {
		if names[c.name()] {
			t.Errorf("%s stands twice", c.name())
		}
		names[c.name()] = true
		if why := excluded(t, c); why != "" {
			out++
			t.Logf("%s is not run: %s", c.name(), why)
		}
	}
	t.Logf("%d failpoints, %d cells, %d of them are not run", len(sites), len(all), out)
	for _, e := range exclusions {
		if e.why == "" {
			t.Errorf("%+v has no reason", e)
		}
		if !slices.ContainsFunc(all, e.covers) {
			t.Errorf("%+v excludes nothing", e)
		}
	}
}

func TestASeedChoosesTheSameCellsAndEveryPair(t *testing.T) {
	all := product(scan(t), stopShort)
	for _, n := range []int{12, slice} {
		first, again, other := choose(all, n, 1), choose(all, n, 1), choose(all, n, 2)
		if len(first) != n || !slices.Equal(first, again) {
			t.Errorf("seed 1 chose %d cells and then others", len(first))
		}
		if slices.Equal(first, other) {
			t.Error("two seeds chose the same cells")
		}
		pairs := map[string]int{}
		for _, c := range first {
			pairs[c.process+c.fault]++
		}
		if len(pairs) != 12 || pairs[theBroker+full] != n/12 {
			t.Errorf("of %d cells the pairs have %v", n, pairs)
		}
	}
}
