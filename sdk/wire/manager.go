package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// EndpointManager is the endpoint name of a manager host.
const EndpointManager = "manager"

// Commands of the manager endpoint that this host serves. CmdShutdown, on the instance rail only, and
// CmdTerminal and CmdNudge are this project's own additions (docs/wire-decisions.md).
const (
	CmdStatus     = "status"
	CmdTerminal   = "terminal"
	CmdPs         = "ps"
	CmdInspect    = "inspect"
	CmdSpawn      = "spawn"
	CmdDespawn    = "despawn"
	CmdInput      = "input"
	CmdGoalResult = "goal-result"
	CmdShutdown   = "shutdown"
	CmdNudge      = "nudge"
)

// StatusReply answers status. Times are in milliseconds.
type StatusReply struct {
	InstanceID string            `json:"instanceId"`
	Runtime    string            `json:"runtime"`
	Custody    string            `json:"custody"` // "custodied" or "legacy"
	AgentCount int               `json:"agentCount"`
	UptimeMs   int64             `json:"uptimeMs"`
	ClassSpawn bool              `json:"classSpawn"`
	Connectors []ConnectorStatus `json:"connectors"`
	// StaticReconciliation is there on a manager that keeps slots.
	StaticReconciliation *StaticReconciliation `json:"staticReconciliation,omitempty"`
	// Additions of this host; absent from other managers.
	Version   string         `json:"version,omitempty"`
	Space     string         `json:"space,omitempty"`
	PID       int            `json:"pid,omitempty"`
	Epoch     uint64         `json:"epoch,omitempty"`
	Plugins   []PluginStatus `json:"plugins,omitempty"`
	Foreign   int            `json:"foreignSeats,omitempty"` // seats on this machine that belong to other instances
	Occupancy *Occupancy     `json:"occupancy,omitempty"`
	Lease     *LeaseStatus   `json:"lease,omitempty"`
	// Credentials are those that the host renews; absent in an open space.
	Credentials []CredentialStatus `json:"credentials,omitempty"`
}

// CredentialStatus is how one credential stands that the host renews. Nothing of it is secret.
type CredentialStatus struct {
	Profile string `json:"profile"`
	Seat    string `json:"seat,omitempty"`    // alias of the seat that holds it; absent for the host's own
	Health  string `json:"health"`            // healthy, near-expiry, expired, unbounded or unreadable
	Expires int64  `json:"expires,omitempty"` // epoch milliseconds
	Reason  string `json:"reason,omitempty"`  // why it could not be renewed when that was last tried
}

// LeaseStatus is how a host stands to the liveness lease of its instance. Times are in milliseconds.
type LeaseStatus struct {
	// State is held, held-unrenewed (it could not be renewed just now), gone, unreadable, unheld (not acquired since
	// the start), replaced (another process holds it) or released.
	State     string `json:"state"`
	ForMs     int64  `json:"forMs"`
	RenewedMs *int64 `json:"renewedMs,omitempty"` // since the beginning of the last renewal that was acknowledged; absent: there was none
	Reason    string `json:"reason,omitempty"`
	Fenced    string `json:"fenced,omitempty"` // why nothing new is started; absent when it is
}

// ConnectorStatus is one row of StatusReply.
type ConnectorStatus struct {
	Agent    string            `json:"agent"`
	State    string            `json:"state"` // "available" or "unavailable"
	Binaries map[string]string `json:"binaries"`
	Reason   string            `json:"reason,omitempty"`
}

// Occupancy says how the seat ceiling is used.
type Occupancy struct {
	Max     int `json:"max"`
	Live    int `json:"live"`
	Pending int `json:"pending"`
	Cooling int `json:"cooling"`
}

