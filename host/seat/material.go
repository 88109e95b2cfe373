package seat

import "github.com/cotal-ai/cotal-host/host/launch"

// material writes what the launched program needs to reach the mesh into its launch directory, and returns the
// environment that names it.
func (a *actor) material(dir string) ([]string, error) {
	if a.set.cfg.Material == nil {
		return nil, nil
	}
	m, err := a.set.cfg.Material()
	if err != nil {
		return nil, err
	}
	return launch.WriteMaterial(dir, m)
}
