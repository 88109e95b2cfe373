package codex

import "github.com/cotal-ai/cotal-host/sdk"

// Permissions of launchOptions.permissions.
const (
	permissionsAsk    = "ask"    // the default: what leaves the sandbox waits for an answer
	permissionsAllow  = "allow"  // never ask, no sandbox
	permissionsConfig = "config" // whatever the configuration says
)

// options are the launch options.
type options struct {
	Permissions string `json:"permissions"`
	Config      string `json:"config"` // a config.toml in place of the operator's, absolute or relative to the workspace
}

// readOptions decodes and checks; a path comes back absolute and exists.
func readOptions(req sdk.LaunchRequest) (options, error) {
	opt := options{Permissions: permissionsAsk}
	if err := sdk.DecodeOptions(req.LaunchOptions, &opt); err != nil {
		return options{}, err
	}
	if err := sdk.OneOf("permissions", opt.Permissions, permissionsAsk, permissionsAllow, permissionsConfig); err != nil {
		return options{}, err
	}
	var err error
	opt.Config, err = req.OptionFile("config", opt.Config)
	return opt, err
}
