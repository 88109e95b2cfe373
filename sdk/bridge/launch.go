package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrLaunch: what the program was launched with is missing or wrong. The text names the file or variable, and the
// field of it.
var ErrLaunch = errors.New("launch material is unusable")

// Launch is who the program is and how it reaches the mesh.
type Launch struct {
	wire.LaunchSeat
	Servers string
	// Token of an open mesh, or Creds, the path of a credentials file.
	Token, Creds string
	ControlToken string // the secret of the control socket; empty: whoever may open it is let in
	// Socket is where the control socket is; empty: its path beside the material would be too long, so that it is where
	// the bridge placed it (sdk/private).
	Socket string

	dir string // of the file that it was read from: private, and gone with the seat
}

// ReadLaunch reads the file of a launch's material. path may be empty: then COTAL_LAUNCH_MATERIAL names it. Where
// the file does not say who the seat is, the environment does. getenv is os.Getenv where it is nil.
//
// Errors: ErrLaunch.
func ReadLaunch(path string, getenv func(string) string) (Launch, error) {
	if getenv == nil {
		getenv = os.Getenv
	}
	if path == "" {
		if path = getenv(wire.LaunchMaterialEnv); path == "" {
			return Launch{}, fmt.Errorf("%w: %s names no file; this program is started by an agent program in a seat", ErrLaunch, wire.LaunchMaterialEnv)
		}
	}
	m, err := mesh.ReadMaterial(path)
	if err != nil {
		return Launch{}, fmt.Errorf("%w: %w", ErrLaunch, err)
	}
	l := Launch{Servers: m.Servers, Token: m.Token, Creds: m.Creds, ControlToken: m.ControlToken}
	switch {
	case m.Servers == "":
		return Launch{}, fmt.Errorf("%w: %s: servers: is missing", ErrLaunch, path)
	case m.Seat != nil:
		l.LaunchSeat = *m.Seat
	default:
		if l.LaunchSeat, err = seatOf(getenv); err != nil {
			return Launch{}, fmt.Errorf("%w: %s says nothing of the seat, and %w", ErrLaunch, path, err)
		}
	}
	l.Socket = getenv(SocketEnv)
	if path, err = filepath.Abs(path); err != nil {
		return Launch{}, fmt.Errorf("%w: find %s: %w", ErrLaunch, path, err)
	}
	l.dir = filepath.Dir(path)
	if p := filepath.Join(l.dir, socketName); l.Socket == "" && private.Fits(p) {
		l.Socket = p
	}
	return l, nil
}

// seatOf reads who a seat is from its environment.
func seatOf(getenv func(string) string) (wire.LaunchSeat, error) {
	s := wire.LaunchSeat{
		Space: getenv("COTAL_SPACE"), Name: getenv("COTAL_NAME"), ID: getenv("COTAL_ID"),
		LifecycleUID: getenv("COTAL_LIFECYCLE_UID"), Role: getenv("COTAL_ROLE"), Model: getenv("COTAL_MODEL"),
		Instance: getenv("COTAL_MANAGER_INSTANCE"), Environment: getenv("COTAL_ENVIRONMENT"),
		Capabilities: list(getenv("COTAL_CAPABILITIES")), Subscribe: list(getenv("COTAL_SUBSCRIBE")),
		AllowSubscribe: list(getenv("COTAL_ALLOW_SUBSCRIBE")), AllowPublish: list(getenv("COTAL_ALLOW_PUBLISH")),
	}
	s.Cwd, _ = os.Getwd()
	_, _, err := wire.ParsePrincipal(s.ID)
	switch {
	case err != nil:
		return s, fmt.Errorf("COTAL_ID: %w", err)
	case !wire.ValidSpace(s.Space):
		return s, fmt.Errorf("COTAL_SPACE: %q is no space", s.Space)
	case !wire.ValidUID(s.LifecycleUID):
		return s, fmt.Errorf("COTAL_LIFECYCLE_UID: %q is no lifecycle UID", s.LifecycleUID)
	case !wire.ValidName(s.Name):
		return s, fmt.Errorf("COTAL_NAME: %q is no name", s.Name)
	}
	return s, nil
}

func list(text string) []string {
	var out []string
	for s := range strings.SplitSeq(text, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// Can reports whether the seat has a capability.
func (l *Launch) Can(capability string) bool {
	for _, c := range l.Capabilities {
		if c == capability {
			return true
		}
	}
	return false
}

// connect is how to reach the mesh.
func (l *Launch) connect(onState func(bool)) (mesh.Config, error) {
	owner, actor, err := wire.ParsePrincipal(l.ID)
	if err != nil {
		return mesh.Config{}, fmt.Errorf("%w: seat.id: %w", ErrLaunch, err)
	}
	return mesh.Config{
		URL: l.Servers, Token: l.Token, CredsFile: l.Creds, Space: l.Space, Name: l.Name, Reconnect: true, OnState: onState,
		Caller: wire.Caller{Owner: owner, Actor: actor, UID: l.LifecycleUID},
	}, nil
}

// card is how the agent appears.
func (l *Launch) card() wire.AgentCard {
	meta := map[string]json.RawMessage{}
	set := func(key, value string) {
		if raw, err := json.Marshal(value); err == nil && value != "" {
			meta[key] = raw
		}
	}
	set("connector", l.Connector)
	set("model", l.Model)
	set("cwd", l.Cwd)
	if host, err := os.Hostname(); err == nil {
		set("host", host)
	}
	return wire.AgentCard{Name: l.Name, Kind: wire.CardAgent, Role: l.Role, Meta: meta}
}

// String hides the secrets.
func (l Launch) String() string {
	return fmt.Sprintf("seat %s (%s) of space %s", l.Name, l.ID, l.Space)
}

// GoString hides the secrets.
func (l Launch) GoString() string { return l.String() }
