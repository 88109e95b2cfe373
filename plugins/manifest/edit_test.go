package manifest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/describe"
)

const edited = `# what this machine runs
schema = 1

# the one for echo-agent
# ask Ann before you change it
[[plugin]]
name    = "echo"
kind    = "connector"
command = "cotal-connector-echo"   # built by hand
version = '0.1.0'
sha256  = "1111111111111111111111111111111111111111111111111111111111111111" # of Monday
env     = [
  "A", # first
  "B",
]

[plugin.config]
endpoint = "http://127.0.0.1:1" # not https
text = """
[[plugin]]
name = "no"
"""

# the other one
[[plugin]]
name = "pane"
kind = "runtime"
command = "cotal-runtime-pane"
version = "2"
sha256 = "2222222222222222222222222222222222222222222222222222222222222222"
enabled = false # until Friday
`

func TestAnEditChangesOnlyWhatItSays(t *testing.T) {
	off, digest := false, strings.Repeat("3", 64)
	put := func(name string, kind describe.Kind, enabled *bool) Edit {
		return Edit{Kind: kind, Name: name, Put: Entry{Name: name, Kind: kind, Command: "cotal-new", Version: "9", SHA256: digest, Enabled: enabled}}
	}
	swap := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(edited) }
	digestLine := "sha256 = \"" + digest + "\"\n"
	plain := func(name string) string {
		return "[[plugin]]\nname = \"" + name + "\"\nkind = \"connector\"\ncommand = \"c\"\nversion = \"1\"\n" + digestLine
	}
	echo, pane := strings.Index(edited, "# the one for"), strings.Index(edited, "# the other")
	for _, c := range []struct {
		name string
		edit Edit
		text string
		want string
		err  error
	}{
		{
			"an upgrade keeps comments, quotes elsewhere, environment and configuration", put("echo", describe.Connector, nil), edited,
			swap(`"cotal-connector-echo"`, `"cotal-new"`, `'0.1.0'`, `"9"`, strings.Repeat("1", 64), digest), nil,
		},
		{
			"an upgrade that enables writes true where false was", put("pane", describe.Runtime, nil), edited,
			swap(`"cotal-runtime-pane"`, `"cotal-new"`, `version = "2"`, `version = "9"`, strings.Repeat("2", 64), digest, "enabled = false", "enabled = true"), nil,
		},
		{
			"to disable adds a line", put("echo", describe.Connector, &off), edited,
			swap(`"cotal-connector-echo"`, `"cotal-new"`, `'0.1.0'`, `"9"`, strings.Repeat("1", 64), digest, "  \"B\",\n]\n", "  \"B\",\n]\nenabled = false\n"), nil,
		},
		{"a removal takes the comment right above, and the configuration", Edit{Kind: describe.Connector, Name: "echo", Remove: true}, edited, edited[:echo] + edited[pane:], nil},
		{"the last one can be removed", Edit{Kind: describe.Runtime, Name: "pane", Remove: true}, edited, edited[:pane], nil},
		{
			"a removal keeps the comments that stand apart behind it",
			Edit{Kind: describe.Connector, Name: "a", Remove: true},
			"schema = 1\n\n" + plain("a") + "# of a\n\n# [[plugin]]\n# name = \"off\"\n\n# of b\n" + plain("b"),
			"schema = 1\n\n# [[plugin]]\n# name = \"off\"\n\n# of b\n" + plain("b"), nil,
		},
		{
			"a removal of the last one keeps them apart from what is before",
			Edit{Kind: describe.Connector, Name: "a", Remove: true},
			"schema = 1\n" + plain("a") + "\n# the end\n", "schema = 1\n\n# the end\n", nil,
		},
		{"the same name of another kind is another entry", Edit{Kind: describe.Runtime, Name: "echo", Remove: true}, edited, "", fs.ErrNotExist},
		{
			"a key written with an escape is left to people", put("x", describe.Connector, nil),
			"schema = 1\n[[plugin]]\nname = \"x\"\nkind = \"connector\"\ncommand = \"c\"\nversion = \"1\"\n\"sha2\\u00356\" = \"" + digest + "\"\n", "", ErrEditByHand,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.edit.Apply([]byte(c.text))
			if !errors.Is(err, c.err) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			if err == nil && string(got) != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	for _, text := range []string{"", "schema = 1", edited} {
		got, err := put("new", describe.Connector, nil).Apply([]byte(text))
		if err != nil || !bytes.HasPrefix(got, []byte(strings.TrimRight(text, "\n"))) {
			t.Fatalf("a new entry: %v\n%s", err, got)
		}
		if es, err := Parse(got); err != nil || es[len(es)-1].Name != "new" {
			t.Errorf("%+v, %v", es, err)
		}
	}
}

func TestUpdatesOfOneFileComeOneAfterTheOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cotal", FileName)
	var wg sync.WaitGroup
	const n = 20
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			e := Entry{Name: "p" + string(rune('a'+i)), Kind: describe.Connector, Command: "c", Version: "1", SHA256: strings.Repeat("0", 64)}
			if err := Update(context.Background(), path, Edit{Kind: e.Kind, Name: e.Name, Put: e}.Apply); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	// What somebody left who died is removed, and what an editor has there is not.
	dead, swap := filepath.Join(filepath.Dir(path), "."+FileName+".123456"), filepath.Join(filepath.Dir(path), "."+FileName+".swp")
	for _, file := range []string{dead, swap} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Update(context.Background(), path, func(text []byte) ([]byte, error) { return text, nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); err == nil {
		t.Error("the rest of a killed change is left")
	}
	if _, err := os.Stat(swap); err != nil {
		t.Error("a file of an editor was removed")
	}
	m, err := Load(path)
	if err != nil || len(m.Entries) != n {
		t.Fatalf("%v, %+v", err, m)
	}
	if err := Update(context.Background(), path, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestALinkedManifestIsChangedWhereItLeads(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "dotfiles", FileName), filepath.Join(dir, FileName)
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(real, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	if err := Update(t.Context(), link, Edit{Kind: describe.Runtime, Name: "pane", Remove: true}.Apply); err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(link)
	if err != nil || st.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", st, err)
	}
	if st, err := os.Stat(real); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want it kept", st.Mode(), err)
	}
	if m, err := Load(link); err != nil || len(m.Entries) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
}
