package crash

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// An authenticated world has everything that an open one has, and the life of each seat on the mesh besides: a slot for its
// name, a gate and a head, an inbox, a credential. What is struck here are the steps that make and end that, in a spawn
// and a stop as they are.

// authenticatedKinds begin the names of the places that only a host with credentials reaches.
var authenticatedKinds = []string{"host.trust.", "host.mint.", "host.revoke.", "host.provision.", "host.retire.", "host.repair."}

// authenticated reports whether a place is one of them.
func authenticated(s failpoints.Site) bool {
	return slices.ContainsFunc(authenticatedKinds, func(kind string) bool { return strings.HasPrefix(s.Name, kind) })
}

// notInALife lists those of them that no spawn or stop reaches, with where their crash test is.
var notInALife = map[string]string{
	"host.trust.broker-keys":  "TestKilledAtEachStepKeysAreTheOldOnesOrTheNewOnes of host/trust",
	"host.trust.space-keys":   "TestKilledAtEachStepKeysAreTheOldOnesOrTheNewOnes of host/trust",
	"host.trust.key-rotated":  "TestKilledAtEachStepKeysAreTheOldOnesOrTheNewOnes of host/trust",
	"host.trust.keys-revoked": "TestKilledAtEachStepKeysAreTheOldOnesOrTheNewOnes of host/trust",
	"host.repair.set-aside":   "TestRepair_ThatIsKilledIsFinishedByTheNext of test/auth",
	"host.repair.streams":     "TestRepair_ThatIsKilledIsFinishedByTheNext of test/auth",
	"host.repair.restored":    "TestRepair_ThatIsKilledIsFinishedByTheNext of test/auth",
	"host.repair.repaired":    "TestRepair_ThatIsKilledIsFinishedByTheNext of test/auth",
}

// authenticatedSlice is how many cells a short run takes.
const authenticatedSlice = 8

// authenticatedProduct is every place that a life reaches, with the host or the broker killed there, or the host frozen: for
// longer than its lease lives in a long run.
func authenticatedProduct(sites []failpoints.Site, stopped time.Duration) []cell {
	var all []cell
	for _, s := range sites {
		if !authenticated(s) || notInALife[s.Name] != "" {
			continue
		}
		all = append(all, cell{site: s, process: theHost, fault: kill, auth: true}, cell{site: s, process: theBroker, fault: kill, auth: true},
			cell{site: s, process: theHost, fault: stop, stop: stopped, auth: true})
	}
	return all
}

// TestAuthenticatedMatrix kills the host, or the broker, or freezes the host, at each step by which a seat gets a life on the mesh or loses it, and
// holds everything to the invariants: the name is held and then free, the credential lives with its seat alone, nothing
// is left. A short run takes a slice of the cells, COTAL_LONG=1 all of them.
//
// proves: DOWN-7, RECON-1, RECON-3
func TestAuthenticatedMatrix(t *testing.T) {
	seed := seedOfRun(t)
	stopped := stopShort
	if os.Getenv("COTAL_LONG") != "" {
		stopped = stopLong
	}
	cells := authenticatedProduct(scan(t), stopped)
	if os.Getenv("COTAL_LONG") == "" && !byHand() {
		cells = choose(cells, authenticatedSlice, seed)
	}
	t.Logf("%d cells, COTAL_SEED=%d", len(cells), seed)
	runAll(t, cells, seed)
}

// Every place that only an authenticated host has is in the matrix, or stands with the test that it has instead.
func TestTheAuthenticatedMatrixLeavesNoPlaceOut(t *testing.T) {
	sites := scan(t)
	in := map[string]bool{}
	for _, c := range authenticatedProduct(sites, stopLong) {
		in[c.site.Name] = true
	}
	known := map[string]bool{}
	for _, s := range sites {
		known[s.Name] = true
		if authenticated(s) && !in[s.Name] && notInALife[s.Name] == "" {
			t.Errorf("%s is in no cell", s.Name)
		}
	}
	for name := range notInALife {
		if !known[name] {
			t.Errorf("%s is no failpoint", name)
		}
	}
	if len(in) < 25 {
		t.Errorf("only %d places are struck: the scan is broken", len(in))
	}
}