// AgentRow is one seat in ps and inspect. An absent field means not known, never zero.
type AgentRow struct {
	Name         string `json:"name"`
	ID           string `json:"id"` // principal, owner.actor
	Agent        string `json:"agent"`
	Space        string `json:"space"`
	Mode         string `json:"mode"`   // runtime kind
	Status       string `json:"status"` // starting, running, stopping, exited, unknown
	UptimeMs     int64  `json:"uptimeMs"`
	Mesh         string `json:"mesh"` // roster status, or "absent"
	LifecycleUID string `json:"lifecycleUid"`
	Role         string `json:"role,omitempty"`
	MeshView     string `json:"meshView,omitempty"` // current, stale, unpopulated; absent = current
	Model        string `json:"model,omitempty"`
	Variant      string `json:"variant,omitempty"`
	Cwd          string `json:"cwd,omitempty"`
	PID          int    `json:"pid,omitempty"`
	Spawner      string `json:"spawner,omitempty"`
	InstanceID   string `json:"instanceId,omitempty"`
	Host         string `json:"host,omitempty"`
	Provider     string `json:"provider,omitempty"`
	// Condition is what the agent program reported of itself.
	Condition    *PresenceCondition `json:"condition,omitempty"`
	ActiveAt     int64              `json:"activeAt,omitempty"`     // epoch ms of the last reported work
	OfflineSince int64              `json:"offlineSince,omitempty"` // epoch ms; only with mesh offline, seen by a current view
	AuthHealth   string             `json:"authHealth,omitempty"`   // only when the refresh of a bearer is unhealthy
	AuthReason   string             `json:"authReason,omitempty"`
	Resume       *ResumeOrigin      `json:"resume,omitempty"`
	// Additions of this host.
	SeatID    string    `json:"seatId,omitempty"` // custody id
	SeatPID   int       `json:"seatPid,omitempty"`
	GoalID    string    `json:"goalId,omitempty"`
	Attached  int       `json:"attached,omitempty"`
	MeshBy    string    `json:"meshBy,omitempty"`   // how mesh is known (MetaStateBy); absent: it is only supposed
	Activity  string    `json:"activity,omitempty"` // what the agent does, in the words of its program or its own
	Output    uint64    `json:"output,omitempty"`   // bytes of output so far
	StartedAt int64     `json:"startedAt,omitempty"`
	Exit      *SeatExit `json:"exit,omitempty"`
	Reason    string    `json:"reason,omitempty"` // why the status is unknown, or what is still held
}

// SeatExit is the recorded end of a seat. Code is absent when it is not known.
type SeatExit struct {
	Code     *int         `json:"code,omitempty"`
	Signal   string       `json:"signal,omitempty"`
	At       int64        `json:"at"` // epoch milliseconds
	Asked    bool         `json:"asked"`
	Cause    string       `json:"cause,omitempty"` // stopped-requested, stopped-shutdown, process-exit, …
	Evidence string       `json:"evidence"`
	Detail   string       `json:"detail,omitempty"`
	Last     string       `json:"last,omitempty"`
	Reaped   []KilledProc `json:"reaped,omitempty"`
}

// KilledProc is one process that was ended.
type KilledProc struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Signal  string `json:"signal"`
}

// NameArgs are the arguments of inspect.
type NameArgs struct {
	Name string `json:"name"`
}

