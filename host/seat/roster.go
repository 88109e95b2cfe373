package seat

import (
	"context"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Roster is who is on the mesh, as this host sees it; the bus keeps it.
type Roster interface {
	// View returns what is known now. It waits for nobody.
	View() View
	// Await returns the first record that matches: one that is there already, or the first that comes.
	Await(ctx context.Context, match func(wire.Presence) bool) (wire.Presence, error)
	// Changed returns a channel that is closed, or gets a value, when the view differs from the one before.
	Changed() <-chan struct{}
}

// View is the presence bucket as seen by one watcher. Its rows are shared: not to be changed.
type View = mesh.View

// States of a view. Only a current one says anything of who is not there.
const (
	ViewCurrent     = mesh.ViewCurrent
	ViewStale       = mesh.ViewStale
	ViewUnpopulated = mesh.ViewUnpopulated
)

// view is the roster's view; without a roster nothing is known.
func (s *Set) view() View {
	if s.cfg.Roster == nil {
		return View{State: ViewUnpopulated}
	}
	v := s.cfg.Roster.View()
	if v.State == "" {
		v.State = ViewUnpopulated
	}
	return v
}

// snapshotWait is how long a spawn waits for the first view of the mesh, so that it does not take a name that
// somebody there has. Names are labels and no authority: a mesh that cannot be seen holds up no spawn.
const snapshotWait = 3 * time.Second

// awaitView waits until there is a view of the mesh, for at most snapshotWait, and reports whether there is one.
func (s *Set) awaitView(ctx context.Context) bool {
	if s.cfg.Roster == nil || s.view().State != ViewUnpopulated {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ViewWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // the view's state changes with time as well
	defer tick.Stop()
	for s.view().State == ViewUnpopulated {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		case <-s.life.Done():
			return false
		}
	}
	return true
}

// joins reports whether a record is the life principal and uid telling that it is there, later than floor (epoch
// ms; a process of that life that has ended may have said so up to then). Names are not looked at: anybody may
// have any.
func joins(p wire.Presence, principal, uid string, floor int64) bool {
	return p.Card.ID == principal && p.LifecycleUID == uid && p.Status != wire.StatusOffline && p.TS > floor
}
