package private_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/private"
)

func TestADirectoryThatIsNotOursAloneIsRefused(t *testing.T) {
	base := t.TempDir()
	make := func(name string, mode os.FileMode) string {
		t.Helper()
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	open, foreign := make("open", 0o750), make("foreign", 0o700)
	link, file := filepath.Join(base, "link"), filepath.Join(base, "file")
	if err := errors.Join(os.Symlink(make("own", 0o700), link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ path, says string }{
		"one that is open to the group is refused":  {open, "chmod 700"},
		"a link is refused, even to one of ours":    {link, "not a directory"},
		"a file is refused":                         {file, "not a directory"},
		"another user's is refused":                 {foreign, "belongs to user"},
		"one that is not there is made":             {filepath.Join(base, "new"), ""},
		"one of ours is taken":                      {filepath.Join(base, "own"), ""},
		"one that is not there is made, with above": {filepath.Join(base, "p", "q"), ""},
	}
	if os.Geteuid() != 0 {
		delete(cases, "another user's is refused")
	} else if err := os.Chown(foreign, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		err := private.Dir(c.path)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.path)) {
			t.Errorf("%s: %v, want a text with %q and the path", name, err, c.says)
		}
		if st, serr := os.Lstat(c.path); c.says == "" && (serr != nil || st.Mode().Perm() != 0o700) {
			t.Errorf("%s: %v, %v", name, st, serr)
		}
	}
}

