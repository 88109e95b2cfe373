package claude_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

// The program looks up whether a directory is trusted under the path that pwd -P prints.
func TestFieldE6_ADirectoryBehindALinkIsTrustedUnderItsRealPath(t *testing.T) {
	req := request(t)
	real, err := filepath.EvalSymlinks(req.Cwd)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	req.Cwd = link
	if _, err := configured(t, sdk.PluginConfig{}).BuildLaunch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(req.Dir, "claude", ".claude.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Projects map[string]struct{ HasTrustDialogAccepted bool }
	}
	if err := json.Unmarshal(text, &config); err != nil || len(config.Projects) != 1 || !config.Projects[real].HasTrustDialogAccepted {
		t.Errorf("the configuration is %s (%v), want %s trusted", text, err, real)
	}
}

// A session goes on where it was held: elsewhere it would read and write other files than it speaks of.
func TestFieldF5_ASessionOfAnotherDirectoryIsRefusedByItsName(t *testing.T) {
	for name, set := range map[string]func(*sdk.LaunchRequest){
		"a fork":      func(req *sdk.LaunchRequest) { req.Resume = session },
		"the session": func(req *sdk.LaunchRequest) { req.Continue = session },
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t)
			set(&req)
			held := t.TempDir()
			file := filepath.Join(req.WorkspaceRoot, ".cotal", "claude", "projects", "-any", session+".jsonl")
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, fmt.Appendf(nil, "{\"type\":\"mode\"}\n{\"cwd\":%q}\n", held), 0o600); err != nil {
				t.Fatal(err)
			}
			c := configured(t, sdk.PluginConfig{})
			if _, err := c.BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "--cwd "+held) {
				t.Errorf("elsewhere: %v, want a refusal that names %s", err, held)
			}
			req.Cwd = held
			if _, err := c.BuildLaunch(t.Context(), req); err != nil {
				t.Errorf("where it was held: %v", err)
			}
		})
	}
}

// Seats that start at once, while the user's program writes its configuration, share no file with each other or with it.
func TestFieldL1_EverySeatHasAConfigurationOfItsOwn(t *testing.T) {
	req := request(t)
	user := filepath.Join(sdk.Getenv(req.BaseEnv, "HOME"), ".claude.json")
	put := func(n int) {
		t.Helper()
		text := fmt.Appendf(nil, `{"userID":"u","numStartups":%d,"filler":%q}`, n, strings.Repeat("x", 1<<16))
		if err := os.WriteFile(user, text, 0o600); err != nil {
			t.Error(err)
		}
	}
	put(0)
	c := configured(t, sdk.PluginConfig{})
	var seats sync.WaitGroup
	for range 10 {
		one := req
		one.Dir = t.TempDir()
		seats.Go(func() {
			for range 10 {
				if _, err := c.BuildLaunch(t.Context(), one); err != nil {
					t.Error(err)
					return
				}
				text, err := os.ReadFile(filepath.Join(one.Dir, "claude", ".claude.json"))
				var config map[string]any
				if err == nil {
					err = json.Unmarshal(text, &config)
				}
				if err != nil || config["hasCompletedOnboarding"] != true {
					t.Errorf("a seat's configuration is %s, %v", text, err)
				}
			}
		})
	}
	for n := range 100 {
		put(n)
	}
	seats.Wait()
	if text, err := os.ReadFile(user); err != nil || !strings.Contains(string(text), `"numStartups":99`) {
		t.Errorf("the user's own is %.60s, %v", text, err)
	}
}

// TestFieldE5_TheQuestionsOfAFirstStartAreAnswered in the seat's own configuration: nobody is there to see them.
func TestFieldE5_TheQuestionsOfAFirstStartAreAnswered(t *testing.T) {
	const key = "sk-ant-0123456789abcdefghijklmnop"
	for _, permissions := range []string{"ask", "allow"} {
		t.Run("permissions "+permissions, func(t *testing.T) {
			req := request(t)
			req.LaunchOptions = map[string]any{"permissions": permissions}
			req.BaseEnv = append(req.BaseEnv, "ANTHROPIC_API_KEY="+key, "IS_SANDBOX=1")
			spec, err := configured(t, sdk.PluginConfig{}).BuildLaunch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			var config struct {
				HasCompletedOnboarding bool
				CustomAPIKeyResponses  struct{ Approved []string }
				Projects               map[string]struct{ HasTrustDialogAccepted, HasCompletedProjectOnboarding bool }
			}
			read(t, &config, req.Dir, "claude", ".claude.json")
			real, err := filepath.EvalSymlinks(req.Cwd)
			if err != nil {
				t.Fatal(err)
			}
			project := config.Projects[real]
			if !config.HasCompletedOnboarding || !project.HasTrustDialogAccepted || !project.HasCompletedProjectOnboarding {
				t.Errorf("the program would ask: %+v", config)
			}
			if a := config.CustomAPIKeyResponses.Approved; len(a) != 1 || len(a[0]) != 20 || !strings.HasSuffix(key, a[0]) {
				t.Errorf("it would ask whether to use the key: %q", a)
			}
			var settings struct{ SkipDangerousModePermissionPrompt bool }
			read(t, &settings, req.Dir, "settings.json")
			if settings.SkipDangerousModePermissionPrompt != (permissions == "allow") {
				t.Errorf("the warning of the mode that asks nothing is answered: %v", settings.SkipDangerousModePermissionPrompt)
			}
			mode := map[string]string{"ask": "default", "allow": "bypassPermissions"}[permissions]
			if i := slices.Index(spec.Args, "--permission-mode"); i < 0 || spec.Args[i+1] != mode {
				t.Errorf("arguments %q, want the mode %s", spec.Args, mode)
			}
		})
	}
}

