package program_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/program"
)

func TestWhatAProgramAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		text, out, last, says string
		ended, both           bool
	}{
		"a complete answer":                          {"echo yes; echo well >&2", "yes\n", "well", "", false, false},
		"one on standard error":                      {"echo yes >&2", "yes\n", "yes", "", false, true},
		"a failure comes with what was printed":      {"echo yes; echo no login >&2; exit 3", "yes\n", "no login", "`demo models`: exit status 3: no login", true, false},
		"a grandchild holds nothing up":              {"sleep 300 & echo yes", "yes\n", "", "", false, false},
		"too much is none":                           {"yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "", "", "`demo models` printed more than 1 MiB", false, false},
		"none in time is none":                       {"sleep 300", "", "", "`demo models` gave no answer in time", false, false},
		"one that goes on after its answer is in it": {"echo yes; sleep 300", "", "", "`demo models` gave no answer in time", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if strings.Contains(c.says, "in time") {
				limit = 500 * time.Millisecond
			}
			q := program.Question{Cmd: exec.Command("/bin/sh", "-c", c.text), Name: "demo models", Limit: limit, Max: 1 << 20, Both: c.both}
			a, err := q.Ask(context.Background())
			var ended *program.EndError
			if string(a.Out) != c.out || a.Last != c.last || errors.As(err, &ended) != c.ended {
				t.Errorf("%q, %q, %v", a.Out, a.Last, err)
			}
			if (err != nil) != (c.says != "") || err != nil && !strings.HasPrefix(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

func TestTheNpmPackageOfAnExecutable(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	put("ours/package.json", `{"name":"@demo/demo","version":"1.2.3"}`)
	script := put("ours/bin/demo", "")
	deep := put("ours/vendor/a/bin/demo", "")
	put("theirs/package.json", `{"name":"wrapper","version":"9.9.9"}`)
	wrapper := put("theirs/ours/bin/demo", "")
	put("broken/package.json", `{`)
	broken := put("broken/demo", "")
	link := filepath.Join(root, "demo")
	if err := os.Symlink(script, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, dir, version string }{
		"its script":                {script, "ours", "1.2.3"},
		"a link to it":              {link, "ours", "1.2.3"},
		"a program within it":       {deep, "ours", "1.2.3"},
		"a wrapper of the user's":   {wrapper, "", ""},
		"one with a broken package": {broken, "", ""},
		"none at all":               {"/bin/sh", "", ""},
		"what is not there":         {filepath.Join(root, "none"), "", ""},
	} {
		dir, version := program.NPMPackage(c.path, func(name string) bool { return name == "@demo/demo" })
		if c.dir != "" {
			c.dir = filepath.Join(root, c.dir)
		}
		if dir != c.dir || version != c.version {
			t.Errorf("%s: %q %q, want %q %q", name, dir, version, c.dir, c.version)
		}
	}
}

func TestVersionsAreThreeNumbers(t *testing.T) {
	for text, want := range map[string]string{"1.18.33": "1.18.33", "0.171.0-linux-x64": "0.171.0", "2.1.0+b": "2.1.0", "1.2": "", "v1.2.3": "", "": "", "1.2.3.4": "", "1.2.99999999999": ""} {
		v, ok := program.ParseVersion(text)
		if ok != (want != "") || ok && v.String() != want {
			t.Errorf("%q is %v, %v", text, v, ok)
		}
	}
	order := []program.Version{{0, 9, 9}, {0, 10, 0}, {1, 0, 0}, {1, 0, 1}}
	if !slices.IsSortedFunc(order, func(a, b program.Version) int {
		if a.Less(b) {
			return -1
		}
		return 1
	}) || order[0].Less(order[0]) {
		t.Error("versions are not compared number by number")
	}
}

func TestAClientIsNotTheOneThatSpeaksForTheSeat(t *testing.T) {
	env := []string{"PATH=/bin", "COTAL_LAUNCH_MATERIAL=/m", "COTAL_SEAT_NONCE=n", "CONFIG=c", "CONFIGURED=d"}
	if got, want := program.ClientEnv(env, "CONFIG"), []string{"PATH=/bin", "COTAL_SEAT_NONCE=n", "CONFIGURED=d"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
