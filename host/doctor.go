package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Examine looks at a workspace: at what is on disk, and, where the broker can be asked, at what the mesh has of it. It
// changes nothing, but that each credential it looks with has its row in the ledger. It asks no host. Of cfg, Root, Space,
// Server, Keys and SeatRoot count.
func Examine(ctx context.Context, cfg Config) []trust.Fact {
	e := &examination{cfg: cfg, now: time.Now()}
	e.workspace()
	if e.never {
		return e.facts
	}
	e.permissions()
	e.local()
	if e.open {
		return e.facts
	}
	e.mesh(ctx)
	return e.facts
}

// examination is one look at a workspace.
type examination struct {
	cfg   Config
	now   time.Time
	facts []trust.Fact

	never    bool // it was never served
	open     bool
	rec      instance.Recorded
	running  instance.Running
	endpoint wire.Endpoint    // of the host that runs, or zero
	server   string           // where the broker can be asked; empty: nowhere
	journal  *journal.Journal // nil: a host has it, or it cannot be read
	known    []seat.Known
	lost     bool // the embedded store cannot be served from as it is
}

func (e *examination) dir() string { return instance.DirOf(e.cfg.Root) }

func (e *examination) add(name string, v trust.Verdict, text, repair string) {
	e.facts = append(e.facts, trust.Fact{Name: name, Verdict: v, Text: text, Repair: repair})
}

// repair is the command that makes again what the mesh has lost. A host that runs has to let go of the workspace first.
func (e *examination) repair() string { return repairCommand(e.cfg, e.running.Held) }

func repairCommand(cfg Config, running bool) string {
	root := " --root " + quoted(cfg.Root)
	args := root
	if cfg.Space != "" && cfg.Space != mesh.DefaultSpace {
		args += " --space " + cfg.Space
	}
	if cfg.Server != "" {
		args += " --server " + quoted(cfg.Server)
	}
	if cfg.Keys != "" {
		args += " --keys " + quoted(cfg.Keys)
	}
	repair := "cotal-host doctor --repair" + args
	if running {
		return "cotal-host stop" + root + " (seats go on), then: " + repair + ", then: cotal-host serve" + args
	}
	return repair
}

// quoted is a word as a shell takes it for one.
func quoted(word string) string {
	if word == "" || strings.ContainsAny(word, " \t\n\"'\\$`*?[]{}()<>|&;#~!") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// workspace looks at who serves it, and how.
func (e *examination) workspace() {
	var err error
	if e.running, err = instance.Probe(e.cfg.Root); err != nil {
		e.add("lock", trust.Unasked, err.Error(), "")
	}
	e.rec, err = instance.Look(e.cfg.Root)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !e.running.Held:
		if j, serr := os.Stat(filepath.Join(e.dir(), "journal.db")); serr == nil && j.Size() > 0 {
			e.add("identity", trust.Note, "instance.json is missing; the next start makes it again from the journal", "")
			break
		}
		e.never = true
		e.add("workspace", trust.Note, e.cfg.Root+" was never served", "cotal-host serve --root "+quoted(e.cfg.Root))
		return
	case err != nil:
		e.add("identity", trust.Wrong, err.Error(), "")
	}
	e.open = e.rec.Mode != instance.ModeAuthenticated
	mode := "authenticated"
	if e.open {
		mode = "open"
	}
	e.add("workspace", trust.Good, fmt.Sprintf("%s, %s, instance %s, epoch %d", e.cfg.Root, mode, e.rec.ID, e.rec.Epoch), "")
	switch {
	case e.running.Verified:
		e.add("lock", trust.Good, fmt.Sprintf("held by process %d, which serves", e.running.PID), "")
	case e.running.Held:
		e.add("lock", trust.Unasked, "held by a process that cannot be identified from here", "look at it from the container or as the user that started it")
	default:
		e.add("lock", trust.Note, "free: no host runs", "cotal-host serve --root "+quoted(e.cfg.Root))
	}
	ep, err := mesh.ReadEndpoint(instance.EndpointPath(e.cfg.Root))
	missing := errors.Is(err, fs.ErrNotExist)
	switch restart := "cotal-host stop --root " + quoted(e.cfg.Root) + ", then start it again; seats go on"; {
	case err != nil && !missing:
		e.add("endpoint", trust.Wrong, err.Error(), restart)
	case e.running.Held && missing:
		e.add("endpoint", trust.Wrong, "endpoint.json is missing while a host runs: nobody finds it", restart)
	case e.running.Verified && ep.PID != e.running.PID:
		e.add("endpoint", trust.Wrong, fmt.Sprintf("endpoint.json names process %d, and process %d serves", ep.PID, e.running.PID), restart)
	case !e.running.Held && !missing:
		e.add("endpoint", trust.Note, fmt.Sprintf("left by process %d, which is gone; the next start replaces it", ep.PID), "")
	case e.running.Held:
		e.endpoint = ep
		e.add("endpoint", trust.Good, ep.URL+", space "+ep.Space, "")
	}
	e.cfg.Space = cmp.Or(e.cfg.Space, ep.Space, mesh.DefaultSpace)
}

