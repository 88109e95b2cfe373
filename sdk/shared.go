package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/program"
)

// maxMCPServers bounds the file of the shared MCP servers, in bytes.
const maxMCPServers = 1 << 20

// MCPServer is an MCP server that the operator shares with a seat, in the form of an .mcp.json: a Command, or a URL.
// Its texts may refer to variables, which an Expander puts in for programs that do not.
type MCPServer struct {
	Type    string            `json:"type"` // empty: as it is reached
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`

	Raw json.RawMessage `json:"-"` // as it was declared, with what is not looked at here
}

// MCPServers reads the MCP servers that the operator shares with the seat (MCPServersFile), by name; none: nil. own is
// the name of the seat's own one among them, which none of these may have: its tools ask nobody.
//
// Errors: ErrInvalid; it names the server, or the file.
func (r LaunchRequest) MCPServers(own string) (map[string]MCPServer, error) {
	path := filepath.Join(r.Dir, MCPServersFile)
	data, err := program.ReadFile(path, maxMCPServers)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var in struct {
		Servers map[string]json.RawMessage `json:"mcpServers"`
	}
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err != nil {
		return nil, Errorf(ErrInvalid, "read shared MCP servers %s: %v", path, err)
	}
	out := make(map[string]MCPServer, len(in.Servers))
	for _, name := range slices.Sorted(maps.Keys(in.Servers)) {
		s := MCPServer{Raw: in.Servers[name]}
		switch err := json.Unmarshal(s.Raw, &s); {
		case err != nil:
			return nil, InvalidServer(name, err)
		case name == own:
			return nil, InvalidServer(name, errors.New("the name is the seat's own"))
		case s.Command == "" && s.URL == "":
			return nil, InvalidServer(name, errors.New("it has neither a command nor a url"))
		}
		out[name] = s
	}
	return out, nil
}

// InvalidServer is the refusal of a shared MCP server: ErrInvalid with its name and the reason.
func InvalidServer(name string, why error) error {
	return Errorf(ErrInvalid, "shared MCP server %q: %v", name, why)
}

// reference is a reference to a variable: ${NAME} or ${NAME:-default}.
var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}`)

// Expander puts the values of variables in place of the references to them, ${NAME} or ${NAME:-default}, for programs
// that know no references in their configuration, or put them in without quoting. An empty variable is as good as none,
// as in a shell. It remembers which it did not find; Err names them, and never a value.
type Expander struct {
	Env []string // K=V

	missing []string
}

// Text puts the variables into a text. One that there is not is left out.
func (x *Expander) Text(text string) string {
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		m := reference.FindStringSubmatch(ref)
		if value := Getenv(x.Env, m[1]); value != "" {
			return value
		}
		if !strings.Contains(ref, ":-") && !slices.Contains(x.missing, m[1]) {
			x.missing = append(x.missing, m[1])
		}
		return m[2]
	})
}

// Texts is Text for each of a list; nil stays nil.
func (x *Expander) Texts(texts []string) []string {
	out := slices.Clone(texts)
	for i := range out {
		out[i] = x.Text(out[i])
	}
	return out
}

// Map is Text for each value of a map; nil stays nil.
func (x *Expander) Map(texts map[string]string) map[string]string {
	out := maps.Clone(texts)
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		out[key] = x.Text(texts[key])
	}
	return out
}

// Only is the name of the variable that a text is one reference to, with nothing beside it; "" when it is something
// else, or there is no such variable. A program that takes names of variables is better told this than the value.
func (x *Expander) Only(text string) string {
	m := reference.FindStringSubmatch(text)
	if m == nil || m[0] != text || Getenv(x.Env, m[1]) == "" {
		return ""
	}
	return m[1]
}

// Err names the variables that were not found, and the fix; nil: none was missing.
func (x *Expander) Err() error {
	if len(x.missing) == 0 {
		return nil
	}
	return fmt.Errorf("the host has no variable %s, which it refers to; set it there, or write ${%s:-default}", strings.Join(x.missing, ", "), x.missing[0])
}
