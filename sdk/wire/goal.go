package wire

import (
	"encoding/json"
	"fmt"
	"slices"
)

// States of a goal. The last five are its terminals (GoalSucceeded and so on, in manager.go): the first
// that is committed stands.
const (
	GoalAccepted   = "accepted"
	GoalRunning    = "running"
	GoalWaiting    = "waiting"
	GoalCancelling = "cancelling"
)

var (
	goalTerminals = []string{GoalSucceeded, GoalFailed, GoalCancelled, GoalExpired, GoalUncertain}
	goalStates    = append([]string{GoalAccepted, GoalRunning, GoalWaiting, GoalCancelling}, goalTerminals...)
)

// GoalTerminals lists the terminals.
func GoalTerminals() []string { return slices.Clone(goalTerminals) }

// IsTerminal reports whether a state is a terminal.
func IsTerminal(state string) bool { return slices.Contains(goalTerminals, state) }

// GoalMove decides whether a goal may go from one state to another. A terminal is never left, and may come
// from any other state: which one came first is decided by the result fact, and the status follows it.
func GoalMove(from, to string) bool {
	if IsTerminal(from) || !slices.Contains(goalStates, from) {
		return false
	}
	if IsTerminal(to) {
		return true
	}
	switch from {
	case GoalAccepted:
		return to == GoalRunning || to == GoalWaiting || to == GoalCancelling
	case GoalRunning:
		return to == GoalWaiting || to == GoalCancelling
	case GoalWaiting:
		return to == GoalRunning || to == GoalCancelling
	}
	return false
}

// GoalRef names a goal: two callers, and two lives of one caller, may use the same id.
type GoalRef struct {
	Endpoint string
	Caller   Caller
	ID       string
}

func (g GoalRef) qualifiers() []string {
	return []string{g.Endpoint, g.Caller.Owner, g.Caller.Actor, g.Caller.UID, g.ID}
}

// Key is the goal's record, split in GoalSpec and GoalStatus.
func (g GoalRef) Key() Key { return Key{Kind: KindGoal, Qualifiers: g.qualifiers()} }

// IndexKey is the goal's GoalIndex.
func (g GoalRef) IndexKey() Key { return Key{Kind: KindGoalIndex, Qualifiers: g.qualifiers()} }

// Bind is the subject of the goal's GoalBind.
func (g GoalRef) Bind(space string) FactSubject {
	return FactSubject{Space: space, Endpoint: g.Endpoint, Kind: FactGoalBind, Caller: g.Caller, ID: g.ID}
}

// Result is the subject of the goal's GoalResultFact.
func (g GoalRef) Result(space string) FactSubject {
	return FactSubject{Space: space, Endpoint: g.Endpoint, Kind: FactGoalResult, Caller: g.Caller, ID: g.ID}
}

// Progress is the topic of the goal's progress events.
func (g GoalRef) Progress() EventTopic {
	return EventTopic{Kind: EventGoal, Caller: g.Caller, ID: g.ID, What: "progress"}
}

// GoalRefOf is the goal that a key of kind goal or goalidx belongs to.
func GoalRefOf(k Key) (GoalRef, bool) {
	if k.Kind != KindGoal && k.Kind != KindGoalIndex || len(k.Qualifiers) != 5 {
		return GoalRef{}, false
	}
	q := k.Qualifiers
	return GoalRef{Endpoint: q[0], Caller: Caller{q[1], q[2], q[3]}, ID: q[4]}, true
}

// Allocation is the identity that was given out when a goal was accepted: what a second attempt under the
// same goal id is answered with. It is never made up, and never has an empty part.
type Allocation struct {
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"` // absent in old entries: refuse, do not guess
	Actor string `json:"actor"`
	UID   string `json:"uid"`
	// ReadinessDeadlineMs counts from the acceptance; 0 = not recorded here, see GoalSpec.
	ReadinessDeadlineMs int64 `json:"readinessDeadlineMs,omitempty"`
}

// GoalIndex is the entry that is written, create-only, before the bind: from then on a successor can find
// the goal. It is deleted when the goal is at its end. The schema is closed.
type GoalIndex struct {
	V          int             `json:"v"`
	Endpoint   string          `json:"endpoint"`
	Owner      string          `json:"owner"`
	Actor      string          `json:"actor"`
	UID        string          `json:"uid"`
	GoalID     string          `json:"goalId"`
	InstanceID string          `json:"iid"` // the accepting instance
	Allocated  *Allocation     `json:"allocated,omitempty"`
	Note       json.RawMessage `json:"note,omitempty"` // an object of the command that accepted
}

// Ref is the goal of the entry.
func (g GoalIndex) Ref() GoalRef {
	return GoalRef{Endpoint: g.Endpoint, Caller: Caller{g.Owner, g.Actor, g.UID}, ID: g.GoalID}
}

