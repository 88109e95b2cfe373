package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
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
	if e.mode != servedAuthenticated {
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
	mode     servedAs
	rec      instance.Recorded
	running  instance.Running
	endpoint wire.Endpoint    // of the host that runs, or zero
	server   string           // where the broker can be asked; empty: nowhere
	journal  *journal.Journal // nil: a host has it, or it cannot be read
	known    []seat.Known
	recorded bool // instance.json says how it is
	embedded bool // it had a broker of its own
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
		if !hasJournal(e.dir()) {
			e.never = true
			e.add("workspace", trust.Note, e.cfg.Root+" was never served", "cotal-host serve --root "+quoted(e.cfg.Root))
			return
		}
		e.add("identity", trust.Note, "instance.json is missing; the next start makes it again from the journal", "")
	case err != nil:
		e.add("identity", trust.Wrong, err.Error(), "")
	}
	e.how(err == nil)
	switch e.mode {
	case servedUnknown:
		e.add("workspace", trust.Unasked, e.cfg.Root+": whether it is an open or an authenticated one is not known: instance.json, the journal and the stores do not say", "restore .cotal/host from a backup")
	default:
		e.add("workspace", trust.Good, fmt.Sprintf("%s, %s, instance %s, epoch %d", e.cfg.Root, e.mode, e.rec.ID, e.rec.Epoch), "")
	}
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

// how finds out how a workspace was served, by more than its record, which may be lost or damaged.
func (e *examination) how(recorded bool) {
	var rec *instance.Recorded
	if recorded {
		rec = &e.rec
	}
	if e.running.Held && rec != nil {
		e.mode = modeSigns{recorded: true, authenticated: rec.Mode == instance.ModeAuthenticated}.mode() // the host wrote it a moment ago
	} else {
		signs, said := workspaceSigns(e.cfg.Root, e.cfg.Space, rec)
		if e.mode = signs.mode(); rec == nil {
			e.rec.ID, e.rec.Epoch = said.id, said.epoch
		}
	}
	authenticated, open := storeSays(e.dir())
	e.recorded = recorded
	e.embedded = e.rec.Port != 0 || e.mode == servedAuthenticated && authenticated || e.mode == servedOpen && open
}

// permissions looks whether anything of the workspace that is for this user alone lets others in. What is below a directory
// that is this user's alone is so, too; of keys each file is looked at, since one that is not is not read.
func (e *examination) permissions() {
	wrong := 0
	bad := func(text, repair string) { wrong++; e.add("permissions", trust.Wrong, text, repair) }
	auth := filepath.Join(e.cfg.Root, ".cotal", "auth")
	for _, top := range []string{e.dir(), auth} {
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
				bad(fmt.Sprintf("%s belongs to user %d, not to this one (%d)", path, sys.Uid, os.Geteuid()), "look at what is in it; a host of this user does not use it")
			case d.Type()&fs.ModeSymlink != 0:
				bad(path+" is a symbolic link", "look where it leads, and remove it")
			case mode&0o077 != 0:
				bad(fmt.Sprintf("%s has mode %04o: others can look into it", path, mode), fix+quoted(path))
			}
			if top != auth {
				return fs.SkipAll
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
	path := filepath.Join(e.dir(), journalName)
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
	if e.mode == servedUnknown {
		return // which of the two it is
	}
	if !e.embedded {
		if !e.recorded {
			e.add("store", trust.Unasked, "whether this workspace has a broker of its own is not known: there is no store, and no instance.json", "restore .cotal/host from a backup, or name the broker with --server")
			return
		}
		e.add("store", trust.Note, "this workspace has no broker of its own: it was served on one elsewhere", "name that one with --server")
		return
	}
	dir := filepath.Join(e.dir(), authStore)
	if e.mode == servedOpen {
		dir = filepath.Join(e.dir(), openStore)
	}
	stored, err := broker.ExamineStore(dir)
	if err != nil {
		e.lost = true
		e.add("store", trust.Unasked, err.Error(), "")
		return
	}
	fix := e.repair()
	if e.mode == servedOpen {
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
	if e.mode == servedAuthenticated {
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
		if !e.embedded {
			e.add("broker", trust.Unasked, "where it is, is not known", "name it with --server")
			return
		}
		e.add("broker", trust.Note, "it runs with the host, and is asked when that does", "cotal-host serve --root "+quoted(e.cfg.Root))
		return
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
	own := from
	if e.cfg.Keys != "" {
		if !trust.HasFileStore(e.cfg.Root) { // and a look makes none
			e.add("credentials", trust.Wrong, "there is no .cotal/auth in "+e.cfg.Root+": the files are gone that its seats are let in with", e.repair())
			return
		}
		if own, err = trust.OpenFileStore(ctx, e.cfg.Root); err != nil {
			e.add("credentials", trust.Wrong, err.Error(), "")
			return
		}
	}
	e.facts = append(e.facts, examineMesh(ctx, auth, own, e.cfg.Space, e.rec, e.known, e.repair())...)
}
