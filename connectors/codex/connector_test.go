package codex_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/codex"
	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/golden"
)

func configured(t *testing.T, bundle, config string) *codex.Connector {
	t.Helper()
	c := &codex.Connector{}
	if err := c.Configure(t.Context(), sdk.PluginConfig{BundleDir: bundle, StateDir: t.TempDir(), Config: json.RawMessage(config)}); err != nil {
		t.Fatal(err)
	}
	return c
}

// bundle is a bundle directory with a file in the launcher's place.
func bundle(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata/tree/bundle")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// proves: CONN-2, CONN-3, CONN-4
func TestBuildLaunch(t *testing.T) {
	golden.BuildLaunch(t, func(t *testing.T, root string) sdk.Connector {
		return configured(t, filepath.Join(root, "bundle"), "")
	})
}

func TestInfoDeclaresWhatBuildLaunchDoes(t *testing.T) {
	facts := codex.Info().Connector
	if !facts.SupportsResume || !facts.SupportsSessionContinuation || !facts.SupportsPrompt || !facts.SupportsModelVariant || !facts.SupportsPersona {
		t.Errorf("facts %+v lack what the launch cases do", facts)
	}
	if facts.InstallHint == "" || facts.ReadyBy != sdk.ReadyByPresence {
		t.Errorf("facts %+v: want an install hint, and seats that are ready by presence", facts)
	}
}

func TestTheLauncherMustBeTheBundles(t *testing.T) {
	req := sdk.LaunchRequest{Binaries: map[string]string{"codex": "/bin/sh"}, Dir: t.TempDir(), WorkspaceRoot: t.TempDir(), BaseEnv: []string{wire.LaunchMaterialEnv + "=/m"}}
	_, err := configured(t, bundle(t), `{"launcher_sha256":"`+strings.Repeat("0", 64)+`"}`).BuildLaunch(t.Context(), req)
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "launcher_sha256") {
		t.Errorf("a launcher of another digest: %v, want ErrInvalid that names launcher_sha256", err)
	}
	if _, err := configured(t, t.TempDir(), "").BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("no launcher: %v, want ErrNotFound", err)
	}
	if left, err := os.ReadDir(req.Dir); err != nil || len(left) != 0 {
		t.Errorf("the refusals wrote %v, %v", left, err)
	}
	err = (&codex.Connector{}).Configure(t.Context(), sdk.PluginConfig{Config: json.RawMessage(`{"launcher":"x"}`)})
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), `"launcher"`) {
		t.Errorf("an unknown configuration key: %v, want it named", err)
	}
}

// The npm package's own executable is a script that starts the program and stays.
func TestTheProgramIsStartedWithoutItsNpmScript(t *testing.T) {
	system := map[string]string{"linux/amd64": "x86_64-unknown-linux-musl", "linux/arm64": "aarch64-unknown-linux-musl", "darwin/amd64": "x86_64-apple-darwin", "darwin/arm64": "aarch64-apple-darwin"}[runtime.GOOS+"/"+runtime.GOARCH]
	short := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	pkg := "codex-" + runtime.GOOS + "-" + short
	for name, dir := range map[string]string{
		"installed beside it": filepath.Join("node_modules", "@openai", pkg),
		"installed within it": filepath.Join("node_modules", "@openai", "codex", "node_modules", "@openai", pkg),
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			put := func(path, text string) string {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
				return path
			}
			put("node_modules/@openai/codex/package.json", `{"name":"@openai/codex","version":"0.171.0"}`)
			script := put("node_modules/@openai/codex/bin/codex.js", "#!/usr/bin/env node\n")
			program := put(filepath.Join(dir, "vendor", system, "bin", "codex"), "#!/bin/sh\n")
			link := filepath.Join(root, "codex")
			if err := os.Symlink(script, link); err != nil {
				t.Fatal(err)
			}
			req := sdk.LaunchRequest{Binaries: map[string]string{"codex": link}, Dir: t.TempDir(), WorkspaceRoot: root, Cwd: root, BaseEnv: []string{wire.LaunchMaterialEnv + "=/m"}}
			spec, err := configured(t, bundle(t), "").BuildLaunch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := plan.Read(spec.Args[0])
			if err != nil {
				t.Fatal(err)
			}
			want, err := filepath.EvalSymlinks(program)
			if err != nil || plan.Binary != want {
				t.Errorf("the plan starts %s, want %s (%v)", plan.Binary, want, err)
			}
		})
	}
}

func TestADirectoryBehindALinkIsTrustedUnderItsRealPath(t *testing.T) {
	real, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	req := sdk.LaunchRequest{Binaries: map[string]string{"codex": "/bin/sh"}, Dir: t.TempDir(), WorkspaceRoot: real, Cwd: link, BaseEnv: []string{wire.LaunchMaterialEnv + "=/m"}}
	if _, err := configured(t, bundle(t), "").BuildLaunch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(req.Dir, "codex-home", "config.toml"))
	if want := "[projects.\"" + real + "\"]"; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the configuration is\n%s(%v), want %s", text, err, want)
	}
}

