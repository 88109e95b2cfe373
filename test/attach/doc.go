// Package attach tests attach sessions over the mesh with the real programs: what a viewer is shown and types, both
// roles, capacity, and what becomes of a session when its viewer, its host, its seat or the mesh fails.
package attach
