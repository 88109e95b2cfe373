package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

type layers struct {
	t                  *testing.T
	root, user, bundle string
}

func newLayers(t *testing.T) layers {
	l := layers{t, t.TempDir(), t.TempDir(), t.TempDir()}
	t.Setenv("XDG_CONFIG_HOME", l.user)
	return l
}

// write puts a manifest with connectors, given as name=version.
func (l layers) write(path string, entries ...string) string {
	l.t.Helper()
	text := "schema = 1\n"
	for _, e := range entries {
		name, version, _ := strings.Cut(e, "=")
		text += fmt.Sprintf("[[plugin]]\nname = %q\nkind = \"connector\"\ncommand = %q\nversion = %q\nsha256 = %q\n", name, "c-"+name, version, strings.Repeat("a", 64))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return path
}

func versions(m *Manifest) string {
	var out []string
	for _, e := range m.Entries {
		out = append(out, e.Name+"="+e.Version)
	}
	return strings.Join(out, " ")
}

// A workspace names only what it adds or changes; the bundle's other plugins stay, and are updated with it.
func TestStrongerManifestsReplaceEntriesOfTheSameName(t *testing.T) {
	l := newLayers(t)
	if _, err := Resolve("", l.root, l.bundle); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "--plugins") {
		t.Fatalf("nothing exists: %v", err)
	}
	inBundle := l.write(filepath.Join(l.bundle, FileName), "command=1", "opencode=1")
	l.write(filepath.Join(l.user, "cotal", FileName), "opencode=2", "echo=2")
	inRoot := l.write(filepath.Join(l.root, ".cotal", FileName), "echo=3")
	m, err := Resolve("", l.root, l.bundle)
	if err != nil {
		t.Fatal(err)
	}
	if got := versions(m); got != "command=1 echo=3 opencode=2" || m.Path != inRoot {
		t.Errorf("got %q of %s", got, m.Path)
	}
	if e, _ := m.Find(sdk.KindConnector, "command"); e.Source != inBundle {
		t.Errorf("command comes from %q", e.Source)
	}
	// A file that is named counts alone.
	if m, err = Resolve(inRoot, l.root, l.bundle); err != nil || versions(m) != "echo=3" {
		t.Errorf("--plugins gave %v, %v", m, err)
	}
	if _, err := Resolve(filepath.Join(l.root, "nope"), l.root, l.bundle); err == nil || !strings.Contains(err.Error(), "--plugins") {
		t.Errorf("a flag that names nothing: %v", err)
	}
}

// A broken file is not skipped, wherever it stands: that would run other plugins than those asked for.
func TestABrokenManifestIsAnErrorInEveryPlace(t *testing.T) {
	for i := range 3 {
		l := newLayers(t)
		places := Places(l.root, l.bundle)
		for _, p := range places {
			l.write(p, "command=1")
		}
		if err := os.WriteFile(places[i], []byte("schema = 9\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Resolve("", l.root, l.bundle); err == nil || !strings.Contains(err.Error(), places[i]) {
			t.Errorf("place %d: %v", i, err)
		}
	}
}

func TestABinaryBesideItsManifestIsFoundBeforeTheBundles(t *testing.T) {
	l := newLayers(t)
	path := l.write(filepath.Join(l.root, ".cotal", FileName), "echo=1")
	m, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Entries[0].File(l.bundle), filepath.Join(l.bundle, "c-echo"); got != want {
		t.Errorf("without one of its own: %s, want %s", got, want)
	}
	own := filepath.Join(l.root, ".cotal", PluginDir, "c-echo")
	if err := os.MkdirAll(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := m.Entries[0].File(l.bundle); got != own {
		t.Errorf("with one of its own: %s, want %s", got, own)
	}
}