// A reader never sees a part of a file, and what was open to others before is not afterwards.
func TestAFileIsReplacedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := private.WriteJSON(path, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	old := make([]byte, 10)
	if n, _ := before.Read(old); string(old[:n]) != "old" {
		t.Errorf("who had it open reads %q", old[:n])
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "{\n  \"a\": 1\n}\n" {
		t.Errorf("it holds %q, %v", text, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("it is %v, %v", st, err)
	}
	if err := private.WriteJSON(path, func() {}); err == nil || !strings.Contains(err.Error(), "x.json") {
		t.Errorf("what is no JSON: %v", err)
	}
	if err := private.WriteFile(filepath.Join(path, "below"), nil); err == nil || !strings.Contains(err.Error(), "below") {
		t.Errorf("where no file can be: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("there are %v, %v", left, err)
	}
}

func TestACopyIsAsOldAsItsSource(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "a", "b", "to")
	then := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := errors.Join(os.WriteFile(from, []byte("text"), 0o644), os.Chtimes(from, time.Time{}, then)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := private.CopyFile(f, to); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(to)
	if err != nil || !st.ModTime().Equal(then) || st.Mode().Perm() != 0o600 {
		t.Errorf("the copy is %v, %v", st, err)
	}
}

func TestSocketsAreInThePlaceThatIsShortEnough(t *testing.T) {
	run, err := os.MkdirTemp("", "pr") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	file, locked := filepath.Join(run, "file"), filepath.Join(run, "locked")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(locked, 0o500)); err != nil {
		t.Fatal(err)
	}
	deep, uid := "/"+strings.Repeat("d", 110), os.Geteuid()
	other := fmt.Sprintf("/t/cotal-%d/s-", uid)
	behindLocked := other
	if uid == 0 { // nothing is locked for root
		behindLocked = locked + "/cotal/s-"
	}
	for name, c := range map[string]struct{ dir, xdg, tmp, want string }{
		"beside what they are for":                              {"/seat", run, "/t", "/seat/x.sock"},
		"elsewhere in the runtime directory":                    {deep, run, "/t", run + "/cotal/s-"},
		"without one in the temporary directory":                {deep, "", "/t", other},
		"the runtime directory is too deep":                     {deep, deep, "/t", other},
		"the runtime directory is relative":                     {deep, "run", "/t", other},
		"the runtime directory is set and not there":            {deep, run + "/gone", "/t", other},
		"the runtime directory is a file":                       {deep, file, "/t", other},
		"nothing can be made in the runtime directory":          {deep, locked, "/t", behindLocked},
		"nothing is said of either":                             {deep, "", "", fmt.Sprintf("/tmp/cotal-%d/s-", uid)},
		"nothing is short enough, and the refusal says the fix": {deep, deep, deep, ""},
	} {
		env := map[string]string{"XDG_RUNTIME_DIR": c.xdg, "TMPDIR": c.tmp}
		path, err := private.SocketPath(c.dir, "x.sock", func(key string) string { return env[key] })
		switch {
		case c.want == "" && (err == nil || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR")):
			t.Errorf("%s: %s, %v", name, path, err)
		case c.want != "" && (err != nil || !strings.HasPrefix(path, c.want) || len(path) >= private.SocketRoom):
			t.Errorf("%s: %s, %v, want %s", name, path, err, c.want)
		}
		second, _ := private.SocketPath(c.dir, "y.sock", func(key string) string { return env[key] })
		if c.want != "" && second == path {
			t.Errorf("%s: two sockets are at %s", name, path)
		}
	}
}

// Whoever looks for a socket need not have the environment of the one who made it.
func TestASocketThatIsElsewhereIsFoundByItsRecord(t *testing.T) {
	run, err := os.MkdirTemp("", "pr") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 90))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := private.FindSocket(dir, "x.sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it was placed: %v", err)
	}
	path, err := private.PlaceSocket(dir, "x.sock", func(key string) string { return map[string]string{"XDG_RUNTIME_DIR": run}[key] })
	if err != nil || !strings.HasPrefix(path, filepath.Join(run, "cotal")+"/") {
		t.Fatalf("it is placed at %s, %v", path, err)
	}
	if st, err := os.Stat(filepath.Dir(path)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("its directory is %v, %v", st, err)
	}
	l, err := private.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as after a kill
	if found, err := private.FindSocket(dir, "x.sock"); err != nil || found != path {
		t.Errorf("it is found at %s, %v", found, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", st, err)
	}
	if _, err := private.Listen(path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("while somebody listens: %v", err)
	}
	l.Close()
	if l, err = private.Listen(path); err != nil {
		t.Errorf("in the place of one that nobody listens at: %v", err)
	} else {
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	for range 2 {
		removed, err := private.RemoveSockets(dir)
		if err != nil || len(removed) != 2 && len(removed) != 0 {
			t.Errorf("removed are %v, %v", removed, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

// A record that lost its text with the power would else hold the name of its seat for ever.
func TestADamagedRecordOfASocketIsRemovedAndStopsNoOther(t *testing.T) {
	run, err := os.MkdirTemp("", "pr") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 90))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	place := func(name string) string {
		t.Helper()
		path, err := private.PlaceSocket(dir, name, func(key string) string { return map[string]string{"XDG_RUNTIME_DIR": run}[key] })
		if err != nil {
			t.Fatal(err)
		}
		l, err := private.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false) // as after a kill
		l.Close()
		return path
	}
	damaged, theirs, sound := filepath.Join(dir, "a.sock.path"), place("b.sock"), place("c.sock")
	if err := errors.Join(os.WriteFile(damaged, nil, 0o600), os.Remove(theirs), os.WriteFile(theirs, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := private.FindSocket(dir, "a.sock"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), damaged) {
		t.Errorf("the damaged record: %v", err)
	}
	removed, err := private.RemoveSockets(dir)
	if err == nil || !strings.Contains(err.Error(), theirs) {
		t.Errorf("what is no socket: %v", err)
	}
	if want := []string{damaged, filepath.Join(dir, "c.sock.path"), sound}; !slices.Equal(removed, want) {
		t.Errorf("removed are %v, want %v", removed, want)
	}
	for path, there := range map[string]bool{damaged: false, sound: false, theirs: true, filepath.Join(dir, "b.sock.path"): true} {
		if _, err := os.Lstat(path); (err == nil) != there {
			t.Errorf("%s: %v, want there: %v", path, err, there)
		}
	}
}

func TestWhatIsNoSocketIsNotReplaced(t *testing.T) {
	dir, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "x.sock")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := private.Listen(path); err == nil {
		l.Close()
		t.Error("it was replaced")
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
		t.Errorf("it holds %q, %v", text, err)
	}
	var op *net.OpError
	if _, err := private.Listen(filepath.Join(dir, "none", "x.sock")); !errors.As(err, &op) {
		t.Errorf("in no directory: %v", err)
	}
}