// permissions looks whether anything of the workspace that is for this user alone lets others in.
func (e *examination) permissions() {
	wrong := 0
	for _, top := range []string{e.dir(), filepath.Join(e.cfg.Root, ".cotal", "auth")} {
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // what is not there is told of elsewhere
			}
			st, err := d.Info()
			if err != nil {
				return nil
			}
			mode, fix := st.Mode().Perm(), "chmod 600 "
			if d.IsDir() {
				fix = "chmod 700 "
			}
			switch sys, ok := st.Sys().(*syscall.Stat_t); {
			case ok && int(sys.Uid) != os.Geteuid():
				wrong++
				e.add("permissions", trust.Wrong, fmt.Sprintf("%s belongs to user %d, not to this one (%d)", path, sys.Uid, os.Geteuid()), "look at what is in it; a host of this user does not use it")
			case d.Type()&fs.ModeSymlink != 0:
				wrong++
				e.add("permissions", trust.Wrong, path+" is a symbolic link", "look where it leads, and remove it")
			case mode&0o077 != 0 && (d.IsDir() || strings.HasPrefix(path, filepath.Join(e.cfg.Root, ".cotal", "auth"))):
				wrong++
				e.add("permissions", trust.Wrong, fmt.Sprintf("%s has mode %04o: others can look into it", path, mode), fix+quoted(path))
			}
			if d.IsDir() && path != top {
				if _, ok := strings.CutPrefix(path, e.dir()); ok {
					return fs.SkipDir // what is below a private directory is nobody's else
				}
			}
			return nil
		})
	}
	if wrong == 0 {
		e.add("permissions", trust.Good, "nobody else can look into .cotal/host and .cotal/auth", "")
	}
}

// knownSeats reads which seats live, or may, as this machine knows it.
func (e *examination) knownSeats() {
	root, err := seatRoot(cmp.Or(e.cfg.SeatRoot, e.endpoint.SeatRoot))
	if err == nil {
		e.known, err = seat.KnownLives(e.journal, root, e.rec.ID)
	}
	if err != nil {
		e.add("seats", trust.Unasked, err.Error(), "")
		return
	}
	names := make([]string, len(e.known))
	for i, k := range e.known {
		names[i] = k.Life.Alias
	}
	text := "none lives"
	if len(names) > 0 {
		text = fmt.Sprintf("%d live, or may: %s", len(names), strings.Join(names, ", "))
	}
	e.add("seats", trust.Good, text, "")
}

