// Package sdk is what the author of a cotal-host plugin imports: the Connector and Runtime
// interfaces, the plain structs they exchange, the sentinel errors that survive the wire, and
// ServeConnector / ServeRuntime, which turn an implementation into a plugin binary.
//
// No generated type is exported from here. The RPC contract itself is in
// sdk/proto/cotal/plugin/v1.
package sdk

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/describe"
)

// Connector knows one agent program: how to launch it, which models it offers, what it leaves
// behind. Implementations are stateless; the host may kill and restart the plugin at any time, and runs
// two processes of it for some seconds when it replaces one. Helpers that ListModels starts are killed
// when the plugin ends, wherever they went.
type Connector interface {
	// BuildLaunch turns a request into the process to start. It is pure: the same request gives
	// the same spec. It starts no process, opens no socket and writes only inside req.Dir.
	// Ports, secrets and session ids it needs are minted by the host and stand in the request.
	//
	// Errors: ErrInvalid (a launch option or field is wrong; Detail names it), ErrUnsupported
	// (a feature the connector does not declare), ErrNotFound (a file the request names).
	BuildLaunch(ctx context.Context, req LaunchRequest) (LaunchSpec, error)

	// ListModels returns the program's model catalogue.
	// Errors: ErrUnavailable when there is no catalogue to be had now, with the reason.
	ListModels(ctx context.Context, q ModelQuery) (ModelCatalog, error)

	// Reap removes what the agent program itself leaves behind for one seat (locks, servers,
	// temporary configuration) once the seat's processes are gone. It is idempotent, and for an
	// unknown seat it returns evidence, not an error. Errors: ErrUnproven.
	Reap(ctx context.Context, req LeftoverRequest) (ReapReport, error)
}

// Runtime gives seats a place to run. Every method is idempotent per SeatID.
type Runtime interface {
	// Spawn prepares a seat: directory, terminal and custody process exist, nothing of the agent
	// has executed. A second Spawn for the same SeatID returns the same Handle.
	// Errors: ErrInvalid, ErrUnavailable (out of processes, ptys, disk), ErrStaleFence.
	Spawn(ctx context.Context, req SpawnRequest) (Handle, error)

	// Adopt verifies a seat and, with req.Commit, starts its agent. It answers exactly one of
	// prepared, running, exited, not_found or unknown; unknown is an answer, not an error.
	// Errors: ErrNotOurs (another instance's seat), ErrStaleFence (a newer host holds it),
	// ErrExecFailed (the agent program could not be executed; the seat is still prepared).
	Adopt(ctx context.Context, req AdoptRequest) (SeatStatus, error)

	// Attach returns where the seat's terminal can be dialled. Terminal bytes never cross the plugin.
	// A seat that ended by itself may show its last output until it is reaped.
	// Errors: ErrGone (the seat has ended, and nothing is left to look at), ErrNotOurs, ErrUnsupported.
	Attach(ctx context.Context, req AttachRequest) (AttachTarget, error)

	// Reap ends a seat: the stop ladder, proof that its process tree is gone, removal of its
	// directory and socket. A seat that is already gone is success, with the evidence.
	// Errors: ErrUnproven (something may still live; nothing was removed), ErrNotOurs, ErrStaleFence.
	Reap(ctx context.Context, req StopRequest) (ReapReport, error)
}

// Watcher is the optional ability to stream a seat's status (capability CapWatch). Watch emits the
// current status at once, then every change, and returns nil after emitting an exited status.
type Watcher interface {
	Watch(ctx context.Context, req WatchRequest, emit func(SeatStatus) error) error
}

// Lister is the optional ability to enumerate every seat found on this machine, ours and foreign
// (capability CapList). It is how a host finds its seats after losing its journal.
type Lister interface {
	List(ctx context.Context, req ListRequest) ([]SeatListing, error)
}

// Writer is the optional ability to type into a seat (capability CapWrite), for runtimes whose Attach
// answers with an argv. Where Attach gives a seat socket, the host types there and never through the plugin.
type Writer interface {
	// Write types req.Data, byte for byte and in order, and returns how many bytes the terminal took. It
	// is not idempotent and never repeated by the host.
	// Errors: ErrGone (not running), ErrNotOurs, ErrStaleFence, ErrTooLarge (above MaxWrite).
	Write(ctx context.Context, req WriteRequest) (int, error)
}

