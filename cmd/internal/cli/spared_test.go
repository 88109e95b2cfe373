package cli

import (
	"errors"
	"fmt"
	"io/fs"
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
			if got := ServeCommand(c.root, c.rows); got != "cotal-host serve "+c.want {
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
	if want := "none runs for the workspace " + root + "; start it with: cotal-host serve --root " + root; CodeOf(err) != Unreachable || !errors.Is(err, mesh.ErrNoEndpoint) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestWhoIsRefusedIsToldTheWayOut(t *testing.T) {
	refused := fmt.Errorf("x: %w", mesh.ErrUnauthorized)
	ended := fmt.Errorf("x: %w: %w", mesh.ErrUnauthorized, mesh.ErrCredentialEnded)
	gone := fmt.Errorf("x: %w: %w", mesh.ErrCredsFile, fs.ErrNotExist)
	for name, c := range map[string]struct {
		err  error
		e    wire.Endpoint
		want string
	}{
		"nothing was shown":                         {refused, wire.Endpoint{}, "no token was sent: name the file that holds the server's with --token-file or COTAL_TOKEN_FILE"},
		"a token of another server":                 {refused, wire.Endpoint{TokenFile: "/t"}, "the token of /t is not the server's"},
		"a credential that was revoked":             {refused, wire.Endpoint{CredsFile: "/c"}, "the credential of /c is not good there: it was revoked"},
		"one that ended, and nobody renews it":      {ended, wire.Endpoint{CredsFile: "/c"}, "renews it, with cotal-host serve"},
		"one that ended, though its host runs":      {ended, wire.Endpoint{CredsFile: "/c", PID: 7}, "the host with pid 7 renews it, and runs: look at its log"},
		"one that is not there":                     {gone, wire.Endpoint{CredsFile: "/c"}, "renews it, with cotal-host serve"},
		"one that others can read says it itself":   {fmt.Errorf("%w: fix it with: chmod 600 /c", mesh.ErrCredsFile), wire.Endpoint{CredsFile: "/c"}, ""},
		"a server that is not there refuses nobody": {mesh.ErrUnreachable, wire.Endpoint{CredsFile: "/c"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if text := secretHint(c.err, c.e, c.e.PID != 0); !strings.Contains(text, c.want) || c.want == "" && text != "" {
				t.Errorf("%q, want %q", text, c.want)
			}
		})
	}
}