// local looks at what is stored here. The journal is given back before anybody is asked over the network: a host that
// starts meanwhile needs it.
func (e *examination) local() {
	if e.running.Held {
		e.knownSeats()
		if e.server = e.cfg.Server; e.server == "" {
			e.server = e.endpoint.URL
			if e.server != fmt.Sprintf("nats://127.0.0.1:%d", e.rec.Port) {
				e.cfg.Server = e.server // whoever repairs has to name it
			}
		}
		return
	}
	path := filepath.Join(e.dir(), "journal.db")
	if _, err := os.Lstat(path); err == nil {
		j, err := journal.Open(path)
		if err != nil {
			e.add("journal", trust.Wrong, err.Error(), "")
		} else {
			defer j.Close()
			e.journal = j
		}
	} else {
		e.add("journal", trust.Note, "there is none; seats are found by their directories", "")
	}
	e.server = e.cfg.Server
	e.knownSeats()
	e.store()
	e.journal = nil
}

// store looks at the store of an embedded broker that does not run, and at what the journal says has to be in it.
func (e *examination) store() {
	if e.cfg.Server != "" {
		return
	}
	dir := filepath.Join(e.dir(), authStore)
	if e.open {
		dir = filepath.Join(e.dir(), openStore)
	}
	stored, err := broker.ExamineStore(dir)
	if err != nil {
		e.lost = true
		e.add("store", trust.Unasked, err.Error(), "")
		return
	}
	fix := e.repair()
	if e.open {
		fix = "restore " + dir + " from a backup; or move it and journal.db away to go on without what was stored: seats are found all the same"
	}
	there, bad := map[string]bool{}, 0
	for _, s := range stored {
		if s.Damage != "" {
			bad++
			e.lost = true
			e.add("store", trust.Wrong, s.Name()+": "+s.Damage, fix)
			continue
		}
		if s.Consumer == "" {
			there[s.Stream] = true
		}
	}
	lost := e.lostStreams(there)
	switch {
	case len(lost) > 0:
		e.lost = true
		e.add("store", trust.Wrong, fmt.Sprintf("%s: this host has used %s, and %s not there", dir, strings.Join(lost, ", "), isAre(len(lost))), fix)
	case bad == 0:
		e.add("store", trust.Good, fmt.Sprintf("%s: %d streams, each readable", dir, len(there)), "")
	}
}

func isAre(n int) string {
	if n == 1 {
		return "it is"
	}
	return "they are"
}

// lostStreams are those that the journal knows and that are not there.
func (e *examination) lostStreams(there map[string]bool) []string {
	if e.journal == nil {
		return nil
	}
	scope := "embedded/"
	if !e.open {
		var err error
		if scope, err = e.accountScope(); err != nil {
			return nil // what is wrong with the keys is told of by itself
		}
	}
	names, err := bus.StreamNames(e.cfg.Space)
	if err != nil {
		return nil
	}
	var lost []string
	for _, name := range names {
		if known, err := e.journal.Known(scope + name); err == nil && known && !there[name] {
			lost = append(lost, name)
		}
	}
	return lost
}

func (e *examination) keysRoot() string { return cmp.Or(e.cfg.Keys, e.cfg.Root) }

func (e *examination) accountScope() (string, error) {
	if !trust.HasFileStore(e.keysRoot()) {
		return "", fs.ErrNotExist
	}
	store, err := trust.OpenFileStore(context.Background(), e.keysRoot())
	if err != nil {
		return "", err
	}
	keys, err := trust.OpenKeyring(store, e.cfg.Space)
	if err != nil {
		return "", err
	}
	b, err := keys.Bundle()
	if err != nil {
		return "", err
	}
	return accountScope(b), nil
}

// accountScope begins the names by which a journal knows the streams of an authenticated space: another account is another
// mesh, wherever it is.
func accountScope(b trust.Bundle) string { return "account/" + b.Account + "/" }