// Snapshotter is the optional ability to show a seat's screen (capability CapSnapshot).
type Snapshotter interface {
	// Snapshot returns what paints the screen as it is now. A screen that may be wrong is returned with
	// Dirty set; one that cannot be had at all is ErrUnavailable, and the caller replays output instead.
	// Errors: ErrGone, ErrNotOurs, ErrUnavailable.
	Snapshot(ctx context.Context, req SnapshotRequest) (Snapshot, error)
}

// Configurer is implemented by plugins that take configuration: it is called once after start and
// before any other method, with the [plugin.config] table of plugins.toml and the host's facts.
type Configurer interface {
	// Configure returns ErrInvalid, naming the key, for a configuration it cannot use.
	Configure(ctx context.Context, cfg PluginConfig) error
}

// Kind says which contract a plugin implements.
type Kind = describe.Kind

// The two kinds of plugin.
const (
	KindConnector = describe.Connector
	KindRuntime   = describe.Runtime
)

// Capability names an optional ability. Features switch on capabilities, never on version numbers.
type Capability string

// Capabilities of contract v1.
const (
	CapWatch  Capability = "watch"  // runtime implements Watcher
	CapList   Capability = "list"   // runtime implements Lister
	CapModels Capability = "models" // connector has a model catalogue
	// CapMCPServers: connector gives the servers of MCPServersFile to its program.
	CapMCPServers Capability = "mcp-servers"

	CapWrite    Capability = "write"    // runtime implements Writer
	CapSnapshot Capability = "snapshot" // runtime implements Snapshotter
)

// MCPServersFile is the file in LaunchRequest.Dir with the MCP servers that the operator shares with the seat. It is
// absent where there are none, and where the connector does not announce CapMCPServers. It has the shape of an
// .mcp.json: {"mcpServers": {"<name>": {"command", "args", "env"} or {"type", "url", "headers"}}}. References to
// variables (${NAME}, ${NAME:-default}) stand as the operator wrote them; the variables are in BaseEnv where the host
// has them. The name cotal is not among them. It can hold secrets.
const MCPServersFile = "mcp-servers.json"

// Info is what a plugin says of itself (Describe, and --cotal-describe as JSON).
type Info struct {
	Name          string         `json:"name"`    // ^[a-z][a-z0-9-]{0,30}$, must equal the manifest's
	Kind          Kind           `json:"kind"`    // filled in by ServeConnector / ServeRuntime
	Version       string         `json:"version"` // must equal the manifest's
	SDKVersion    string         `json:"sdkVersion"`
	ProtocolMinor int            `json:"protocolMinor"` // for logs only
	Capabilities  []Capability   `json:"capabilities,omitempty"`
	Connector     ConnectorFacts `json:"connector,omitzero"` // zero for a runtime
}

// Has reports whether the plugin announced c.
func (i Info) Has(c Capability) bool {
	for _, have := range i.Capabilities {
		if have == c {
			return true
		}
	}
	return false
}

// ReadyBy says what makes a seat of a connector count as ready.
type ReadyBy string

// Readiness kinds.
const (
	// ReadyByPresence: the exact incarnation joined the mesh.
	ReadyByPresence ReadyBy = "presence"
	// ReadyByProcess: the process runs and the loopback probe of the spec, if any, answered.
	ReadyByProcess ReadyBy = "process"
)

// DefaultReadinessTimeoutMs bounds readiness when a connector names no window of its own.
const DefaultReadinessTimeoutMs = 30_000

// DefaultStopGraceMs is the time between the polite signal and SIGKILL when a connector names none.
const DefaultStopGraceMs = 10_000

