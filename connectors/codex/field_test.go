package codex_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
)

const session = "0199a213-81c0-7800-8aa1-bbab2a035a53"

// plain is the plainest request: a workspace, an operator with a home, a program.
func plain(t *testing.T) sdk.LaunchRequest {
	t.Helper()
	return sdk.LaunchRequest{
		Binaries: map[string]string{"codex": "/bin/sh"}, Dir: t.TempDir(), Cwd: t.TempDir(), WorkspaceRoot: t.TempDir(),
		BaseEnv: []string{"HOME=" + t.TempDir(), wire.LaunchMaterialEnv + "=/m"},
	}
}

// held writes a session into a directory of sessions, as the program does, and returns its file.
func held(t *testing.T, sessions string) string {
	t.Helper()
	path := filepath.Join(sessions, "2026", "01", "02", "rollout-2026-01-02T10-00-00-"+session+".jsonl")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func kept(req sdk.LaunchRequest) string {
	return filepath.Join(req.WorkspaceRoot, ".cotal", "codex", "sessions")
}

// planned builds a launch and reads its plan.
func planned(t *testing.T, req sdk.LaunchRequest) plan.Plan {
	t.Helper()
	spec, err := configured(t, bundle(t), "").BuildLaunch(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Read(spec.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// config is the configuration of a seat.
func config(t *testing.T, req sdk.LaunchRequest) map[string]any {
	t.Helper()
	all := map[string]any{}
	if _, err := toml.DecodeFile(filepath.Join(req.Dir, "codex-home", "config.toml"), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFieldE5_TheQuestionsOfAFirstStartAreAnswered in the seat's own configuration, also for a directory that a link
// leads to and one that is in no repository.
//
// proves: E6
func TestFieldE5_TheQuestionsOfAFirstStartAreAnswered(t *testing.T) {
	for permissions, want := range map[string][2]string{"ask": {"on-request", "workspace-write"}, "allow": {"never", "danger-full-access"}} {
		t.Run("permissions "+permissions, func(t *testing.T) {
			req := plain(t)
			real, err := filepath.EvalSymlinks(req.Cwd)
			if err != nil {
				t.Fatal(err)
			}
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(real, link); err != nil {
				t.Fatal(err)
			}
			req.Cwd, req.LaunchOptions = link, map[string]any{"permissions": permissions}
			planned(t, req)
			got := config(t, req)
			projects, _ := got["projects"].(map[string]any)
			for _, dir := range []string{link, real} {
				if p, _ := projects[dir].(map[string]any); p["trust_level"] != "trusted" {
					t.Errorf("the program would ask whether to trust %s: %v", dir, projects)
				}
			}
			if got["approval_policy"] != want[0] || got["sandbox_mode"] != want[1] || got["check_for_update_on_startup"] != false {
				t.Errorf("approval %v, sandbox %v, update check %v; want %v and none", got["approval_policy"], got["sandbox_mode"], got["check_for_update_on_startup"], want)
			}
		})
	}
}

// TestFieldF1_ASeatThatCrashedDoesNotStartBlank: what goes with a seat is not what was said in it.
func TestFieldF1_ASeatThatCrashedDoesNotStartBlank(t *testing.T) {
	first := plain(t)
	p := planned(t, first)
	if p.Action != plan.ActionNew || p.Store != kept(first) {
		t.Fatalf("the first process is to %s a session in %s", p.Action, p.Store)
	}
	file := held(t, p.Store)
	c := configured(t, bundle(t), "")
	if _, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: first.Dir, WorkspaceRoot: first.WorkspaceRoot}); err != nil {
		t.Fatal(err)
	}
	next := first
	next.Dir, next.Continue = t.TempDir(), session
	if p := planned(t, next); p.Action != plan.ActionOpen || p.Session != session || p.Rollout != file {
		t.Errorf("the next process is to %s session %q in %s; want to open that in %s", p.Action, p.Session, p.Rollout, file)
	}
}

// TestFieldF2_ASessionThatIsGoneIsRefusedByItsName, and nothing starts in its place.
func TestFieldF2_ASessionThatIsGoneIsRefusedByItsName(t *testing.T) {
	for name, set := range map[string]func(*sdk.LaunchRequest){
		"a fork":      func(req *sdk.LaunchRequest) { req.Resume = session },
		"the session": func(req *sdk.LaunchRequest) { req.Continue = session },
	} {
		t.Run(name, func(t *testing.T) {
			req := plain(t)
			set(&req)
			if _, err := configured(t, bundle(t), "").BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), session) {
				t.Errorf("%v, want ErrNotFound that names the session", err)
			}
			if left, err := os.ReadDir(req.Dir); err != nil || len(left) != 0 {
				t.Errorf("the refusal wrote %v, %v", left, err)
			}
		})
	}
}

// TestFieldF21_AnAttemptThatWasCutShortIsNotInTheWay of the next one, in the directory of the same launch or another.
func TestFieldF21_AnAttemptThatWasCutShortIsNotInTheWay(t *testing.T) {
	req := plain(t)
	file := held(t, kept(req))
	req.Continue = session
	for _, dir := range []string{req.Dir, req.Dir, t.TempDir()} {
		req.Dir = dir
		if p := planned(t, req); p.Action != plan.ActionOpen || p.Rollout != file {
			t.Errorf("in %s it is to %s %s", dir, p.Action, p.Rollout)
		}
	}
}

// TestFieldL1_EverySeatHasAConfigurationOfItsOwn: seats that start at once, while the user's program writes its own,
// share none with each other or with it, and what is not theirs to have stays out.
func TestFieldL1_EverySeatHasAConfigurationOfItsOwn(t *testing.T) {
	req := plain(t)
	home := filepath.Join(sdk.Getenv(req.BaseEnv, "HOME"), ".codex")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	user := filepath.Join(home, "config.toml")
	write := func(n int) { // as the program does it: a whole file takes the place of the one before
		text := fmt.Appendf(nil, "model = \"m\"\nnotify = [\"x\"]\n[tui]\nn = %d\nfiller = %q\n", n, strings.Repeat("x", 1<<12))
		if err := os.WriteFile(user+".new", text, 0o600); err != nil {
			t.Error(err)
		} else if err := os.Rename(user+".new", user); err != nil {
			t.Error(err)
		}
	}
	write(0)
	c := configured(t, bundle(t), "")
	var seats sync.WaitGroup
	for i := range 10 {
		one := req
		one.Dir, one.Model = t.TempDir(), fmt.Sprint("model-", i)
		seats.Go(func() {
			for range 10 {
				if _, err := c.BuildLaunch(t.Context(), one); err != nil {
					t.Error(err)
					return
				}
				var got struct {
					Model  string   `toml:"model"`
					Notify []string `toml:"notify"`
					TUI    struct{ N int }
				}
				if _, err := toml.DecodeFile(filepath.Join(one.Dir, "codex-home", "config.toml"), &got); err != nil || got.Model != one.Model || len(got.Notify) > 0 {
					t.Errorf("a seat's configuration is %+v, %v", got, err)
				}
			}
		})
	}
	for n := range 100 {
		write(n)
	}
	seats.Wait()
	if text, err := os.ReadFile(user); err != nil || !strings.Contains(string(text), "n = 99\n") || !strings.Contains(string(text), "notify") {
		t.Errorf("the user's own is %.60s, %v", text, err)
	}
}

const oneModel = `echo '{"models":[{"slug":"m"}]}'`

// TestFieldN2_AListingThatFailsInventsNoModels, however good the last one was.
func TestFieldN2_AListingThatFailsInventsNoModels(t *testing.T) {
	c := configured(t, "", "")
	if got, err := c.ListModels(t.Context(), script(t, oneModel)); err != nil || len(got.Models) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{"it fails": "exit 3", "it says something else": "echo hello", "it says nothing": "true"} {
		if got, err := c.ListModels(t.Context(), script(t, text)); !errors.Is(err, sdk.ErrUnavailable) || len(got.Models) != 0 {
			t.Errorf("%s: %+v, %v; want an error and no model", name, got, err)
		}
	}
}

// TestFieldN2_WhatComesWithTheProgramIsNoListOfTheProvider: the real program prints it when it was to ask its provider
// and got no answer, or asked none, and does not say so.
func TestFieldN2_WhatComesWithTheProgramIsNoListOfTheProvider(t *testing.T) {
	binary := agents.Need(t, agents.Codex)
	model := strings.Replace(modelOfTheProgram(t, binary), "SLUG", "of-the-provider", 1)
	var broken atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"models":[%s]}`, model)
	}))
	t.Cleanup(provider.Close)
	for _, c := range []struct {
		name, login string
		broken      bool
		want        string // a model; empty: none
	}{
		{"a provider that answers", "requires_openai_auth = true", false, "of-the-provider"},
		{"a provider that does not", "requires_openai_auth = true", true, ""},
		{"a provider that is not asked", "env_key = \"STUB_KEY\"", false, ""},
	} {
		broken.Store(c.broken)
		home := t.TempDir()
		token := jwt(t, time.Now().Add(time.Hour))
		put := func(name, text string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Join(home, ".codex"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(home, ".codex", name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		put("auth.json", fmt.Sprintf(`{"auth_mode":"chatgpt","tokens":{"id_token":%q,"access_token":%q,"refresh_token":"r","account_id":"account"},"last_refresh":%q}`, token, token, time.Now().UTC().Format(time.RFC3339)))
		put("config.toml", fmt.Sprintf("model_provider = \"stub\"\n[model_providers.stub]\nname = \"Stub\"\nbase_url = \"%s/v1\"\nwire_api = \"responses\"\nrequest_max_retries = 0\n%s\n", provider.URL, c.login))
		q := sdk.ModelQuery{
			Refresh: true, Binaries: map[string]string{"codex": binary},
			BaseEnv: []string{"PATH=/usr/bin:/bin", "HOME=" + home, "STUB_KEY=stub", "TMPDIR=" + home},
		}
		got, err := configured(t, "", "").ListModels(t.Context(), q)
		switch {
		case c.want != "" && (err != nil || len(got.Models) != 1 || got.Models[0].ID != c.want):
			t.Errorf("%s: %+v, %v; want %s", c.name, got, err, c.want)
		case c.want == "" && (!errors.Is(err, sdk.ErrUnavailable) || len(got.Models) > 0 || !strings.Contains(err.Error(), "comes with the program")):
			t.Errorf("%s: %d models, %v; want none and why", c.name, len(got.Models), err)
		}
	}
}

// modelOfTheProgram is a model in the words of the program, its id SLUG: a list of a provider has as much to say.
func modelOfTheProgram(t *testing.T, binary string) string {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(binary, "debug", "models", "--bundled")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "CODEX_HOME=" + home}
	out, err := cmd.Output()
	var list struct{ Models []map[string]any }
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil || len(list.Models) == 0 {
		t.Fatalf("the program lists %d models of its own, %v", len(list.Models), err)
	}
	list.Models[0]["slug"] = "SLUG"
	text, err := json.Marshal(list.Models[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestFieldN3_EveryListingIsAskedForAnew, and says what it was asked of: no older one is kept, whose age nobody would
// see.
func TestFieldN3_EveryListingIsAskedForAnew(t *testing.T) {
	c, q := configured(t, "", ""), script(t, `echo "$*" >>"$HOME/count"; : >"$CODEX_HOME/models_cache.json"; `+oneModel)
	q.BaseEnv = append(q.BaseEnv, "HOME="+t.TempDir())
	var sources []string
	for _, q.Refresh = range []bool{false, true, false} {
		got, err := c.ListModels(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, got.Source)
	}
	count, err := os.ReadFile(filepath.Join(sdk.Getenv(q.BaseEnv, "HOME"), "count"))
	if want := "debug models --bundled\ndebug models\ndebug models --bundled\n"; err != nil || string(count) != want {
		t.Errorf("the program was asked %q, %v; want %q", count, err, want)
	}
	if text, err := json.Marshal(sources); err != nil || sources[0] == sources[1] {
		t.Errorf("what the list is does not tell the program's own from the provider's: %s, %v", text, err)
	}
}
