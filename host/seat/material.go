package seat

import "github.com/cotal-ai/cotal-host/host/launch"

// launchEnv is the environment a connector builds on. What the launched program needs to reach the mesh is
// written into its launch directory, and named by it.
func (a *actor) launchEnv(p *plan, dir string) ([]string, error) {
	env := a.seatEnv(p)
	if a.set.cfg.Material == nil {
		return env, nil
	}
	m, err := a.set.cfg.Material()
	if err != nil {
		return nil, err
	}
	material, err := launch.WriteMaterial(dir, m)
	return launch.MergeEnv(env, material), err
}
