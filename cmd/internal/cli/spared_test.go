package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestServeCommandIsWhatAShellTakes(t *testing.T) {
	in := func(space string) wire.AgentRow { return wire.AgentRow{Space: space} }
	for name, c := range map[string]struct {
		root string
		rows []wire.AgentRow
		want string
	}{
		"a workspace without seats":                    {"/w", nil, "--root /w"},
		"one with spaces in its name":                  {"/my work/it's", nil, `--root '/my work/it'\''s'`},
		"seats of the space that is the default":       {"/w", []wire.AgentRow{in("main"), in("")}, "--root /w"},
		"seats of another space are of no use in that": {"/w", []wire.AgentRow{in("team"), in(""), in("team")}, "--root /w --space team"},
		"seats of two spaces decide nothing":           {"/w", []wire.AgentRow{in("team"), in("main")}, "--root /w"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ServeCommand(c.root, c.rows); got != "cotal-host serve --open "+c.want {
				t.Error(got)
			}
		})
	}
}

// After a stop in order no file names the host: what was said then was to start one, wherever one stood.
func TestAWorkspaceWithoutAHostIsNamed(t *testing.T) {
	t.Setenv("COTAL_SEAT_ROOT", t.TempDir())
	root := t.TempDir()
	_, _, err := (&Target{Root: root}).Endpoint()
	if want := "none runs for the workspace " + root + "; start it with: cotal-host serve --open --root " + root; CodeOf(err) != Unreachable || !errors.Is(err, mesh.ErrNoEndpoint) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestARefusedTokenHasAWayOut(t *testing.T) {
	for file, want := range map[string]string{"": "no token was sent: name ", "/t": "the token of /t is not the server's"} {
		if text := tokenHint(file); !strings.Contains(text, want) || !strings.Contains(text, "--token-file or COTAL_TOKEN_FILE") {
			t.Errorf("%q: %s", file, text)
		}
	}
}
