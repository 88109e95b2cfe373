package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Presence states.
const (
	StatusIdle    = "idle"
	StatusWaiting = "waiting"
	StatusWorking = "working"
	StatusOffline = "offline" // only ever written once, on a graceful end
)

// Kinds of participants.
const (
	CardAgent    = "agent"
	CardEndpoint = "endpoint"
)

// Attention modes and per-channel modes: what an agent asks to be spared. Nobody enforces them.
const (
	AttentionOpen  = "open"
	AttentionDND   = "dnd"
	AttentionFocus = "focus"
	ChannelQuiet   = "quiet"
	ChannelMuted   = "muted"
)

var (
	presenceStates  = []string{StatusIdle, StatusWaiting, StatusWorking, StatusOffline}
	cardKinds       = []string{CardAgent, CardEndpoint}
	attentionModes  = []string{AttentionOpen, AttentionDND, AttentionFocus}
	channelModes    = []string{ChannelQuiet, ChannelMuted}
	conditionCodes  = []string{"rate_limit", "overloaded", "auth", "billing", "budget", "context", "model", "request", "server", "retrying", "approval", "input", "failed"}
	reservedMetaKey = []string{"connector", "model", "provider", "host", "cwd", "repo", "branch", "head", "sessionKind", "sessionId"}
)

// MetaStateBy is a key of AgentCard.Meta: how an agent's status is known. hook: a hook of its program told it; program:
// its program's server, or a plugin in it; file: its program's own status file; process: the program runs; agent: the
// agent says so itself; silence: a turn was open and told nothing for so long that it counts as over. Absent: the status
// is only supposed.
const MetaStateBy = "ai.cotal.state-by"

// ConditionCodes lists what PresenceCondition.Code may be.
func ConditionCodes() []string { return append([]string(nil), conditionCodes...) }

// ReservedMetaKeys lists the keys of AgentCard.Meta that have a meaning: flat strings, for display. Any
// other key is to be a reverse-DNS name.
func ReservedMetaKeys() []string { return append([]string(nil), reservedMetaKey...) }

// AgentCard says who a participant is.
type AgentCard struct {
	ID          string                     `json:"id"` // principal, dot form
	Name        string                     `json:"name"`
	Kind        string                     `json:"kind"`
	Role        string                     `json:"role,omitempty"`
	Description string                     `json:"description,omitempty"`
	Tags        []string                   `json:"tags,omitempty"`
	Skills      []AgentSkill               `json:"skills,omitempty"`
	Meta        map[string]json.RawMessage `json:"meta,omitempty"`
	// ProtocolVersion: an absent one is from before 0.4 and is not addressed on the endpoint rails. It
	// signals a change and negotiates nothing.
	ProtocolVersion string `json:"protocolVersion,omitempty"`
	Owner           string `json:"owner,omitempty"`
	Actor           string `json:"actor,omitempty"`
}

// AgentSkill is one thing an agent says it can do.
type AgentSkill struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// MetaString is a flat string of Meta; "" when it is absent or something else.
func (c AgentCard) MetaString(key string) string {
	var s string
	if json.Unmarshal(c.Meta[key], &s) != nil {
		return ""
	}
	return s
}

// AddressableOnRails reports whether the card's participant speaks the endpoint rails at all.
func (c AgentCard) AddressableOnRails() bool { return c.ProtocolVersion != "" }

// PresenceCondition is a state that an agent program reported of itself. It is passed on and never
// inferred.
type PresenceCondition struct {
	Code    string `json:"code"`
	Source  string `json:"source,omitempty"`
	Message string `json:"message,omitempty"`
	Since   int64  `json:"since,omitempty"` // epoch milliseconds; 0 = not known
}

// Presence is the record of a participant in the presence bucket, under its card's id. It is for display
// and for readiness; it is never authority. Times are epoch milliseconds, 0 = not known.
type Presence struct {
	Card          AgentCard          `json:"card"`
	Status        string             `json:"status"`
	TS            int64              `json:"ts"` // last heartbeat
	LifecycleUID  string             `json:"lifecycleUid,omitempty"`
	Condition     *PresenceCondition `json:"condition,omitempty"`
	Environment   string             `json:"environment,omitempty"`
	Activity      string             `json:"activity,omitempty"`
	Attention     string             `json:"attention,omitempty"`
	ChannelModes  map[string]string  `json:"channelModes,omitempty"`
	ActiveAt      int64              `json:"activeAt,omitempty"`      // last progress of work
	ActivitySince int64              `json:"activitySince,omitempty"` // when Activity was set
	StatusSince   int64              `json:"statusSince,omitempty"`   // never on an offline record
}

// Alive reports whether the record, read at a moment of the reader's clock, says that its participant is
// there. It does not say that it is gone: a reader whose own view is stale knows nothing.
func (p Presence) Alive(now time.Time) bool {
	return p.Status != StatusOffline && now.UnixMilli()-p.TS <= PresenceWindow.Milliseconds()
}