// DecodeGoalIndex decodes and validates the entry that was read for a goal; one of another goal is refused.
func DecodeGoalIndex(ref GoalRef, p []byte) (GoalIndex, error) {
	g, err := decodeGoalIndex(p)
	if err == nil && g.Ref() != ref {
		return GoalIndex{}, fmt.Errorf("decode goal index: %w", &FieldError{"goalId", "is not the goal of its key"})
	}
	return g, err
}

func decodeGoalIndex(p []byte) (GoalIndex, error) {
	return decode("goal index", p, func(f *fields, g *GoalIndex) {
		f.closed("v", "endpoint", "owner", "actor", "uid", "goalId", "iid", "allocated", "note")
		f.version(&g.V)
		f.str("endpoint", true, ValidEndpoint, whyEndpoint, &g.Endpoint)
		f.str("owner", true, ValidOwner, whyOwner, &g.Owner)
		f.str("actor", true, ValidActor, whyActor, &g.Actor)
		f.str("uid", true, ValidUID, whyUID, &g.UID)
		f.str("goalId", true, ValidID, whyID, &g.GoalID)
		f.str("iid", true, ValidUID, whyUID, &g.InstanceID)
		if s := f.object("allocated", false); s != nil {
			var a Allocation
			s.closed("name", "owner", "actor", "uid", "readinessDeadlineMs")
			s.str("name", true, isSet, "", &a.Name)
			s.str("owner", false, ValidOwner, whyOwner, &a.Owner)
			s.str("actor", true, ValidActor, whyActor, &a.Actor)
			s.str("uid", true, ValidUID, whyUID, &a.UID)
			s.millis("readinessDeadlineMs", false, 1, &a.ReadinessDeadlineMs)
			f.done(s)
			g.Allocated = &a
		}
		if v := f.lookup("note", false, kindObject); v != nil {
			g.Note = json.RawMessage(v.raw)
		}
	})
}

// Encode returns the entry as JSON, after it was read back. An allocation without owner is refused: only
// old entries have none.
func (g GoalIndex) Encode() ([]byte, error) {
	g.V = Version
	if g.Allocated != nil && g.Allocated.Owner == "" {
		return nil, fmt.Errorf("encode goal index: %w", &FieldError{"allocated.owner", "is missing"})
	}
	return encode("goal index", g, decodeGoalIndex)
}

// GoalBind is the fact that ties a goal id to one submission. The first one wins. The schema is closed.
type GoalBind struct {
	V           int    `json:"v"`
	GoalID      string `json:"goalId"`
	Fingerprint string `json:"fingerprint"`
}

// DecodeGoalBind decodes and validates the bind that was read for a goal id.
func DecodeGoalBind(goalID string, p []byte) (GoalBind, error) {
	b, err := decodeGoalBind(p)
	if err == nil && b.GoalID != goalID {
		return GoalBind{}, fmt.Errorf("decode goal bind: %w", &FieldError{"goalId", "is not that of its subject"})
	}
	return b, err
}

func decodeGoalBind(p []byte) (GoalBind, error) {
	return decode("goal bind", p, func(f *fields, b *GoalBind) {
		f.closed("v", "goalId", "fingerprint")
		f.version(&b.V)
		f.str("goalId", true, ValidID, whyID, &b.GoalID)
		f.str("fingerprint", true, ValidDigest, whyDigest, &b.Fingerprint)
	})
}

// Encode returns the bind as JSON, after it was read back.
func (b GoalBind) Encode() ([]byte, error) {
	b.V = Version
	return encode("goal bind", b, decodeGoalBind)
}

// GoalSpec is the spec of a goal's record, written once at acceptance. The schema is closed.
type GoalSpec struct {
	V           int      `json:"v"`
	GoalID      string   `json:"goalId"`
	Fingerprint string   `json:"fingerprint"`
	Command     string   `json:"command"`
	Caller      Identity `json:"caller"`
	Target      *Target  `json:"target,omitempty"`
	// AcceptedEpoch is the epoch of the incarnation that accepted; a terminal is never committed under an
	// earlier one.
	AcceptedEpoch *uint64 `json:"acceptedEpoch,omitempty"`
	RequestID     string  `json:"requestId"`
	Guard         string  `json:"guard,omitempty"` // endpoint that has to allow it
	// SourceSeq is the sequence of the submission in its log; 0 for a goal of class ephemeral, which has
	// no log.
	SourceSeq           uint64 `json:"sourceSeq"`
	AcceptedAt          int64  `json:"acceptedAt"` // epoch milliseconds
	ReadinessDeadlineMs int64  `json:"readinessDeadlineMs,omitempty"`
}