func read(t *testing.T, into any, elem ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elem...))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// put writes a transcript of a session, as the program does in a configuration directory.
func put(t *testing.T, id, cwd, text string, home ...string) {
	t.Helper()
	path := filepath.Join(append(home, "projects", "-any", id+".jsonl")...)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, "{\"cwd\":%q}\n%s\n", cwd, text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// transcript is the one transcript that a launch finds in its configuration directory.
func transcript(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "claude", "projects", "*", "*.jsonl"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the seat has the transcripts %v (%v), want one", found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestFieldF1_ASeatThatCrashedDoesNotStartBlank: what its first process said is in the home of the next.
func TestFieldF1_ASeatThatCrashedDoesNotStartBlank(t *testing.T) {
	c := configured(t, sdk.PluginConfig{})
	first := request(t)
	spec, err := c.BuildLaunch(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	id := spec.Args[slices.Index(spec.Args, "--session-id")+1]
	put(t, id, first.Cwd, "what was said", first.Dir, "claude")
	// What the host does between two processes: nothing of the first one is left.
	if _, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: first.Dir, WorkspaceRoot: first.WorkspaceRoot}); err != nil {
		t.Fatal(err)
	}
	next := first
	next.Dir, next.SessionIDs, next.Continue = t.TempDir(), []string{"bcdefghijklmnopqrstuvwxy34"}, id
	if spec, err = c.BuildLaunch(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if i := slices.Index(spec.Args, "--resume"); i < 0 || spec.Args[i+1] != id || slices.Contains(spec.Args, "--fork-session") || slices.Contains(spec.Args, "--session-id") {
		t.Errorf("arguments %q, want session %s itself", spec.Args, id)
	}
	if text := transcript(t, next.Dir); !strings.Contains(text, "what was said") {
		t.Errorf("it goes on with %q", text)
	}
}

// TestFieldF2_ASessionThatIsGoneIsRefusedByItsName, and nothing starts in its place.
func TestFieldF2_ASessionThatIsGoneIsRefusedByItsName(t *testing.T) {
	for name, set := range map[string]func(*sdk.LaunchRequest){
		"a fork":      func(req *sdk.LaunchRequest) { req.Resume = session },
		"the session": func(req *sdk.LaunchRequest) { req.Continue = session },
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t)
			set(&req)
			if _, err := configured(t, sdk.PluginConfig{}).BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), session) {
				t.Errorf("%v, want ErrNotFound that names the session", err)
			}
			if left, err := os.ReadDir(req.Dir); err != nil || len(left) != 0 {
				t.Errorf("the refusal wrote %v, %v", left, err)
			}
		})
	}
}

// TestFieldF21_AnAttemptThatWasCutShortIsNotInTheWay of the next one: neither in the directory of the same launch nor
// in that of a seat of which nobody has taken away what is left.
func TestFieldF21_AnAttemptThatWasCutShortIsNotInTheWay(t *testing.T) {
	seats := t.TempDir()
	c := configured(t, sdk.PluginConfig{SeatRoot: seats})
	req := request(t)
	req.Continue = session
	put(t, session, req.Cwd, "what was said", req.WorkspaceRoot, ".cotal", "claude")
	for _, dir := range []string{"killed", "killed", "next"} {
		req.Dir = filepath.Join(seats, dir, "launch")
		if err := os.MkdirAll(req.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := c.BuildLaunch(t.Context(), req); err != nil {
			t.Fatalf("in %s: %v", dir, err)
		}
		if text := transcript(t, req.Dir); !strings.HasSuffix(text, "what was said\n") {
			t.Errorf("in %s it goes on with %q", dir, text)
		}
	}
}

// TestFieldN2_AListingThatFailsInventsNoModels, however good the last one was.
func TestFieldN2_AListingThatFailsInventsNoModels(t *testing.T) {
	c := configured(t, sdk.PluginConfig{})
	if got, err := c.ListModels(t.Context(), script(t, oneModel)); err != nil || len(got.Models) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{"it fails": "exit 3", "it says something else": "echo hello", "it says nothing": "cat >/dev/null"} {
		if got, err := c.ListModels(t.Context(), script(t, text)); !errors.Is(err, sdk.ErrUnavailable) || len(got.Models) != 0 {
			t.Errorf("%s: %+v, %v; want an error and no model", name, got, err)
		}
	}
}

// TestFieldN3_EveryListingIsAskedForAnew: no older one is kept, whose age nobody would see.
func TestFieldN3_EveryListingIsAskedForAnew(t *testing.T) {
	c, q := configured(t, sdk.PluginConfig{}), script(t, `echo asked >>"$HOME/count"; `+oneModel)
	for range 2 {
		if _, err := c.ListModels(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	count, err := os.ReadFile(filepath.Join(sdk.Getenv(q.BaseEnv, "HOME"), "count"))
	if err != nil || strings.Count(string(count), "asked") != 2 {
		t.Errorf("the program was asked %q, %v; want twice", count, err)
	}
}
