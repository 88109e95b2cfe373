package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Phases of a slot. They only go forward, and a retired slot is free for the next life of its alias.
const (
	SlotProvisioning  = "provisioning"  // an intent: what it names may be there or not
	SlotActive        = "active"        // its seat was launched
	SlotTerminalizing = "terminalizing" // its end is decided
	SlotRetired       = "retired"       // nothing of it is left, and nothing of it is valid
)

var slotPhases = []string{SlotProvisioning, SlotActive, SlotTerminalizing, SlotRetired}

// RuntimeRef is by what a seat's process can be found and ended: a runtime, and the custody id that was reserved
// with it before anything of the seat was made.
type RuntimeRef struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

// Slot says which life an alias has, and how far that is: mgrslot.<owner>.<alias> in the records bucket. It is
// written by the instance that it names, by compare-and-set, and never deleted. Other managers write it as well,
// so members that are not known are no mistake.
type Slot struct {
	Owner           string `json:"owner"`
	Alias           string `json:"alias"`
	Actor           string `json:"actor"`
	LifecycleUID    string `json:"lifecycleUid"`
	Phase           string `json:"phase"`
	OwnerInstanceID string `json:"ownerInstanceId"` // whose it is
	ManagerInstance string `json:"managerInstance"` // which process of it wrote the intent
	// Runtime is there from the intent on.
	Runtime *RuntimeRef `json:"runtime,omitempty"`
	// CredentialID is the one that was minted last, written before its ledger row.
	CredentialID string `json:"credentialId,omitempty"`
	// CredentialFile is its name in the secret store of the instance. Whoever removes it goes by this.
	CredentialFile string `json:"credentialFile,omitempty"`
	// CleanupComplete: process, files and durables are gone, and are not looked for again.
	CleanupComplete bool `json:"cleanupComplete,omitempty"`
}

// Life is who the slot is of.
func (s Slot) Life() Caller { return Caller{Owner: s.Owner, Actor: s.Actor, UID: s.LifecycleUID} }

// Key is where the slot belongs.
func (s Slot) Key() Key { return SlotKey(s.Owner, s.Alias) }

// SlotKey is the row of one alias.
func SlotKey(owner, alias string) Key {
	return Key{Kind: KindSlot, Qualifiers: []string{owner, alias}}
}

// DecodeSlot decodes and validates the slot that was read under a key; one that belongs under another is refused.
func DecodeSlot(key Key, p []byte) (Slot, error) {
	s, err := decodeSlot(p)
	if err == nil && (key.Kind != KindSlot || len(key.Qualifiers) != 2 || s.Owner != key.Qualifiers[0] || s.Alias != key.Qualifiers[1]) {
		return Slot{}, fmt.Errorf("decode slot: %w", &FieldError{"alias", "is not that of its key"})
	}
	return s, err
}

func decodeSlot(p []byte) (Slot, error) {
	return decode("slot", p, func(f *fields, s *Slot) {
		f.str("owner", true, ValidOwner, whyOwner, &s.Owner)
		f.str("alias", true, ValidToken, whyToken, &s.Alias)
		f.str("actor", true, ValidActor, whyActor, &s.Actor)
		f.str("lifecycleUid", true, ValidUID, whyUID, &s.LifecycleUID)
		f.oneOf("phase", true, slotPhases, &s.Phase)
		f.str("ownerInstanceId", true, ValidUID, whyUID, &s.OwnerInstanceID)
		f.str("managerInstance", true, isSet, "", &s.ManagerInstance)
		if r := f.object("runtime", false); r != nil {
			s.Runtime = &RuntimeRef{}
			r.str("kind", true, isSet, "", &s.Runtime.Kind)
			r.str("id", true, isSet, "", &s.Runtime.ID)
			f.done(r)
		}
		f.str("credentialId", false, ValidCredentialID, "is no credential id", &s.CredentialID)
		f.str("credentialFile", false, isSet, "", &s.CredentialFile)
		f.boolean("cleanupComplete", false, &s.CleanupComplete)
	})
}

// Encode returns the slot as JSON, after it was read back.
func (s Slot) Encode() ([]byte, error) { return encode("slot", s, decodeSlot) }

// SlotMove decides whether a slot may go from one phase to another; from "" is its first life. A retired slot is
// taken by the next life, and an end that was decided is not taken back.
func SlotMove(from, to string) bool {
	switch from {
	case "", SlotRetired:
		return to == SlotProvisioning
	case SlotProvisioning:
		return to == SlotActive || to == SlotTerminalizing
	case SlotActive:
		return to == SlotTerminalizing
	case SlotTerminalizing:
		return to == SlotRetired
	}
	return false
}

// ActivationOpID and RetirementOpID are the operations that begin and end a life. They are derived from it, so that
// whoever goes on with one goes on with the same.
func ActivationOpID(uid string) string { return derivedOpID("activation", uid) }

// RetirementOpID is the other one.
func RetirementOpID(uid string) string { return derivedOpID("retirement", uid) }

func derivedOpID(kind, uid string) string {
	sum := sha256.Sum256([]byte("cotal/managed-" + kind + "/v1\x00" + uid))
	return hex.EncodeToString(sum[:13])
}
