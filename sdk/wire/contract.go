package wire

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ManagerURN names the cluster of the manager's commands.
const ManagerURN = "ai.cotal.manager"

// Traits that are governed. Every other trait is a word without consequences.
const (
	TraitGuarded = "ai.cotal.guarded"
	TraitPriced  = "ai.cotal.priced"
)

// Effect says whether a repeat of a command matters. It exists under protocol version 2 only.
type Effect string

// Effects.
const (
	EffectRead  Effect = "read"  // a repeat changes nothing that the command is for
	EffectWrite Effect = "write" // not to be repeated unless it is proved not to have run
)

// AdmissionCeiling bounds a submission of class journal before it is decided.
type AdmissionCeiling struct {
	MaxBytes int64 `json:"maxBytes"`
	MaxDepth int64 `json:"maxDepth"`
	MaxItems int64 `json:"maxItems"`
}

// CommandDecl declares one command of a cluster.
type CommandDecl struct {
	Name         string  `json:"name"`
	Class        Class   `json:"class"`
	Targeted     bool    `json:"targeted"`
	Modes        []Authz `json:"modes,omitempty"` // of a targeted command
	Capability   string  `json:"capability"`
	InputDigest  string  `json:"inputDigest"` // closure digests
	OutputDigest string  `json:"outputDigest"`
	// Effect is meaningless under protocol version 1: see EffectUnder.
	Effect Effect   `json:"effect,omitempty"`
	Traits []string `json:"traits,omitempty"`
	// Action marks a command of class journal whose submissions are goals of the journal.
	Action           bool              `json:"action,omitempty"`
	AdmissionCeiling *AdmissionCeiling `json:"admissionCeiling,omitempty"` // of class journal
	// ReadinessDeadlineMs of an action, from its acceptance.
	ReadinessDeadlineMs int64 `json:"readinessDeadlineMs,omitempty"`
	// Summary says in a sentence or two what the command does, for people: this project's own addition.
	Summary string `json:"summary,omitempty"`
}

// Spec is what admission needs of the declaration.
func (c CommandDecl) Spec() *CommandSpec {
	return &CommandSpec{
		Class: c.Class, Targeted: c.Targeted, Modes: slices.Clone(c.Modes),
		InputDigest: c.InputDigest, OutputDigest: c.OutputDigest,
	}
}

// EffectUnder is the effect of the command under a protocol version. Under version 1 it is write for
// every command, whatever the document says: there, the member is no declaration.
func (c CommandDecl) EffectUnder(protocol int) Effect {
	if protocol >= 2 && c.Effect == EffectRead {
		return EffectRead
	}
	return EffectWrite
}

// ClusterDocument is a contract document: a set of commands under a name. Attributes and events are
// carried as they are.
type ClusterDocument struct {
	URN        string            `json:"urn"`
	Revision   int64             `json:"revision"`
	Attributes []json.RawMessage `json:"attributes"`
	Commands   []CommandDecl     `json:"commands"`
	Events     []json.RawMessage `json:"events"`
}

// Command finds a command by name.
func (c ClusterDocument) Command(name string) (CommandDecl, bool) {
	i := slices.IndexFunc(c.Commands, func(d CommandDecl) bool { return d.Name == name })
	if i < 0 {
		return CommandDecl{}, false
	}
	return c.Commands[i], true
}

// ValidCapability reports whether s names a capability: [a-z][a-z0-9._-]{0,63}.
func ValidCapability(s string) bool {
	return all(s, 1, 64, func(c byte) bool { return isUIDChar(c) || c == '.' || c == '_' || c == '-' }) && isLower(s[0])
}

// DecodeCluster decodes and validates a cluster document. Members it does not know are ignored.
func DecodeCluster(p []byte) (ClusterDocument, error) {
	return decode("cluster document", p, func(f *fields, c *ClusterDocument) {
		f.str("urn", true, ValidURN, "is not a reverse-DNS name", &c.URN)
		f.millis("revision", true, 0, &c.Revision)
		c.Attributes, c.Events = f.raws("attributes"), f.raws("events")
		f.objects("commands", true, func(s *fields) {
			var d CommandDecl
			s.command(&d)
			if _, twice := c.Command(d.Name); twice && s.err == nil {
				s.fail("name", fmt.Sprintf("%s is declared twice", d.Name))
			}
			c.Commands = append(c.Commands, d)
		})
		if f.err == nil && len(c.Commands) == 0 {
			f.fail("commands", "is empty")
		}
	})
}

func (f *fields) raws(name string) []json.RawMessage {
	v := f.lookup(name, true, kindArray)
	if v == nil {
		return nil
	}
	out := make([]json.RawMessage, len(v.items))
	for i := range v.items {
		out[i] = json.RawMessage(v.items[i].raw)
	}
	return out
}