// mesh looks at keys, and with them at the broker and at what it has of this instance.
func (e *examination) mesh(ctx context.Context) {
	if !trust.HasFileStore(e.keysRoot()) {
		e.add("keys", trust.Wrong, "there is no .cotal/auth in "+e.keysRoot()+": nobody can be let in any more", "restore it from a backup")
		return
	}
	from, err := trust.OpenFileStore(ctx, e.keysRoot())
	if err != nil {
		e.add("keys", trust.Wrong, err.Error(), "restore .cotal/auth from a backup")
		return
	}
	keys, err := trust.OpenKeyring(from, e.cfg.Space)
	if errors.Is(err, fs.ErrNotExist) {
		e.add("keys", trust.Wrong, from.Dir()+" has none of space "+e.cfg.Space, "name the workspace that has them with --keys, or the space with --space; if they were here, restore .cotal/auth from a backup")
		return
	}
	e.facts = append(e.facts, trust.ExamineKeys(from, e.cfg.Space, e.now)...)
	if err != nil {
		return // it stands there
	}
	if e.server == "" {
		if e.lost {
			for _, k := range e.known {
				e.add("seat "+k.Life.Alias, trust.Wrong, "its life on the mesh went with the store; its process is not touched", e.repair())
			}
			return
		}
		e.add("broker", trust.Note, "it runs with the host, and is asked when that does", "cotal-host serve --root "+quoted(e.cfg.Root))
		return
	}
	own := from
	if e.cfg.Keys != "" {
		if own, err = trust.OpenFileStore(ctx, e.cfg.Root); err != nil {
			e.add("credentials", trust.Wrong, err.Error(), "")
			return
		}
	}
	auth, err := trust.NewStatic(trust.StaticConfig{Keys: keys, Instance: e.rec.ID, Reach: bus.Config{URL: e.server}})
	if err != nil {
		e.add("broker", trust.Unasked, err.Error(), "")
		return
	}
	broker := auth.Examine(ctx)
	e.facts = append(e.facts, broker...)
	for _, f := range broker {
		if f.Name == "broker" && f.Verdict != trust.Good {
			return // whatever else is asked of it says the same
		}
	}
	e.facts = append(e.facts, examineMesh(ctx, auth, own, e.cfg.Space, e.rec, e.known, e.repair())...)
}

// examineMesh looks at what the mesh has of an instance and of each of its lives.
func examineMesh(ctx context.Context, auth trust.Authority, store trust.SecretStore, space string, rec instance.Recorded, known []seat.Known, repair string) []trust.Fact {
	var facts []trust.Fact
	add := func(name string, v trust.Verdict, text, fix string) {
		if v == trust.Good || v == trust.Unasked {
			fix = ""
		}
		facts = append(facts, trust.Fact{Name: name, Verdict: v, Text: text, Repair: fix})
	}
	stores, serr := lookAtStores(ctx, auth, space)
	if stores == nil {
		add("streams", trust.Unasked, fmt.Sprint(serr), "")
		return facts
	}
	var missing []string
	for _, s := range stores {
		switch {
		case s.Missing:
			missing = append(missing, s.Name)
		case s.Unfit != "":
			add("stream "+s.Name, trust.Wrong, s.Unfit, "change its configuration with the nats program, or move it away")
		}
	}
	if len(missing) > 0 {
		add("streams", trust.Wrong, "the broker has no "+strings.Join(missing, ", "), repair)
	} else {
		add("streams", trust.Good, fmt.Sprintf("all %d are there", len(stores)), "")
	}
	rows := slices.ContainsFunc(missing, func(name string) bool {
		return strings.HasPrefix(name, "KV_cotal_records_") || strings.HasPrefix(name, "KV_cotal_auth_")
	})
	if rows {
		for _, k := range known {
			add("seat "+k.Life.Alias, trust.Wrong, "its life on the mesh went with the streams; its process is not touched", repair)
		}
		return facts
	}
	if !slices.ContainsFunc(missing, func(name string) bool { return strings.HasPrefix(name, "KV_cotal_manager_") }) {
		facts = append(facts, leaseFact(ctx, auth, space, rec.ID))
	}
	err := auth.With(ctx, trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		r, err := b.Rows(space)
		if err != nil {
			return err
		}
		facts = append(facts, registrationFact(ctx, r, rec))
		more, err := slotFacts(ctx, r, store, space, rec.ID, known)
		facts = append(facts, more...)
		return err
	})
	if err != nil {
		add("records", trust.Unasked, err.Error(), "")
	}
	return append(facts, lifeFacts(ctx, auth, store, space, rec.ID, known, repair)...)
}

