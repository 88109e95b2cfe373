package wire

import "encoding/json"

// LaunchMaterialEnv names the variable in which a launched program finds the file with its LaunchMaterial.
const LaunchMaterialEnv = "COTAL_LAUNCH_MATERIAL"

// LaunchMaterial is what a launched program needs to reach the mesh and must not be in its environment. It
// stands in a file that only its user can read.
type LaunchMaterial struct {
	Servers string `json:"servers,omitempty"` // comma separated
	// Token of an open mesh, or Creds, the path of a credentials file.
	Token string `json:"token,omitempty"`
	Creds string `json:"creds,omitempty"`
	// ControlToken is the secret of the program's own control socket.
	ControlToken   string `json:"controlToken,omitempty"`
	EventsRequired bool   `json:"eventsRequired,omitempty"`
	// Seat says who the program is, for programs whose own children do not get their environment. nil: the
	// environment says it.
	Seat *LaunchSeat `json:"seat,omitempty"`
}

// LaunchSeat is who a launched program is and what it may do. None of it is secret.
type LaunchSeat struct {
	Space          string   `json:"space"`
	Name           string   `json:"name"` // alias
	ID             string   `json:"id"`   // principal, dot form
	LifecycleUID   string   `json:"lifecycleUid"`
	Role           string   `json:"role,omitempty"`
	Connector      string   `json:"connector,omitempty"`
	Model          string   `json:"model,omitempty"`
	Cwd            string   `json:"cwd,omitempty"`
	Instance       string   `json:"instance,omitempty"` // of the host that launched it
	Environment    string   `json:"environment,omitempty"`
	Capabilities   []string `json:"capabilities,omitempty"`
	Subscribe      []string `json:"subscribe,omitempty"`
	AllowSubscribe []string `json:"allowSubscribe,omitempty"`
	AllowPublish   []string `json:"allowPublish,omitempty"`
}

// DecodeLaunchMaterial decodes the file's text. Members it does not know are ignored.
func DecodeLaunchMaterial(p []byte) (LaunchMaterial, error) {
	return decode("launch material", p, func(f *fields, m *LaunchMaterial) {
		f.str("servers", false, nil, "", &m.Servers)
		f.str("token", false, nil, "", &m.Token)
		f.str("creds", false, nil, "", &m.Creds)
		f.str("controlToken", false, nil, "", &m.ControlToken)
		f.boolean("eventsRequired", false, &m.EventsRequired)
		if s := f.object("seat", false); s != nil {
			m.Seat = &LaunchSeat{}
			s.launchSeat(m.Seat)
			f.done(s)
		}
		if f.err == nil && m.Token != "" && m.Creds != "" {
			f.fail("token", "and creds exclude each other")
		}
	})
}

func (f *fields) launchSeat(s *LaunchSeat) {
	f.str("space", true, ValidSpace, whySpace, &s.Space)
	f.str("name", true, ValidName, "is not 1..128 characters", &s.Name)
	f.str("id", true, validPrincipal, whyPrincipal, &s.ID)
	f.str("lifecycleUid", true, ValidUID, whyUID, &s.LifecycleUID)
	f.str("role", false, nil, "", &s.Role)
	f.str("connector", false, nil, "", &s.Connector)
	f.str("model", false, nil, "", &s.Model)
	f.str("cwd", false, nil, "", &s.Cwd)
	f.str("instance", false, nil, "", &s.Instance)
	f.str("environment", false, nil, "", &s.Environment)
	f.strings("capabilities", false, nil, "", &s.Capabilities)
	f.strings("subscribe", false, nil, "", &s.Subscribe)
	f.strings("allowSubscribe", false, nil, "", &s.AllowSubscribe)
	f.strings("allowPublish", false, nil, "", &s.AllowPublish)
}

// Encode returns the file's text, after it was read back.
func (m LaunchMaterial) Encode() ([]byte, error) {
	return encode("launch material", m, DecodeLaunchMaterial)
}

// IsZero reports whether there is nothing to hand over.
func (m LaunchMaterial) IsZero() bool { return m == LaunchMaterial{} }

// String hides the secrets.
func (m LaunchMaterial) String() string {
	for _, secret := range []*string{&m.Token, &m.ControlToken} {
		if *secret != "" {
			*secret = "(hidden)"
		}
	}
	p, err := json.Marshal(m)
	if err != nil {
		return "launch material"
	}
	return string(p)
}
