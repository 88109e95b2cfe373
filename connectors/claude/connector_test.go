package claude_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/claude"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/golden"
)

const session = "11111111-1111-4111-8111-111111111111"

func configured(t *testing.T, cfg sdk.PluginConfig) *claude.Connector {
	t.Helper()
	if cfg.BundleDir == "" {
		dir, err := filepath.Abs("testdata/tree/bundle")
		if err != nil {
			t.Fatal(err)
		}
		cfg.BundleDir = dir
	}
	if cfg.StateDir == "" {
		cfg.StateDir = t.TempDir()
	}
	c := &claude.Connector{}
	if err := c.Configure(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return c
}

// proves: CONN-2, CONN-3, CONN-4
func TestBuildLaunch(t *testing.T) {
	golden.BuildLaunch(t, func(t *testing.T, root string) sdk.Connector {
		return configured(t, sdk.PluginConfig{BundleDir: filepath.Join(root, "bundle")})
	})
}

func TestInfoDeclaresWhatBuildLaunchDoes(t *testing.T) {
	facts := claude.Info().Connector
	if !facts.SupportsResume || !facts.SupportsSessionContinuation || !facts.SupportsPrompt || !facts.SupportsModelVariant || !facts.SupportsPersona {
		t.Errorf("facts %+v lack what the launch cases do", facts)
	}
	if !slices.Contains(facts.EnvAllow, "VERTEX_REGION_CLAUDE_4_5_SONNET") {
		t.Error("where one model is asked for does not reach the program")
	}
	if facts.ReadyBy != sdk.ReadyByPresence || facts.Mints != (sdk.MintCounts{SessionIDs: 1}) || facts.InstallHint == "" {
		t.Errorf("facts %+v: ready by presence, one session id, an install hint", facts)
	}
}

// request is the plainest one.
func request(t *testing.T) sdk.LaunchRequest {
	t.Helper()
	return sdk.LaunchRequest{
		Binaries: map[string]string{"claude": "/bin/sh"}, SessionIDs: []string{"abcdefghijklmnopqrstuvwx23"},
		Dir: t.TempDir(), Cwd: t.TempDir(), WorkspaceRoot: t.TempDir(), BaseEnv: []string{"HOME=" + t.TempDir(), "COTAL_LAUNCH_MATERIAL=/seat/launch/material.json"},
	}
}

func TestTheBridgeMustBeTheBundles(t *testing.T) {
	req := request(t)
	c := configured(t, sdk.PluginConfig{Config: json.RawMessage(`{"bridge_sha256":"` + strings.Repeat("0", 64) + `"}`)})
	if _, err := c.BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "bridge_sha256") {
		t.Errorf("a bridge of another digest: %v, want ErrInvalid that names bridge_sha256", err)
	}
	if _, err := (&claude.Connector{}).BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), "cotal-bridge") {
		t.Errorf("no bridge: %v, want ErrNotFound", err)
	}
	if left, err := os.ReadDir(req.Dir); err != nil || len(left) != 0 {
		t.Errorf("the refusals wrote %v, %v", left, err)
	}
	err := (&claude.Connector{}).Configure(t.Context(), sdk.PluginConfig{Config: json.RawMessage(`{"bridge":"x"}`)})
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), `"bridge"`) {
		t.Errorf("an unknown configuration key: %v, want it named", err)
	}
}

// A shared server that cannot be one, or that would stand for the bridge, is named.
func TestASharedServerThatIsNoneIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"one with the bridge's name":          {`{"mcpServers":{"cotal":{"command":"/bin/true"}}}`, `"cotal"`},
		"one without command and url":         {`{"mcpServers":{"files":{"args":["x"]}}}`, `"files": it has neither`},
		"one whose command is a list":         {`{"mcpServers":{"files":{"command":["x"]}}}`, `"files"`},
		"a file that is no JSON":              {`{`, "mcp-servers.json"},
		"a file that is larger than any such": {`{"mcpServers":{}}` + strings.Repeat(" ", 2<<20), "mcp-servers.json"},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t)
			if err := os.WriteFile(filepath.Join(req.Dir, "mcp-servers.json"), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := configured(t, sdk.PluginConfig{}).BuildLaunch(t.Context(), req)
			if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want ErrInvalid with %s", err, c.want)
			}
			if left, _ := os.ReadDir(req.Dir); len(left) != 1 {
				t.Errorf("the refusal wrote %v", left)
			}
		})
	}
}

