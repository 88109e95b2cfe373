package goal

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// indexOf is the index entry of a goal of ours. It carries the identity that was given out, since until the
// record and the terminal exist it is the only place on the mesh that has it.
func indexOf(ref wire.GoalRef, row journal.GoalRow, instanceID string) ([]byte, error) {
	a := row.Acceptance
	return wire.GoalIndex{
		Endpoint: ref.Endpoint, Owner: ref.Caller.Owner, Actor: ref.Caller.Actor, UID: ref.Caller.UID, GoalID: ref.ID,
		InstanceID: instanceID,
		Allocated:  &wire.Allocation{Name: a.Name, Owner: a.Owner, Actor: a.Actor, UID: a.UID, ReadinessDeadlineMs: a.ReadinessDeadlineMs},
	}.Encode()
}

// specOf is the spec of a goal's record. The same row gives the same bytes, so that whoever reads them back
// knows its own.
func specOf(ref wire.GoalRef, row journal.GoalRow) ([]byte, error) {
	epoch := row.Acceptance.Executor.Epoch
	return wire.GoalSpec{
		GoalID: ref.ID, Fingerprint: row.Fingerprint, Command: row.Command, Caller: ref.Caller.Identity(),
		AcceptedEpoch: &epoch, RequestID: ref.ID, AcceptedAt: row.Accepted.UnixMilli(),
		ReadinessDeadlineMs: row.Acceptance.ReadinessDeadlineMs,
	}.Encode()
}

// rowOf is what this machine would know of a goal, had it not lost its journal. acc is the acceptance.
func rowOf(ref wire.GoalRef, spec wire.GoalSpec, acc wire.Acceptance) journal.GoalRow {
	row := journal.GoalRow{
		ID: string(keyOfRef(ref)), Command: spec.Command, Fingerprint: spec.Fingerprint, Acceptance: acc,
		Accepted: time.UnixMilli(spec.AcceptedAt).UTC(),
	}
	if at := spec.ReadyBy(); at != 0 {
		row.Deadline = time.UnixMilli(at).UTC()
	}
	return row
}

// terminal is what a terminal's data always says, so that an acceptance can be told from it when the index
// entry is gone.
type terminal struct {
	Name         string `json:"name"`
	ID           string `json:"id"` // principal, owner.actor
	LifecycleUID string `json:"lifecycleUid"`
}

// errorMember holds the error of a terminal inside its data: a result fact has no member of its own for it.
const errorMember = "error"

