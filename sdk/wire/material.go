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
}

// DecodeLaunchMaterial decodes the file's text. Members it does not know are ignored.
func DecodeLaunchMaterial(p []byte) (LaunchMaterial, error) {
	return decode("launch material", p, func(f *fields, m *LaunchMaterial) {
		f.str("servers", false, nil, "", &m.Servers)
		f.str("token", false, nil, "", &m.Token)
		f.str("creds", false, nil, "", &m.Creds)
		f.str("controlToken", false, nil, "", &m.ControlToken)
		f.boolean("eventsRequired", false, &m.EventsRequired)
		if f.err == nil && m.Token != "" && m.Creds != "" {
			f.fail("token", "and creds exclude each other")
		}
	})
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