// DecodePresence decodes and validates a record that was read under a key of the presence bucket. One
// whose card.id is not its key is refused: it was written by somebody else.
func DecodePresence(key string, p []byte) (Presence, error) {
	pr, err := decodePresence(p)
	if err == nil && pr.Card.ID != key {
		return Presence{}, fmt.Errorf("decode presence: %w", &FieldError{"card.id", fmt.Sprintf("%q is not its key %q", clip(pr.Card.ID), clip(key))})
	}
	return pr, err
}

func decodePresence(p []byte) (Presence, error) {
	return decode("presence", p, func(f *fields, pr *Presence) {
		if s := f.object("card", true); s != nil {
			s.card(&pr.Card)
			f.done(s)
		}
		f.str("status", true, isSet, "", &pr.Status)
		f.whole("ts", true, &pr.TS)
		f.str("lifecycleUid", false, ValidUID, whyUID, &pr.LifecycleUID)
		if s := f.object("condition", false); s != nil {
			var c PresenceCondition
			s.str("code", true, isSet, "", &c.Code)
			s.str("source", false, nil, "", &c.Source)
			s.str("message", false, nil, "", &c.Message)
			s.whole("since", false, &c.Since)
			f.done(s)
			pr.Condition = &c
		}
		f.str("environment", false, nil, "", &pr.Environment)
		f.str("activity", false, nil, "", &pr.Activity)
		f.str("attention", false, nil, "", &pr.Attention)
		if s := f.object("channelModes", false); s != nil {
			pr.ChannelModes = make(map[string]string, len(s.n.members))
			for i := range s.n.members {
				name := s.n.members[i].name
				var mode string
				s.str(name, true, nil, "", &mode)
				pr.ChannelModes[name] = mode
			}
			f.done(s)
		}
		f.whole("activeAt", false, &pr.ActiveAt)
		f.whole("activitySince", false, &pr.ActivitySince)
		f.whole("statusSince", false, &pr.StatusSince)
	})
}

func (f *fields) card(c *AgentCard) {
	f.str("id", true, validPrincipal, whyPrincipal, &c.ID)
	f.str("name", true, ValidName, "is not 1..128 characters", &c.Name)
	f.str("kind", true, isSet, "", &c.Kind)
	f.str("role", false, nil, "", &c.Role)
	f.str("description", false, nil, "", &c.Description)
	f.strings("tags", false, nil, "", &c.Tags)
	f.objects("skills", false, func(s *fields) {
		var k AgentSkill
		s.str("id", true, nil, "", &k.ID)
		s.str("name", true, nil, "", &k.Name)
		s.str("description", false, nil, "", &k.Description)
		c.Skills = append(c.Skills, k)
	})
	if s := f.object("meta", false); s != nil {
		c.Meta = make(map[string]json.RawMessage, len(s.n.members))
		for i := range s.n.members {
			m := &s.n.members[i]
			c.Meta[m.name] = json.RawMessage(m.value.raw)
		}
	}
	f.str("protocolVersion", false, nil, "", &c.ProtocolVersion)
	f.str("owner", false, nil, "", &c.Owner)
	f.str("actor", false, nil, "", &c.Actor)
	if f.err == nil && c.Owner != "" && c.Actor != "" && c.ID != c.Owner+"."+c.Actor {
		f.fail("id", fmt.Sprintf("%s is not owner.actor of the same card", c.ID))
	}
}

func isSet(s string) bool { return s != "" }

// Check refuses, naming the field, what a reader would take and a writer must not write: a state, condition
// or mode that is not known, a key of the card's meta that is nobody's, and a record without lifecycle UID or
// protocol version.
func (p Presence) Check() error {
	problem := func(field, v string, set []string) error {
		return &FieldError{field, tokenProblem(v, "is not "+orList(set))}
	}
	switch {
	case p.LifecycleUID == "":
		return &FieldError{"lifecycleUid", "is missing"}
	case p.Card.ProtocolVersion == "":
		return &FieldError{"card.protocolVersion", "is missing"}
	case !slices.Contains(cardKinds, p.Card.Kind):
		return problem("card.kind", p.Card.Kind, cardKinds)
	case !slices.Contains(presenceStates, p.Status):
		return problem("status", p.Status, presenceStates)
	case p.Status == StatusOffline && p.StatusSince != 0:
		return &FieldError{"statusSince", "has no place on an offline record"}
	case p.Condition != nil && !slices.Contains(conditionCodes, p.Condition.Code):
		return problem("condition.code", p.Condition.Code, conditionCodes)
	case p.Attention != "" && !slices.Contains(attentionModes, p.Attention):
		return problem("attention", p.Attention, attentionModes)
	}
	for key := range p.Card.Meta {
		if !slices.Contains(reservedMetaKey, key) && !ValidPartKind(key) {
			return &FieldError{"card.meta." + clip(key), "is neither reserved nor a reverse-DNS name"}
		}
	}
	for name, mode := range p.ChannelModes {
		if !ValidChannel(name) || !slices.Contains(channelModes, mode) {
			return problem("channelModes."+clip(name), mode, channelModes)
		}
	}
	return nil
}

// Encode returns the record as JSON, after Check and after it was read back.
func (p Presence) Encode() ([]byte, error) {
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("encode presence: %w", err)
	}
	return encode("presence", p, decodePresence)
}