// ConnectorFacts are the static facts of a connector. Everything the host refuses because of them
// is refused before anything is minted.
type ConnectorFacts struct {
	Requires                    []string   `json:"requires,omitempty"` // executables the host resolves on its own PATH
	InstallHint                 string     `json:"installHint,omitempty"`
	LaunchHint                  string     `json:"launchHint,omitempty"`
	SupportsResume              bool       `json:"supportsResume,omitempty"`
	SupportsSessionContinuation bool       `json:"supportsSessionContinuation,omitempty"`
	SupportsFreshStart          bool       `json:"supportsFreshStart,omitempty"`
	SupportsModel               bool       `json:"supportsModel,omitempty"`
	SupportsModelVariant        bool       `json:"supportsModelVariant,omitempty"`
	SupportsPrompt              bool       `json:"supportsPrompt,omitempty"`
	SupportsPersona             bool       `json:"supportsPersona,omitempty"`
	EventChannel                bool       `json:"eventChannel,omitempty"`
	ReadinessTimeoutMs          int        `json:"readinessTimeoutMs,omitempty"` // 0: DefaultReadinessTimeoutMs
	ReadyBy                     ReadyBy    `json:"readyBy"`
	StopGraceMs                 int        `json:"stopGraceMs,omitempty"` // 0: DefaultStopGraceMs
	Mints                       MintCounts `json:"mints,omitzero"`
	Input                       InputFacts `json:"input,omitzero"`
	EnvAllow                    []string   `json:"envAllow,omitempty"` // extra host variables to hand to the agent, by name
	// Permissions are the values that launchOptions.permissions takes, such as ask and allow. The host refuses any other
	// one, such as ask where the program asks nobody. None: it leaves the option to the connector.
	Permissions []string `json:"permissions,omitempty"`
}

// MintCounts says how many of each thing the host must mint for one launch: at most MaxMintPorts,
// MaxMintSecrets and MaxMintSessionIDs.
type MintCounts struct {
	Ports      int `json:"ports,omitempty"`      // free loopback TCP ports
	Secrets    int `json:"secrets,omitempty"`    // 32 random bytes as 64 hex digits each
	SessionIDs int `json:"sessionIds,omitempty"` // random ids, 26 characters [a-z0-9]
}

// InputFacts tell the host how text is typed into this agent program.
type InputFacts struct {
	SubmitDelayMs int `json:"submitDelayMs,omitempty"` // pause between the pasted text and the Return that submits it
	// AwaitField: the program loses what is typed before its input field has the focus, which shows as
	// bracketed paste on and the cursor visible. The host holds text back until then.
	AwaitField bool `json:"awaitField,omitempty"`
	// BracketedPaste: the program takes bracketed paste. It counts only where the runtime cannot tell
	// from the program's own output whether it asked for that.
	BracketedPaste bool `json:"bracketedPaste,omitempty"`
}

// PluginConfig is handed to Configurer.
type PluginConfig struct {
	Config    json.RawMessage `json:"config,omitempty"` // the [plugin.config] table as a JSON object
	BundleDir string          `json:"bundleDir"`        // directory of the host's own binaries (cotal-seat, launchers)
	// StateDir is a private scratch directory of this plugin, 0700. While a new process replaces an old one
	// both run for some seconds and share it.
	StateDir  string `json:"stateDir"`
	SeatRoot  string `json:"seatRoot"`  // one directory per seat, by custody id
	SocketDir string `json:"socketDir"` // short-named directory for seat sockets, 0700
}

// LaunchRequest is everything a connector may use to build a launch.
type LaunchRequest struct {
	SeatID        string            `json:"seatId"` // custody id, 32 hex digits
	InstanceID    string            `json:"instanceId"`
	Space         string            `json:"space"`
	Name          string            `json:"name"` // the seat's alias
	Role          string            `json:"role,omitempty"`
	Principal     string            `json:"principal"` // owner.actor
	LifecycleUID  string            `json:"lifecycleUid"`
	Servers       string            `json:"servers,omitempty"`
	PersonaPath   string            `json:"personaPath,omitempty"` // the persona file, if there is one
	Persona       string            `json:"persona,omitempty"`     // its body
	Model         string            `json:"model,omitempty"`
	Variant       string            `json:"variant,omitempty"`
	Prompt        string            `json:"prompt,omitempty"`          // first turn; deliver it or refuse
	Resume        string            `json:"resume,omitempty"`          // session to fork from
	Continue      string            `json:"continueSession,omitempty"` // exact session to reopen
	LaunchOptions map[string]any    `json:"launchOptions,omitempty"`   // opaque to the host; JSON values
	BaseEnv       []string          `json:"baseEnv,omitempty"`         // K=V; the environment to build on, nothing else is inherited
	Binaries      map[string]string `json:"binaries,omitempty"`        // absolute paths of ConnectorFacts.Requires
	WorkspaceRoot string            `json:"workspaceRoot"`
	Cwd           string            `json:"cwd"` // where the agent will run; not the connector's to change
	Dir           string            `json:"dir"` // private directory of this seat for files of the launch; removed with the seat
	Ports         []int             `json:"ports,omitempty"`
	Secrets       []string          `json:"secrets,omitempty"`
	SessionIDs    []string          `json:"sessionIds,omitempty"`
}

