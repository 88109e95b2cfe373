package codex_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestSharedServersThatCannotBeGivenAreNamed(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a transport that Codex does not have":   {`{"mcpServers":{"old":{"type":"sse","url":"https://example.org/sse"}}}`, `MCP server "old": it has type "sse", and Codex reaches a command, or a url of type http`},
		"neither a command nor a url":            {`{"mcpServers":{"none":{}}}`, `MCP server "none": it has neither`},
		"the name of the seat's own":             {`{"mcpServers":{"cotal":{"command":"f"}}}`, `MCP server "cotal": the name is the seat's own`},
		"a variable that the host does not have": {`{"mcpServers":{"files":{"command":"f","env":{"T":"${NO_SUCH}"}}}}`, `MCP server "files": the host has no variable NO_SUCH`},
		"a file that is no JSON":                 {`{`, "read shared MCP servers"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, sdk.MCPServersFile), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := configured(t, bundle(t), "").BuildLaunch(t.Context(), sdk.LaunchRequest{
				Binaries: map[string]string{"codex": "/bin/sh"}, Dir: dir, WorkspaceRoot: dir, Cwd: dir,
				BaseEnv: []string{wire.LaunchMaterialEnv + "=" + filepath.Join(dir, "material.json")},
			})
			if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want ErrInvalid with %q", err, c.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("the refusal left %v, %v; want the host's file alone", left, err)
			}
		})
	}
}