func (f *fields) command(d *CommandDecl) {
	f.str("name", true, func(s string) bool { return ValidCommand(s) && s != CmdDescribe }, "is not 1..32 characters of [a-z0-9-], or is describe, which is reserved", &d.Name)
	f.oneOf("class", true, []string{string(ClassEphemeral), string(ClassJournal)}, (*string)(&d.Class))
	f.boolean("targeted", true, &d.Targeted)
	if d.Targeted {
		var modes []string
		f.strings("modes", true, func(s string) bool { return Authz(s).targetTokens() >= 0 }, "is no authorization mode", &modes)
		for i, m := range modes {
			if slices.Contains(modes[:i], m) {
				f.fail("modes", m+" stands twice")
			}
			d.Modes = append(d.Modes, Authz(m))
		}
		if f.err == nil && len(modes) == 0 {
			f.fail("modes", "is empty")
		}
	} else {
		f.absent("modes", "has no place on a command without target")
	}
	f.str("capability", true, ValidCapability, "is not 1..64 characters of [a-z0-9._-] with a letter first", &d.Capability)
	f.str("inputDigest", true, ValidDigest, whyDigest, &d.InputDigest)
	f.str("outputDigest", true, ValidDigest, whyDigest, &d.OutputDigest)
	f.str("effect", false, nil, "", (*string)(&d.Effect))
	f.strings("traits", false, ValidURN, "is not a reverse-DNS name", &d.Traits)
	for i, t := range d.Traits {
		if slices.Contains(d.Traits[:i], t) {
			f.fail("traits", t+" stands twice")
		}
	}
	f.boolean("action", false, &d.Action)
	switch {
	case f.err == nil && !d.Action && f.n.get("action") != nil:
		f.fail("action", "is false; a command that is none has no such member")
	case d.Action && d.Class != ClassJournal:
		f.fail("action", "has no place on a command of class "+string(d.Class))
	}
	if d.Class == ClassJournal {
		if s := f.object("admissionCeiling", true); s != nil {
			var c AdmissionCeiling
			s.millis("maxBytes", true, 1, &c.MaxBytes)
			s.millis("maxDepth", true, 1, &c.MaxDepth)
			s.millis("maxItems", true, 1, &c.MaxItems)
			f.done(s)
			d.AdmissionCeiling = &c
		}
	} else {
		f.absent("admissionCeiling", "has no place on an ephemeral command")
	}
	if d.Action {
		f.millis("readinessDeadlineMs", false, 0, &d.ReadinessDeadlineMs)
	} else {
		f.absent("readinessDeadlineMs", "has no place on a command that is no action")
	}
	f.str("summary", false, func(s string) bool { return len(s) <= MaxSummary }, "is longer than 1024 bytes", &d.Summary)
}

// Encode returns the canonical form, after it was read back: what its artifact digest is over.
func (c ClusterDocument) Encode() ([]byte, error) {
	if c.Attributes == nil {
		c.Attributes = []json.RawMessage{}
	}
	if c.Events == nil {
		c.Events = []json.RawMessage{}
	}
	if _, err := encode("cluster document", c, DecodeCluster); err != nil {
		return nil, err
	}
	return CanonicalJSON(c)
}

// MergeCommands is the surface of several clusters. A name declared in two of them is refused
// (contract-invalid): it would have two meanings.
func MergeCommands(clusters ...ClusterDocument) (map[string]CommandDecl, error) {
	out := map[string]CommandDecl{}
	from := map[string]string{}
	for _, c := range clusters {
		for _, d := range c.Commands {
			if other, twice := from[d.Name]; twice {
				return nil, Refuse(CodeContractInvalid, "command %s is declared by %s and by %s", d.Name, other, c.URN)
			}
			out[d.Name], from[d.Name] = d, c.URN
		}
	}
	return out, nil
}

// Protocol is the version of a descriptor or a service record.
type Protocol struct {
	V int `json:"v"`
}

// DescribedCluster is one cluster of a descriptor. Document is there when it comes inline; else it is to
// be fetched: the manifest at Digest, then the document at the manifest's root.
type DescribedCluster struct {
	Digest   string          `json:"digest"` // closure digest
	Commands []string        `json:"commands"`
	Document json.RawMessage `json:"document,omitempty"`
}

// Descriptor says what an endpoint serves.
type Descriptor struct {
	Endpoint     string             `json:"endpoint"`
	Owner        string             `json:"owner"`
	EndpointType string             `json:"endpointType,omitempty"`
	Protocol     Protocol           `json:"protocol"`
	Clusters     []DescribedCluster `json:"clusters"`
}

