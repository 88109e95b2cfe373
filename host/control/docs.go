package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Contract is what the manager endpoint promises, made from the table: it needs no running host. It must not be
// changed.
func Contract(owner string) (*bus.Contract, error) {
	if owner == wire.OwnerLocal {
		return localContract()
	}
	return newContract(owner)
}

var localContract = sync.OnceValues(func() (*bus.Contract, error) { return newContract(wire.OwnerLocal) })

func newContract(owner string) (*bus.Contract, error) {
	commands, err := Commands(Deps{})
	if err != nil {
		return nil, err
	}
	return bus.NewContract(wire.EndpointManager, owner, wire.ManagerURN, Revision, commands)
}

// Page is docs/commands.md, made from the table.
func Page() (string, error) {
	c, err := Contract(wire.OwnerLocal)
	if err != nil {
		return "", err
	}
	compiled, err := schemas()
	if err != nil {
		return "", err
	}
	entries := table(Deps{})
	var b strings.Builder
	fmt.Fprintf(&b, `# Commands of the manager endpoint

Made from the table in host/control by `+"`go test ./host/control -run TestCommandsPage -update`"+`; do not edit.

Contract document %s, revision %d, %s. Every command also has the rails of its
instance and, but for those marked *instance only*, of the class and of a scatter. %s is served beside
them, takes no arguments and answers with this document.

A request carries the digests of the command's schemas; with others or without it is refused %s before
anything happens. All commands are of class %s.

| command | grant | modes | arguments | reply |
|---|---|---|---|---|
`, "`"+wire.ManagerURN+"`", Revision, "`"+c.Digest+"`", "`describe`", "`contract-mismatch`", "`ephemeral`")
	for _, e := range entries {
		s := compiled[e.Name]
		fmt.Fprintf(&b, "| [`%s`](#%s) | `%s` | %s | %s | %s |\n", e.Name, e.Name, e.Capability, modes(e), summary(s[0]), summary(s[1]))
	}
	for _, e := range entries {
		s := compiled[e.Name]
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", e.Name, e.Doc)
		var marks []string
		for mark, on := range map[string]bool{"read": e.Read, "instance only": e.InstanceOnly, "leaves the class rail while no connector is available": e.Launches} {
			if on {
				marks = append(marks, mark)
			}
		}
		if len(marks) > 0 {
			slices.Sort(marks)
			fmt.Fprintf(&b, "\n*%s*\n", strings.Join(marks, ", "))
		}
		members(&b, "Arguments", s[0])
		members(&b, "Reply", s[1])
	}
	return b.String(), nil
}

func modes(e entry) string {
	if !e.Targeted {
		return ""
	}
	var out []string
	for _, m := range e.Modes {
		out = append(out, string(m))
	}
	return strings.Join(out, ", ")
}

// property is the part of a schema document that the page shows.
type property struct {
	Type       string              `json:"type"`
	Properties map[string]property `json:"properties"`
	Items      *property           `json:"items"`
	Required   []string            `json:"required"`
	OneOf      []property          `json:"oneOf"`
	Enum       []string            `json:"enum"`
	Pattern    string              `json:"pattern"`
	MinLength  int                 `json:"minLength"`
	MaxLength  int                 `json:"maxLength"`
	MinItems   int                 `json:"minItems"`
	MaxItems   int                 `json:"maxItems"`
	Minimum    *float64            `json:"minimum"`
	Maximum    *float64            `json:"maximum"`
	Doc        string              `json:"description"`
}

// UnmarshalJSON takes the schemas true and {} for what they are: anything.
func (p *property) UnmarshalJSON(raw []byte) error {
	if string(raw) == "true" || string(raw) == "false" {
		return nil
	}
	type plain property
	return json.Unmarshal(raw, (*plain)(p))
}

func parse(s *wire.Schema) property {
	var p property
	if err := json.Unmarshal(s.Document(), &p); err != nil {
		panic(err) // a schema of our own, which was compiled
	}
	return p
}

// summary names the members of a payload; those with a question mark may be absent.
func summary(s *wire.Schema) string {
	p := parse(s)
	switch {
	case s.Void():
		return "none"
	case p.Type != "object":
		return p.Type
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		if !slices.Contains(p.Required, name) {
			name += "?"
		}
		out = append(out, "`"+name+"`")
	}
	return strings.Join(out, " ")
}

// members writes the table of a payload's members.
func members(b *strings.Builder, what string, s *wire.Schema) {
	fmt.Fprintf(b, "\n%s (`%s`)", what, s.Digest())
	if s.Void() {
		b.WriteString(": none.\n")
		return
	}
	p := parse(s)
	fmt.Fprintf(b, ": %s.\n\n| member | type | |\n|---|---|---|\n", p.words())
	p.rows(b, "")
	if len(p.OneOf) > 0 {
		var names []string
		for _, o := range p.OneOf {
			names = append(names, "`"+strings.Join(o.Required, "`, `")+"`")
		}
		fmt.Fprintf(b, "\nExactly one of %s.\n", strings.Join(names, ", "))
	}
}

func (p property) rows(b *strings.Builder, path string) {
	if p.Items != nil {
		p.Items.rows(b, path+"[].")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		m := p.Properties[name]
		var notes []string
		if !slices.Contains(p.Required, name) {
			notes = append(notes, "may be absent")
		}
		if m.Doc != "" {
			notes = append(notes, m.Doc)
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", path, name, m.words(), strings.Join(notes, "; "))
		next := path + name + "."
		if m.Items != nil {
			next = path + name
		}
		m.rows(b, next)
	}
}

// words says what a value is: its type and its bounds.
func (p property) words() string {
	out := p.Type
	switch {
	case p.Items != nil:
		out = "array of " + p.Items.words()
	case out == "":
		out = "anything"
	}
	span := func(low, high int, unit string) {
		switch {
		case low > 0 && high > 0:
			out += fmt.Sprintf(", %d to %d%s", low, high, unit)
		case low > 0:
			out += fmt.Sprintf(", at least %d%s", low, unit)
		case high > 0:
			out += fmt.Sprintf(", at most %d%s", high, unit)
		}
	}
	span(p.MinLength, p.MaxLength, " characters")
	span(p.MinItems, p.MaxItems, " items")
	if p.Minimum != nil {
		out += fmt.Sprintf(", from %.0f", *p.Minimum)
	}
	if p.Maximum != nil {
		out += fmt.Sprintf(", up to %.0f", *p.Maximum)
	}
	if len(p.Enum) > 0 {
		out += ": `" + strings.Join(p.Enum, "` `") + "`"
	}
	if p.Pattern != "" {
		out += ", `" + strings.ReplaceAll(p.Pattern, "|", "\\|") + "`"
	}
	return out
}
