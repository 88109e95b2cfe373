package claude

import "github.com/cotal-ai/cotal-host/sdk"

// Values of launchOptions.permissions.
const (
	permissionsAsk   = "ask"   // the default: what changes something waits for an answer in the terminal
	permissionsAllow = "allow" // never ask
)

// Values of launchOptions.config.
const (
	configSeat = "seat" // the default: a configuration directory of the seat's own
	configUser = "user" // the user's own, with everything in it
)

// options are the launch options.
type options struct {
	Permissions string `json:"permissions"`
	Config      string `json:"config"` // whose configuration directory
}

func readOptions(given map[string]any) (options, error) {
	opt := options{Permissions: permissionsAsk, Config: configSeat}
	if err := sdk.DecodeOptions(given, &opt); err != nil {
		return options{}, err
	}
	if opt.Permissions != permissionsAsk && opt.Permissions != permissionsAllow {
		return options{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.permissions is ask or allow, not %q", opt.Permissions)
	}
	if opt.Config != configSeat && opt.Config != configUser {
		return options{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.config is seat or user, not %q", opt.Config)
	}
	return opt, nil
}