// DescribeAnswer is the data of the reply to describe. Public says that every caller gets the same;
// else it is what this caller may see.
type DescribeAnswer struct {
	Public     bool       `json:"public"`
	Descriptor Descriptor `json:"descriptor"`
}

// DecodeDescribe decodes and validates the answer to describe. A protocol version it does not know is a
// *Error unsupported-version: whatever else stands there may mean anything.
func DecodeDescribe(p []byte) (DescribeAnswer, error) {
	var version *Error
	a, err := decode("describe answer", p, func(f *fields, a *DescribeAnswer) {
		f.boolean("public", true, &a.Public)
		s := f.object("descriptor", true)
		if s == nil {
			return
		}
		if version = s.protocol(&a.Descriptor.Protocol, 2); version == nil {
			s.descriptor(&a.Descriptor)
		}
		f.done(s)
	})
	if version != nil {
		return DescribeAnswer{}, fmt.Errorf("decode describe answer: %w", version)
	}
	return a, err
}

// protocol reads protocol.v, from 1 to highest. A later version is returned as the refusal it is.
func (f *fields) protocol(p *Protocol, highest int64) *Error {
	s := f.object("protocol", true)
	if s == nil {
		return nil
	}
	v := int64(0)
	s.millis("v", true, 1, &v)
	f.done(s)
	if f.err == nil && v > highest {
		return Refuse(CodeUnsupportedVersion, "protocol.v is %d; this reader knows up to %d", v, highest)
	}
	p.V = int(v)
	return nil
}

func (f *fields) descriptor(d *Descriptor) {
	f.str("endpoint", true, ValidEndpoint, whyEndpoint, &d.Endpoint)
	f.str("owner", true, ValidOwner, whyOwner, &d.Owner)
	f.str("endpointType", false, nil, "", &d.EndpointType)
	f.objects("clusters", true, func(s *fields) {
		var c DescribedCluster
		s.str("digest", true, ValidDigest, whyDigest, &c.Digest)
		s.strings("commands", true, ValidCommand, whyCommand, &c.Commands)
		if v := s.lookup("document", false, kindObject); v != nil {
			c.Document = json.RawMessage(v.raw)
		}
		d.Clusters = append(d.Clusters, c)
	})
}

// Verify checks an inline document against the closure digest that names it, and returns the document. It
// has to be one without references, as the clusters of this contract are.
func (c DescribedCluster) Verify() (ClusterDocument, error) {
	if len(c.Document) == 0 {
		return ClusterDocument{}, fmt.Errorf("verify cluster %s: the document does not come inline", c.Digest)
	}
	got, err := ClosureDigest(c.Document)
	switch {
	case err != nil:
		return ClusterDocument{}, fmt.Errorf("verify cluster: %w", err)
	case got != c.Digest:
		return ClusterDocument{}, fmt.Errorf("verify cluster: %w", Refuse(CodeContractInvalid, "the document is %s, not %s", got, c.Digest))
	}
	return DecodeCluster(c.Document)
}

// Describe makes the whole descriptor of an endpoint, with its documents inline.
func Describe(endpoint, owner string, clusters ...ClusterDocument) (Descriptor, error) {
	d := Descriptor{Endpoint: endpoint, Owner: owner, Protocol: Protocol{DescriptorVersion}, Clusters: []DescribedCluster{}}
	if _, err := MergeCommands(clusters...); err != nil {
		return Descriptor{}, err
	}
	for _, c := range clusters {
		p, err := c.Encode()
		if err != nil {
			return Descriptor{}, fmt.Errorf("describe %s: %w", endpoint, err)
		}
		digest, err := ClosureDigest(p)
		if err != nil {
			return Descriptor{}, fmt.Errorf("describe %s: %w", endpoint, err)
		}
		dc := DescribedCluster{Digest: digest, Document: p}
		for _, cmd := range c.Commands {
			dc.Commands = append(dc.Commands, cmd.Name)
		}
		d.Clusters = append(d.Clusters, dc)
	}
	return d, nil
}

// For is the descriptor as one caller sees it: the commands allowed to it, and no cluster without any.
// A document cannot be cut without another digest, so it comes whole; it holds no secret.
func (d Descriptor) For(allowed func(command string) bool) Descriptor {
	out := d
	out.Clusters = []DescribedCluster{}
	for _, c := range d.Clusters {
		c.Commands = slices.DeleteFunc(slices.Clone(c.Commands), func(name string) bool { return !allowed(name) })
		if len(c.Commands) > 0 {
			out.Clusters = append(out.Clusters, c)
		}
	}
	return out
}