// LaunchSpec is the process to start. Env is complete: nothing is added to it but the seat's nonce.
type LaunchSpec struct {
	Path  string   `json:"path"`           // absolute
	Args  []string `json:"args,omitempty"` // argv[1:]; never a secret
	Env   []string `json:"env,omitempty"`  // K=V
	Probe *Probe   `json:"probe,omitempty"`
}

// Probe is a loopback address that answers once the program is ready: a TCP accept, or with Path
// an HTTP answer below 500.
type Probe struct {
	Addr     string `json:"addr"` // 127.0.0.1:port; another address than a loopback one is refused
	Path     string `json:"path,omitempty"`
	User     string `json:"user,omitempty"`     // HTTP basic auth
	Password string `json:"password,omitempty"` // never stored
}

// ModelQuery asks for a catalogue.
type ModelQuery struct {
	Refresh  bool              `json:"refresh,omitempty"`
	BaseEnv  []string          `json:"baseEnv,omitempty"`
	Binaries map[string]string `json:"binaries,omitempty"`
}

// ModelCatalog is a list of models and where it came from.
type ModelCatalog struct {
	Source string  `json:"source,omitempty"`
	Models []Model `json:"models"`
}

// Model is one entry of a catalogue.
type Model struct {
	ID       string   `json:"id"`
	Name     string   `json:"name,omitempty"`
	Provider string   `json:"provider,omitempty"`
	Variants []string `json:"variants,omitempty"`
}

// LeftoverRequest names the seat whose leftovers a connector should remove.
type LeftoverRequest struct {
	SeatID        string            `json:"seatId"`
	Name          string            `json:"name"`
	LifecycleUID  string            `json:"lifecycleUid"`
	WorkspaceRoot string            `json:"workspaceRoot"`
	Cwd           string            `json:"cwd"`
	Dir           string            `json:"dir"`
	LaunchOptions map[string]any    `json:"launchOptions,omitempty"`
	Binaries      map[string]string `json:"binaries,omitempty"`
}

// SeatOwner says whose seat it is. It is written into seat.json, which is how a host that lost its
// journal finds its seats again. It holds no secret.
type SeatOwner struct {
	InstanceID   string `json:"instanceId"`
	Space        string `json:"space"`
	Alias        string `json:"alias"`
	Principal    string `json:"principal"`
	LifecycleUID string `json:"lifecycleUid"`
	RequestID    string `json:"requestId"`   // of the spawn; a retry after journal loss starts nothing twice
	Fingerprint  string `json:"fingerprint"` // of the spawn request
}

// SpawnRequest asks a runtime to prepare a seat.
type SpawnRequest struct {
	SeatID      string          `json:"seatId"` // custody id, 32 hex digits, minted and recorded by the host
	Nonce       string          `json:"nonce"`  // COTAL_SEAT_NONCE of everything in the seat; finds candidates, proves nothing
	Fence       uint64          `json:"fence"`  // the host's epoch
	Owner       SeatOwner       `json:"owner"`
	Launch      LaunchSpec      `json:"launch"`
	Cwd         string          `json:"cwd"`
	Rows        uint16          `json:"rows"` // 0: 32
	Cols        uint16          `json:"cols"` // 0: 120
	StopGraceMs int             `json:"stopGraceMs"`
	Form        json.RawMessage `json:"form,omitempty"` // launch form without secrets, stored in seat.json
}

