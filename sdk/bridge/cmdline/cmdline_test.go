package cmdline_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestTheBridgeOfALaunchIsFoundOrItIsSaidWhyNot(t *testing.T) {
	dir := t.TempDir()
	program := []byte("#!/bin/sh\n")
	path := filepath.Join(dir, cmdline.Program)
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	digest := hex.EncodeToString(sum[:])
	env := []string{"PATH=/bin", wire.LaunchMaterialEnv + "=/seat/launch/material.json"}
	for _, c := range []struct {
		name, dir, digest string
		env               []string
		err               error
		says              string
	}{
		{"as it is", dir, "", env, nil, ""},
		{"of the digest that is asked for", dir, digest, env, nil, ""},
		{"of the digest in capitals", dir, strings.ToUpper(digest), env, nil, ""},
		{"of another digest", dir, strings.Repeat("0", 64), env, sdk.ErrInvalid, "bridge_sha256"},
		{"a bundle without it", t.TempDir(), "", env, sdk.ErrNotFound, cmdline.Program},
		{"a host without a mesh", dir, "", env[:1], sdk.ErrUnavailable, wire.LaunchMaterialEnv},
	} {
		b, err := cmdline.Find(c.dir, c.digest, c.env)
		if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.says) || err == nil && (b.Path != path || b.Material != "/seat/launch/material.json") {
			t.Errorf("%s: %+v, %v", c.name, b, err)
		}
	}
}

func TestCommandLinesNameTheMaterial(t *testing.T) {
	b := cmdline.Bridge{Path: "/b/cotal-bridge", Material: "/s/material.json"}
	for _, c := range []struct {
		name string
		got  []string
		want string
	}{
		{"the server", b.MCP("--wake", "host"), "/b/cotal-bridge mcp --material /s/material.json --wake host"},
		{"a hook", b.Hook("Stop", cmdline.Deliver), "/b/cotal-bridge hook --material /s/material.json --deliver Stop"},
		{"a hook that says its name itself", b.Hook(""), "/b/cotal-bridge hook --material /s/material.json"},
		{"the wait for messages", b.Next("--wait", "1m"), "/b/cotal-bridge next --material /s/material.json --wait 1m"},
		{"any program", b.Run([]string{"./x", "--", "-y"}, "--messages", "stdin"), "/b/cotal-bridge run --material /s/material.json --messages stdin -- ./x -- -y"},
	} {
		if got := strings.Join(c.got, " "); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
	argv := []string{"printf", "%s\n", "a b", "it's", "$HOME`x`\"\\", ""}
	out, err := exec.Command("/bin/sh", "-c", cmdline.Shell(argv)).Output()
	if err != nil || !slices.Equal(strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"), argv[2:]) {
		t.Errorf("a shell reads %q, %v", out, err)
	}
}