func newWorldFor(t *testing.T, auth bool) *world {
	t.Helper()
	if auth {
		return newAuthenticated(t)
	}
	return newWorld(t)
}

// mintsPassed is how many mints may be let pass before the one that is struck: those of a start, of a spawn and of a stop are
// more than that.
const mintsPassed = 10

// passes lets some mints pass, so that not only the first one of a start is struck.
func passes(s failpoints.Site, rng *rand.Rand) string {
	if n := rng.IntN(mintsPassed); strings.HasPrefix(s.Name, "host.mint.") && n > 0 {
		return fmt.Sprintf("%d*off->", n)
	}
	return ""
}

// looker is how a census connects.
func (w *world) looker(e wire.Endpoint) (bus.Config, error) {
	cfg := bus.Config{URL: e.URL, TokenFile: e.TokenFile, Name: "census", OneShot: true}
	if w.auth {
		all, err := harness.NewEverything(w.Root)
		if err != nil {
			return cfg, err
		}
		cfg.TokenFile, cfg.Credentials = "", all
	}
	return cfg, nil
}

// lives is what an authenticated space has of its seats, at one moment.
type lives struct {
	err      error // it could not be read
	instance string
	slots    []wire.Slot
	gates    map[string]string // state by uid
	heads    map[string]string // state by uid
	active   map[string]int    // credentials that the ledger calls active, by uid
	files    map[string]string // credentials that are files: name by uid
	inboxes  []string          // durables of direct messages
}

var credentialFile = regexp.MustCompile(`^.+\.([a-z0-9]{26,32})\.creds$`)

func (w *world) livesOnMesh() *lives {
	l := &lives{gates: map[string]string{}, heads: map[string]string{}, active: map[string]int{}, files: map[string]string{}}
	l.err = w.readLives(l)
	return l
}

func (w *world) readLives(l *lives) error {
	ctx, cancel := context.WithTimeout(context.Background(), busy.Limit(10*time.Second))
	defer cancel()
	e := w.Endpoint()
	l.instance = e.InstanceID
	cfg, err := w.looker(e)
	if err == nil {
		err = l.readRows(ctx, cfg, e.Space)
	}
	if err == nil {
		err = l.readFiles(filepath.Join(w.Root, ".cotal", "auth", "creds"))
	}
	if err == nil {
		err = l.readInboxes(cfg, e)
	}
	return err
}

func (l *lives) readRows(ctx context.Context, cfg bus.Config, space string) error {
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer b.Close()
	rec, err := b.Rows(space)
	if err != nil {
		return err
	}
	for kind, take := range map[string]func(bus.Entry) error{
		wire.KindSlot: func(e bus.Entry) error {
			s, err := wire.DecodeSlot(e.Key, e.Value)
			l.slots = append(l.slots, s)
			return err
		},
		wire.KindGate: func(e bus.Entry) error {
			uid := e.Key.Qualifiers[0]
			g, err := wire.DecodeGate(uid, e.Value)
			l.gates[uid] = g.State
			return err
		},
		wire.KindCredential: func(e bus.Entry) error {
			c, err := wire.DecodeCredentialRow(e.Key, e.Value)
			if err == nil && c.State == wire.CredentialActive {
				l.active[c.LifecycleUID]++
			}
			return err
		},
		wire.KindLifecycle: func(e bus.Entry) error {
			if len(e.Key.Qualifiers) != 2 { // the detail of an audit
				return nil
			}
			h, err := wire.DecodeLifecycleHead(wire.Principal{Owner: e.Key.Qualifiers[0], Actor: e.Key.Qualifiers[1]}, e.Value)
			l.heads[h.LifecycleUID] = h.State
			return err
		},
	} {
		entries, err := rec.Scan(ctx, kind)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := take(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lives) readFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if m := credentialFile.FindStringSubmatch(d.Name()); m != nil && m[1] != l.instance {
			l.files[m[1]] = d.Name()
		}
		return nil
	})
}