// lookAtStores lists the streams of a space, with the credential that may make them. It needs no ledger to look.
func lookAtStores(ctx context.Context, auth trust.Authority, space string) (stores []bus.StoreFact, err error) {
	err = auth.With(ctx, trust.Request{Profile: trust.SetUp}, func(ctx context.Context, b *bus.Bus) error {
		var err error
		stores, err = b.Stores(ctx, space)
		return err
	})
	return stores, err
}

// leaseFact is who holds the lease of an instance.
func leaseFact(ctx context.Context, auth trust.Authority, space, instanceID string) trust.Fact {
	f := trust.Fact{Name: "lease", Verdict: trust.Unasked}
	err := auth.With(ctx, trust.Request{Profile: trust.Leaseholder}, func(ctx context.Context, b *bus.Bus) error {
		ls, err := b.Leases(bus.LeasesConfig{Space: space, Known: func(string) bool { return true }, Made: func(string) error { return nil }})
		if err != nil {
			return err
		}
		defer ls.Close()
		switch o := lease.Observe(ctx, ls, instanceID); o.Life {
		case lease.Live:
			f.Verdict, f.Text = trust.Good, fmt.Sprintf("held by process %d, workspace %s, epoch %d", o.Row.PID, o.Row.Root, o.Row.Epoch)
		case lease.Lapsed:
			f.Verdict, f.Text = trust.Note, "nobody holds it: no host of this instance runs, or it cannot renew"
		default:
			return o.Err
		}
		return nil
	})
	if err != nil {
		f.Text = err.Error()
	}
	return f
}

// registrationFact is how the instance is registered.
func registrationFact(ctx context.Context, r *bus.Records, rec instance.Recorded) trust.Fact {
	f := trust.Fact{Name: "registration", Verdict: trust.Unasked}
	row, err := r.Get(ctx, wire.EndpointGateKey(wire.EndpointManager, rec.ID))
	switch {
	case errors.Is(err, bus.ErrAbsent):
		f.Verdict, f.Text = trust.Note, "this instance is not registered; a host that starts does that"
		return f
	case err != nil:
		f.Text = err.Error()
		return f
	}
	g, err := wire.DecodeEndpointGate(row.Value)
	switch {
	case err != nil:
		f.Verdict, f.Text, f.Repair = trust.Wrong, "its gate cannot be read: "+err.Error(), "restore the records of the space from a backup"
	case g.State == wire.GateFrozen:
		f.Verdict, f.Text = trust.Note, fmt.Sprintf("operation %s (%s) has frozen its gate; a host that starts goes on with it", g.Op.OpID, g.Op.Kind)
	case g.ProcessEpoch > rec.Epoch:
		f.Verdict = trust.Wrong
		f.Text = fmt.Sprintf("it has epoch %d and this workspace %d: the files here are older than the mesh's", g.ProcessEpoch, rec.Epoch)
		f.Repair = "restore later ones of .cotal/host; or remove them to start as a new instance"
	default:
		f.Verdict, f.Text = trust.Good, fmt.Sprintf("epoch %d, gate %s", g.ProcessEpoch, g.State)
	}
	return f
}

// lifeFacts is what the mesh has of each life.
func lifeFacts(ctx context.Context, auth trust.Authority, store trust.SecretStore, space, instanceID string, known []seat.Known, repair string) []trust.Fact {
	var facts []trust.Fact
	for _, k := range known {
		f := trust.Fact{Name: "seat " + k.Life.Alias, Verdict: trust.Unasked}
		if k.Err != nil {
			f.Verdict, f.Text = trust.Wrong, k.Err.Error()
			facts = append(facts, f)
			continue
		}
		found, err := provision.Look(ctx, auth, store, space, k.Life)
		if err != nil {
			f.Text = err.Error()
			if errors.Is(err, bus.ErrCorrupt) {
				f.Verdict, f.Repair = trust.Wrong, "restore the records of the space from a backup"
			}
			facts = append(facts, f)
			continue
		}
		facts = append(facts, lifeFact(f, k, found, instanceID, repair))
	}
	return facts
}