// SpawnArgs are the arguments of spawn. Name is the persona reference; Identity pins the alias. Members that a
// host cannot honour are refused by name and never passed over.
type SpawnArgs struct {
	Name          string         `json:"name"`
	Agent         string         `json:"agent,omitempty"`
	DefaultAgent  string         `json:"defaultAgent,omitempty"`
	Role          string         `json:"role,omitempty"`
	Config        string         `json:"config,omitempty"`
	Identity      string         `json:"identity,omitempty"`
	Model         *string        `json:"model,omitempty"`
	Variant       *string        `json:"variant,omitempty"`
	LaunchOptions map[string]any `json:"launchOptions,omitempty"`
	Resume        *string        `json:"resume,omitempty"` // session to fork from
	// ResumeClaim is the claim of a transcript that was carried over; ResumeAgent the connector it is of.
	ResumeClaim *string `json:"resumeClaim,omitempty"`
	ResumeAgent *string `json:"resumeAgent,omitempty"`
	Events      *bool   `json:"events,omitempty"`
	Cwd         string  `json:"cwd,omitempty"`
	Prompt      *string `json:"prompt,omitempty"`
	// Channels instead of the persona's: read at boot, may read, may post to. Absent is the persona's; an
	// empty list is none.
	Subscribe      []string `json:"subscribe,omitzero"`
	AllowSubscribe []string `json:"allowSubscribe,omitzero"`
	AllowPublish   []string `json:"allowPublish,omitzero"`
	// ShareTools names which of the operator's MCP servers the seat gets. Absent is all that are declared for
	// its connector; an empty list is none.
	ShareTools []string   `json:"shareTools,omitzero"`
	Supervise  *Supervise `json:"supervise,omitempty"`
	// Addition of this host: terminal size of the caller, so that the first frame fits.
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
	// Addition of this host: the runtime to run the seat on; empty: the host's.
	Runtime string `json:"runtime,omitempty"`
}

// Bounds of Supervise: every end within the window is remembered.
const (
	MaxSuperviseRestarts = 1000
	MaxSuperviseWindowMs = 30 * 24 * 3600 * 1000 // 30 days
)

// Supervise asks that a seat is started again when it ends by itself, at most Restarts times within WindowMs.
type Supervise struct {
	Restarts int   `json:"restarts"`
	WindowMs int64 `json:"windowMs"`
}

// Acceptance answers spawn. GoalID is the request id.
type Acceptance struct {
	Name                string   `json:"name"`
	Owner               string   `json:"owner"`
	Actor               string   `json:"actor"`
	UID                 string   `json:"uid"`
	GoalID              string   `json:"goalId"`
	Fingerprint         string   `json:"fingerprint"`
	ReadinessDeadlineMs int64    `json:"readinessDeadlineMs,omitempty"`
	Executor            Executor `json:"executor"`
	// Addition of this host: what the caller should know and nothing was refused for.
	Warnings []string `json:"warnings,omitempty"`
}

// Executor is the incarnation that owns an accepted goal.
type Executor struct {
	LifecycleUID string `json:"lifecycleUid"`
	Epoch        uint64 `json:"epoch"`
}

// GoalResultArgs are the arguments of goal-result.
type GoalResultArgs struct {
	GoalID string `json:"goalId"`
}

// GoalResultReply answers goal-result. An absent Result proves nothing.
type GoalResultReply struct {
	GoalID string      `json:"goalId"`
	Result *GoalResult `json:"result,omitempty"`
	Phase  string      `json:"phase,omitempty"` // addition: the last progress phase
}

// Goal terminals.
const (
	GoalSucceeded = "succeeded"
	GoalFailed    = "failed"
	GoalCancelled = "cancelled"
	GoalExpired   = "expired"
	GoalUncertain = "uncertain"
)

// GoalResult is the one terminal of a goal.
type GoalResult struct {
	State string          `json:"state"`
	Data  json.RawMessage `json:"data,omitempty"`
	Error *Error          `json:"error,omitempty"`
}

// SpawnResult is GoalResult.Data of a succeeded spawn.
type SpawnResult struct {
	Name         string `json:"name"`
	Agent        string `json:"agent"`
	ID           string `json:"id"`
	Mode         string `json:"mode"`
	LifecycleUID string `json:"lifecycleUid"`
	Role         string `json:"role,omitempty"`
	SeatID       string `json:"seatId,omitempty"`
	PID          int    `json:"pid,omitempty"`
	// EventsNotice says that the event plane is off though nobody said so.
	EventsNotice string `json:"eventsNotice,omitempty"`
	// Of launch: the name in the spec, its run, and the hash by which a changed entry is noticed.
	Requested string `json:"requested,omitempty"`
	RunID     string `json:"runId,omitempty"`
	Hash      string `json:"hash,omitempty"`
}

