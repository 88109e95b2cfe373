package host

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

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
	facts := make([]trust.Fact, len(known))
	var g errgroup.Group
	g.SetLimit(lifeLooks)
	for i, k := range known {
		g.Go(func() error {
			f := trust.Fact{Name: "seat " + k.Life.Alias, Verdict: trust.Unasked}
			if k.Err != nil {
				f.Verdict, f.Text = trust.Wrong, k.Err.Error()
				facts[i] = f
				return nil
			}
			switch found, err := provision.Look(ctx, auth, store, space, k.Life); {
			case err == nil:
				f = lifeFact(f, k, found, instanceID, repair)
			case errors.Is(err, bus.ErrCorrupt):
				f.Verdict, f.Text, f.Repair = trust.Wrong, err.Error(), "restore the records of the space from a backup"
			default:
				f.Text = err.Error()
			}
			facts[i] = f
			return nil
		})
	}
	_ = g.Wait()
	return facts
}

// lifeLooks is how many lives are looked at at a time: each takes two connections, one after the other, and all have to be
// had within the bound of a look.
const lifeLooks = 8

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
	slots, siblings, foreign := map[string]wire.Slot{}, 0, map[string]string{}
	for _, row := range rows {
		s, err := wire.DecodeSlot(row.Key, row.Value)
		name := "slot " + strings.Join(row.Key.Qualifiers, ".")
		switch {
		case err != nil:
			facts = append(facts, trust.Fact{Name: name, Verdict: trust.Wrong, Text: err.Error(), Repair: "restore the records of the space from a backup"})
			continue
		case s.OwnerInstanceID != instanceID:
			siblings++
			if s.Phase != wire.SlotRetired {
				foreign[s.LifecycleUID] = s.OwnerInstanceID
			}
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
		facts = append(facts, strayFact(f.Name, foreign[f.UID]))
	}
	return facts, nil
}

// strayFact is about the credential of a life that no seat here has and no slot of this host. host is the instance that has
// its slot, if one has: its seat may live then, with this very file.
func strayFact(name, host string) trust.Fact {
	f := trust.Fact{Name: "credential " + name, Verdict: trust.Wrong}
	if host != "" {
		f.Text = "it is of a life of instance " + host + ", and this one is another: the identity of this workspace was lost, or these files are a copy"
		f.Repair = "restore .cotal/host/instance.json of that instance from a backup; leave the file, its seat may live"
		return f
	}
	f.Text, f.Repair = "no seat has it, and no slot: a process that ended left it", "rm "+quoted(filepath.Join(".cotal", "auth", name))
	return f
}
