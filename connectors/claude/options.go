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
	if err := sdk.OneOf("permissions", opt.Permissions, permissionsAsk, permissionsAllow); err != nil {
		return options{}, err
	}
	if err := sdk.OneOf("config", opt.Config, configSeat, configUser); err != nil {
		return options{}, err
	}
	return opt, nil
}