// Handle is how a runtime finds a seat again. Ref is printable; State is opaque to the host, at
// most 16 KiB; Version belongs to the runtime, so that a newer runtime can read an older State.
type Handle struct {
	Version uint32 `json:"version"`
	Ref     string `json:"ref"`
	State   []byte `json:"state,omitempty"`
}

// AdoptRequest verifies one seat. A zero Handle means "by SeatID alone" (the journal was lost, or the
// host died before it could record the handle).
type AdoptRequest struct {
	SeatID     string `json:"seatId"`
	InstanceID string `json:"instanceId"`
	Handle     Handle `json:"handle,omitzero"`
	Nonce      string `json:"nonce,omitempty"` // finds survivors of a seat whose record is gone
	Fence      uint64 `json:"fence"`
	Commit     bool   `json:"commit,omitempty"` // start the agent; idempotent
}

// SeatState is the answer of Adopt.
type SeatState string

// The five answers.
const (
	SeatPrepared SeatState = "prepared"
	SeatRunning  SeatState = "running"
	SeatExited   SeatState = "exited"
	SeatNotFound SeatState = "not_found" // socket absent and identity proven dead
	SeatUnknown  SeatState = "unknown"
)

// SeatStatus is what a runtime knows of a seat.
type SeatStatus struct {
	SeatID   string    `json:"seatId"`
	State    SeatState `json:"state"`
	Handle   Handle    `json:"handle,omitzero"`
	Owner    SeatOwner `json:"owner,omitzero"`
	Identity Identity  `json:"identity,omitzero"` // of the custody process
	Agent    Identity  `json:"agent,omitzero"`    // of the agent process; zero before commit
	First    uint64    `json:"first"`             // oldest output offset still readable, bytes
	Next     uint64    `json:"next"`              // output offset after the last byte
	Rows     uint16    `json:"rows"`
	Cols     uint16    `json:"cols"`
	Attached int       `json:"attached"` // terminals attached
	Exit     *Exit     `json:"exit,omitempty"`
	Reason   string    `json:"reason,omitempty"` // why unknown or not_found, in words
	Modes    uint32    `json:"modes,omitempty"`  // private terminal modes in force (sdk/terminal.Modes); 0 when not known
}

// Identity identifies a process beyond pid reuse.
type Identity struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"` // field 22 of /proc/<pid>/stat
	BootID     string `json:"bootId"`
}

// Evidence says how an exit is known.
type Evidence string

// Evidence of an exit.
const (
	EvidenceReaped      Evidence = "reaped"       // the custody process reaped the agent
	EvidenceUncommitted Evidence = "uncommitted"  // prepared, never committed, ended itself
	EvidenceExecFailed  Evidence = "exec-failed"  // the program could not be executed
	EvidenceCustodyLost Evidence = "custody-lost" // the custody process died; code unknown
	EvidenceRebooted    Evidence = "rebooted"     // the machine booted since; every process is gone
)

// Exit is the recorded end of a seat. Code is nil when it is not known; it is never guessed.
type Exit struct {
	Code     *int      `json:"code,omitempty"`
	Signal   string    `json:"signal,omitempty"` // "SIGKILL", …; empty when none
	At       time.Time `json:"at"`
	Asked    bool      `json:"asked"` // the host asked for it
	Evidence Evidence  `json:"evidence"`
	Detail   string    `json:"detail,omitempty"`
	Reaped   []Killed  `json:"reaped,omitempty"` // descendants that outlived the agent and were ended
	Last     string    `json:"last,omitempty"`   // last output line, at most 160 characters, control codes stripped
}

// Killed is one process that was ended, and how.
type Killed struct {
	PID     int    `json:"pid"`
	Command string `json:"command"` // comm, at most 15 characters
	Signal  string `json:"signal"`
}

// AttachRequest asks where a seat's terminal is.
type AttachRequest struct {
	SeatID     string `json:"seatId"`
	InstanceID string `json:"instanceId"`
	Handle     Handle `json:"handle,omitzero"`
}

// AttachTarget is exactly one of a seat socket or the argv of a multiplexer client.
type AttachTarget struct {
	Seat *SeatEndpoint `json:"seat,omitempty"`
	Argv []string      `json:"argv,omitempty"`
}

