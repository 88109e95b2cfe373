package seat

import "github.com/cotal-ai/cotal-host/sdk/wire"

// Standing is the row of the life that a target names, as the host knows it at this moment; nobody is asked.
// Errors: expired (no live seat with that life), failed-precondition (it is being started or has ended).
func (s *Set) Standing(target wire.Target) (wire.AgentRow, error) {
	a, err := s.target(target)
	if err != nil {
		return wire.AgentRow{}, err
	}
	snap := a.snapshot()
	switch snap.State {
	case Running, Stopping, Unknown:
		return s.row(snap), nil
	}
	return wire.AgentRow{}, wire.Refuse(wire.CodeFailedPrecondition, "%s is %s: it has no terminal to attach to", snap.Row.Alias, statusOf(snap.State))
}
