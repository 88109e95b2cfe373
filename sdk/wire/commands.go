package wire

import "encoding/json"

// More commands of the manager endpoint.
const (
	CmdModels        = "models"
	CmdResolveCwd    = "resolve-cwd"
	CmdResolveAgent  = "resolve-agent"
	CmdLaunch        = "launch"
	CmdStop          = "stop"
	CmdAttach        = "attach"
	CmdDefinePersona = "define-persona"
	CmdListPersonas  = "list-personas"
	CmdShowPersona   = "show-persona"
	CmdPurge         = "purge"
)

// Capabilities of the manager's commands: classes of commands that are granted together.
const (
	CapManagerRead      = "manager.read"
	CapManagerSpawn     = "manager.spawn"
	CapManagerLifecycle = "manager.lifecycle"
	CapManagerSelf      = "manager.self"
	CapManagerPersona   = "manager.persona"
	CapManagerAdmin     = "manager.admin"
	CapManagerRun       = "manager.run"
)

// ModelsArgs are the arguments of models. Without Agent every connector gives a row.
type ModelsArgs struct {
	Agent   string `json:"agent,omitempty"`
	Refresh bool   `json:"refresh,omitempty"`
}

// ModelsReply answers models.
type ModelsReply struct {
	Catalogs []ModelCatalog `json:"catalogs"`
}

// ModelCatalog is what one connector offers. Supported false: it has no list. Error: it has one that could
// not be had.
type ModelCatalog struct {
	Agent     string            `json:"agent"`
	Supported bool              `json:"supported"`
	Models    []json.RawMessage `json:"models"` // objects: id, name?, provider?, variants? [{name}]
	Source    string            `json:"source,omitempty"`
	Error     string            `json:"error,omitempty"`
}

// ResolveCwdArgs are the arguments of resolve-cwd.
type ResolveCwdArgs struct {
	Cwd string `json:"cwd"`
}

// Check refuses an empty directory.
func (a *ResolveCwdArgs) Check() error { return needName("cwd", a.Cwd) }

// ResolveCwdReply answers resolve-cwd: the canonical path, and on which host that is.
type ResolveCwdReply struct {
	Cwd  string `json:"cwd"`
	Host string `json:"host"`
}

// ResolveAgentArgs are the arguments of resolve-agent: the persona is found as by spawn.
type ResolveAgentArgs struct {
	Name         string `json:"name"`
	Agent        string `json:"agent,omitempty"`
	DefaultAgent string `json:"defaultAgent,omitempty"`
	Config       string `json:"config,omitempty"`
}

// Check refuses an empty name.
func (a *ResolveAgentArgs) Check() error { return needName("name", a.Name) }

// ResolveAgentReply answers resolve-agent with the name of a connector.
type ResolveAgentReply struct {
	Agent string `json:"agent"`
}

// LaunchArgs are the arguments of launch. Spec is the launch specification of the seat name of run runId.
type LaunchArgs struct {
	RunID string          `json:"runId"`
	Name  string          `json:"name"`
	Spec  json.RawMessage `json:"spec,omitempty"` // an object
}

// Check refuses a run id or a name that breaks its grammar, and a spec that is no object.
func (a *LaunchArgs) Check() error {
	if !ValidID(a.RunID) {
		return &FieldError{"runId", tokenProblem(a.RunID, whyID)}
	}
	if err := needName("name", a.Name); err != nil {
		return err
	}
	if len(a.Spec) > 0 {
		if n, err := parseJSON(a.Spec); err != nil || n.kind != kindObject {
			return &FieldError{"spec", "is not an object"}
		}
	}
	return nil
}

// StopArgs are the arguments of stop (targeted, mode self): an agent ends itself. The answer is
// DespawnReply.
type StopArgs struct {
	Graceful *bool `json:"graceful,omitempty"` // default true
}

// Roles of a viewer.
const (
	AttachWriter   = "writer" // default: may type; one at a time
	AttachObserver = "observer"
)