// script stands in for the program where the real one would have to misbehave.
func script(t *testing.T, text string) sdk.ModelQuery {
	t.Helper()
	path := filepath.Join(t.TempDir(), "codex")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return sdk.ModelQuery{Binaries: map[string]string{"codex": path}, BaseEnv: []string{"PATH=/usr/bin:/bin", "COTAL_NAME=n"}}
}

// proves: CONN-6
func TestModelQueryFailuresAreUnavailable(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a failure quotes the program":        {"echo not logged in >&2; exit 3", "exit status 3: not logged in"},
		"too much output ends the program":    {"yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "more than 16 MiB"},
		"what is no JSON is no answer":        {"echo hello", "invalid character"},
		"a model without a name is no answer": {`echo '{"models":[{}]}'`, "no slug"},
		"none is no answer":                   {`echo nothing here >&2; echo '{"models":[]}'`, "nothing here"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := configured(t, "", "").ListModels(t.Context(), script(t, c.text))
			if !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want ErrUnavailable with %q", err, c.want)
			}
		})
	}
	if _, err := configured(t, "", "").ListModels(t.Context(), sdk.ModelQuery{}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("no binary: %v, want ErrNotFound", err)
	}
}

// A child that keeps the output pipe open must not hold up the query, and must not outlive it.
func TestModelQueryIsNotHeldUpByAGrandchild(t *testing.T) {
	q := script(t, `sleep 300 & echo '{"models":[{"slug":"m"}]}'`)
	nonce := fmt.Sprintf("CT_MARK=models-%d", time.Now().UnixNano())
	q.BaseEnv = append(q.BaseEnv, nonce)
	start := time.Now()
	if got, err := configured(t, "", "").ListModels(t.Context(), q); err != nil || len(got.Models) != 1 {
		t.Errorf("%+v, %v, want the model", got, err)
	}
	if took := time.Since(start); took > busy.Limit(5*time.Second) {
		t.Errorf("it took %s", took)
	}
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && slices.Contains(strings.Split(string(data), "\x00"), nonce) {
			t.Errorf("a process is left: %s", f)
		}
	}
}

func TestModelListing(t *testing.T) {
	const answer = `cat <<'X'
{"models":[
 {"slug":"gpt-9","display_name":"GPT 9","visibility":"list","supported_reasoning_levels":[{"effort":"low"},{"effort":"high"}]},
 {"slug":"inner","display_name":"Inner","visibility":"hide"},
 {"slug":"plain"}
]}
X
`
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, ".codex"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".codex", "config.toml"), []byte("model_provider = \"own\"\nnotify = [\"x\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	q := script(t, `[ -z "$COTAL_NAME" ] || exit 9
[ "$CODEX_HOME" != "$HOME/.codex" ] || exit 8
cat "$CODEX_HOME/config.toml" > "$HOME/seen" 2>/dev/null
echo "$@" > "$HOME/args"
: > "$CODEX_HOME/models_cache.json"
`+answer)
	q.BaseEnv = append(q.BaseEnv, "HOME="+home)
	for _, c := range []struct {
		refresh    bool
		args, seen string
	}{{false, "debug models --bundled\n", ""}, {true, "debug models\n", "model_provider = \"own\"\n"}} {
		q.Refresh = c.refresh
		got, err := configured(t, "", "").ListModels(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		want := `[{"id":"gpt-9","name":"GPT 9","variants":["low","high"]},{"id":"plain"}]`
		if data, _ := json.Marshal(got.Models); string(data) != want {
			t.Errorf("models\n%s\nwant\n%s", data, want)
		}
		for file, want := range map[string]string{"args": c.args, "seen": c.seen} {
			if data, err := os.ReadFile(filepath.Join(home, file)); err != nil || string(data) != want {
				t.Errorf("refresh %v: %s %q, %v; want %q", c.refresh, file, data, err, want)
			}
		}
	}
}

func TestReapNeedsProofThatTheProgramIsGone(t *testing.T) {
	dir, err := os.MkdirTemp("", "reap-") // short: a socket is made in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	api, err := private.PlaceSocket(dir, plan.APISocket, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: api, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as after a kill
	for _, name := range []string{"launcher.json", "of-another"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, req := configured(t, "", ""), sdk.LeftoverRequest{Dir: dir, WorkspaceRoot: "/w"}
	if report, err := c.Reap(t.Context(), req); !errors.Is(err, sdk.ErrUnproven) || len(report.Removed) != 0 {
		t.Errorf("while it listens: %+v, %v, want ErrUnproven and nothing removed", report, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := c.Reap(t.Context(), req)
	if err != nil || report.Outcome != sdk.ReapExited || len(report.Removed) != 2 {
		t.Errorf("once it is gone: %+v, %v, want the socket and the plan removed", report, err)
	}
	for range 2 { // again, and for a seat that never was
		report, err = c.Reap(t.Context(), req)
		if err != nil || report.Outcome != sdk.ReapAbsent || len(report.Evidence) == 0 {
			t.Errorf("again: %+v, %v, want absent with evidence", report, err)
		}
		req.Dir = filepath.Join(dir, "never")
	}
	if _, err := os.Stat(filepath.Join(dir, "of-another")); err != nil {
		t.Errorf("a file that is not the connector's: %v", err)
	}
}