// Of several transcripts of one session the latest counts: a seat that goes on with a session writes its own.
//
// proves: CONN-1
func TestTheLatestTranscriptOfASessionCounts(t *testing.T) {
	req := request(t)
	seats := t.TempDir()
	req.Resume = session
	home := strings.TrimPrefix(req.BaseEnv[0], "HOME=")
	put := func(age time.Duration, text string, elem ...string) {
		t.Helper()
		path := filepath.Join(append(elem, "-any", session+".jsonl")...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(fmt.Sprintf("{\"cwd\":%q,\"text\":%q}\n", req.Cwd, text)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	put(2*time.Hour, "the user's", home, ".claude", "projects")
	put(time.Hour, "kept", req.WorkspaceRoot, ".cotal", "claude", "projects")
	put(time.Minute, "of a seat", seats, "00000000000000000000000000000001", filepath.Base(req.Dir), "claude", "projects")
	if _, err := configured(t, sdk.PluginConfig{SeatRoot: seats}).BuildLaunch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(req.Dir, "claude", "projects", "*", session+".jsonl"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the seat has %v (%v), want one transcript", found, err)
	}
	if text, err := os.ReadFile(found[0]); err != nil || !strings.Contains(string(text), "of a seat") {
		t.Errorf("the transcript is %s (%v), want the latest", text, err)
	}
}

// A fork has a copy of the session that it began with. The seat whose session that is goes on with it, and what it
// wrote since is neither hidden by the copy nor overwritten by it, in whichever order the two are stopped.
//
// proves: CONN-1
func TestACopyOfASessionIsNoLaterThanItsSource(t *testing.T) {
	for _, first := range []string{"the fork", "the source"} {
		t.Run(first+" is stopped first", func(t *testing.T) {
			source := request(t)
			seats := t.TempDir()
			c := configured(t, sdk.PluginConfig{SeatRoot: seats})
			seat := func(name string) sdk.LaunchRequest {
				t.Helper()
				req := source
				req.Resume, req.Dir = session, filepath.Join(seats, name, "launch")
				if err := os.MkdirAll(req.Dir, 0o700); err != nil {
					t.Fatal(err)
				}
				return req
			}
			stop := func(req sdk.LaunchRequest) {
				t.Helper()
				if _, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: req.Dir, WorkspaceRoot: req.WorkspaceRoot}); err != nil {
					t.Fatal(err)
				}
			}
			source = seat("source")
			project := strings.ReplaceAll(strings.ReplaceAll(source.Cwd, "/", "-"), "_", "-")
			transcript := filepath.Join(source.Dir, "claude", "projects", project, session+".jsonl")
			put := func(age time.Duration, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(transcript), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(transcript, fmt.Appendf(nil, "{\"cwd\":%q}\n%s", source.Cwd, text), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(transcript, time.Time{}, time.Now().Add(-age)); err != nil {
					t.Fatal(err)
				}
			}
			put(2*time.Hour, "")
			fork := seat("fork")
			if _, err := c.BuildLaunch(t.Context(), fork); err != nil {
				t.Fatal(err)
			}
			put(time.Hour, "longer\n")
			if first == "the fork" {
				stop(fork)
				stop(source)
			} else {
				stop(source)
				stop(fork)
			}
			again := seat("again")
			if _, err := c.BuildLaunch(t.Context(), again); err != nil {
				t.Fatal(err)
			}
			found, err := filepath.Glob(filepath.Join(again.Dir, "claude", "projects", "*", session+".jsonl"))
			if err != nil || len(found) != 1 {
				t.Fatalf("the seat has %v (%v), want one transcript", found, err)
			}
			if text, err := os.ReadFile(found[0]); err != nil || !strings.HasSuffix(string(text), "longer\n") {
				t.Errorf("the session goes on with %s (%v), want what its own seat wrote last", text, err)
			}
		})
	}
}

// proves: CONN-1
func TestReapKeepsTheSessionsAndRemovesTheRest(t *testing.T) {
	req := request(t)
	c := configured(t, sdk.PluginConfig{})
	if _, err := c.BuildLaunch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	project := filepath.Join(req.Dir, "claude", "projects", "-p")
	for path, text := range map[string]string{
		filepath.Join(project, session+".jsonl"):                        "the conversation\n",
		filepath.Join(project, "notes.txt"):                             "no session\n",
		filepath.Join(req.Dir, "claude", "sessions", "2147483646.json"): `{"pid":2147483646,"sessionId":"` + session + `","messagingSocketPath":"/etc/passwd"}`,
		filepath.Join(req.Dir, "of-another"):                            "x",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	q := sdk.LeftoverRequest{Dir: req.Dir, WorkspaceRoot: req.WorkspaceRoot}
	report, err := c.Reap(t.Context(), q)
	if err != nil || report.Outcome != sdk.ReapExited || len(report.Removed) < 4 {
		t.Fatalf("%+v, %v, want the files of the launch removed", report, err)
	}
	if left, err := os.ReadDir(req.Dir); err != nil || len(left) != 1 || left[0].Name() != "of-another" {
		t.Errorf("left are %v (%v), want the one file that is not the connector's", left, err)
	}
	kept := filepath.Join(req.WorkspaceRoot, ".cotal", "claude", "projects", "-p")
	if text, err := os.ReadFile(filepath.Join(kept, session+".jsonl")); err != nil || string(text) != "the conversation\n" {
		t.Errorf("the session is kept as %q, %v", text, err)
	}
	if all, _ := os.ReadDir(kept); len(all) != 1 {
		t.Errorf("kept are %v, want the session alone", all)
	}
	ignore := filepath.Join(req.WorkspaceRoot, ".cotal", "claude", ".gitignore")
	if text, err := os.ReadFile(ignore); err != nil || string(text) != "*\n" {
		t.Errorf("what git ignores of kept conversations is %q, %v, want all", text, err)
	}
	if report, err := c.Reap(t.Context(), q); err != nil || report.Outcome != sdk.ReapAbsent || len(report.Evidence) == 0 {
		t.Errorf("again: %+v, %v, want absent with evidence", report, err)
	}
}

// A process of the seat that still runs is no leftover.
func TestReapOfALivingProcessIsUnproven(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "claude")
	cmd := exec.Command("sleep", "600")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CLAUDE_CONFIG_DIR=" + home}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	file := filepath.Join(home, "sessions", "x.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(pid int) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"pid":%d}`, pid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(cmd.Process.Pid)
	c := configured(t, sdk.PluginConfig{})
	if report, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: dir}); !errors.Is(err, sdk.ErrUnproven) || len(report.Removed) != 0 {
		t.Errorf("%+v, %v, want ErrUnproven and nothing removed", report, err)
	}
	write(os.Getpid()) // the number was given to another process since
	if _, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: dir}); err != nil {
		t.Errorf("a number that is another's: %v", err)
	}
}

// script stands in for the program where the real one would have to misbehave.
func script(t *testing.T, text string) sdk.ModelQuery {
	t.Helper()
	path := filepath.Join(t.TempDir(), "claude")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return sdk.ModelQuery{Binaries: map[string]string{"claude": path}, BaseEnv: []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "COTAL_NAME=n"}}
}

const oneModel = `echo '{"type":"control_response","response":{"subtype":"success","request_id":"models","response":{"models":[{"value":"m","displayName":"M","supportedEffortLevels":["low"]}]}}}'`

// proves: CONN-6
func TestModelQueryFailuresAreUnavailable(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a failure quotes the program":       {"echo no such thing >&2; exit 3", "exit status 3: no such thing"},
		"a refusal is quoted":                {`echo '{"type":"control_response","response":{"subtype":"error","request_id":"models","error":"not here"}}'`, "not here"},
		"no answer is said":                  {"cat >/dev/null", "did not answer"},
		"an answer without models is said":   {`echo '{"type":"control_response","response":{"subtype":"success","request_id":"models","response":{"models":[]}}}'`, "lists none"},
		"too much output ends the program":   {"yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "more than 8 MiB"},
		"a program that never ends is ended": {"sleep 300 & sleep 300", "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if c.want == "no answer in time" {
				limit = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := configured(t, sdk.PluginConfig{}).ListModels(ctx, script(t, c.text))
			if !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want ErrUnavailable with %q", err, c.want)
			}
		})
	}
}

func TestModelQueryTakesACompleteAnswer(t *testing.T) {
	begin := time.Now()
	state := t.TempDir()
	catalog, err := configured(t, sdk.PluginConfig{StateDir: state}).ListModels(t.Context(), script(t, "sleep 300 & "+oneModel))
	if err != nil || len(catalog.Models) != 1 || catalog.Models[0].ID != "m" || len(catalog.Models[0].Variants) != 1 {
		t.Errorf("%+v, %v, want the one model", catalog, err)
	}
	if took := time.Since(begin); took > busy.Limit(4*time.Second) {
		t.Errorf("it took %v: a grandchild held it up", took)
	}
	if left, err := os.ReadDir(state); err != nil || len(left) != 0 {
		t.Errorf("the query left %v (%v)", left, err)
	}
}