// AttachArgs are the arguments of attach (targeted). All of them are additions of this host: without any,
// the caller becomes the writer unless there is one.
type AttachArgs struct {
	Role     string `json:"role,omitempty"`     // AttachWriter or AttachObserver
	Takeover bool   `json:"takeover,omitempty"` // of a writer: the session of the present one ends, EndReplaced
	Rows     uint16 `json:"rows,omitempty"`     // of the viewer's terminal
	Cols     uint16 `json:"cols,omitempty"`
	// Replaces is a session of the same holder and target which the new one stands in for, after its rail
	// broke: it ends once nothing refuses the new one any more, which has its keyboard.
	Replaces string `json:"replaces,omitempty"`
}

// Check refuses a role that is not known, a takeover by an observer, and a session id that is none.
func (a *AttachArgs) Check() error {
	switch {
	case a.Role != "" && a.Role != AttachWriter && a.Role != AttachObserver:
		return &FieldError{"role", tokenProblem(a.Role, "is not writer or observer")}
	case a.Takeover && a.Role == AttachObserver:
		return &FieldError{"takeover", "has no place with role observer"}
	case a.Replaces != "" && !ValidSessionID(a.Replaces):
		return &FieldError{"replaces", tokenProblem(a.Replaces, whyNonce)}
	}
	return nil
}

// DefinePersonaArgs are the arguments of define-persona. There is no member for capabilities: nobody grants
// themselves any.
type DefinePersonaArgs struct {
	Name           string   `json:"name"`
	Persona        string   `json:"persona"` // text
	Model          *string  `json:"model,omitempty"`
	Role           string   `json:"role,omitempty"`
	Agent          string   `json:"agent,omitempty"`
	Subscribe      []string `json:"subscribe,omitzero"`
	AllowSubscribe []string `json:"allowSubscribe,omitzero"`
	AllowPublish   []string `json:"allowPublish,omitzero"`
}

// Check refuses an empty name or text, and a list with something else than channels or patterns of them.
func (a *DefinePersonaArgs) Check() error {
	if err := needName("name", a.Name); err != nil {
		return err
	}
	if err := needName("persona", a.Persona); err != nil {
		return err
	}
	return checkChannels([]channelList{
		{"subscribe", a.Subscribe}, {"allowSubscribe", a.AllowSubscribe}, {"allowPublish", a.AllowPublish},
	})
}

// DefinePersonaReply answers define-persona.
type DefinePersonaReply struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// PersonaRow is one persona. Of one that the caller does not own there is the name only.
type PersonaRow struct {
	Name        string `json:"name"`
	Role        string `json:"role,omitempty"`
	Model       string `json:"model,omitempty"`
	Description string `json:"description,omitempty"`
	Owner       string `json:"owner,omitempty"`
	Persona     string `json:"persona,omitempty"` // show-persona only
	Error       string `json:"error,omitempty"`   // why it cannot be read; for operators
}

// ListPersonasReply answers list-personas.
type ListPersonasReply struct {
	Personas []PersonaRow `json:"personas"`
}

// PurgeArgs are the arguments of purge.
type PurgeArgs struct {
	IncludeDMs bool `json:"includeDms,omitempty"`
}

// PurgeReply answers purge with how many messages went.
type PurgeReply struct {
	Chat int64  `json:"chat"`
	DM   *int64 `json:"dm,omitempty"` // with includeDms
}

// ResumeOrigin says what session a seat goes on with.
type ResumeOrigin struct {
	Source           string `json:"source"`
	Title            string `json:"title,omitempty"`
	TranscriptSHA256 string `json:"transcriptSha256,omitempty"`
	Host             string `json:"host,omitempty"`
	TransferredAt    int64  `json:"transferredAt,omitempty"` // epoch ms
}

// StaticReconciliation is how the sweep of left-over slots stands.
type StaticReconciliation struct {
	State     string        `json:"state"` // idle, running, retry-wait, retrying, recovered, failed
	LastSweep *StaticSweep  `json:"lastSweep,omitempty"`
	Failures  []SlotFailure `json:"failures"`
}