// SeatEndpoint is a custody socket. Token is a secret: it is held in memory only.
type SeatEndpoint struct {
	Socket string `json:"socket"`
	Token  []byte `json:"token"`
}

// StopMode chooses the first rung of the stop ladder.
type StopMode string

// Stop modes.
const (
	StopGraceful StopMode = "graceful" // polite signal, grace, then SIGKILL
	StopNow      StopMode = "now"      // SIGKILL at once
)

// StopRequest ends a seat.
type StopRequest struct {
	SeatID     string   `json:"seatId"`
	InstanceID string   `json:"instanceId"`
	Handle     Handle   `json:"handle,omitzero"`
	Nonce      string   `json:"nonce,omitempty"`
	Fence      uint64   `json:"fence"`
	Mode       StopMode `json:"mode"`
	GraceMs    int      `json:"graceMs,omitempty"` // 0: the grace the seat was spawned with
	// Keep ends the seat and proves it, but leaves its records in place, so that the host can make
	// the exit durable before a second Reap without Keep removes them.
	Keep bool `json:"keep,omitempty"`
}

// ReapOutcome says what Reap found.
type ReapOutcome string

// Reap outcomes.
const (
	ReapStopped ReapOutcome = "stopped" // it was alive and this call ended it
	ReapExited  ReapOutcome = "exited"  // it had ended before
	ReapAbsent  ReapOutcome = "absent"  // nothing of it exists
)

// ReapReport is the evidence of an end. A report without error is proof; ErrUnproven is not.
type ReapReport struct {
	Outcome  ReapOutcome `json:"outcome"`
	Exit     *Exit       `json:"exit,omitempty"`
	Killed   []Killed    `json:"killed,omitempty"`
	Removed  []string    `json:"removed,omitempty"`
	Evidence []string    `json:"evidence,omitempty"` // one sentence a rung
}

// WatchRequest names the seat to watch.
type WatchRequest struct {
	SeatID     string `json:"seatId"`
	InstanceID string `json:"instanceId"`
	Handle     Handle `json:"handle,omitzero"`
	Fence      uint64 `json:"fence"`
}

// MaxWrite bounds WriteRequest.Data, in bytes.
const MaxWrite = 64 << 10

// WriteRequest is text for one seat.
type WriteRequest struct {
	SeatID     string `json:"seatId"`
	InstanceID string `json:"instanceId"`
	Handle     Handle `json:"handle,omitzero"`
	Fence      uint64 `json:"fence"`
	Data       []byte `json:"data"`
	// Paste: the data is one paste, put between paste markers where the program asked for them. Without
	// it the bytes go as they are.
	Paste bool `json:"paste,omitempty"`
}

// SnapshotRequest names the seat whose screen is wanted.
type SnapshotRequest struct {
	SeatID     string `json:"seatId"`
	InstanceID string `json:"instanceId"`
	Handle     Handle `json:"handle,omitzero"`
}

// Snapshot is the screen of a seat.
type Snapshot struct {
	Offset uint64 `json:"offset"` // output offset it stands for, bytes; output from there on follows it
	Rows   uint16 `json:"rows"`
	Cols   uint16 `json:"cols"`
	Modes  uint32 `json:"modes,omitempty"` // private terminal modes in force (sdk/terminal.Modes)
	Data   []byte `json:"data"`            // paints a cleared terminal of that size: cells, modes, cursor; at most 512 KiB
	Dirty  string `json:"dirty,omitempty"` // why it may be wrong; empty when exact
}

// ListRequest asks for every seat on this machine.
type ListRequest struct {
	InstanceID string `json:"instanceId"` // whose seats count as ours; foreign ones are listed all the same
}

// SeatListing is one seat directory as found. Broken directories are listed with Problem set.
type SeatListing struct {
	SeatID  string          `json:"seatId"`
	Owner   SeatOwner       `json:"owner,omitzero"`
	Ours    bool            `json:"ours"`
	Nonce   string          `json:"nonce,omitempty"`
	Fence   uint64          `json:"fence,omitempty"` // epoch of the host that spawned it
	Form    json.RawMessage `json:"form,omitempty"`
	Created time.Time       `json:"created,omitzero"`
	Problem string          `json:"problem,omitempty"`
}
