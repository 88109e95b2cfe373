package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const good = `schema = 1

[[plugin]]
name    = "pty"
kind    = "runtime"
command = "cotal-runtime-pty"
version = "0.1.0"
sha256  = "` + digest + `"
env     = ["TERMINFO"]
[plugin.config]
seat_sha256 = "` + digest + `"
nested = { a = 1 }

[[plugin]]
name    = "pty"
kind    = "connector"
command = "cotal-connector-pty"
version = "0.1.0"
sha256  = "` + digest + `"
enabled = false
`

func load(t *testing.T, text string) (*Manifest, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), FileName)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestLoadReadsEveryField(t *testing.T) {
	m, err := load(t, good)
	if err != nil {
		t.Fatal(err)
	}
	off := false
	want := []Entry{
		{
			Name: "pty", Kind: sdk.KindRuntime, Command: "cotal-runtime-pty", Version: "0.1.0", SHA256: digest,
			Env: []string{"TERMINFO"}, Config: map[string]any{"seat_sha256": digest, "nested": map[string]any{"a": int64(1)}},
		},
		{Name: "pty", Kind: sdk.KindConnector, Command: "cotal-connector-pty", Version: "0.1.0", SHA256: digest, Enabled: &off},
	}
	for i := range want {
		want[i].Source = m.Path
	}
	if !reflect.DeepEqual(m.Entries, want) {
		t.Fatalf("got  %+v\nwant %+v", m.Entries, want)
	}
	if e, ok := m.Find(sdk.KindConnector, "pty"); !ok || e.On() {
		t.Fatalf("Find(connector, pty) = %+v, %v: want the disabled entry", e, ok)
	}
	if e, _ := m.Find(sdk.KindRuntime, "pty"); !e.On() {
		t.Fatal("an entry without enabled is not on")
	}
}

func TestLoadNamesFileLineFieldAndFix(t *testing.T) {
	cases := []struct {
		name string
		old  string
		new  string
		want []string
	}{
		{"a file without schema", "schema = 1\n", "", []string{"schema is missing", "schema = 1"}},
		{"a newer schema", "schema = 1", "schema = 2", []string{"schema 2", "reads schema 1"}},
		{"an unknown key at the top", "schema = 1", "schema = 1\ncolour = 1", []string{"line 2", `"colour"`, "remove it"}},
		{"an unknown key in an entry", `env     = ["TERMINFO"]`, "flags = 3", []string{"line 9", `"flags"`}},
		{"a key in the wrong case", `env     = ["TERMINFO"]`, `Name = "x"`, []string{"line 9", `"Name"`}},
		{"an unknown table", "[plugin.config]", "[plugin.settings]", []string{"line 10", `"settings"`}},
		{"a name with capitals", `name    = "pty"`, `name = "Pty"`, []string{"line 3: entry 1", `name "Pty"`, "lower-case"}},
		{"no name", `name    = "pty"` + "\n", "", []string{"line 3: entry 1", `name ""`}},
		{"a kind nobody knows", `"runtime"`, `"bridge"`, []string{`kind "bridge"`, "connector or runtime"}},
		{"a command with a path", `"cotal-runtime-pty"`, `"/bin/sh"`, []string{`command "/bin/sh"`, "bare name"}},
		{"a command that climbs", `"cotal-runtime-pty"`, `".."`, []string{`command ".."`, "bare name"}},
		{"a command that hides", `"cotal-runtime-pty"`, `"..\\x"`, []string{"command", "bare name"}},
		{"no command", `command = "cotal-runtime-pty"` + "\n", "", []string{`command ""`}},
		{"no version", `version = "0.1.0"` + "\n", "", []string{`version ""`, "--cotal-describe"}},
		{"a digest cut short", digest, digest[:63], []string{"sha256", "64 lower-case hex digits", "sha256sum cotal-runtime-pty"}},
		{"an upper-case digest", digest, strings.ToUpper(digest), []string{"sha256"}},
		{"an assignment for a variable", `"TERMINFO"`, `"A=b"`, []string{`env[0] "A=b"`}},
		{"a secret of the host", `"TERMINFO"`, `"COTAL_TOKEN"`, []string{`env[0] "COTAL_TOKEN"`, "remove it"}},
		{"a variable of the handshake", `"TERMINFO"`, `"PLUGIN_CLIENT_CERT"`, []string{"env[0]"}},
		{"a value of the wrong type", `"0.1.0"`, `7`, []string{"line 7", "version"}},
		{"the same name and kind twice", `"connector"`, `"runtime"`, []string{"line 14: entry 2", `runtime "pty" is listed already in entry 1`}},
		{"text that is no TOML", "schema = 1", "schema == 1", []string{"line 1", "not valid"}},
		{"a number JSON cannot carry", "nested = { a = 1 }", "nested = nan", []string{"entry 1", "config"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.new, 1)
			if text == good {
				t.Fatal("the case changes nothing")
			}
			_, err := load(t, text)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range append(c.want, FileName) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not contain %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
		})
	}
}

