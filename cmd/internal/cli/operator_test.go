package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestMain(m *testing.M) {
	home, err := os.MkdirTemp("", "cotal-cli-") // no test writes into the state of who runs it
	if err != nil {
		panic(err)
	}
	os.Setenv("HOME", home)
	os.Unsetenv("XDG_STATE_HOME")
	code := m.Run()
	os.RemoveAll(home)
	os.Exit(code)
}

// home gives a test a state directory of its own and returns the file of a space in it.
func stateOf(t *testing.T, space string) string {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	path, err := OperatorPath(space)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOperator_StaysTheSameAndIsOneForEachSpace(t *testing.T) {
	path := stateOf(t, "main")
	first, err := Operator("main")
	if err != nil || first.Check() != nil || first.Owner != wire.OwnerLocal {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := Operator("main"); err != nil || again != first {
		t.Errorf("then %+v, %v; want %+v", again, err, first)
	}
	if other, err := Operator("Main"); err != nil || other == first {
		t.Errorf("another space: %+v, %v", other, err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("mode of the file: %v, %v", st.Mode(), err)
	}
	dir, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(dir) != 2 {
		t.Errorf("the directory holds %v, %v; want two files", dir, err)
	}
	if a, b := strings.ToLower(operatorName("Main")), strings.ToLower(operatorName("mAin")); a == b {
		t.Errorf("spaces that differ in case only share %s", a)
	}
}

func TestOperator_TwoAtOnceGetTheSame(t *testing.T) {
	for range 20 {
		stateOf(t, "main")
		got := make([]wire.Caller, 8)
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range got {
			all.Go(func() {
				<-begin
				var err error
				if got[i], err = Operator("main"); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		all.Wait()
		for _, who := range got {
			if who != got[0] || who.IsZero() {
				t.Fatalf("got %v", got)
			}
		}
	}
}

func TestOperator_ABrokenFileGivesOneErrorWithTheFix(t *testing.T) {
	good := `{"v":1,"space":"main","owner":"local","actor":"UABC","lifecycleUid":"` + wire.NewUID() + `"}`
	for name, c := range map[string]struct {
		make func(path string) error
		want string // beside the path
	}{
		"a file that is empty":                  {write("", 0o600), "rm "},
		"a file that was cut":                   {write(good[:40], 0o600), "rm "},
		"something else":                        {write("hello", 0o600), "rm "},
		"of another space":                      {write(strings.Replace(good, "main", "side", 1), 0o600), `is for space "side"; remove it`},
		"of a later version":                    {write(strings.Replace(good, `"v":1`, `"v":2`, 1), 0o600), "is of version 2, which this cotal does not know; update cotal"},
		"an actor that is none":                 {write(strings.Replace(good, "UABC", "U.C", 1), 0o600), "actor"},
		"a file that others can read":           {write(good, 0o644), "is open to others (mode 0644); fix it with: chmod 600 "},
		"a link":                                {func(p string) error { return os.Symlink("/etc/hostname", p) }, "is no plain file; remove it"},
		"a directory":                           {func(p string) error { return os.Mkdir(p, 0o700) }, "is no plain file; remove it"},
		"a named pipe, which is not waited for": {func(p string) error { return syscall.Mkfifo(p, 0o600) }, "is no plain file; remove it"},
	} {
		t.Run(name, func(t *testing.T) {
			path := stateOf(t, "main")
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			who, err := Operator("main")
			if !errors.Is(err, ErrOperatorFile) || !who.IsZero() || !strings.Contains(err.Error(), path+" is ") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v, %v; want the file and %q", who, err, c.want)
			}
		})
	}
}

func write(text string, mode os.FileMode) func(string) error {
	return func(path string) error {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		return os.Chmod(path, mode)
	}
}

func TestOperator_WithoutAPlaceTheCommandsGoOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string][2]string{
		"no home at all":                 {"", ""},
		"a home that is a file":          {"", file},
		"a state directory that is none": {filepath.Join(file, "state"), "/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_STATE_HOME", env[0])
			t.Setenv("HOME", env[1])
			if who, err := Operator("main"); !errors.Is(err, ErrOperatorPlace) || !who.IsZero() {
				t.Errorf("%+v, %v", who, err)
			}
			target := Target{}
			if err := target.identify(wire.Endpoint{Space: "main"}); err != nil || target.caller.IsZero() || !errors.Is(target.unkept, ErrOperatorPlace) {
				t.Errorf("%v, %+v, unkept %v", err, target.caller, target.unkept)
			}
		})
	}
}
