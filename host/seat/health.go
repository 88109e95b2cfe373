package seat

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// health looks again and again at what running seats depend on and nobody tells of.
func (s *Set) health() {
	defer s.wg.Done()
	tick := time.NewTicker(s.cfg.Health)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.life.Done():
			return
		}
		s.mu.Lock()
		actors := make([]*actor, 0, len(s.byID))
		for _, a := range s.byID {
			actors = append(actors, a)
		}
		s.mu.Unlock()
		for _, a := range actors {
			a.checkHealth()
			a.checkAuth()
		}
	}
}

// checkHealth looks at one seat. The seat goes on: a program may do without its directory, and its end is
// for a person to decide.
func (a *actor) checkHealth() {
	snap := a.snapshot()
	if snap.State != Running || snap.Row.Cwd == "" {
		return
	}
	if found := degraded(snap.Row.Cwd); found != snap.Degraded {
		a.post(func() {
			a.show(func(s *Snapshot) { s.Degraded = found })
			if found != "" {
				a.log.Warn("seat is degraded", "reason", found)
			}
		})
	}
}

// degraded says what is wrong with a working directory, or nothing.
func degraded(cwd string) string {
	st, err := os.Stat(cwd)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "degraded: its working directory " + cwd + " is gone"
	case err == nil && !st.IsDir():
		return "degraded: its working directory " + cwd + " is no directory any more"
	}
	return "" // one that cannot be looked at may be there
}
