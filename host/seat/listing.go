package seat

import (
	"slices"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// listEvery is how long a list of rows is good when nothing is known to have changed: some of it changes with
// time alone, such as how much a view of the mesh is worth.
const listEvery = 250 * time.Millisecond

// listing keeps the rows of ps, each made anew only when its seat or what the mesh says of it has changed. So
// asking costs copying, however many seats there are and however often one asks.
//
// Lock order: listing.mu before Set.mu.
type listing struct {
	mu      sync.Mutex
	changes uint64          // Set.changes as of now
	mesh    <-chan struct{} // closed when the view differs from view
	view    View
	facts   map[onMeshAs]meshFacts // of view
	made    time.Time
	snaps   []*Snapshot
	rows    []wire.AgentRow
	known   map[string]listed // by custody id
}

// listed is a row and what it was made of.
type listed struct {
	snap   *Snapshot
	mesh   meshFacts
	status string
	row    wire.AgentRow
}

// Rows answers ps: live seats, then ended ones still kept. It waits for nobody. What the rows point to is shared
// between callers and must not be changed; it is the same again while a row has not changed.
func (s *Set) Rows() []wire.AgentRow {
	l := &s.listing
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s.refresh(l, now)
	rows := slices.Clone(l.rows)
	for i, snap := range l.snaps {
		rows[i].UptimeMs = uptime(snap, now)
	}
	return rows
}

// refresh brings a listing up to date. The caller holds l.mu.
func (s *Set) refresh(l *listing, now time.Time) {
	changes := s.changes.Load() // before the look: what comes in between is looked at again
	moved := false
	select {
	case <-l.mesh: // nil before the first
		moved = true
	default:
	}
	aged := now.Sub(l.made) >= listEvery
	if changes == l.changes && !moved && !aged && l.known != nil {
		return
	}
	if l.known == nil || moved || aged {
		if s.cfg.Roster != nil {
			l.mesh = s.cfg.Roster.Changed()
		}
		l.see(s.view())
	}
	l.changes, l.made, l.snaps = changes, now, s.Snapshots()
	known := make(map[string]listed, len(l.snaps))
	l.rows = make([]wire.AgentRow, len(l.snaps))
	for i, snap := range l.snaps {
		is := listed{snap: snap, mesh: l.meshOf(snap), status: statusNow(snap, now)}
		if was, ok := l.known[snap.Row.SeatID]; ok && was.snap == is.snap && was.mesh == is.mesh && was.status == is.status {
			is.row = was.row
		} else {
			is.row = s.baseRow(snap, is.mesh, is.status)
		}
		known[snap.Row.SeatID] = is
		l.rows[i] = is.row
	}
	l.known = known
}

// onMeshAs is what a record of the mesh is of.
type onMeshAs struct{ principal, uid string }

// see takes a view in.
func (l *listing) see(v View) {
	if v.State == l.view.State && len(v.Rows) == len(l.view.Rows) && (len(v.Rows) == 0 || &v.Rows[0] == &l.view.Rows[0]) && l.facts != nil {
		return // the same one
	}
	l.view, l.facts = v, make(map[onMeshAs]meshFacts, len(v.Rows))
	for i := range v.Rows {
		p := &v.Rows[i]
		l.facts[onMeshAs{p.Card.ID, p.LifecycleUID}] = meshOf(v, p.Card.ID, p.LifecycleUID, p)
	}
}

func (l *listing) meshOf(snap *Snapshot) meshFacts {
	if m, ok := l.facts[onMeshAs{snap.Row.Principal, snap.Row.UID}]; ok {
		return m
	}
	return meshOf(l.view, snap.Row.Principal, snap.Row.UID, nil)
}

// meshFacts is what the mesh says of one life.
type meshFacts struct {
	mesh, view   string
	offlineSince int64 // epoch ms; only with a verdict
	activeAt     int64
	provider     string
	by, activity string
	reported     bool // condition is there
	condition    wire.PresenceCondition
}

// meshAbsent is the word for a life of which the mesh has no record.
const meshAbsent = "absent"

// meshOf cross-checks one life with a view of the mesh; p is its record there, or nil. Only the record of exactly
// this principal and life counts. A view that is not current says what was so, and never since when somebody is
// gone.
func meshOf(v View, principal, uid string, p *wire.Presence) meshFacts {
	out := meshFacts{mesh: meshAbsent, view: v.State}
	if p == nil || p.Card.ID != principal || p.LifecycleUID != uid || v.State == ViewUnpopulated {
		return out
	}
	out.mesh, out.activeAt, out.provider = p.Status, p.ActiveAt, p.Card.MetaString("provider")
	if p.Status != wire.StatusOffline {
		out.by, out.activity = p.Card.MetaString(wire.MetaStateBy), p.Activity
	}
	if p.Condition != nil {
		out.reported, out.condition = true, *p.Condition
	}
	if since := v.OfflineSince(principal); p.Status == wire.StatusOffline && v.State == ViewCurrent && !since.IsZero() {
		out.offlineSince = since.UnixMilli()
	}
	return out
}
