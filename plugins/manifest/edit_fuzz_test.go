package manifest

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/describe"
)

// An edit of any text is refused or does what it says, whatever that text is: what Apply compares, the file as it is
// read, must hold for its result.
func FuzzEdit(f *testing.F) {
	f.Add([]byte(edited), "echo", true)
	f.Add([]byte(edited), "pane", false)
	f.Add([]byte("schema = 1\n[[plugin]] # x\nname='a'\nkind=\"runtime\"\ncommand=\"c\"\nversion=\"1\"\nsha256=\"\"\"\n\"\"\"\n"), "a", false)
	f.Add([]byte("schema=1\r\nplugin=[{name=\"a\"}]"), "a", true)
	f.Add([]byte(""), "new", false)
	f.Fuzz(func(t *testing.T, text []byte, name string, remove bool) {
		digest := strings.Repeat("7", 64)
		ed := Edit{Kind: describe.Connector, Name: name, Remove: remove, Put: Entry{Name: name, Kind: describe.Connector, Command: "c", Version: "9", SHA256: digest}}
		out, err := ed.Apply(text)
		if err != nil {
			return
		}
		entries, err := Parse(out)
		if err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		m := Manifest{Entries: entries}
		e, there := m.Find(ed.Kind, name)
		if there == remove || there && (e.SHA256 != digest || e.Version != "9" || !e.On()) {
			t.Fatalf("%+v:\n%s", e, out)
		}
		// Taken back, it is what it was but for that entry, and done again nothing changes.
		if again, err := ed.Apply(out); remove && !errors.Is(err, fs.ErrNotExist) || !remove && (err != nil || string(again) != string(out)) {
			t.Fatalf("again: %v:\n%s\nwas\n%s", err, again, out)
		}
	})
}