// ReadyBy is the moment of the readiness deadline in epoch milliseconds; 0 when there is none.
func (g GoalSpec) ReadyBy() int64 {
	if g.ReadinessDeadlineMs == 0 {
		return 0
	}
	return g.AcceptedAt + g.ReadinessDeadlineMs
}

// DecodeGoalSpec decodes and validates the spec that was read for a goal; one of another goal or caller
// is refused.
func DecodeGoalSpec(ref GoalRef, p []byte) (GoalSpec, error) {
	g, err := decodeGoalSpec(p)
	switch {
	case err != nil:
		return g, err
	case g.GoalID != ref.ID:
		return GoalSpec{}, fmt.Errorf("decode goal spec: %w", &FieldError{"goalId", "is not that of its key"})
	case g.Caller != ref.Caller.Identity():
		return GoalSpec{}, fmt.Errorf("decode goal spec: %w", &FieldError{"caller", "is not that of its key"})
	}
	return g, nil
}

func decodeGoalSpec(p []byte) (GoalSpec, error) {
	return decode("goal spec", p, func(f *fields, g *GoalSpec) {
		f.closed("v", "goalId", "fingerprint", "command", "caller", "target", "acceptedEpoch", "requestId", "guard",
			"sourceSeq", "acceptedAt", "readinessDeadlineMs")
		f.version(&g.V)
		f.str("goalId", true, ValidID, whyID, &g.GoalID)
		f.str("fingerprint", true, ValidDigest, whyDigest, &g.Fingerprint)
		f.str("command", true, ValidCommand, whyCommand, &g.Command)
		if id := f.identity("caller", true); id != nil {
			g.Caller = *id
		}
		g.Target = f.target(true)
		f.integer("acceptedEpoch", false, 0, MaxInteger, func(n int64) { u := uint64(n); g.AcceptedEpoch = &u })
		f.str("requestId", true, ValidID, whyID, &g.RequestID)
		f.str("guard", false, ValidEndpoint, whyEndpoint, &g.Guard)
		f.uint("sourceSeq", true, 0, &g.SourceSeq)
		f.millis("acceptedAt", true, 0, &g.AcceptedAt)
		f.millis("readinessDeadlineMs", false, 1, &g.ReadinessDeadlineMs)
	})
}

// Encode returns the spec as JSON, after it was read back.
func (g GoalSpec) Encode() ([]byte, error) {
	g.V = Version
	return encode("goal spec", g, decodeGoalSpec)
}

// How a cancel is meant.
const (
	CancelGraceful  = "graceful" // the default: what was begun is undone in order
	CancelTerminate = "terminate"
)

// GoalCheckpoint is where a waiting goal waits.
type GoalCheckpoint struct {
	Token              string `json:"token"`
	DeadlineGeneration uint64 `json:"deadlineGeneration"`
}

// GoalStatus is the status of a goal's record: where it stands. The schema is closed.
type GoalStatus struct {
	State                string          `json:"state"`
	Checkpoint           *GoalCheckpoint `json:"checkpoint,omitempty"` // waiting only
	CancelMode           string          `json:"cancelMode,omitempty"` // cancelling only
	ObservedSpecRevision uint64          `json:"observedSpecRevision"`
}

// DecodeGoalStatus decodes and validates a status.
func DecodeGoalStatus(p []byte) (GoalStatus, error) {
	return decode("goal status", p, func(f *fields, g *GoalStatus) {
		f.closed("state", "checkpoint", "cancelMode", "observedSpecRevision")
		f.oneOf("state", true, goalStates, &g.State)
		f.uint("observedSpecRevision", true, 0, &g.ObservedSpecRevision)
		if g.State != GoalWaiting {
			f.absent("checkpoint", "has no place in state "+g.State)
		}
		if g.State != GoalCancelling {
			f.absent("cancelMode", "has no place in state "+g.State)
		}
		if s := f.object("checkpoint", false); s != nil {
			var c GoalCheckpoint
			s.closed("token", "deadlineGeneration")
			s.str("token", true, ValidID, whyID, &c.Token)
			s.uint("deadlineGeneration", true, 0, &c.DeadlineGeneration)
			f.done(s)
			g.Checkpoint = &c
		}
		f.oneOf("cancelMode", false, []string{CancelGraceful, CancelTerminate}, &g.CancelMode)
	})
}

// Encode returns the status as JSON, after it was read back.
func (g GoalStatus) Encode() ([]byte, error) { return encode("goal status", g, DecodeGoalStatus) }

// Committer is the incarnation that committed a terminal.
type Committer struct {
	InstanceID string `json:"instanceId"`
	Epoch      uint64 `json:"epoch"`
}

