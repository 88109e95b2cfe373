package wire

// Commands on the plugins of a host: this project's own additions, served on the instance rail only, like
// CmdShutdown (docs/wire-decisions.md).
const (
	CmdPluginRestart = "plugin-restart"
	CmdPluginReload  = "plugin-reload"
)

// PluginStatus is the supervision state of one plugin process.
type PluginStatus struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"` // connector or runtime
	Version  string `json:"version,omitempty"`
	State    string `json:"state"` // stopped, starting, ready, backoff, quarantined
	PID      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	Reason   string `json:"reason,omitempty"` // why it is not ready
	Fix      string `json:"fix,omitempty"`    // what a person can do about it
	Crash    string `json:"crash,omitempty"`  // path of the report on its latest death, on the host's machine
}

// PluginRestartArgs are the arguments of plugin-restart.
type PluginRestartArgs struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"` // needed only where a connector and a runtime have the same name
}

// Check refuses an empty name.
func (a *PluginRestartArgs) Check() error { return needName("name", a.Name) }

// PluginRestartReply answers plugin-restart, once the new process serves.
type PluginRestartReply struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Version string `json:"version,omitempty"`
	OldPID  int    `json:"oldPid,omitempty"` // absent: none was running
	PID     int    `json:"pid"`
	DurMs   int64  `json:"durMs"`
}

// What a reload did to a plugin.
const (
	PluginAdded     = "added"
	PluginRemoved   = "removed"
	PluginChanged   = "changed"
	PluginUnchanged = "unchanged"
)

// PluginReloadReply answers plugin-reload, once every plugin that was added or changed serves.
type PluginReloadReply struct {
	Path    string         `json:"path"` // of the manifest, or the strongest of several
	Plugins []PluginChange `json:"plugins"`
}

// PluginChange is what a reload did to one plugin.
type PluginChange struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Change     string `json:"change"`
	OldVersion string `json:"oldVersion,omitempty"`
	Version    string `json:"version,omitempty"`
	PID        int    `json:"pid,omitempty"`
	Note       string `json:"note,omitempty"` // what is worth knowing, such as a connector that does not start
}
