package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// schemaNode is what of a JSON Schema is shown to people. What it does not know is in describe --json.
type schemaNode struct {
	Type        typeNames              `json:"type"`
	Properties  map[string]*schemaNode `json:"properties"`
	Required    []string               `json:"required"`
	Items       *schemaNode            `json:"items"`
	Enum        []json.RawMessage      `json:"enum"`
	Const       json.RawMessage        `json:"const"`
	Pattern     string                 `json:"pattern"`
	MinLength   *float64               `json:"minLength"`
	MaxLength   *float64               `json:"maxLength"`
	MinItems    *float64               `json:"minItems"`
	MaxItems    *float64               `json:"maxItems"`
	Minimum     *float64               `json:"minimum"`
	Maximum     *float64               `json:"maximum"`
	Description string                 `json:"description"`
	OneOf       []*schemaNode          `json:"oneOf"`
	// Additional is false for an object that takes nothing else, and a schema for a map.
	Additional json.RawMessage `json:"additionalProperties"`

	anything bool // the schema true, or {}
}

// typeNames is one name or a list of them.
type typeNames []string

func (t *typeNames) UnmarshalJSON(p []byte) error {
	if len(p) > 0 && p[0] == '"' {
		*t = make([]string, 1)
		return json.Unmarshal(p, &(*t)[0])
	}
	return json.Unmarshal(p, (*[]string)(t))
}

func (n *schemaNode) UnmarshalJSON(p []byte) error {
	text := strings.TrimSpace(string(p))
	if text == "true" || text == "{}" {
		n.anything = true
		return nil
	}
	if text == "false" {
		n.Type = typeNames{"nothing"}
		return nil
	}
	type plain schemaNode
	return json.Unmarshal(p, (*plain)(n))
}

// printSchema shows a schema as a table of its members.
func printSchema(w io.Writer, doc []byte) error {
	var n schemaNode
	if err := json.Unmarshal(doc, &n); err != nil {
		return err
	}
	if slices.Equal(n.Type, typeNames{"null"}) {
		fmt.Fprintln(w, "  none")
		return nil
	}
	var table [][]string
	n.members("", &table)
	if len(table) == 0 {
		fmt.Fprintln(w, "  "+n.kind())
		return nil
	}
	if !slices.Equal(n.Type, typeNames{"object"}) {
		fmt.Fprintln(w, "  "+n.kind())
	}
	columns(w, append([][]string{{"  MEMBER", "TYPE", ""}}, table...), nil)
	if one := n.exactlyOne(); len(one) > 0 {
		fmt.Fprintf(w, "  exactly one of %s\n", strings.Join(one, ", "))
	}
	return nil
}

// members lists the members below a schema, those that are needed first.
func (n *schemaNode) members(prefix string, table *[][]string) {
	if n.Items != nil {
		n.Items.members(prefix+"[]", table)
	}
	names := slices.SortedFunc(maps.Keys(n.Properties), func(a, b string) int {
		if ra, rb := slices.Contains(n.Required, a), slices.Contains(n.Required, b); ra != rb {
			if ra {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		m := n.Properties[name]
		path := name
		if prefix != "" {
			path = prefix + "." + name
		}
		note := m.bounds()
		if !slices.Contains(n.Required, name) {
			note = append([]string{"may be absent"}, note...)
		}
		if m.Description != "" {
			note = append(note, m.Description)
		}
		*table = append(*table, []string{"  " + path, m.kind(), strings.Join(note, "; ")})
		m.members(path, table)
	}
}

// kind names the type of a schema.
func (n *schemaNode) kind() string {
	switch {
	case n.anything:
		return "anything"
	case len(n.Enum) > 0:
		var all []string
		for _, v := range n.Enum {
			all = append(all, string(v))
		}
		return strings.Join(all, " | ")
	case len(n.Const) > 0:
		return string(n.Const)
	case slices.Equal(n.Type, typeNames{"array"}) && n.Items != nil:
		return "array of " + n.Items.kind()
	case len(n.Type) == 0:
		return "anything"
	}
	return strings.Join(n.Type, " | ")
}

// bounds are the limits of a value, in words.
func (n *schemaNode) bounds() []string {
	var out []string
	span := func(low, high *float64, unit string) {
		num := func(f *float64) string { return strconv.FormatFloat(*f, 'f', -1, 64) }
		switch {
		case low != nil && high != nil:
			out = append(out, strings.TrimSpace(num(low)+" to "+num(high)+" "+unit))
		case low != nil && *low > 0:
			out = append(out, strings.TrimSpace("at least "+num(low)+" "+unit))
		case high != nil:
			out = append(out, strings.TrimSpace("at most "+num(high)+" "+unit))
		}
	}
	span(n.MinLength, n.MaxLength, "characters")
	span(n.MinItems, n.MaxItems, "items")
	span(n.Minimum, n.Maximum, "")
	if n.Pattern != "" {
		out = append(out, n.Pattern)
	}
	if one := n.exactlyOne(); len(one) > 0 {
		out = append(out, "exactly one of "+strings.Join(one, ", "))
	}
	return out
}

// exactlyOne are the members of which one has to be there.
func (n *schemaNode) exactlyOne() []string {
	var out []string
	for _, alt := range n.OneOf {
		if len(alt.Required) != 1 || len(alt.Properties) > 0 {
			return nil
		}
		out = append(out, alt.Required[0])
	}
	return out
}
