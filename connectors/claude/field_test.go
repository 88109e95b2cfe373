package claude_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