func (l *lives) readInboxes(cfg bus.Config, e wire.Endpoint) error {
	nc, err := nats.Connect(cfg.URL, nats.UserJWT(cfg.Credentials.Token, cfg.Credentials.Sign), nats.Timeout(5*time.Second), nats.NoReconnect())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := nc.JetStream(nats.MaxWait(5 * time.Second))
	if err != nil {
		return err
	}
	stream := wire.StreamDirect + "_" + e.Space
	if _, err := js.StreamInfo(stream); err != nil {
		return err
	}
	for name := range js.ConsumerNames(stream) {
		l.inboxes = append(l.inboxes, name)
	}
	return nil
}

// living are the lives of the seats that are listed and have not ended, by uid.
func (c census) living() map[string]wire.AgentRow {
	out := map[string]wire.AgentRow{}
	for _, r := range c.live {
		out[r.LifecycleUID] = r
	}
	return out
}

func (l *lives) slotsBroken(c census) string {
	if l == nil {
		return ""
	}
	if l.err != nil {
		return "the lives cannot be read: " + l.err.Error()
	}
	living, of := c.living(), map[string]wire.Slot{}
	for _, s := range l.slots {
		of[s.LifecycleUID] = s
		r, lives := living[s.LifecycleUID]
		switch {
		case s.OwnerInstanceID != l.instance:
		case s.Phase != wire.SlotRetired && !lives:
			return fmt.Sprintf("the name %s is held by the life %s, which is %s, and no seat has it", s.Alias, s.LifecycleUID, s.Phase)
		case lives && s.Alias != r.Name:
			return fmt.Sprintf("seat %s has the life of the name %s", r.Name, s.Alias)
		case lives && r.Status == "running" && s.Phase != wire.SlotActive:
			return fmt.Sprintf("seat %s runs, and its slot is %s", r.Name, s.Phase)
		case lives && r.Status == "running" && (s.Runtime == nil || s.Runtime.ID != r.SeatID):
			return fmt.Sprintf("seat %s runs as %s, and its slot finds %+v", r.Name, r.SeatID, s.Runtime)
		}
	}
	for uid, r := range living {
		if _, ok := of[uid]; !ok && r.Status == "running" {
			return fmt.Sprintf("seat %s runs, and the life %s has no slot", r.Name, uid)
		}
	}
	return ""
}

func (l *lives) gatesBroken(c census) string {
	if l == nil {
		return ""
	}
	living := c.living()
	for what, states := range map[string]map[string]string{"gate": l.gates, "head": l.heads} {
		for uid, state := range states {
			r, lives := living[uid]
			switch {
			case !lives && state != wire.GateRetired && state != wire.LifeRetired:
				return fmt.Sprintf("the %s of the life %s is %s, and no seat has it", what, uid, state)
			case lives && r.Status == "running" && state != wire.GateOpen && state != wire.LifeActive:
				return fmt.Sprintf("seat %s runs, and the %s of its life is %s", r.Name, what, state)
			}
		}
	}
	return ""
}

func (l *lives) credentialsBroken(c census) string {
	if l == nil {
		return ""
	}
	living := c.living()
	for uid, n := range l.active {
		if _, ok := living[uid]; !ok && n > 0 {
			return fmt.Sprintf("%d credentials of the life %s are active, and no seat has it", n, uid)
		}
	}
	for uid, name := range l.files {
		if _, ok := living[uid]; !ok {
			return fmt.Sprintf("the credential %s is of no seat", name)
		}
	}
	for uid, r := range living {
		if r.Status == "running" && (l.active[uid] == 0 || l.files[uid] == "") {
			return fmt.Sprintf("seat %s runs with %d credentials and the file %q", r.Name, l.active[uid], l.files[uid])
		}
	}
	return ""
}

