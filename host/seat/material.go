package seat

import (
	"crypto/rand"

	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// credsEnv names the file of a seat's credential. The path is no secret.
const credsEnv = "COTAL_CREDS"

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
	row := a.snapshot().Row
	if a.set.cfg.Lives != nil {
		l, err := lifeOf(row)
		if err != nil {
			return nil, err
		}
		m.Token, m.Creds = "", a.set.cfg.Lives.Path(l)
	}
	m.ControlToken = rand.Text() // of this launch: its hooks speak to its own bridge alone
	m.EventsRequired = a.set.cfg.Policy.EventsRequired
	m.Seat = &wire.LaunchSeat{
		Space: a.set.cfg.Space, Name: row.Alias, ID: row.Principal, LifecycleUID: row.UID, Role: row.Role,
		Connector: row.Agent, Model: row.Model, Cwd: row.Cwd, Instance: a.set.cfg.InstanceID,
		Capabilities: p.profile.Capabilities, Subscribe: p.profile.Subscribe,
		AllowSubscribe: a.set.mayRead(p.profile.AllowSubscribe), AllowPublish: p.profile.AllowPublish,
	}
	material, err := launch.WriteMaterial(dir, m)
	if m.Creds != "" {
		// A cotal that the program runs calls as the seat, and not with the credential of whoever sits at the machine.
		material = append(material, credsEnv+"="+m.Creds)
	}
	return launch.MergeEnv(env, material), err
}
