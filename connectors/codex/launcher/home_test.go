package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
)

func TestTheHomeLinksToWhatOutlivesTheSeat(t *testing.T) {
	dir := t.TempDir()
	p := plan.Plan{Home: filepath.Join(dir, "home"), Store: filepath.Join(dir, "w", ".cotal", "codex", "sessions"), Auth: filepath.Join(dir, "auth.json")}
	if err := os.Mkdir(p.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a seat that starts again has them already
		if err := linkHome(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(p.Home, "auth.json"), []byte("login"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(p.Auth); string(data) != "login" {
		t.Errorf("the operator's login holds %q, %v; want what was written in the seat", data, err)
	}
	if info, err := os.Stat(filepath.Join(p.Home, "sessions")); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		t.Errorf("sessions: %v, %v; want a private directory", info, err)
	}
}
