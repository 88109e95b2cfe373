package launch

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestMaterialIsForItsUserAlone(t *testing.T) {
	dir := t.TempDir()
	env, err := WriteMaterial(dir, wire.LaunchMaterial{})
	if err != nil || env != nil {
		t.Fatalf("nothing to hand over: %v, %v", env, err)
	}
	m := wire.LaunchMaterial{Servers: "nats://127.0.0.1:4222", Token: "s3cret"}
	for range 2 { // the second time over what an interrupted launch left
		if env, err = WriteMaterial(dir, m); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, MaterialFile)
	if !slices.Equal(env, []string{"COTAL_LAUNCH_MATERIAL=" + path}) {
		t.Errorf("environment %q", env)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := wire.DecodeLaunchMaterial(p); err != nil || got != m {
		t.Errorf("read back: %v, %v", got, err)
	}
	if _, err := WriteMaterial(filepath.Join(dir, "nowhere"), m); err == nil {
		t.Error("a directory that is not there was written to")
	}
}
