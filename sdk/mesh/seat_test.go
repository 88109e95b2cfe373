package mesh_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestAProgramJoinsAsTheSeatItIsIn(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	who, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	body, err := wire.LaunchMaterial{Servers: s.URL(), Token: token}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "material.json")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"COTAL_SPACE": space, "COTAL_NAME": "reviewer_2", "COTAL_ROLE": "review", "COTAL_ID": who.Principal(),
		"COTAL_LIFECYCLE_UID": who.UID, "COTAL_LAUNCH_MATERIAL": file, "COTAL_MODEL": "sonnet",
	}
	getenv := func(name string) string { return env[name] }
	cfg, join, err := mesh.FromSeat(getenv)
	if err != nil {
		t.Fatal(err)
	}
	c, err := mesh.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Join(t.Context(), join); err != nil {
		t.Fatal(err)
	}
	got, err := s.roster(t, s.client(t, "watcher")).Await(t.Context(), is(c, wire.StatusIdle))
	if err != nil || got.LifecycleUID != who.UID || got.Card.Name != "reviewer_2" || got.Card.Role != "review" || got.Card.MetaString("model") != "sonnet" {
		t.Fatalf("seen: %+v, %v", got, err)
	}

	for name, want := range map[string]error{
		"COTAL_ID": mesh.ErrNotASeat, "COTAL_LIFECYCLE_UID": mesh.ErrNotASeat, "COTAL_SPACE": mesh.ErrNotASeat, "COTAL_LAUNCH_MATERIAL": mesh.ErrNotASeat,
	} {
		_, _, err := mesh.FromSeat(func(n string) string {
			if n == name {
				return ""
			}
			return env[n]
		})
		if !errors.Is(err, want) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, _, err := mesh.FromSeat(getenv); !errors.Is(err, mesh.ErrTokenFile) {
		t.Errorf("a file that others can read: %v", err)
	}
	if err := os.WriteFile(file, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := mesh.FromSeat(getenv); !errors.Is(err, mesh.ErrTokenFile) {
		t.Errorf("a file of something else: %v", err)
	}
}