func (l *lives) durablesBroken(c census) string {
	if l == nil {
		return ""
	}
	living, of := c.living(), map[string]bool{}
	for _, name := range l.inboxes {
		uid := name[strings.LastIndexByte(name, '-')+1:]
		if of[uid] = true; !strings.HasPrefix(name, "dm_") {
			continue
		}
		if _, ok := living[uid]; !ok {
			return "the inbox " + name + " is of no seat"
		}
	}
	for uid, r := range living {
		if r.Status == "running" && !of[uid] {
			return "seat " + r.Name + " runs and has no inbox"
		}
	}
	return ""
}

// In an open space a seat has the identity of a key, as everywhere, and nothing of all this: no keys, no slot, no gate, no
// head, no ledger, no inbox that somebody made for it; and its end has nothing to take away.
//
// proves: PROV-1
func TestASeatOfAnOpenSpaceHasAnIdentityAndNoLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host = w.Start(harness.HostOptions{})
	w.spawnAndCheck("early", w.starts("early", `{"hang": true}`))
	row, ok := w.live("early")
	if !ok {
		t.Fatal("it is not listed")
	}
	if p, err := wire.PrincipalOf(row.ID); err != nil || p.Owner != wire.OwnerLocal || !nkeys.IsValidPublicUserKey(p.Actor) || !wire.ValidUID(row.LifecycleUID) {
		t.Errorf("it is %s in the life %s", row.ID, row.LifecycleUID)
	}
	nothing := func(when string) {
		t.Helper()
		if _, err := os.Lstat(w.Path(".cotal", "auth")); !os.IsNotExist(err) {
			t.Errorf("%s there is a store of keys: %v", when, err)
		}
		l := &lives{gates: map[string]string{}, heads: map[string]string{}, active: map[string]int{}}
		ctx, cancel := context.WithTimeout(t.Context(), w.wait)
		defer cancel()
		e := w.Endpoint()
		cfg, err := w.looker(e)
		if err == nil {
			err = l.readRows(ctx, cfg, e.Space)
		}
		if err != nil || len(l.slots)+len(l.gates)+len(l.heads)+len(l.active) > 0 {
			t.Errorf("%s there is %+v, %v", when, l, err)
		}
	}
	nothing("beside a seat")
	w.stop("early")
	nothing("behind a seat")
	w.checkInvariants("after the stop")
}

// While a seat is awaited on the mesh, its slot already says by what its process is found: whoever comes after a host that
// died in that wait finds it.
//
// proves: SLOT-8
func TestASeatThatIsNotReadyYetIsFoundByItsSlot(t *testing.T) {
	t.Parallel()
	w := newAuthenticated(t)
	w.UsePresence(10 * time.Minute)
	w.host = w.Start(harness.HostOptions{})
	args := w.PresenceArgs("early", w.starts("early", `{"hang": true}`)) // it never joins
	var acc wire.Acceptance
	if err := w.call(mesh.Call{Command: wire.CmdSpawn, Args: args}, &acc); err != nil {
		t.Fatal(err)
	}
	w.await("its process runs", func() (bool, string) { n := w.executions("early"); return n == 1, fmt.Sprint(n) })
	row, ok := w.live("early")
	if !ok {
		t.Fatal("it is not listed")
	}
	var s wire.Slot
	w.await("the slot is active", func() (bool, string) {
		s, _ = w.slotOf("early", acc.UID)
		return s.Phase == wire.SlotActive, s.Phase
	})
	if s.Runtime == nil || s.Runtime.Kind != row.Mode || s.Runtime.ID != row.SeatID {
		t.Errorf("its slot finds %+v, the seat is %s on %s", s.Runtime, row.SeatID, row.Mode)
	}
	var reply wire.GoalResultReply
	if err := w.call(mesh.Call{Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: acc.GoalID}}, &reply); err != nil || reply.Result != nil {
		t.Errorf("the spawn is over already: %+v, %v", reply.Result, err)
	}
	w.stop("early")
}

