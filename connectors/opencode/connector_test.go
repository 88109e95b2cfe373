package opencode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/golden"
)

func configured(t *testing.T, config string) *opencode.Connector {
	t.Helper()
	dir, err := filepath.Abs("testdata/tree/bundle")
	if err != nil {
		t.Fatal(err)
	}
	return configuredWith(t, dir, config)
}

func configuredWith(t *testing.T, dir, config string) *opencode.Connector {
	t.Helper()
	c := &opencode.Connector{}
	if err := c.Configure(t.Context(), sdk.PluginConfig{BundleDir: dir, StateDir: t.TempDir(), Config: json.RawMessage(config)}); err != nil {
		t.Fatal(err)
	}
	return c
}

// proves: CONN-2, CONN-3, CONN-4
func TestBuildLaunch(t *testing.T) {
	golden.BuildLaunch(t, func(t *testing.T, root string) sdk.Connector {
		return configuredWith(t, filepath.Join(root, "bundle"), "")
	})
}

func TestInfoDeclaresWhatBuildLaunchDoes(t *testing.T) {
	facts := opencode.Info().Connector
	if !facts.SupportsResume || !facts.SupportsSessionContinuation || !facts.SupportsPrompt || !facts.SupportsModelVariant || !facts.SupportsPersona {
		t.Errorf("facts %+v lack what the launch cases do", facts)
	}
	for _, name := range []string{"OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR"} { // the operator's configuration is a seat's
		if !slices.Contains(facts.EnvAllow, name) {
			t.Errorf("a seat does not get %s", name)
		}
	}
	if facts.InstallHint == "" || facts.StopGraceMs < 7000 || facts.Mints.Ports != 1 || facts.Mints.Secrets != 1 {
		t.Errorf("facts %+v: install hint, grace over the 7 s the program took, one port and one secret", facts)
	}
}

func TestTheLauncherMustBeTheBundles(t *testing.T) {
	req := sdk.LaunchRequest{
		Binaries: map[string]string{"opencode": "/bin/sh"}, Ports: []int{41001}, Secrets: []string{"s"},
		Resume: "ses_1", Dir: t.TempDir(),
	}
	_, err := configured(t, `{"launcher_sha256":"`+strings.Repeat("0", 64)+`"}`).BuildLaunch(t.Context(), req)
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "launcher_sha256") {
		t.Errorf("a launcher of another digest: %v, want ErrInvalid that names launcher_sha256", err)
	}
	if _, err := (&opencode.Connector{}).BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("no launcher: %v, want ErrNotFound", err)
	}
	if left, err := os.ReadDir(req.Dir); err != nil || len(left) != 0 {
		t.Errorf("the refusals wrote %v, %v", left, err)
	}
	err = (&opencode.Connector{}).Configure(t.Context(), sdk.PluginConfig{Config: json.RawMessage(`{"launcher":"x"}`)})
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), `"launcher"`) {
		t.Errorf("an unknown configuration key: %v, want it named", err)
	}
}

// script stands in for the program where the real one would have to misbehave.
func script(t *testing.T, text string) sdk.ModelQuery {
	t.Helper()
	path := filepath.Join(t.TempDir(), "opencode")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return sdk.ModelQuery{Binaries: map[string]string{"opencode": path}, BaseEnv: []string{"PATH=/usr/bin:/bin", "COTAL_NAME=n"}}
}

// A helper program that leaves a child with the output pipe open must not void the deadline, and the
// child must not outlive the query.
func TestFieldB21_ModelQueryIsNotHeldUpByAGrandchild(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string // in the error; empty for none
	}{
		"after a good answer":     {"sleep 300 & echo p/m", ""},
		"when it never answers":   {"sleep 300 & sleep 300", "no answer in time"},
		"when it detaches itself": {"echo p/m; exec sleep 300", "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			q := script(t, "export CT_MARK; "+c.text)
			nonce := fmt.Sprintf("b21-%d", time.Now().UnixNano())
			q.BaseEnv = append(q.BaseEnv, "CT_MARK="+nonce)
			ctx, cancel := deadline(t, 2*time.Second)
			defer cancel()
			start := time.Now()
			catalog, err := configured(t, "").ListModels(ctx, q)
			if took := time.Since(start); took > busy.Limit(4*time.Second) {
				t.Errorf("it took %s, want at most the deadline and 2 s", took)
			}
			switch {
			case c.want == "" && (err != nil || len(catalog.Models) != 1):
				t.Errorf("%+v, %v, want the model", catalog, err)
			case c.want != "" && (!errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want ErrUnavailable with %q", err, c.want)
			}
			if left := marked(t, "CT_MARK="+nonce); len(left) != 0 {
				t.Errorf("processes left: %v", left)
			}
		})
	}
}

// marked lists processes that carry a K=V in their environment and are no zombies.
func marked(t *testing.T, kv string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && slices.Contains(strings.Split(string(data), "\x00"), kv) {
			out = append(out, f)
		}
	}
	return out
}

