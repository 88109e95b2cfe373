package wire

import (
	"fmt"
	"slices"
)

// States of an issuance gate.
const (
	GateOpen    = "open"
	GateFrozen  = "frozen"
	GateRetired = "retired"
)

// Kinds of operations that hold a gate.
const (
	OpActivation   = "activation"
	OpTakeover     = "takeover"
	OpRegistration = "registration"
	OpRetirement   = "retirement"
)

var (
	gateStates = []string{GateOpen, GateFrozen, GateRetired}
	gateOps    = []string{OpActivation, OpTakeover, OpRegistration, OpRetirement}
)

// GateOp is the operation that froze a gate, and alone may carry on: only its executor does, and a retry
// resumes it under the same id.
type GateOp struct {
	OpID      string `json:"opId"`
	Kind      string `json:"kind"`
	Successor string `json:"successor,omitempty"` // takeover and registration only
}

// Gate is the issuance gate of one life: credentials are minted only while it is open.
type Gate struct {
	LifecycleUID string  `json:"lifecycleUid"`
	State        string  `json:"state"`
	Generation   uint64  `json:"generation"` // raised at every reopening
	Op           *GateOp `json:"op,omitempty"`
}

// EndpointGate is the issuance gate of one instance of an endpoint. Its epoch is the instance's.
type EndpointGate struct {
	State                 string  `json:"state"`
	Generation            uint64  `json:"generation"`
	ProcessEpoch          uint64  `json:"processEpoch"`
	RegistrationRevision  uint64  `json:"registrationRevision"`
	NameAuthorityRevision uint64  `json:"nameAuthorityRevision"`
	Principal             string  `json:"principal"` // of the serving connection
	Op                    *GateOp `json:"op,omitempty"`
}

// gateOp reads op: an open gate has none, a frozen one has it, a retired one keeps it.
func (f *fields) gateOp(state string) *GateOp {
	if f.err != nil {
		return nil
	}
	if state == GateOpen {
		f.absent("op", "has no place on an open gate")
		return nil
	}
	s := f.object("op", true)
	if s == nil {
		return nil
	}
	var op GateOp
	s.closed("opId", "kind", "successor")
	s.str("opId", true, ValidOpID, whyUID, &op.OpID)
	s.oneOf("kind", true, gateOps, &op.Kind)
	s.str("successor", false, isSet, "", &op.Successor)
	switch {
	case s.err != nil:
	case op.Successor != "" && op.Kind != OpTakeover && op.Kind != OpRegistration:
		s.fail("successor", "has no place in kind "+op.Kind)
	case state == GateRetired && op.Kind != OpActivation && op.Kind != OpRetirement:
		s.fail("kind", op.Kind+" never retires a gate")
	}
	f.done(s)
	return &op
}

// DecodeGate decodes and validates the gate that was read for a life. The schema is closed.
func DecodeGate(uid string, p []byte) (Gate, error) {
	g, err := decodeGate(p)
	if err == nil && g.LifecycleUID != uid {
		return Gate{}, fmt.Errorf("decode gate: %w", &FieldError{"lifecycleUid", "is not that of its key"})
	}
	return g, err
}

func decodeGate(p []byte) (Gate, error) {
	return decode("gate", p, func(f *fields, g *Gate) {
		f.closed("lifecycleUid", "state", "generation", "op")
		f.str("lifecycleUid", true, ValidUID, whyUID, &g.LifecycleUID)
		f.oneOf("state", true, gateStates, &g.State)
		f.uint("generation", true, 0, &g.Generation)
		g.Op = f.gateOp(g.State)
	})
}

// Encode returns the gate as JSON, after it was read back.
func (g Gate) Encode() ([]byte, error) { return encode("gate", g, decodeGate) }

// DecodeEndpointGate decodes and validates an endpoint's gate. The schema is closed.
func DecodeEndpointGate(p []byte) (EndpointGate, error) {
	return decode("endpoint gate", p, func(f *fields, g *EndpointGate) {
		f.closed("state", "generation", "processEpoch", "registrationRevision", "nameAuthorityRevision", "principal", "op")
		f.oneOf("state", true, gateStates, &g.State)
		f.uint("generation", true, 0, &g.Generation)
		f.uint("processEpoch", true, 0, &g.ProcessEpoch)
		f.uint("registrationRevision", true, 0, &g.RegistrationRevision)
		f.uint("nameAuthorityRevision", true, 0, &g.NameAuthorityRevision)
		f.str("principal", true, validPrincipal, whyPrincipal, &g.Principal)
		g.Op = f.gateOp(g.State)
	})
}

// Encode returns the gate as JSON, after it was read back.
func (g EndpointGate) Encode() ([]byte, error) { return encode("endpoint gate", g, DecodeEndpointGate) }

// GateMove decides whether an operation may take a gate from one state to another; from "" is its birth. A
// false one is refused before any compare-and-set. endpoint tells the family: an endpoint's gate is born
// open by its first registration, and reopened by a registration that committed as well as by one that
// gave up (docs/wire-decisions.md, A21).
func GateMove(endpoint bool, from, to, kind string) bool {
	var kinds []string
	switch from + ">" + to {
	case ">" + GateOpen:
		if endpoint {
			kinds = []string{OpRegistration}
		}
	case ">" + GateFrozen:
		if !endpoint {
			kinds = []string{OpActivation}
		}
	case GateOpen + ">" + GateFrozen:
		kinds = []string{OpTakeover, OpRegistration, OpRetirement}
	case GateFrozen + ">" + GateOpen:
		kinds = []string{OpActivation, OpTakeover, OpRegistration}
	case GateFrozen + ">" + GateRetired:
		kinds = []string{OpActivation, OpRetirement}
	}
	return slices.Contains(kinds, kind)
}

