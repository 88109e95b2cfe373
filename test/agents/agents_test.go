package agents

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fake is an agent whose install is a script standing in for npm: the real one is exercised by every
// end-to-end test, but cannot be made to be slow, to fail or to be raced.
func fake(t *testing.T, npm string) (Agent, string) {
	t.Helper()
	bin := t.TempDir()
	write(t, filepath.Join(bin, "npm"), npm)
	write(t, filepath.Join(bin, "node"), "#!/bin/sh\n")
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	return Agent{Name: "fake", Package: "fake-agent", Version: "1.2.3", Binary: "node_modules/fake"}, t.TempDir()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

const goodNpm = `#!/bin/sh
echo run >> "$(dirname "$0")/npm.runs"
mkdir -p node_modules
printf '#!/bin/sh\necho 1.2.3\n' > node_modules/fake
chmod 755 node_modules/fake
`

func TestInstallHappensOnceForManyAtOnce(t *testing.T) {
	a, cache := fake(t, goodNpm)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			path, err := installInto(context.Background(), cache, a, testWriter{t})
			if err != nil || path != filepath.Join(cache, "fake-1.2.3", "node_modules/fake") {
				t.Errorf("install: %q, %v", path, err)
			}
		})
	}
	wg.Wait()
	runs, err := os.ReadFile(filepath.Join(strings.SplitN(os.Getenv("PATH"), ":", 2)[0], "npm.runs"))
	if err != nil || string(runs) != "run\n" {
		t.Errorf("npm ran %q times (%v), want once", runs, err)
	}
	left, err := filepath.Glob(filepath.Join(cache, ".installing-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("install directories left behind: %v, %v", left, err)
	}
}

func TestABrokenInstallIsMadeAgain(t *testing.T) {
	a, cache := fake(t, goodNpm)
	dir := filepath.Join(cache, "fake-1.2.3", "node_modules")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "fake"), "#!/bin/sh\necho 1.2.2\n")
	if _, err := installInto(t.Context(), cache, a, testWriter{t}); err != nil {
		t.Fatal(err)
	}
	if err := checkVersion(t.Context(), filepath.Join(dir, "fake"), a.Version); err != nil {
		t.Errorf("after the second install: %v", err)
	}
}

func TestAFailedInstallIsAnErrorThatShowsTheOutput(t *testing.T) {
	a, cache := fake(t, "#!/bin/sh\necho registry is down\nexit 1\n")
	_, err := installInto(t.Context(), cache, a, testWriter{t})
	if err == nil || !strings.Contains(err.Error(), "registry is down") {
		t.Errorf("install: %v, want npm's output", err)
	}
}

func TestAProgramOfAnotherVersionIsRefused(t *testing.T) {
	a, cache := fake(t, strings.ReplaceAll(goodNpm, "echo 1.2.3", "echo 9.9.9"))
	_, err := installInto(t.Context(), cache, a, testWriter{t})
	if err == nil || !strings.Contains(err.Error(), `version "9.9.9", not "1.2.3"`) {
		t.Errorf("install: %v, want the two versions", err)
	}
	if _, err := os.Stat(filepath.Join(cache, "fake-1.2.3")); err == nil {
		t.Error("the refused install stands in the cache")
	}
}

func TestMissingNodeIsInstalledWithAptAndSaidSo(t *testing.T) {
	bin := t.TempDir()
	// The stand-in apt-get "installs" what the rest needs; sudo stands in for a machine where it works.
	write(t, filepath.Join(bin, "apt-get"), `#!/bin/sh
echo "$@" >> `+bin+`/apt.runs
case "$*" in *install*) printf '#!/bin/sh\n' > `+bin+`/node; printf '#!/bin/sh\n' > `+bin+`/npm; /bin/chmod 755 `+bin+`/node `+bin+`/npm;; esac
`)
	write(t, filepath.Join(bin, "sudo"), "#!/bin/sh\nshift\nexec \"$@\"\n")
	write(t, filepath.Join(bin, "env"), "#!/bin/sh\nshift\nexec \"$@\"\n")
	write(t, filepath.Join(bin, "true"), "#!/bin/sh\n")
	t.Setenv("PATH", bin)
	var out strings.Builder
	if err := needNpm(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "nodejs, npm and ca-certificates") {
		t.Errorf("it did not say what it installs: %q", out.String())
	}
	runs, err := os.ReadFile(bin + "/apt.runs")
	if want := "-q update\n-q -y --no-install-recommends install nodejs npm ca-certificates\n"; err != nil || string(runs) != want {
		t.Errorf("apt-get ran\n%s(%v), want\n%s", runs, err, want)
	}
}
