package persona

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Encode returns the agent file that says what p says, without its comments if it was read from one. Parse of
// it gives p again. The three lists of channels that a seat is bound by are always said, subscribe first.
func Encode(p Persona) ([]byte, error) {
	top := &yaml.Node{Kind: yaml.MappingNode}
	var failed error
	put := func(key string, v any) {
		k, n := &yaml.Node{}, &yaml.Node{}
		if err := errors.Join(k.Encode(key), n.Encode(v)); err != nil {
			failed = fmt.Errorf("encode %s: %w", key, err)
			return
		}
		top.Content = append(top.Content, k, n)
	}
	text := func(key, v string) {
		if v != "" {
			put(key, v)
		}
	}
	list := func(key string, v []string, always bool) {
		if len(v) > 0 || always {
			put(key, append([]string{}, v...))
		}
	}
	text("name", p.Name)
	text("role", p.Role)
	if p.Kind != "agent" {
		text("kind", p.Kind)
	}
	text("description", p.Description)
	list("tags", p.Tags, false)
	list("subscribe", p.Subscribe, true)
	list("allowSubscribe", p.AllowSubscribe, p.AllowSubscribe != nil)
	list("allowPublish", p.AllowPublish, p.AllowPublish != nil)
	list("quiet", p.Quiet, false)
	list("muted", p.Muted, false)
	text("agent", p.Agent)
	text("model", p.Model)
	text("variant", p.Variant)
	text("cwd", p.Cwd)
	if len(p.LaunchOptions) > 0 {
		put("launchOptions", p.LaunchOptions)
	}
	list("capabilities", p.Capabilities, false)
	text("owner", p.Owner)
	for _, k := range slices.Sorted(maps.Keys(p.Meta)) {
		put(k, p.Meta[k])
	}
	if failed != nil {
		return nil, failed
	}
	front, err := yaml.Marshal(top)
	if err != nil {
		return nil, fmt.Errorf("encode front matter: %w", err)
	}
	var out bytes.Buffer
	out.WriteString("---\n")
	out.Write(front)
	out.WriteString("---\n\n")
	out.WriteString(p.Body)
	if p.Body != "" {
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}