// GoalResultFact is the one terminal of a goal, create-only. What is left of it when its data is evicted
// (Evicted) still says how it ended. The schema is closed.
type GoalResultFact struct {
	V             int             `json:"v"`
	GoalID        string          `json:"goalId"`
	Fingerprint   string          `json:"fingerprint"`
	State         string          `json:"state"`         // a terminal
	OutcomeDigest string          `json:"outcomeDigest"` // of Data; of null when it is absent
	Data          json.RawMessage `json:"data,omitempty"`
	Committer     *Committer      `json:"committer,omitempty"`
	TS            int64           `json:"ts"` // epoch milliseconds
}

// evicted is what stands for data that was evicted.
const evicted = `{"evicted":true}`

// NewGoalResult makes the fact of an end. data nil is none.
func NewGoalResult(goalID, fingerprint, state string, data any, by Committer, ts int64) (GoalResultFact, error) {
	g := GoalResultFact{V: Version, GoalID: goalID, Fingerprint: fingerprint, State: state, Committer: &by, TS: ts}
	var err error
	if data != nil {
		if g.Data, err = CanonicalJSON(data); err != nil {
			return GoalResultFact{}, fmt.Errorf("make goal result: %w", err)
		}
	}
	g.OutcomeDigest = Digest(orNull(g.Data))
	return g, nil
}

func orNull(p []byte) []byte {
	if len(p) == 0 {
		return []byte("null")
	}
	return p
}

// Evict is the fact without its data.
func (g GoalResultFact) Evict() GoalResultFact {
	g.Data = json.RawMessage(evicted)
	return g
}

// Evicted reports whether the data is gone.
func (g GoalResultFact) Evicted() bool { return string(g.Data) == evicted }

// DecodeGoalResult decodes and validates the fact that was read for a goal id. Data that is not what its
// digest says is refused, unless it was evicted.
func DecodeGoalResult(goalID string, p []byte) (GoalResultFact, error) {
	g, err := decodeGoalResult(p)
	if err == nil && g.GoalID != goalID {
		return GoalResultFact{}, fmt.Errorf("decode goal result: %w", &FieldError{"goalId", "is not that of its subject"})
	}
	return g, err
}

func decodeGoalResult(p []byte) (GoalResultFact, error) {
	return decode("goal result", p, func(f *fields, g *GoalResultFact) {
		f.closed("v", "goalId", "fingerprint", "state", "outcomeDigest", "data", "committer", "ts")
		f.version(&g.V)
		f.str("goalId", true, ValidID, whyID, &g.GoalID)
		f.str("fingerprint", true, ValidDigest, whyDigest, &g.Fingerprint)
		f.oneOf("state", true, goalTerminals, &g.State)
		f.str("outcomeDigest", true, ValidDigest, whyDigest, &g.OutcomeDigest)
		g.Data = f.raw("data")
		if s := f.object("committer", false); s != nil {
			var c Committer
			s.closed("instanceId", "epoch")
			s.str("instanceId", true, ValidUID, whyUID, &c.InstanceID)
			s.uint("epoch", true, 0, &c.Epoch)
			f.done(s)
			g.Committer = &c
		}
		f.millis("ts", true, 0, &g.TS)
		if f.err != nil {
			return
		}
		canonical, err := CanonicalJSON(json.RawMessage(orNull(g.Data)))
		if err != nil {
			f.fail("data", err.Error())
			return
		}
		if string(canonical) == evicted {
			g.Data = canonical
			return
		}
		if Digest(canonical) != g.OutcomeDigest {
			f.fail("outcomeDigest", "is not the digest of data")
		}
	})
}

// Encode returns the fact as JSON, after it was read back.
func (g GoalResultFact) Encode() ([]byte, error) {
	g.V = Version
	return encode("goal result", g, decodeGoalResult)
}

// Of checks a terminal against the goal it ends: the same submission, and committed under the epoch that
// accepted it or a later one. What fails this counts as no terminal at all.
func (g GoalResultFact) Of(spec GoalSpec) error {
	switch {
	case g.GoalID != spec.GoalID || g.Fingerprint != spec.Fingerprint:
		return fmt.Errorf("check goal result: %w", &FieldError{"fingerprint", "is of another submission"})
	case spec.AcceptedEpoch != nil && g.Committer != nil && g.Committer.Epoch < *spec.AcceptedEpoch:
		return fmt.Errorf("check goal result: %w", &FieldError{"committer.epoch", "is before the epoch that accepted the goal"})
	}
	return nil
}

// GoalReuse is what a second use of a goal id means.
type GoalReuse int

// Meanings of a second use.
const (
	GoalSame     GoalReuse = iota // the same submission: answer what was answered
	GoalConflict                  // another submission
)

// Reuse compares a submission with the bind of its goal id.
func (b GoalBind) Reuse(fingerprint string) GoalReuse {
	if b.Fingerprint == fingerprint {
		return GoalSame
	}
	return GoalConflict
}
