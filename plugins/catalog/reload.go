package catalog

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
)

// Change says what a reload does to a plugin.
type Change string

// Changes.
const (
	Added     Change = "added"
	Removed   Change = "removed"
	Changed   Change = "changed"
	Unchanged Change = "unchanged"
)

// Reloaded is what a reload did to one plugin.
type Reloaded struct {
	Name       string
	Kind       sdk.Kind
	Change     Change
	OldVersion string // of the manifest before; empty when it was added
	Version    string // of the manifest now; empty when it was removed
	PID        int    // 0 unless ready
	Note       string // what became of one that was unchanged and not ready
}

// Users names what needs a plugin, such as the seats that run in a runtime. A plugin that something needs is
// not removed.
type Users func(kind sdk.Kind, name string) []string

// Restart replaces the process of one plugin without a gap, and ends its backoff or quarantine. kind may be
// empty when the name says enough. Errors: ErrNotFound, ErrInvalid when kind is missing, *supervise.StartError
// when the new process does not start: the old one, if any, goes on.
func (c *Catalog) Restart(ctx context.Context, kind sdk.Kind, name string) (sdk.Kind, supervise.Swapped, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	kind, err := c.kindOf(kind, name)
	if err != nil {
		return kind, supervise.Swapped{}, err
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	s, err := c.find(kind, name)
	if err != nil {
		return kind, supervise.Swapped{}, err
	}
	s.Start() // one that nobody needed yet: it is started all the same
	done, err := s.Restart(ctx)
	return kind, done, err
}

// kindOf finds the kind of a name that has one meaning.
func (c *Catalog) kindOf(kind sdk.Kind, name string) (sdk.Kind, error) {
	if kind != "" {
		return kind, nil
	}
	var kinds []sdk.Kind
	var known []string
	for k := range c.all() {
		if k.name == name {
			kinds = append(kinds, k.kind)
		}
		known = append(known, k.name)
	}
	switch len(kinds) {
	case 1:
		return kinds[0], nil
	case 0:
		slices.Sort(known)
		return "", sdk.Errorf(sdk.ErrNotFound, "no plugin %q: there are %s", name, strings.Join(slices.Compact(known), ", "))
	}
	return "", sdk.Errorf(sdk.ErrInvalid, "%q is a connector and a runtime: say which kind", name)
}

// bounded is ctx, ended by Stop too.
func (c *Catalog) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// step is what a reload does to one plugin.
type step struct {
	key      key
	change   Change
	old, new manifest.Entry
}

// diff compares what runs with what a manifest wants, by kind and name.
func diff(old, new map[key]manifest.Entry) []step {
	var steps []step
	for k, e := range new {
		was, had := old[k]
		switch {
		case !had:
			steps = append(steps, step{k, Added, was, e})
		case reflect.DeepEqual(was, e):
			steps = append(steps, step{k, Unchanged, was, e})
		default:
			steps = append(steps, step{k, Changed, was, e})
		}
	}
	for k, was := range old {
		if _, kept := new[k]; !kept {
			steps = append(steps, step{k, Removed, was, manifest.Entry{}})
		}
	}
	slices.SortFunc(steps, func(a, b step) int {
		return strings.Compare(string(a.key.kind)+"/"+a.key.name, string(b.key.kind)+"/"+b.key.name)
	})
	return steps
}

// Reload applies a manifest, whole or not at all: what is removed must be needed by nobody, the file of every
// entry must be the one the manifest names, also of one that did not change, and every process that is new or
// changed is verified, started and ready before the first one takes over. Changed plugins are replaced without a
// gap. One that is unchanged and down is started again; whether it comes up decides nothing. Errors, after which everything is as it was: ErrUnavailable and
// *supervise.StartError naming the plugins that do not start, ErrInvalid naming who needs what was removed.
func (c *Catalog) Reload(ctx context.Context, m *manifest.Manifest, users Users) ([]Reloaded, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.life.Err() != nil {
		return nil, sdk.Errorf(sdk.ErrUnavailable, "the plugins are being stopped")
	}
	running := c.all()
	old := map[key]manifest.Entry{}
	for k, s := range running {
		old[k] = s.Entry()
	}
	steps := diff(old, enabled(m))
	if err := refuseRemovals(steps, users); err != nil {
		return nil, err
	}
	ready, err := c.prepare(ctx, steps, running)
	if err != nil {
		return nil, err
	}
	// That took a while, and somebody may need by now what is removed. From here on it is not listed any more,
	// so that whoever looks whether it is there after saying that he needs it cannot be missed.
	c.setLeaving(steps)
	defer c.setLeaving(nil)
	if err := refuseRemovals(steps, users); err != nil {
		discard(ready)
		return nil, err
	}
	return c.apply(steps, running, ready)
}

func refuseRemovals(steps []step, users Users) error {
	var why []string
	for _, st := range steps {
		if st.change != Removed || users == nil {
			continue
		}
		if by := users(st.key.kind, st.key.name); len(by) > 0 {
			more := ""
			if n := len(by) - 10; n > 0 {
				by, more = by[:10], fmt.Sprintf(" and %d more", n)
			}
			why = append(why, fmt.Sprintf("%s %s is needed by %s%s", st.key.kind, st.key.name, strings.Join(by, ", "), more))
		}
	}
	if len(why) == 0 {
		return nil
	}
	return sdk.Errorf(sdk.ErrInvalid, "nothing was changed: %s; end those first, or put the entry back (the manifest has it removed or disabled)", strings.Join(why, "; "))
}

// candidate is a process that waits to take over, or a supervisor that is new.
type candidate struct {
	prepared *supervise.Prepared
	added    *supervise.Supervisor
	note     string // see Reloaded
}

// err says why it is no candidate any more.
func (c candidate) err() error {
	switch {
	case c.added == nil && (c.prepared == nil || c.note != ""): // it stays as it is
		return nil
	case c.prepared != nil:
		return c.prepared.Err()
	}
	if st := c.added.Status(); st.State != supervise.StateReady || st.PID == 0 {
		return sdk.Errorf(sdk.ErrUnavailable, "plugin %s ended after it was ready: %s", c.added.Entry().Name, st.Reason)
	}
	return nil
}

// prepare starts everything that is new or changed. With an error nothing of it remains.
func (c *Catalog) prepare(ctx context.Context, steps []step, running map[key]*supervise.Supervisor) (map[key]candidate, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	ready, errs := map[key]candidate{}, map[key]error{}
	for _, st := range steps {
		if st.change == Removed {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			var cand candidate
			var err error
			switch st.change {
			case Added:
				cand.added = c.supervisor(st.new)
				cand.added.Start()
				wait, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
				_, err = cand.added.Ready(wait)
				cancel()
			case Changed:
				running[st.key].Start()
				cand.prepared, err = running[st.key].Prepare(ctx, st.new)
			case Unchanged:
				cand, err = c.again(ctx, running[st.key], st.new)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs[st.key] = err
			}
			ready[st.key] = cand
		}()
	}
	wg.Wait()
	for k, cand := range ready { // one waited for the other, and may not have lived that long
		if errs[k] == nil {
			if err := cand.err(); err != nil {
				errs[k] = err
			}
		}
	}
	if len(errs) == 0 {
		return ready, nil
	}
	discard(ready)
	var all []error
	for _, st := range steps { // in their order
		if err := errs[st.key]; err != nil {
			all = append(all, fmt.Errorf("%s, entry %s %q: %w", st.new.Source, st.key.kind, st.key.name, err))
		}
	}
	return nil, fmt.Errorf("nothing was changed: %w", errors.Join(all...))
}

// again looks at one that is to stay as it is: its file must be the one of the manifest, and where it is down a
// process is started that may take over.
func (c *Catalog) again(ctx context.Context, s *supervise.Supervisor, e manifest.Entry) (cand candidate, err error) {
	if err := supervise.Check(ctx, e, c.cfg.BundleDir); err != nil {
		return cand, err
	}
	switch st := s.Status(); st.State {
	case supervise.StateBackoff, supervise.StateQuarantined:
		if cand.prepared, err = s.Prepare(ctx, e); err != nil {
			cand.note = fmt.Sprintf("still %s: %v", s.State(), err)
		} else {
			cand.note = "it was down, and is started again"
		}
	}
	return cand, nil
}

// discard ends what was prepared and is not used.
func discard(ready map[key]candidate) {
	var wg sync.WaitGroup
	for _, cand := range ready {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if cand.added != nil {
				_ = cand.added.Stop(context.Background())
			} else if cand.prepared != nil {
				cand.prepared.Discard()
			}
		}()
	}
	wg.Wait()
}