// States of a lifecycle head.
const (
	LifeActive   = "active" // the only current one
	LifeRetiring = "retiring"
	LifeRetired  = "retired" // its retirement is complete
)

// LifecycleHead says which life a principal has now. Only an active head gives a mapping; its revision is
// the store's.
type LifecycleHead struct {
	Owner               string  `json:"owner"`
	Actor               string  `json:"actor"`
	LifecycleUID        string  `json:"lifecycleUid"`
	ManagerInstance     string  `json:"managerInstance"`
	ProcessEpoch        uint64  `json:"processEpoch"` // 1 at activation
	State               string  `json:"state"`
	CurrentCredentialID string  `json:"currentCredentialId,omitempty"`
	LastTakeoverOpID    string  `json:"lastTakeoverOpId,omitempty"`
	Op                  *GateOp `json:"op,omitempty"` // of a retiring head, kind retirement
}

// Current reports whether the head gives a mapping.
func (h LifecycleHead) Current() bool { return h.State == LifeActive }

// DecodeLifecycleHead decodes and validates the head that was read for a principal. The schema is closed.
func DecodeLifecycleHead(pr Principal, p []byte) (LifecycleHead, error) {
	h, err := decodeLifecycleHead(p)
	if err == nil && (h.Owner != pr.Owner || h.Actor != pr.Actor) {
		return LifecycleHead{}, fmt.Errorf("decode lifecycle head: %w", &FieldError{"actor", "is not that of its key"})
	}
	return h, err
}

func decodeLifecycleHead(p []byte) (LifecycleHead, error) {
	return decode("lifecycle head", p, func(f *fields, h *LifecycleHead) {
		f.closed("owner", "actor", "lifecycleUid", "managerInstance", "processEpoch", "state", "currentCredentialId", "lastTakeoverOpId", "op")
		f.str("owner", true, ValidOwner, whyOwner, &h.Owner)
		f.str("actor", true, ValidActor, whyActor, &h.Actor)
		f.str("lifecycleUid", true, ValidUID, whyUID, &h.LifecycleUID)
		f.str("managerInstance", true, isSet, "", &h.ManagerInstance)
		f.uint("processEpoch", true, 1, &h.ProcessEpoch)
		f.oneOf("state", true, []string{LifeActive, LifeRetiring, LifeRetired}, &h.State)
		f.str("currentCredentialId", false, ValidCredentialID, "is no credential id", &h.CurrentCredentialID)
		f.str("lastTakeoverOpId", false, ValidOpID, whyUID, &h.LastTakeoverOpID)
		if h.State != LifeRetiring {
			f.absent("op", "has no place on a head that is not retiring")
			return
		}
		h.Op = f.gateOp(GateFrozen)
		if f.err == nil && (h.Op.Kind != OpRetirement || h.Op.Successor != "") {
			f.fail("op.kind", "is not retirement")
		}
	})
}

// Encode returns the head as JSON, after it was read back.
func (h LifecycleHead) Encode() ([]byte, error) {
	return encode("lifecycle head", h, decodeLifecycleHead)
}

// UIDReservation reserves a UID, for ever and create-only. Its value is for audit.
type UIDReservation struct {
	Owner    string `json:"owner"`
	Actor    string `json:"actor"`
	MintedBy string `json:"mintedBy"`
}

// DecodeUIDReservation decodes and validates a reservation. The schema is closed.
func DecodeUIDReservation(p []byte) (UIDReservation, error) {
	return decode("uid reservation", p, func(f *fields, u *UIDReservation) {
		f.closed("owner", "actor", "mintedBy")
		f.str("owner", true, ValidOwner, whyOwner, &u.Owner)
		f.str("actor", true, ValidActor, whyActor, &u.Actor)
		f.str("mintedBy", true, isSet, "", &u.MintedBy)
	})
}

// Encode returns the reservation as JSON, after it was read back.
func (u UIDReservation) Encode() ([]byte, error) {
	return encode("uid reservation", u, DecodeUIDReservation)
}

// Frontier is where the streams stood when a life was retired. The schema is closed.
type Frontier struct {
	LifecycleUID string            `json:"lifecycleUid"`
	OpID         string            `json:"opId"`
	Streams      map[string]uint64 `json:"streams"` // stream: last sequence
}

// DecodeFrontier decodes and validates a frontier.
func DecodeFrontier(p []byte) (Frontier, error) {
	return decode("frontier", p, func(f *fields, r *Frontier) {
		f.closed("lifecycleUid", "opId", "streams")
		f.str("lifecycleUid", true, ValidUID, whyUID, &r.LifecycleUID)
		f.str("opId", true, ValidOpID, whyUID, &r.OpID)
		if s := f.object("streams", true); s != nil {
			r.Streams = make(map[string]uint64, len(s.n.members))
			for i := range s.n.members {
				name := s.n.members[i].name
				var seq uint64
				s.uint(name, true, 0, &seq)
				r.Streams[name] = seq
			}
			f.done(s)
		}
	})
}

// Encode returns the frontier as JSON, after it was read back.
func (r Frontier) Encode() ([]byte, error) { return encode("frontier", r, DecodeFrontier) }