// proves: CONN-6
func TestModelQueryFailuresAreUnavailable(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a failure quotes the program":     {"echo database is locked >&2; exit 3", "exit status 3: database is locked"},
		"too much output ends the program": {"yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "more than 16 MiB"},
		"a broken block names its model":   {`printf 'p/m\n{\n  "name": 1\n}\n'`, "block after p/m"},
		"a block without end is no answer": {`printf 'p/m\n{\n  "name": "x"\n'`, "it does not end"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := deadline(t, 30*time.Second)
			defer cancel()
			_, err := configured(t, "").ListModels(ctx, script(t, c.text))
			if !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want ErrUnavailable with %q", err, c.want)
			}
		})
	}
}

func TestModelListing(t *testing.T) {
	q := script(t, `[ -z "$COTAL_NAME" ] || echo leaked/variable
echo "$@" >&2
cat <<'X'
Models cache refreshed
stub/plain
stub/deep/name
{
  "name": "Deep",
  "providerID": "other",
  "nested": {
    "a": 1
  },
  "variants": { "low": {}, "off": { "disabled": true }, "high": {} }
}
stub/last
{}
X`)
	got, err := configured(t, "").ListModels(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"id":"stub/plain","provider":"stub"},{"id":"stub/deep/name","name":"Deep","provider":"other","variants":["high","low"]},{"id":"stub/last","provider":"stub"}]`
	if data, _ := json.Marshal(got.Models); string(data) != want {
		t.Errorf("models\n%s\nwant\n%s", data, want)
	}
	if _, err := configured(t, "").ListModels(t.Context(), sdk.ModelQuery{}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("no binary: %v, want ErrNotFound", err)
	}
}

func TestReapNeedsProofThatTheProgramIsGone(t *testing.T) {
	password := "secret"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, p, _ := r.BasicAuth(); p != password {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"healthy":true}`)
	}))
	defer server.Close()
	dir := t.TempDir()
	port := server.Listener.Addr().(*net.TCPAddr).Port
	files := map[string]string{"api.json": fmt.Sprintf(`{"port":%d,"user":"opencode","password":"secret"}`, port), "persona.md": "x", "of-another": "x"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := configured(t, "")
	req := sdk.LeftoverRequest{Dir: dir}
	if report, err := c.Reap(t.Context(), req); !errors.Is(err, sdk.ErrUnproven) || len(report.Removed) != 0 {
		t.Errorf("while it answers: %+v, %v, want ErrUnproven and nothing removed", report, err)
	}
	password = "another seat's"
	report, err := c.Reap(t.Context(), req)
	if err != nil || report.Outcome != sdk.ReapExited || len(report.Removed) != 2 || !strings.Contains(report.Evidence[0], "somebody else") {
		t.Errorf("the port is another's now: %+v, %v, want two files removed", report, err)
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

// Another OpenCode, without a password, takes every password for right.
func TestReapIsNotHeldUpByAServerThatWantsNoPassword(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"healthy":true}`) }))
	defer server.Close()
	dir := t.TempDir()
	record := fmt.Sprintf(`{"port":%d,"user":"opencode","password":"secret"}`, server.Listener.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(filepath.Join(dir, "api.json"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := configured(t, "").Reap(t.Context(), sdk.LeftoverRequest{Dir: dir})
	if err != nil || report.Outcome != sdk.ReapExited || !strings.Contains(report.Evidence[0], "somebody else") {
		t.Errorf("%+v, %v, want the record removed", report, err)
	}
}

// A server that takes the connection and says nothing proves nothing.
func TestReapOfASilentServerIsUnproven(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	record := fmt.Sprintf(`{"port":%d,"user":"opencode","password":"secret"}`, l.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(filepath.Join(dir, "api.json"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := configured(t, "").Reap(t.Context(), sdk.LeftoverRequest{Dir: dir}); !errors.Is(err, sdk.ErrUnproven) {
		t.Errorf("%v, want ErrUnproven", err)
	}
}

func deadline(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

// proves: SPAWN-19, ENVMCP-1
func TestSharedServersThatCannotBeGivenAreRefusedByName(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a variable that the host lacks": {`{"mcpServers":{"files":{"command":"npx","env":{"TOKEN":"${FILES_TOKEN}"}}}}`, `shared MCP server "files": the host has no variable FILES_TOKEN`},
		"a server of no kind":            {`{"mcpServers":{"files":{"type":"http"}}}`, `shared MCP server "files": it has neither a command nor a url`},
		"the name of the seat's own":     {`{"mcpServers":{"cotal":{"command":"x"}}}`, `shared MCP server "cotal": the name is the seat's own`},
		"a name that begins like it":     {`{"mcpServers":{"cotal.files":{"command":"x"}}}`, `shared MCP server "cotal.files": its tools would pass for those of the seat's own`},
		"a file that is broken":          {`{"mcpServers":[`, "mcp-servers.json: unexpected end of JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			req := sdk.LaunchRequest{Binaries: map[string]string{"opencode": "/bin/sh"}, Ports: []int{41001}, Secrets: []string{"s"}, Dir: t.TempDir()}
			if err := os.WriteFile(filepath.Join(req.Dir, sdk.MCPServersFile), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := configured(t, "").BuildLaunch(t.Context(), req)
			if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want ErrInvalid with %q", err, c.want)
			}
			if left, err := os.ReadDir(req.Dir); err != nil || len(left) != 1 {
				t.Errorf("the refusal wrote %v, %v", left, err)
			}
		})
	}
}
