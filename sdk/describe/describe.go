// Package describe is how a plugin binary is asked who it is before anything else of it is used: it is started
// with Flag, prints one JSON object on standard output, and ends. It needs nothing but the standard library, so
// that a program can look at plugins without linking the protocol they speak.
package describe

// Flag makes a plugin binary print what it is as JSON, and exit.
const Flag = "--cotal-describe"

// ProtocolVersion is the major version of the plugin contract. It changes only when the contract breaks;
// additions are announced as capabilities.
const ProtocolVersion = 1

// Kind says what a plugin is.
type Kind string

// The two kinds of plugin.
const (
	Connector Kind = "connector"
	Runtime   Kind = "runtime"
)

// Identity is the part of the answer that every plugin gives, whatever its kind.
type Identity struct {
	Name       string `json:"name"`    // ^[a-z][a-z0-9-]{0,30}$
	Kind       Kind   `json:"kind"`    // connector or runtime
	Version    string `json:"version"` // of the plugin itself
	SDKVersion string `json:"sdkVersion"`
	Protocol   int    `json:"protocol"` // major version of the contract; 0: it does not say
}
