package persona

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func workspace(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(Dir(root), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const full = `---
name: rev
role: reviewer
kind: endpoint
description: Reads what others write.
tags: [code, slow]
subscribe: [team.review]
allowSubscribe: ["team.>"]
allowPublish: [team.review]
quiet: [team.noise]
muted: [team.bots]
agent: opencode
model: stub/one
variant: high
cwd: sub dir
launchOptions:
  argv: [sh, -c, "echo $(x)"]
  retries: 3
  ratio: 0.5
  deep: {on: true, off: null, day: 2026-01-02}
capabilities: [spawn, "role:tester"]
owner: local.abc
team: blue
port: 0x1F
---

You review.

--- not a border
`

// proves: PERS-4
func TestEveryFieldIsRead(t *testing.T) {
	root := workspace(t, map[string]string{".cotal/agents/review.md": full})
	got, err := Load(root, "review")
	if err != nil {
		t.Fatal(err)
	}
	want := Persona{
		Path: filepath.Join(Dir(root), "review.md"), Ref: "review", Name: "rev", Kind: "endpoint", Role: "reviewer",
		Description: "Reads what others write.", Agent: "opencode", Model: "stub/one", Variant: "high", Cwd: "sub dir",
		Owner: "local.abc", Tags: []string{"code", "slow"}, Subscribe: []string{"team.review"},
		AllowSubscribe: []string{"team.>"}, AllowPublish: []string{"team.review"}, Quiet: []string{"team.noise"},
		Muted: []string{"team.bots"}, Capabilities: []string{"spawn", "role:tester"},
		LaunchOptions: map[string]any{
			"argv": []any{"sh", "-c", "echo $(x)"}, "retries": 3.0, "ratio": 0.5,
			"deep": map[string]any{"on": true, "off": nil, "day": "2026-01-02"},
		},
		Meta: map[string]string{"team": "blue", "port": "0x1F"},
		Body: "You review.\n\n--- not a border",
	}
	if got.Digest != wire.Digest([]byte(full)) {
		t.Errorf("digest %s", got.Digest)
	}
	got.Digest = ""
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	raw, err := json.Marshal(got.LaunchOptions)
	if err != nil || !strings.Contains(string(raw), `"retries":3`) {
		t.Errorf("options as JSON: %s, %v", raw, err)
	}
}

// The reference only finds the file; the identity is what the file says.
//
// proves: PERS-1
func TestTheNameComesFromTheFileNotFromTheReference(t *testing.T) {
	root := workspace(t, map[string]string{
		".cotal/agents/long-descriptive-name.md": "---\nname: bob\n---\n",
		"elsewhere.md":                           "---\nname: eve\n---\nhi",
	})
	for ref, want := range map[string]string{
		"long-descriptive-name":                                          "bob",
		".cotal/agents/long-descriptive-name.md":                         "bob",
		filepath.Join(Dir(root), "long-descriptive-name.md"):             "bob",
		".cotal/agents/../agents/long-descriptive-name.md":               "bob",
		filepath.Join(root, "./.cotal//agents/long-descriptive-name.md"): "bob",
	} {
		p, err := Load(root, ref)
		if err != nil || p.Name != want || p.Ref != ref {
			t.Errorf("%s: %+v, %v", ref, p, err)
		}
	}
	for _, config := range []string{"elsewhere.md", filepath.Join(root, "elsewhere.md"), "./elsewhere.md"} {
		if p, err := LoadFile(root, config); err != nil || p.Name != "eve" {
			t.Errorf("config %s: %+v, %v", config, p, err)
		}
	}
	if p, err := LoadFile(root, "long-descriptive-name"); err != nil || p.Name != "bob" {
		t.Errorf("config by name: %+v, %v", p, err)
	}
}

// proves: PERS-2
func TestAMissingPersonaSaysWhereAndHow(t *testing.T) {
	root := workspace(t, map[string]string{
		".cotal/agents/shell.md": "---\nname: shell\n---\n", ".cotal/agents/opencode.md": "---\nname: opencode\n---\n", ".cotal/agents/notes.txt": "x",
	})
	for name, load := range map[string]func() (Persona, error){
		"by reference": func() (Persona, error) { return Load(root, "ghost") },
		"by config":    func() (Persona, error) { return LoadFile(root, "ghost.md") },
		"no directory": func() (Persona, error) { return Load(t.TempDir(), "ghost") },
	} {
		_, err := load()
		if !errors.Is(err, ErrNotFound) || !strings.HasPrefix(err.Error(), "no persona") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		others := "there are opencode, shell;"
		if name == "no directory" {
			others = "the workspace has no personas;"
		}
		for _, want := range []string{"ghost.md", others, "create it", "name: ghost / agent: <connector> /", "cotal spawn --agent command --name ghost -- <program>", "identity as well as name"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
}

func TestAMissingPersonaIsToldLikeOneOfSomebodyElse(t *testing.T) {
	root := workspace(t, map[string]string{".cotal/agents/theirs.md": "---\nname: theirs\n---\n", ".cotal/agents/mine.md": "---\nname: mine\n---\n"})
	hidden := NotFound(root, "theirs", filepath.Join(Dir(root), "theirs.md")).Error()
	if err := os.Remove(filepath.Join(Dir(root), "theirs.md")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(root, "theirs"); err == nil || err.Error() != hidden {
		t.Errorf("of one that is not there: %v, of somebody else's: %s", err, hidden)
	}
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(Dir(root), fmt.Sprintf("p%02d.md", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(root, "theirs"); err == nil || !strings.Contains(err.Error(), "p10 and 9 more;") {
		t.Errorf("of many: %v", err)
	}
}

// proves: SPAWN-21, PERS-3, O10
func TestReferencesThatLeaveTheDirectoryAreRefused(t *testing.T) {
	root := workspace(t, map[string]string{
		"secret.md":              "---\nname: secret\n---\n",
		".cotal/agents/real.md":  "---\nname: real\n---\n",
		".cotal/agents/large.md": "---\nname: large\n---\n" + strings.Repeat("x", MaxSize),
	})
	agents := Dir(root)
	for at, to := range map[string]string{
		"out.md": filepath.Join(root, "secret.md"), "alias.md": "real.md", "loop.md": "loop.md", "dangling.md": "/nonexistent/x.md",
	} {
		if err := os.Symlink(to, filepath.Join(agents, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.Mkdir(filepath.Join(agents, "dir.md"), 0o700),
		syscall.Mkfifo(filepath.Join(agents, "pipe.md"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for name, ref := range map[string]string{
		"upwards":                       "../../secret.md",
		"upwards from the directory":    ".cotal/agents/../../secret.md",
		"absolute":                      filepath.Join(root, "secret.md"),
		"absolute and missing":          "/etc/no-such-file.md",
		"the passwd file":               "/etc/passwd",
		"a link that leaves":            "out",
		"a link that leaves, as a path": ".cotal/agents/out.md",
		"a link to itself":              "loop",
		"the directory itself":          ".cotal/agents/",
		"a directory":                   "dir",
		"a pipe":                        "pipe",
		"a file that is too large":      "large",
		"empty":                         "",
		"with a NUL":                    "a\x00b",
		"with a dot":                    "a.b",
		"with a space":                  "a b",
		"two dots":                      "..",
		"longer than a name":            strings.Repeat("a", MaxName+1),
		"not UTF-8":                     "a\xff",
		"a shell word":                  "$(id)",
		"through a file":                ".cotal/agents/real.md/x",
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Load(root, ref)
			if !errors.Is(err, ErrSource) || !strings.HasPrefix(err.Error(), "agent file ") {
				t.Fatalf("%+v, %v", p, err)
			}
		})
	}
	if p, err := Load(root, "alias"); err != nil || p.Name != "real" {
		t.Errorf("a link within the directory: %+v, %v", p, err)
	}
	if _, err := Load(root, "dangling"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a dangling link: %v", err)
	}
	// --config bypasses the directory, not the other checks.
	for _, config := range []string{".cotal/agents/pipe.md", ".cotal/agents/dir.md", ".cotal/agents/large.md", root + "/", "a\x00.md"} {
		if _, err := LoadFile(root, config); !errors.Is(err, ErrSource) {
			t.Errorf("config %q: %v", config, err)
		}
	}
}

// proves: PERS-14
func TestContentThatBreaksARuleNamesLineAndKey(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		line int
		want string
	}{
		"no front matter":                     {"You are a reviewer.", 1, "must start with front matter"},
		"empty":                               {"", 1, "must start with front matter"},
		"front matter not at the very start":  {"\n---\nname: a\n---\n", 1, "must start with front matter"},
		"front matter without an end":         {"---\nname: a\n", 1, "no closing ---"},
		"an empty front matter":               {"---\n---\nhi", 1, "name is missing"},
		"only a comment":                      {"---\n# hi\n---\n", 1, "name is missing"},
		"a list":                              {"---\n- a\n---\n", 2, "must be a mapping"},
		"a word":                              {"---\nhello\n---\n", 2, "must be a mapping"},
		"broken YAML":                         {"---\nname: a\nrole: [b\n---\n", 0, "agent file x.md"},
		"a tab as indentation":                {"---\nname: a\nlaunchOptions:\n\tx: 1\n---\n", 4, "found character that cannot start any token"},
		"no name":                             {"---\nrole: a\n---\n", 1, "name is missing"},
		"a null name":                         {"---\nrole: r\nname: ~\n---\n", 3, "name is missing"},
		"a name with a space":                 {"---\nname: a b\n---\n", 2, "only letters, digits"},
		"a name with a line break":            {"---\nname: \"a\\nb\"\n---\n", 2, "control characters"},
		"a name that is too long":             {"---\nname: " + strings.Repeat("a", 129) + "\n---\n", 2, "at most 128"},
		"a list as a scalar":                  {"---\nname: a\nrole: [b]\n---\n", 3, "role must be a single value, not a list"},
		"a mapping as a scalar":               {"---\nname: a\nmodel: {b: c}\n---\n", 3, "model must be a single value, not a mapping"},
		"a key twice":                         {"---\nname: a\nrole: b\nrole: c\n---\n", 4, "second time, the first is in line 3"},
		"an old key":                          {"---\nname: a\nchannels: [x]\n---\n", 3, "allowSubscribe"},
		"more channels than a seat may have":  {"---\nname: a\nsubscribe: [" + strings.Repeat("c, ", MaxChannels) + "c]\n---\n", 3, "257 channels, at most 256"},
		"another old key":                     {"---\nname: a\npublish: [x]\n---\n", 3, "write allowPublish"},
		"an unknown key with a list":          {"---\nname: a\nlaunchOption: [x]\n---\n", 3, "launchOption is not a known key, and only a single value can be kept as metadata; did you mean launchOptions?"},
		"an unknown key with a mapping":       {"---\nname: a\nzzz: {}\n---\n", 3, "zzz is not a known key"},
		"a kind that does not exist":          {"---\nname: a\nkind: robot\n---\n", 3, "agent or endpoint"},
		"launch options as a list":            {"---\nname: a\nlaunchOptions: [x]\n---\n", 3, "must be a mapping"},
		"launch options as a scalar":          {"---\nname: a\nlaunchOptions: x\n---\n", 3, "must be a mapping"},
		"an option twice":                     {"---\nname: a\nlaunchOptions:\n  x: 1\n  x: 2\n---\n", 5, "second time"},
		"a number that loses digits":          {"---\nname: a\nlaunchOptions: {x: 12345678901234567890}\n---\n", 3, "write it in quotes"},
		"a number that is none":               {"---\nname: a\nlaunchOptions: {x: .nan}\n---\n", 3, "write it in quotes"},
		"an alias":                            {"---\nname: a\nlaunchOptions: {x: &q [1], y: *q}\n---\n", 3, "anchors and aliases"},
		"a merge key":                         {"---\nname: a\nlaunchOptions: {<<: {x: 1}}\n---\n", 3, "plain word"},
		"options nested without end":          {"---\nname: a\nlaunchOptions: {x: " + strings.Repeat("[", 20) + strings.Repeat("]", 20) + "}\n---\n", 3, "too deeply"},
		"admin as a capability":               {"---\nname: a\ncapabilities: [admin]\n---\n", 3, "admin is never given"},
		"an unknown capability":               {"---\nname: a\ncapabilities: [fly]\n---\n", 3, "spawn, run and role:"},
		"capabilities as a scalar":            {"---\nname: a\ncapabilities: spawn\n---\n", 3, "must be a list"},
		"a channel with a space":              {"---\nname: a\nsubscribe: [a b]\n---\n", 3, "is not a channel"},
		"a channel with an empty part":        {"---\nname: a\nsubscribe: [a..b]\n---\n", 3, "empty part"},
		"a channel outside the read list":     {"---\nname: a\nallowSubscribe: [team.>]\nsubscribe: [other]\n---\n", 4, "not within allowSubscribe"},
		"a wildcard wider than the read list": {"---\nname: a\nallowSubscribe: [team.a]\nsubscribe: [team.>]\n---\n", 4, "not within allowSubscribe"},
		"a quiet wildcard":                    {"---\nname: a\nsubscribe: [team.>]\nquiet: [team.>]\n---\n", 4, "without wildcards"},
		"quiet and muted at once":             {"---\nname: a\nsubscribe: [x]\nquiet: [x]\nmuted: [x]\n---\n", 5, "both quiet and muted"},
		"a binary value":                      {"---\nname: a\nrole: !!binary aGk=\n---\n", 3, "not a binary value"},
		"not UTF-8":                           {"---\nname: a\n---\n\xff", 0, "not UTF-8"},
		"a NUL in the body":                   {"---\nname: a\n---\n\x00", 0, "not UTF-8"},
		"a key with a line break":             {"---\nname: a\n\"x\\ny\": 1\n---\n", 3, "plain word"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("x.md", []byte(tc.text))
			var pe *Error
			if !errors.As(err, &pe) || !errors.Is(err, ErrInvalid) {
				t.Fatalf("got %v", err)
			}
			if !strings.HasPrefix(err.Error(), "agent file x.md:") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q does not say %q", err, tc.want)
			}
			if tc.line != 0 && pe.Line != tc.line {
				t.Errorf("line %d, want %d: %v", pe.Line, tc.line, err)
			}
		})
	}
}

func TestWhatPeopleWriteIsAccepted(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		ok   func(Persona) bool
	}{
		"the least there is":                  {"---\nname: a\n---", func(p Persona) bool { return p.Name == "a" && p.Kind == "agent" && p.Body == "" }},
		"Windows line ends":                   {"---\r\nname: a\r\nrole: b\r\n---\r\nhi\r\nthere\r\n", func(p Persona) bool { return p.Role == "b" && p.Body == "hi\nthere" }},
		"a byte order mark":                   {"\ufeff---\nname: a\n---\nhi", func(p Persona) bool { return p.Body == "hi" }},
		"a number as a name":                  {"---\nname: 007\n---\n", func(p Persona) bool { return p.Name == "007" }},
		"yes as a role stays yes":             {"---\nname: a\nrole: yes\n---\n", func(p Persona) bool { return p.Role == "yes" }},
		"one tag without brackets":            {"---\nname: a\ntags: x\n---\n", func(p Persona) bool { return len(p.Tags) == 1 }},
		"an empty list":                       {"---\nname: a\nsubscribe: []\n---\n", func(p Persona) bool { return len(p.Subscribe) == 0 }},
		"no options":                          {"---\nname: a\nlaunchOptions:\n---\n", func(p Persona) bool { return p.LaunchOptions == nil }},
		"a long description in several lines": {"---\nname: a\ndescription: |\n  one\n  two\n---\n", func(p Persona) bool { return p.Description == "one\ntwo\n" }},
		"a rule in the body":                  {"---\nname: a\n---\na\n---\nb", func(p Persona) bool { return p.Body == "a\n---\nb" }},
		"a misspelt key is kept and noticed": {"---\nname: a\nmodle: x\n---\n", func(p Persona) bool {
			return p.Meta["modle"] == "x" && len(p.Warnings) == 1 && strings.Contains(p.Warnings[0], "line 3: modle is kept as metadata; did you mean model?")
		}},
		"two letters in each other's place are one slip": {"---\nname: a\nroel: x\n---\n", func(p Persona) bool {
			return p.Meta["roel"] == "x" && len(p.Warnings) == 1 && strings.Contains(p.Warnings[0], "did you mean role?")
		}},
		"a key of one's own is no mistake": {"---\nname: a\nticket: X-1\n---\n", func(p Persona) bool { return p.Meta["ticket"] == "X-1" && p.Warnings == nil }},
		"quoted option values stay text": {"---\nname: a\nlaunchOptions: {x: \"1\", y: 2026-01-01T00:00:00Z}\n---\n", func(p Persona) bool {
			return p.LaunchOptions["x"] == "1" && p.LaunchOptions["y"] == "2026-01-01T00:00:00Z"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Parse("x.md", []byte(tc.text))
			if err != nil || !tc.ok(p) {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
}

func TestListShowsBrokenFilesBesideGoodOnes(t *testing.T) {
	root := workspace(t, map[string]string{
		".cotal/agents/b.md":      "---\nname: b\n---\n",
		".cotal/agents/a.md":      "no front matter",
		".cotal/agents/notes.txt": "ignored",
		".cotal/agents/x y.md":    "---\nname: x\n---\n",
	})
	list, err := List(root)
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if list[0].Ref != "a" || list[0].Err == nil || list[1].Persona.Name != "b" || list[2].Ref != "x y" || list[2].Err == nil {
		t.Errorf("%+v", list)
	}
	if list, err := List(t.TempDir()); err != nil || list != nil {
		t.Errorf("no directory: %v, %v", list, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("---\nname: a\nlaunchOptions: {x: &a [*a]}\n---\n"))
	f.Add([]byte("---\n? [a]\n: b\n---\n"))
	f.Add([]byte("---\nname: !!binary \"\"\n---\n"))
	f.Add([]byte("---\n{name: a, name: b}\n---\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := Parse("x.md", raw)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), "agent file x.md:") {
				t.Fatalf("%v", err)
			}
			return
		}
		if CheckName(p.Name) != nil {
			t.Fatalf("name %q", p.Name)
		}
		if _, err := json.Marshal(p); err != nil {
			t.Fatalf("not JSON: %v", err)
		}
	})
}
