//go:build linux

package wire

import (
	"encoding/json"
	"strings"
)

// instanceOnly are commands of this host alone, which are about one host and on no other rail.
var instanceOnly = map[string]bool{"shutdown": true, "plugin-restart": true, "plugin-reload": true}

// commandDoc is one command of a cluster document.
type commandDoc struct {
	Name, Class, Capability   string
	Targeted, Action          bool
	Modes                     []string
	InputDigest, OutputDigest string
}

// described is the answer to describe.
type described struct {
	Public     bool
	Descriptor struct {
		Endpoint, Owner string
		Protocol        struct{ V int }
		Clusters        []struct {
			Digest   string
			Commands []commandDoc
			Document json.RawMessage
		}
	}
	// What a host says that publishes no contract.
	Commands []commandDoc
}

// describe asks for the commands and remembers the incarnation that answers.
func (r *rig) describe() {
	r.t.Helper()
	q := r.request("describe", nil)
	p := r.call(q)
	if !p.OK {
		r.t.Fatalf("describe: %v", p)
	}
	if err := json.Unmarshal([]byte(p.epoch), &r.epoch); err != nil {
		r.t.Fatalf("the epoch of an answer is %s", p.epoch)
	}
	r.description = described{}
	if err := json.Unmarshal(p.Data, &r.description); err != nil {
		r.t.Fatalf("describe answers %s: %v", p.Data, err)
	}
	r.commands = map[string]commandDoc{}
	for _, c := range r.description.Commands {
		r.commands[c.Name] = c
	}
	for _, cluster := range r.description.Descriptor.Clusters {
		for _, c := range cluster.Commands {
			r.commands[c.Name] = c
		}
	}
}

// contracts are requests with other digests than the contract's.
var contracts = []refusal{
	{what: "another input digest", spoil: digests("inputDigest", "sha256:"+strings.Repeat("0", 64)), code: "contract-mismatch"},
	{what: "another output digest", spoil: digests("outputDigest", "sha256:"+strings.Repeat("f", 64)), code: "contract-mismatch"},
	{what: "no input digest", spoil: digests("inputDigest", nil), code: "contract-mismatch"},
	{what: "no output digest", spoil: digests("outputDigest", nil), code: "contract-mismatch"},
	{what: "no digest at all", spoil: func(r *rig, c command, q *request) bool {
		delete(q.op(), "outputDigest")
		return digests("inputDigest", nil)(r, c, q)
	}, code: "contract-mismatch"},
	{what: "the digests of another command", spoil: func(r *rig, c command, q *request) bool {
		other := "inspect"
		if c.name == other {
			other = "goal-result"
		}
		q.op()["inputDigest"], q.op()["outputDigest"] = r.commands[other].InputDigest, r.commands[other].OutputDigest
		return c.name != "describe" && r.commands[other].InputDigest != ""
	}, code: "contract-mismatch"},
}

// digests changes one digest; describe alone takes none.
func digests(name string, v any) func(*rig, command, *request) bool {
	return func(r *rig, c command, q *request) bool {
		opMember(name, v)(r, c, q)
		return c.name != "describe" && r.commands[c.name].InputDigest != ""
	}
}

// serves reports whether the host declares a command. describe is reserved and stands in no document.
func (r *rig) serves(name string) bool {
	_, ok := r.commands[name]
	return ok || name == "describe"
}