// setLeaving says which plugins are being removed.
func (c *Catalog) setLeaving(steps []step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = map[key]bool{}
	for _, st := range steps {
		if st.change == Removed {
			c.leaving[st.key] = true
		}
	}
}

// apply puts everything in place that is ready. It does not fail but for a stop in between.
func (c *Catalog) apply(steps []step, running map[key]*supervise.Supervisor, ready map[key]candidate) ([]Reloaded, error) {
	var report []Reloaded
	var errs []error
	removed := map[key]*supervise.Supervisor{}
	for _, st := range steps {
		r := Reloaded{Name: st.key.name, Kind: st.key.kind, Change: st.change, OldVersion: st.old.Version, Version: st.new.Version}
		switch st.change {
		case Added:
			s := ready[st.key].added
			if !c.add(st.key, s) {
				errs = append(errs, sdk.Errorf(sdk.ErrUnavailable, "the plugins are being stopped"), s.Stop(context.Background()))
			}
			r.PID = s.Status().PID
		case Changed:
			done, err := ready[st.key].prepared.Commit()
			if err != nil {
				errs = append(errs, err)
			}
			r.PID = done.PID
		case Removed:
			removed[st.key] = running[st.key]
			c.mu.Lock()
			delete(c.plugins, st.key)
			c.mu.Unlock()
		case Unchanged:
			r.Note = ready[st.key].note
			if p := ready[st.key].prepared; p != nil {
				if _, err := p.Commit(); err != nil {
					r.Note = "it was started again, and ended: " + err.Error()
				}
			}
			r.PID = running[st.key].Status().PID
		}
		report = append(report, r)
	}
	if err := stopAll(context.Background(), removed); err != nil {
		errs = append(errs, err)
	}
	return report, errors.Join(errs...)
}