// StaticSweep is one sweep. Times are epoch milliseconds.
type StaticSweep struct {
	Kind        string `json:"kind"` // startup, post-adoption, scheduled
	StartedAt   int64  `json:"startedAt"`
	CompletedAt int64  `json:"completedAt,omitempty"`
	Attempted   int    `json:"attempted"`
	Succeeded   int    `json:"succeeded"`
	Failed      int    `json:"failed"`
}

// SlotFailure is one slot that a sweep could not bring to its end.
type SlotFailure struct {
	Alias        string `json:"alias"`
	Actor        string `json:"actor"`
	LifecycleUID string `json:"lifecycleUid"`
	Phase        string `json:"phase"`
	Attempts     int    `json:"attempts"`
	MaxAttempts  int    `json:"maxAttempts"`
	Disposition  string `json:"disposition"` // retry-scheduled, retrying, recovered, refused, refused-foreign, retry-exhausted
	LastError    string `json:"lastError,omitempty"`
	NextRetryAt  int64  `json:"nextRetryAt,omitempty"`
	RecoveredAt  int64  `json:"recoveredAt,omitempty"`
	Remedy       string `json:"remedy,omitempty"`
}

// CmdSlots lists the slots of the space.
const CmdSlots = "slots"

// Words of a SlotRow that are always the same.
const (
	ReadSlot = "slot"
	ReadHead = "head"
	// SlotsOrdered: a slot is read before its head, and both may change in between.
	SlotsOrdered = "ordered-not-atomic"
)

// SlotRow is one slot that is not retired, as two reads have shown it.
type SlotRow struct {
	Name             string   `json:"name"` // alias
	Owner            string   `json:"owner"`
	Actor            string   `json:"actor,omitempty"`            // absent with Unreadable
	SlotLifecycleUID string   `json:"slotLifecycleUid,omitempty"` // absent with Unreadable
	SlotPhase        string   `json:"slotPhase,omitempty"`        // provisioning, active or terminalizing; absent with Unreadable
	CleanupComplete  bool     `json:"cleanupComplete,omitempty"`
	SlotRevision     uint64   `json:"slotRevision"`
	HeadState        string   `json:"headState,omitempty"` // absent: no head was there
	HeadOp           *SlotOp  `json:"headOp,omitempty"`
	HeadLifecycleUID string   `json:"headLifecycleUid,omitempty"`
	HeadRevision     uint64   `json:"headRevision,omitempty"`
	ReadOrder        []string `json:"readOrder"`   // slot, head
	Consistency      string   `json:"consistency"` // ordered-not-atomic
	Live             bool     `json:"live"`        // this host has the seat of this very life
	// ManagerInstanceID is the instance whose slot it is.
	ManagerInstanceID string `json:"managerInstanceId,omitempty"`
	// Additions of this host; absent from other managers.
	Sibling    bool        `json:"sibling,omitempty"`    // it is another instance's: this host never changes it
	Runtime    *RuntimeRef `json:"runtime,omitempty"`    // by what its process is found
	Held       *SlotHold   `json:"held,omitempty"`       // the name is not free, though its seat ends or ended
	Unreadable string      `json:"unreadable,omitempty"` // why the row cannot be read
}

// SlotOp is the operation that moves a head.
type SlotOp struct {
	OpID string `json:"opId"`
	Kind string `json:"kind"`
}

// SlotHold is why a name is not free yet.
type SlotHold struct {
	Since    int64    `json:"since,omitempty"` // epoch milliseconds
	Missing  []string `json:"missing"`         // of authority, footprint and lifecycle, what is not proved to be done
	Attempts int      `json:"attempts,omitempty"`
	Running  bool     `json:"running,omitempty"` // an attempt is under way
	Reason   string   `json:"reason,omitempty"`  // how the last attempt failed
}