// The invariants of lives are shown what breaks each of them, and one seat with which nothing is wrong.
func TestInvariantsOfLivesSeeWhatBreaksThem(t *testing.T) {
	id, uid, inst := strings.Repeat("a", 32), strings.Repeat("u", 26), strings.Repeat("i", 26)
	whole := func() *lives {
		return &lives{
			instance: inst, gates: map[string]string{uid: wire.GateOpen}, heads: map[string]string{uid: wire.LifeActive},
			slots:  []wire.Slot{{Owner: "local", Alias: "worker", LifecycleUID: uid, Phase: wire.SlotActive, OwnerInstanceID: inst, Runtime: &wire.RuntimeRef{Kind: "pty", ID: id}}},
			active: map[string]int{uid: 1}, files: map[string]string{uid: "worker." + uid + ".creds"}, inboxes: []string{"dm_local-X-" + uid},
		}
	}
	row := wire.AgentRow{Name: "worker", SeatID: id, LifecycleUID: uid, Status: "running"}
	for name, c := range map[string]struct {
		want string
		of   func(*lives)
		gone bool // the seat is not there
	}{
		"a seat with all it has": {"", func(*lives) {}, false},
		"a life that left its rows, retired": {"", func(l *lives) {
			*l = lives{instance: inst, gates: map[string]string{uid: wire.GateRetired}, heads: map[string]string{uid: wire.LifeRetired}, slots: []wire.Slot{{Alias: "worker", LifecycleUID: uid, Phase: wire.SlotRetired, OwnerInstanceID: inst}}}
		}, true},
		"the slot of another host": {"", func(l *lives) {
			*l = *whole()
			l.slots[0].OwnerInstanceID = "other"
			l.gates, l.heads, l.active, l.files, l.inboxes = nil, nil, nil, nil, nil
		}, true},
		"lives that cannot be read":                 {invSlot, func(l *lives) { l.err = os.ErrClosed }, false},
		"a name that nobody has and is held":        {invSlot, func(l *lives) { l.slots[0].Phase = wire.SlotTerminalizing }, true},
		"a seat without a slot":                     {invSlot, func(l *lives) { l.slots = nil }, false},
		"a seat whose slot is not active":           {invSlot, func(l *lives) { l.slots[0].Phase = wire.SlotProvisioning }, false},
		"a seat that its slot does not find":        {invSlot, func(l *lives) { l.slots[0].Runtime.ID = "b" }, false},
		"a seat whose life has another name":        {invSlot, func(l *lives) { l.slots[0].Alias = "other" }, false},
		"a gate that stays open behind its seat":    {invLife, func(l *lives) { l.slots, l.heads = nil, nil }, true},
		"a head that stays active behind its seat":  {invLife, func(l *lives) { l.slots, l.gates = nil, nil }, true},
		"a seat whose gate is closed":               {invLife, func(l *lives) { l.gates[uid] = wire.GateFrozen }, false},
		"a row that stays active behind its seat":   {invCred, func(l *lives) { l.slots, l.gates, l.heads = nil, nil, nil }, true},
		"a file that stays behind its seat":         {invCred, func(l *lives) { l.slots, l.gates, l.heads, l.active = nil, nil, nil, nil }, true},
		"a seat without a credential in the ledger": {invCred, func(l *lives) { l.active = nil }, false},
		"a seat whose credential is in no file":     {invCred, func(l *lives) { l.files = nil }, false},
		"an inbox that stays behind its seat":       {invDurable, func(l *lives) { l.slots, l.gates, l.heads, l.active, l.files = nil, nil, nil, nil, nil }, true},
		"a seat without an inbox":                   {invDurable, func(l *lives) { l.inboxes = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := whole()
			c.of(l)
			now := census{live: map[string]wire.AgentRow{id: row}, lives: l}
			if c.gone {
				now.live = nil
			}
			got, text := "", ""
			for _, inv := range []struct {
				name  string
				check func(*lives, census) string
			}{{invSlot, (*lives).slotsBroken}, {invLife, (*lives).gatesBroken}, {invCred, (*lives).credentialsBroken}, {invDurable, (*lives).durablesBroken}} {
				if text = inv.check(l, now); text != "" {
					got = inv.name
					break
				}
			}
			if got != c.want {
				t.Errorf("broken is %q, by %q; want %q", got, text, c.want)
			}
		})
	}
}
