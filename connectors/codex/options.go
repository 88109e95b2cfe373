package codex

import (
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk"
)

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
	switch opt.Permissions {
	case permissionsAsk, permissionsAllow, permissionsConfig:
	default:
		return options{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.permissions is ask, allow or config, not %q", opt.Permissions)
	}
	if opt.Config == "" {
		return opt, nil
	}
	if !filepath.IsAbs(opt.Config) {
		opt.Config = filepath.Join(req.WorkspaceRoot, opt.Config)
	}
	info, err := os.Stat(opt.Config)
	if err != nil {
		return options{}, sdk.Errorf(sdk.ErrNotFound, "launchOptions.config: %v", err)
	}
	if !info.Mode().IsRegular() {
		return options{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.config: %s is the wrong kind of file", opt.Config)
	}
	return opt, nil
}