// Progress phases of a spawn goal, published as events.
const (
	PhaseHandoff  = "handoff"  // accepted, launch being built
	PhaseLaunched = "launched" // the agent process runs
	PhasePresence = "presence" // joined the mesh
	PhaseTerminal = "terminal"
)

// GoalProgress is the data of a goal progress event.
type GoalProgress struct {
	Phase string `json:"phase"`
	State string `json:"state,omitempty"` // with PhaseTerminal
}

// DespawnArgs are the arguments of despawn (targeted).
type DespawnArgs struct {
	Graceful    *bool `json:"graceful,omitempty"`    // default true
	WaitForExit bool  `json:"waitForExit,omitempty"` // answer only once the end is proved
}

// DespawnReply answers despawn.
type DespawnReply struct {
	Name     string      `json:"name"`
	Stopped  bool        `json:"stopped"`
	Graceful bool        `json:"graceful"`
	Report   *StopReport `json:"report,omitempty"` // addition: with waitForExit
}

// StopReport says what was killed and what proves it.
type StopReport struct {
	Outcome  string       `json:"outcome"` // stopped, exited, absent
	Exit     *SeatExit    `json:"exit,omitempty"`
	Killed   []KilledProc `json:"killed,omitempty"`
	Removed  []string     `json:"removed,omitempty"`
	Evidence []string     `json:"evidence,omitempty"`
}

// InputArgs are the arguments of input (targeted).
type InputArgs struct {
	Text  string `json:"text,omitempty"`  // 1..65536 bytes; absent only with Keys
	Enter *bool  `json:"enter,omitempty"` // default true
	// Addition of this host: keys to press instead of a text, 1..MaxKeys names of keys
	// such as "esc" or "ctrl-c". Enter is not looked at then.
	Keys []string `json:"keys,omitempty"`
}

// MaxNudge bounds the text of a nudge, in bytes.
const MaxNudge = 500

// NudgeArgs are the arguments of nudge (targeted, mode self): a seat has a line typed into its own terminal, so that
// its idle agent begins a turn.
type NudgeArgs struct {
	Text string `json:"text"` // 1..MaxNudge bytes, one line
}

// Check refuses a text that is more than a line.
func (a *NudgeArgs) Check() error {
	if a.Text == "" || len(a.Text) > MaxNudge || strings.ContainsFunc(a.Text, unicode.IsControl) || !utf8.ValidString(a.Text) {
		return &FieldError{"text", fmt.Sprintf("is not one line of 1..%d bytes", MaxNudge)}
	}
	return nil
}

// InputReply answers input.
type InputReply struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"` // UTF-8 length, plus 1 for the Return; with keys, the bytes they stand for
}

// ShutdownArgs are the arguments of shutdown.
type ShutdownArgs struct {
	WithAgents bool `json:"withAgents,omitempty"`
}

// ShutdownReply answers shutdown, once every seat has its verdict and before the host ends.
type ShutdownReply struct {
	Spared  []AgentRow    `json:"spared,omitempty"`
	Stopped []StoppedSeat `json:"stopped,omitempty"`
	Left    []AgentRow    `json:"left,omitempty"` // could not be proved gone; Reason says why
}

// StoppedSeat is one seat a shutdown ended.
type StoppedSeat struct {
	Name   string      `json:"name"`
	Report *StopReport `json:"report,omitempty"`
}

// Endpoint is .cotal/host/endpoint.json: how a client on this machine finds its host. It names the file of the token
// or of the credential, never both, and never holds what is in it. A path that is not absolute counts from the
// directory of endpoint.json.
type Endpoint struct {
	URL        string `json:"url"`
	TokenFile  string `json:"tokenFile,omitempty"` // of an open space
	CredsFile  string `json:"credsFile,omitempty"` // of the operator, in any other space
	Space      string `json:"space"`
	InstanceID string `json:"instanceId"`
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootId"`
	Version    string `json:"version"`
	Root       string `json:"root"`     // workspace root
	SeatRoot   string `json:"seatRoot"` // seat directories of this host
}