func TestLoadOfAMissingFileWrapsNotExist(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

func TestWriteIsDeterministicAndReadable(t *testing.T) {
	m, err := load(t, good)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), FileName)
	if err := Write(path, m.Entries); err != nil {
		t.Fatal(err)
	}
	first, _ := os.ReadFile(path)
	m2, err := Load(path)
	if err != nil {
		t.Fatalf("%v in\n%s", err, first)
	}
	m2.Entries[0], m2.Entries[1] = m2.Entries[1], m2.Entries[0]
	for _, list := range [][]Entry{m.Entries, m2.Entries} {
		for i := range list {
			list[i].Source = ""
		}
	}
	if !reflect.DeepEqual(m.Entries, m2.Entries) {
		t.Fatalf("got  %+v\nwant %+v\n%s", m2.Entries, m.Entries, first)
	}
	if err := Write(path, m2.Entries); err != nil {
		t.Fatal(err)
	}
	second, _ := os.ReadFile(path)
	if string(first) != string(second) {
		t.Fatalf("order of entries changes the file:\n%s\n%s", first, second)
	}
	left, _ := os.ReadDir(filepath.Dir(path))
	if len(left) != 1 {
		t.Fatalf("files beside the manifest: %v", left)
	}
}

func TestBundleHashesPluginsAndHelpers(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"cotal-runtime-pty": "runtime", "cotal-seat": "seat"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := BundleSpec{
		Name: "pty", Kind: sdk.KindRuntime, Command: "cotal-runtime-pty", Version: "0.1.0",
		Helpers: map[string]string{"seat_sha256": "cotal-seat"},
	}
	if err := Bundle(dir, []BundleSpec{spec}); err != nil {
		t.Fatal(err)
	}
	m, err := Load(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	if e := m.Entries[0]; e.SHA256 != sum("runtime") || e.Config["seat_sha256"] != sum("seat") {
		t.Fatalf("got %+v", e)
	}
	spec.Helpers["seat_sha256"] = "gone"
	if err := Bundle(dir, []BundleSpec{spec}); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Fatalf("missing helper: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("schema = 1\nplugin = []\n")
	f.Add("schema = 1\n[[plugin]]\nname=\"\"\"a\nb\"\"\"\n")
	f.Add("plugin = [{name='x'}]\nschema=1")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := Parse([]byte(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error has several lines: %q", err)
			}
			return
		}
		for _, e := range entries {
			if strings.ContainsAny(e.Command, `/\`) || strings.HasPrefix(e.Command, ".") || len(e.SHA256) != 64 {
				t.Fatalf("accepted %+v", e)
			}
		}
		out, err := Format(entries)
		if err != nil {
			t.Fatalf("a manifest that was read cannot be written: %v\n%q", err, text)
		}
		again, err := Parse(out)
		if err != nil || len(again) != len(entries) {
			t.Fatalf("what was written cannot be read: %v\n%s", err, out)
		}
	})
}