// lifeFact judges one life. A seat that is only being started has not all of it yet.
func lifeFact(f trust.Fact, k seat.Known, found provision.Found, instanceID, repair string) trust.Fact {
	v, why := found.Judge(k.Life, instanceID)
	text := strings.Join(why, ", ")
	switch v {
	case provision.Whole:
		f.Verdict, f.Text = trust.Good, "life "+k.Life.UID+" has all it needs"
	case provision.Lost:
		f.Verdict, f.Text, f.Repair = trust.Wrong, "the mesh lacks "+text+"; its process is not touched", repair
		if k.State == seat.Starting || k.State == seat.Prepared {
			f.Verdict, f.Text, f.Repair = trust.Note, "it is being started: the mesh lacks "+text, ""
		}
		if found.File != nil {
			stop := "cotal stop " + k.Life.Alias + ": it cannot be given its credential again"
			if f.Repair += ", then: " + stop; len(why) == 1 {
				f.Repair = stop
			}
		}
	case provision.Over:
		f.Verdict, f.Text = trust.Note, "it is on its way out: "+text
	case provision.Taken:
		f.Verdict, f.Text, f.Repair = trust.Wrong, text, "look with: cotal slots; end one of the two"
		if s := found.Slot; s != nil && s.OwnerInstanceID == instanceID && s.LifecycleUID != k.Life.UID {
			f.Repair = "cotal-host serve, which ends that life if no seat has it; then: " + repair
		}
	}
	return f
}

// slotFacts is what is on the mesh, or in files, of lives that no seat here has.
func slotFacts(ctx context.Context, r *bus.Records, store trust.SecretStore, space, instanceID string, known []seat.Known) ([]trust.Fact, error) {
	lives := map[string]bool{}
	for _, k := range known {
		lives[k.Life.UID] = true
	}
	rows, err := r.Scan(ctx, wire.KindSlot)
	if err != nil {
		return nil, err
	}
	var facts []trust.Fact
	slots, siblings := map[string]wire.Slot{}, 0
	for _, row := range rows {
		s, err := wire.DecodeSlot(row.Key, row.Value)
		name := "slot " + strings.Join(row.Key.Qualifiers, ".")
		switch {
		case err != nil:
			facts = append(facts, trust.Fact{Name: name, Verdict: trust.Wrong, Text: err.Error(), Repair: "restore the records of the space from a backup"})
			continue
		case s.OwnerInstanceID != instanceID:
			siblings++
			continue
		}
		slots[s.LifecycleUID] = s
		if s.Phase != wire.SlotRetired && !lives[s.LifecycleUID] {
			facts = append(facts, trust.Fact{
				Name: name, Verdict: trust.Note, Text: fmt.Sprintf("%s, life %s, and no seat here has it; a host that runs ends it by itself", s.Phase, s.LifecycleUID),
				Repair: "cotal-host serve, then look with: cotal slots",
			})
		}
	}
	facts = append(facts, trust.Fact{Name: "slots", Verdict: trust.Good, Text: fmt.Sprintf("%d of this host, %d of others", len(slots), siblings)})
	files, err := trust.LifeFiles(store, space)
	if err != nil {
		return append(facts, trust.Fact{Name: "credentials", Verdict: trust.Unasked, Text: err.Error()}), nil
	}
	for _, f := range files {
		if s, ok := slots[f.UID]; lives[f.UID] || ok && s.Phase != wire.SlotRetired {
			continue
		}
		facts = append(facts, trust.Fact{
			Name: "credential " + f.Name, Verdict: trust.Wrong, Text: "no seat has it, and no slot: a process that ended left it",
			Repair: "rm " + quoted(filepath.Join(".cotal", "auth", f.Name)),
		})
	}
	return facts, nil
}
