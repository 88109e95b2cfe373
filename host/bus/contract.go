package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Contract is what an endpoint promises: its document, the descriptor that describe answers, and every
// artifact of the contract store that either refers to.
type Contract struct {
	Document   wire.ClusterDocument
	Descriptor wire.Descriptor
	// Digest is the closure digest of Document.
	Digest string
	// Artifacts by digest: the document, the schemas, and the manifests of both.
	Artifacts map[string][]byte
}

// anySchema is the schema of a payload that nothing is said about.
var anySchema = mustSchema(`{}`)

func mustSchema(doc string) *wire.Schema {
	s, err := wire.NewSchema([]byte(doc))
	if err != nil {
		panic(err) // a constant of this file
	}
	return s
}

// withDefaults fills in what a command leaves out, and refuses what contradicts itself.
func (c Command) withDefaults(endpoint, name string) (Command, error) {
	switch {
	case !wire.ValidCommand(name):
		return c, fmt.Errorf("%q is not a command name", name)
	case name == wire.CmdDescribe:
		return c, errors.New("describe is reserved")
	case c.Targeted != (len(c.Modes) > 0):
		return c, fmt.Errorf("command %s: authorization modes and Targeted disagree", name)
	}
	if c.Class == "" {
		c.Class = wire.ClassEphemeral
	}
	if c.Capability == "" {
		c.Capability = wire.EndpointToken(endpoint)
	}
	if c.Input == nil {
		c.Input = anySchema
	}
	if c.Output == nil {
		c.Output = anySchema
	}
	return c, nil
}

// NewContract makes the contract of commands: one document of the given name and revision.
func NewContract(endpoint, owner, urn string, revision int64, commands map[string]Command) (*Contract, error) {
	doc := wire.ClusterDocument{URN: urn, Revision: revision}
	out := &Contract{Artifacts: map[string][]byte{}}
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		c, err := commands[name].withDefaults(endpoint, name)
		if err != nil {
			return nil, fmt.Errorf("make contract: %w", err)
		}
		doc.Commands = append(doc.Commands, wire.CommandDecl{
			Name: name, Class: c.Class, Targeted: c.Targeted, Modes: c.Modes, Capability: c.Capability,
			InputDigest: c.Input.Digest(), OutputDigest: c.Output.Digest(), Summary: c.Summary,
		})
		c.Input.Artifacts(out.Artifacts)
		c.Output.Artifacts(out.Artifacts)
	}
	var err error
	if len(doc.Commands) == 0 { // nothing but describe: no document
		out.Descriptor, err = wire.Describe(endpoint, owner)
		return out, err
	}
	if out.Descriptor, err = wire.Describe(endpoint, owner, doc); err != nil {
		return nil, fmt.Errorf("make contract: %w", err)
	}
	text := out.Descriptor.Clusters[0].Document
	m := wire.NewManifest(wire.Digest(text), nil)
	manifest, err := m.Encode()
	if err != nil {
		return nil, fmt.Errorf("make contract: %w", err)
	}
	out.Document, out.Digest = doc, out.Descriptor.Clusters[0].Digest
	out.Artifacts[m.Root], out.Artifacts[out.Digest] = text, manifest
	return out, nil
}

// answer is the encoded reply to describe: the same for every caller.
func (c *Contract) answer() (Encoded, error) {
	p, err := json.Marshal(wire.DescribeAnswer{Public: true, Descriptor: c.Descriptor})
	if err != nil {
		return nil, fmt.Errorf("encode describe answer: %w", err)
	}
	if _, err := wire.DecodeDescribe(p); err != nil {
		return nil, err
	}
	return p, nil
}
