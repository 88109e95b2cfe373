package config

import (
	"strings"
	"testing"
)

// proves: ENVMCP-1
func TestSharedMCPServers(t *testing.T) {
	got, err := Parse("c.toml", []byte(`
[connectors.claude.mcpServers.files]
command = "npx"
args = ["-y", "files-mcp"]
env = { TOKEN = "${FILES_TOKEN}" }
note = 7

[connectors.opencode.mcpServers]
web = { url = "https://mcp.example/x", headers = { Authorization = "Bearer ${T:-none}" } }
`))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(got.MCPServers["claude"]["files"]); text != `{"args":["-y","files-mcp"],"command":"npx","env":{"TOKEN":"${FILES_TOKEN}"},"note":7}` {
		t.Errorf("claude files: %s", text)
	}
	if text := string(got.MCPServers["opencode"]["web"]); text != `{"headers":{"Authorization":"Bearer ${T:-none}"},"url":"https://mcp.example/x"}` {
		t.Errorf("opencode web: %s", text)
	}
	for name, c := range map[string]struct{ text, want string }{
		"neither command nor url":   {"[connectors.claude.mcpServers.x]\ntype = \"http\"", "connectors.claude.mcpServers.x: either command or url is needed"},
		"both":                      {"[connectors.claude.mcpServers.x]\ncommand = \"a\"\nurl = \"b\"", "either command or url is needed"},
		"headers of a command":      {"[connectors.claude.mcpServers.x]\ncommand = \"a\"\nheaders = { A = \"b\" }", "headers go with url"},
		"arguments of a url":        {"[connectors.claude.mcpServers.x]\nurl = \"a\"\nargs = [\"b\"]", "args and env go with command"},
		"a value that is no string": {"[connectors.claude.mcpServers.x]\ncommand = \"a\"\nenv = { A = 1 }", "want the shape of an .mcp.json"},
		"the seat's own name":       {"[connectors.claude.mcpServers.cotal]\ncommand = \"a\"", `the name "cotal" is taken`},
		"a name that is none":       {"[connectors.claude.mcpServers.\"a b\"]\ncommand = \"a\"", `"a b" is not a name`},
		"a connector that is none":  {"[connectors.\"A\".mcpServers.x]\ncommand = \"a\"", `"A" is not the name of a connector`},
		"another key of connectors": {"[connectors.claude]\nmodel = \"a\"", "connectors.claude.model is not a known key"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("c.toml", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
