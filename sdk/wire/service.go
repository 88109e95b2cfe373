package wire

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ServiceSpec is the spec of an instance's record: what it is registered as. Its store revision is the
// registration revision.
type ServiceSpec struct {
	Endpoint       string          `json:"endpoint"`
	Owner          string          `json:"owner"`
	EndpointType   string          `json:"endpointType,omitempty"`
	ClusterDigests []string        `json:"clusterDigests"` // closure digests, at least one
	Protocol       Protocol        `json:"protocol"`
	Activation     json.RawMessage `json:"activation,omitempty"` // of endpoints started on demand; carried as it is
}

// DecodeServiceSpec decodes and validates the spec that was read under a key. An endpoint that is not the
// key's is refused; a later protocol version is a *Error unsupported-version.
func DecodeServiceSpec(key Key, p []byte) (ServiceSpec, error) {
	s, err := decodeServiceSpec(p)
	if err == nil && key.Endpoint() != s.Endpoint {
		return ServiceSpec{}, fmt.Errorf("decode service spec: %w", &FieldError{"endpoint", fmt.Sprintf("is %s, its key says %s", s.Endpoint, key.Endpoint())})
	}
	return s, err
}

func decodeServiceSpec(p []byte) (ServiceSpec, error) {
	var version *Error
	s, err := decode("service spec", p, func(f *fields, s *ServiceSpec) {
		if version = f.protocol(&s.Protocol, DescriptorVersion); version != nil {
			return
		}
		f.str("endpoint", true, ValidEndpoint, whyEndpoint, &s.Endpoint)
		f.str("owner", true, ValidOwner, whyOwner, &s.Owner)
		f.str("endpointType", false, nil, "", &s.EndpointType)
		f.strings("clusterDigests", true, ValidDigest, whyDigest, &s.ClusterDigests)
		if f.err == nil && len(s.ClusterDigests) == 0 {
			f.fail("clusterDigests", "is empty")
		}
		if v := f.lookup("activation", false, kindObject); v != nil {
			s.Activation = json.RawMessage(v.raw)
		}
	})
	if version != nil {
		return ServiceSpec{}, fmt.Errorf("decode service spec: %w", version)
	}
	return s, err
}

// Encode returns the spec as JSON, after it was read back.
func (s ServiceSpec) Encode() ([]byte, error) { return encode("service spec", s, decodeServiceSpec) }

// States of an instance that have a meaning here. Any token of the grammar is taken when read.
const (
	ServiceStarting  = "starting"  // registered, not serving yet
	ServiceReady     = "ready"     // serves
	ServiceDegraded  = "degraded"  // serves what it has, starts nothing new
	ServiceExited    = "exited"    // ended
	ServiceEscalated = "escalated" // too many restarts; for ever
)

// ServiceRestart is one restart of an instance, by the epoch that died.
type ServiceRestart struct {
	T     int64  `json:"t"` // epoch milliseconds
	Epoch uint64 `json:"epoch"`
}

// ServiceStatus is the status of an instance's record, written by the instance itself (Restarts and
// RetiredAt by its supervisor).
type ServiceStatus struct {
	Epoch                uint64           `json:"epoch"`
	State                string           `json:"state"`
	ObservedSpecRevision uint64           `json:"observedSpecRevision"`
	Restarts             []ServiceRestart `json:"restarts,omitempty"`
	RetiredAt            int64            `json:"retiredAt,omitempty"` // epoch milliseconds; escalated only
	// More is every other member, kept as it is.
	More map[string]json.RawMessage `json:"-"`
}

var serviceStatusMembers = []string{"epoch", "state", "observedSpecRevision", "restarts", "retiredAt"}

// ValidServiceState reports whether s is a state token: [a-z][a-z0-9-]{0,31}.
func ValidServiceState(s string) bool {
	return all(s, 1, 32, func(c byte) bool { return isUIDChar(c) || c == '-' }) && isLower(s[0])
}

// DecodeServiceStatus decodes and validates a status. Members it does not know are kept in More.
func DecodeServiceStatus(p []byte) (ServiceStatus, error) {
	return decode("service status", p, func(f *fields, s *ServiceStatus) {
		f.uint("epoch", true, 0, &s.Epoch)
		f.str("state", true, ValidServiceState, "is not 1..32 characters of [a-z0-9-] with a letter first", &s.State)
		f.uint("observedSpecRevision", true, 0, &s.ObservedSpecRevision)
		f.objects("restarts", false, func(e *fields) {
			var r ServiceRestart
			e.millis("t", true, 0, &r.T)
			e.uint("epoch", true, 0, &r.Epoch)
			if slices.ContainsFunc(s.Restarts, func(o ServiceRestart) bool { return o.Epoch == r.Epoch }) {
				e.fail("epoch", "died once already: an epoch restarts once")
			}
			s.Restarts = append(s.Restarts, r)
		})
		f.millis("retiredAt", false, 0, &s.RetiredAt)
		if s.State != ServiceEscalated {
			f.absent("retiredAt", "has no place on an instance that is not escalated")
		}
		for i := range f.n.members {
			m := &f.n.members[i]
			if slices.Contains(serviceStatusMembers, m.name) {
				continue
			}
			if s.More == nil {
				s.More = map[string]json.RawMessage{}
			}
			s.More[m.name] = json.RawMessage(m.value.raw)
		}
	})
}

// MarshalJSON writes the members of More beside the others; a name of theirs wins.
func (s ServiceStatus) MarshalJSON() ([]byte, error) {
	type plain ServiceStatus
	p, err := json.Marshal(plain(s))
	if err != nil || len(s.More) == 0 {
		return p, err
	}
	m := make(map[string]json.RawMessage, len(s.More)+5)
	for k, v := range s.More {
		if !slices.Contains(serviceStatusMembers, k) {
			m[k] = v
		}
	}
	if err := json.Unmarshal(p, &m); err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// Encode returns the status as JSON, after it was read back.
func (s ServiceStatus) Encode() ([]byte, error) {
	return encode("service status", s, DecodeServiceStatus)
}

// Freshness compares a status with the spec beside it.
type Freshness int

// Freshness of a merged read.
const (
	StatusCurrent Freshness = iota
	StatusStale             // valid, and about an earlier spec
	SpecStale               // the status has seen a later spec than the reader: read the spec again
)

// CompareRevisions says how a status that observed one revision of its spec stands to the revision that was
// read.
func CompareRevisions(spec, observed uint64) Freshness {
	switch {
	case observed < spec:
		return StatusStale
	case observed > spec:
		return SpecStale
	}
	return StatusCurrent
}

// ExpectedReply is one instance of the frozen set of a scatter.
type ExpectedReply struct {
	InstanceID           string `json:"instanceId"`
	RegistrationRevision uint64 `json:"registrationRevision"`
	Epoch                uint64 `json:"epoch"`
}

// ScatterEntry reports whether an instance belongs to the expected set of a scatter: it does when its
// status has caught up with its registration and it is neither ended nor escalated.
func ScatterEntry(instanceID string, specRevision uint64, st ServiceStatus) (ExpectedReply, bool) {
	ok := CompareRevisions(specRevision, st.ObservedSpecRevision) == StatusCurrent &&
		st.State != ServiceEscalated && st.State != ServiceExited
	return ExpectedReply{instanceID, specRevision, st.Epoch}, ok
}