// dataOf is the data of a result fact.
func dataOf(r wire.GoalResult, acc wire.Acceptance) (map[string]json.RawMessage, error) {
	data := map[string]json.RawMessage{}
	if len(r.Data) > 0 {
		if err := json.Unmarshal(r.Data, &data); err != nil {
			return nil, fmt.Errorf("data of the terminal is no object: %w", err)
		}
	}
	put := func(name string, v any) error {
		if _, ok := data[name]; ok {
			return nil
		}
		raw, err := json.Marshal(v)
		data[name] = raw
		return err
	}
	if acc.UID != "" {
		for name, v := range map[string]string{"name": acc.Name, "id": acc.Owner + "." + acc.Actor, "lifecycleUid": acc.UID} {
			if err := put(name, v); err != nil {
				return nil, err
			}
		}
	}
	if r.Error != nil {
		if err := put(errorMember, r.Error); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// resultOf is a result fact as goal-result tells it. The same fact gives the same bytes.
func resultOf(f wire.GoalResultFact) wire.GoalResult {
	r := wire.GoalResult{State: f.State, Data: f.Data}
	var data map[string]json.RawMessage
	if json.Unmarshal(f.Data, &data) != nil || data[errorMember] == nil {
		return r
	}
	var werr wire.Error
	if json.Unmarshal(data[errorMember], &werr) != nil || werr.Code == "" {
		return r // somebody else's data, which only happens to have such a member
	}
	delete(data, errorMember)
	rest, err := wire.CanonicalJSON(data)
	if err != nil {
		return r
	}
	r.Error, r.Data = &werr, rest
	if len(data) == 0 {
		r.Data = nil
	}
	return r
}

// rebuild is the acceptance of a goal as the mesh still tells it: from the index entry while there is one,
// afterwards from the terminal. It never makes an identity up. Of what is there, each may be nil.
//
// Errors are refusals, not-executed: unavailable when something may still come to be readable,
// failed-precondition when the goal is at its end and what was accepted is not told any more.
func rebuild(ref wire.GoalRef, idx *wire.GoalIndex, spec *wire.GoalSpec, fact *wire.GoalResultFact) (wire.Acceptance, error) {
	if spec == nil && fact != nil {
		return wire.Acceptance{}, alreadyEnded(ref, *fact)
	}
	if spec == nil {
		return wire.Acceptance{}, wire.Refuse(wire.CodeUnavailable, "goal %s is being accepted, and is not recorded yet; ask again with the same id", ref.ID)
	}
	acc := wire.Acceptance{GoalID: ref.ID, Fingerprint: spec.Fingerprint, ReadinessDeadlineMs: spec.ReadinessDeadlineMs}
	switch {
	case spec.AcceptedEpoch == nil:
		return wire.Acceptance{}, unreadable(ref, "its record does not say which incarnation accepted it")
	case idx != nil && idx.Allocated != nil:
		a := idx.Allocated
		if a.Owner == "" {
			return wire.Acceptance{}, unreadable(ref, "its index entry does not say whose it is")
		}
		acc.Name, acc.Owner, acc.Actor, acc.UID = a.Name, a.Owner, a.Actor, a.UID
		if a.ReadinessDeadlineMs != 0 {
			acc.ReadinessDeadlineMs = a.ReadinessDeadlineMs
		}
		acc.Executor = wire.Executor{LifecycleUID: idx.InstanceID, Epoch: *spec.AcceptedEpoch}
	case fact != nil:
		var t terminal
		owner, actor := "", ""
		err := json.Unmarshal(fact.Data, &t)
		if err == nil {
			owner, actor, err = wire.ParsePrincipal(t.ID)
		}
		if err != nil || t.Name == "" || !wire.ValidUID(t.LifecycleUID) || fact.Committer == nil {
			return wire.Acceptance{}, alreadyEnded(ref, *fact)
		}
		acc.Name, acc.Owner, acc.Actor, acc.UID = t.Name, owner, actor, t.LifecycleUID
		acc.Executor = wire.Executor{LifecycleUID: fact.Committer.InstanceID, Epoch: *spec.AcceptedEpoch}
	default:
		return wire.Acceptance{}, unreadable(ref, "neither its index entry nor its end says what was accepted")
	}
	if acc.ReadinessDeadlineMs == 0 {
		// A caller could not bound its wait.
		return wire.Acceptance{}, unreadable(ref, "its readiness deadline is not recorded")
	}
	return acc, nil
}

func unreadable(ref wire.GoalRef, why string) *wire.Error {
	return wire.Refuse(wire.CodeUnavailable, "goal %s was accepted, and %s; ask goal-result for it, or again later", ref.ID, why)
}

// alreadyEnded refuses to run what has run. The result stands in the refusal.
func alreadyEnded(ref wire.GoalRef, f wire.GoalResultFact) *wire.Error {
	return wire.Refuse(wire.CodeFailedPrecondition, "goal %s is already at its end: %s; use a new id for a new one", ref.ID, f.State).
		With(DetailAlreadyTerminal, map[string]any{
			"goalId": ref.ID, "state": f.State, "outcomeDigest": f.OutcomeDigest, "evicted": f.Evicted(),
		})
}

// DetailAlreadyTerminal is the detail of a refusal because a goal is at its end: {goalId, state, outcomeDigest,
// evicted}; evicted says that the data of its result is gone.
const DetailAlreadyTerminal = "ai.cotal.goal.already-terminal"

func otherRequest(ref wire.GoalRef) *wire.Error {
	return wire.Refuse(wire.CodeFailedPrecondition, "goal id %s was used for another request; use a new id", ref.ID)
}
