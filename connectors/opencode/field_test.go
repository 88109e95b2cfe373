package opencode_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/agents"
)

// TestFieldF21_AnAttemptThatWasCutShortIsNotInTheWay of the next one, in the directory of the same launch or another.
func TestFieldF21_AnAttemptThatWasCutShortIsNotInTheWay(t *testing.T) {
	req := sdk.LaunchRequest{
		Binaries: map[string]string{"opencode": "/bin/sh"}, Ports: []int{41001}, Secrets: []string{"s"}, Cwd: t.TempDir(),
		Continue: "ses_1", Prompt: "go on", Dir: t.TempDir(),
	}
	c := configured(t, "")
	var first []string
	for _, dir := range []string{req.Dir, req.Dir, t.TempDir()} {
		req.Dir = dir
		if _, err := c.BuildLaunch(t.Context(), req); err != nil {
			t.Fatalf("in %s: %v", dir, err)
		}
		var now []string
		for _, name := range []string{"launcher.json", "session"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			now = append(now, string(text))
		}
		if first == nil {
			first = now
		}
		if now[0] != first[0] || now[1] != "ses_1\n" {
			t.Errorf("in %s it is told %q, before %q", dir, now, first)
		}
	}
}

// TestFieldN2_AListingThatFailsInventsNoModels, however good the last one was.
func TestFieldN2_AListingThatFailsInventsNoModels(t *testing.T) {
	c := configured(t, "")
	if got, err := c.ListModels(t.Context(), script(t, "echo p/m")); err != nil || len(got.Models) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{"it fails": "echo p/m; exit 3", "it says something else": "echo hello", "it says nothing": "true"} {
		if got, err := c.ListModels(t.Context(), script(t, text)); !errors.Is(err, sdk.ErrUnavailable) || len(got.Models) != 0 {
			t.Errorf("%s: %+v, %v; want an error and no model", name, got, err)
		}
	}
}

// TestFieldN2_WhatComesWithTheProgramIsNoRefreshedList: the real program prints the list that it has when it cannot fetch
// another one, and says that it was refreshed.
func TestFieldN2_WhatComesWithTheProgramIsNoRefreshedList(t *testing.T) {
	home := t.TempDir()
	got, err := configured(t, "").ListModels(t.Context(), sdk.ModelQuery{
		Refresh: true, Binaries: map[string]string{"opencode": agents.Need(t, agents.OpenCode)},
		BaseEnv: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "OPENCODE_MODELS_URL=http://127.0.0.1:9"},
	})
	if !errors.Is(err, sdk.ErrUnavailable) || len(got.Models) > 0 || !strings.Contains(err.Error(), "could not fetch") && !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("%d models, %v; want none and why", len(got.Models), err)
	}
}

// TestFieldN3_EveryListingIsAskedForAnew: no older one is kept, whose age nobody would see. The program has one of its
// own, which it is told to renew.
func TestFieldN3_EveryListingIsAskedForAnew(t *testing.T) {
	c, q := configured(t, ""), script(t, `echo "$*" >>"$HOME/count"; [ "$4" != --refresh ] || echo {} >"$HOME/.cache/opencode/models.json"; echo p/m`)
	home := t.TempDir()
	q.BaseEnv = append(q.BaseEnv, "HOME="+home)
	if err := os.MkdirAll(filepath.Join(home, ".cache", "opencode"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, q.Refresh = range []bool{false, true, false} {
		if _, err := c.ListModels(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	count, err := os.ReadFile(filepath.Join(home, "count"))
	if want := "models --pure --verbose\nmodels --pure --verbose --refresh\nmodels --pure --verbose\n"; err != nil || string(count) != want {
		t.Errorf("the program was asked %q, %v; want %q", count, err, want)
	}
}
