package opencode

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Permissions of launchOptions.permissions.
const (
	permissionAsk    = "ask"    // the default: ask before a command, an edit, the network, another directory
	permissionAllow  = "allow"  // never ask
	permissionConfig = "config" // whatever the user's own configuration says
)

// options are the launch options.
type options struct {
	Permissions string `json:"permissions"`
	Port        port   `json:"port"`   // fixed port of the HTTP API instead of a minted one
	Config      string `json:"config"` // base opencode.json, absolute or relative to the workspace
	Home        string `json:"home"`   // home directory of the program, absolute or relative to the workspace
}

// port takes a number or, as it comes from --opt, its digits.
type port int

// UnmarshalJSON accepts 1024 to 65535.
func (p *port) UnmarshalJSON(b []byte) error {
	text := string(b)
	var quoted string
	if json.Unmarshal(b, &quoted) == nil {
		text = quoted
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1024 || n > 65535 {
		return fmt.Errorf("port must be a number from 1024 to 65535, not %s", b)
	}
	*p = port(n)
	return nil
}

// readOptions decodes and checks; paths come back absolute and exist.
func readOptions(req sdk.LaunchRequest) (options, error) {
	opt := options{Permissions: permissionAsk}
	if err := sdk.DecodeOptions(req.LaunchOptions, &opt); err != nil {
		return options{}, err
	}
	if err := sdk.OneOf("permissions", opt.Permissions, permissionAsk, permissionAllow, permissionConfig); err != nil {
		return options{}, err
	}
	var err error
	if opt.Config, err = req.OptionFile("config", opt.Config); err != nil {
		return options{}, err
	}
	opt.Home, err = req.OptionDir("home", opt.Home)
	return opt, err
}
