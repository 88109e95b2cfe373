package persona

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func someone(actor string) wire.Caller {
	return wire.Caller{Owner: "local", Actor: actor, UID: "aaaaaaaaaaaaaaaaaaaaaaaaaa"}
}

func ptr[T any](v T) *T { return &v }

// files are the names in the agents directory, hidden ones too.
func files(t *testing.T, root string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(Dir(root))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// proves: PERS-6, PERS-7
func TestDefineRecordsTheOwnerAndPatches(t *testing.T) {
	root := t.TempDir()
	s, me := NewStore(root, authz.Open), someone("ME")
	reply, err := s.Define(me, wire.DefinePersonaArgs{
		Name: "rev", Persona: " You review.\n", Model: ptr("m/1"), Role: "reviewer", Agent: "opencode",
		Subscribe: []string{"team.a"}, AllowSubscribe: []string{"team.>"}, AllowPublish: []string{"team.a"},
	})
	path := filepath.Join(Dir(root), "rev.md")
	if err != nil || reply != (wire.DefinePersonaReply{Name: "rev", Path: path}) {
		t.Fatalf("%+v, %v", reply, err)
	}
	raw, _ := os.ReadFile(path)
	const want = "---\nname: rev\nrole: reviewer\nsubscribe:\n    - team.a\nallowSubscribe:\n    - team.>\nallowPublish:\n    - team.a\n" +
		"agent: opencode\nmodel: m/1\nowner: local.ME\n---\n\nYou review.\n"
	if string(raw) != want {
		t.Errorf("wrote %q\nwant  %q", raw, want)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	// What is not said stays: a new text cannot wipe a model, and an empty one is no model.
	if _, err := s.Define(me, wire.DefinePersonaArgs{Name: "rev", Persona: "You review twice.", Model: ptr(" ")}); err != nil {
		t.Fatal(err)
	}
	p, err := Load(root, "rev")
	if err != nil || p.Body != "You review twice." || p.Model != "m/1" || p.Role != "reviewer" || p.Owner != "local.ME" || len(p.AllowSubscribe) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := s.Define(me, wire.DefinePersonaArgs{Name: "rev", Persona: "x", Model: ptr("m/2"), Subscribe: []string{}}); err != nil {
		t.Fatal(err)
	}
	if p, _ := Load(root, "rev"); p.Model != "m/2" || len(p.Subscribe) != 0 || len(p.AllowSubscribe) != 1 {
		t.Errorf("%+v", p)
	}
	if names := files(t, root); len(names) != 1 {
		t.Errorf("left %q", names)
	}
}

// A text may be a whole agent file; what it cannot do is grant.
//
// proves: PERS-8
func TestATextMayBeAnAgentFile(t *testing.T) {
	root := t.TempDir()
	s, me := NewStore(root, authz.Open), someone("ME")
	text := "---\nrole: tester\ndescription: Tests.\nteam: blue\nmodel: m/1\nsubscribe: [a]\n---\nYou test."
	if _, err := s.Define(me, wire.DefinePersonaArgs{Name: "tst", Persona: text, Model: ptr("m/2")}); err != nil {
		t.Fatal(err)
	}
	p, err := Load(root, "tst")
	if err != nil || p.Name != "tst" || p.Role != "tester" || p.Description != "Tests." || p.Meta["team"] != "blue" || p.Model != "m/2" || p.Body != "You test." {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := s.Define(me, wire.DefinePersonaArgs{Name: "short", Persona: "---\nname: sh\n---\nhi"}); err != nil {
		t.Fatal(err)
	}
	if p, err := Load(root, "short"); err != nil || p.Name != "sh" {
		t.Errorf("%+v, %v", p, err)
	}
	before := files(t, root)
	for text, want := range map[string]string{
		"---\ncapabilities: [spawn]\n---\nx":               "capabilities are given by the operator alone",
		"---\nowner: local.OTHER\n---\nx":                  "the owner is whoever defines",
		"---\nrole: [a]\n---\nx":                           "front matter of the text: role must be a single value",
		"---\nrole: a\nx":                                  "no closing ---",
		"---\n: [\n---\nx":                                 "front matter of the text",
		"\n---\nsubscribe: [\"a b\"]\n---\nx":              "subscribe",
		"---\npublish: [a]\n---\nx":                        "publish is not used any more; write allowPublish",
		"---\nsubscibe: [a]\n---\nx":                       "did you mean subscribe?",
		"---\nname: ../x\n---\nx":                          "is not a name",
		"hello\x00":                                        "not UTF-8 text",
		strings.Repeat("x", MaxSize):                       "larger than 256 KiB",
		"---\nquiet: [a]\nmuted: [a]\n---\nx":              "quiet",
		"---\nlaunchOptions: {a: &b 1}\n---\nx":            "anchors",
		"---\nkind: robot\n---\nx":                         "kind must be agent or endpoint",
		"---\nallowSubscribe: [b]\nsubscribe: [a]\n---\nx": "not within allowSubscribe",
	} {
		_, err := s.Define(me, wire.DefinePersonaArgs{Name: "bad", Persona: text})
		refused(t, err, wire.CodeFailedPrecondition, want)
	}
	if after := files(t, root); !reflect.DeepEqual(after, before) {
		t.Errorf("refused definitions left %q", after)
	}
}

func refused(t *testing.T, err error, code, want string) {
	t.Helper()
	w := wire.ErrorFrom(err)
	if w == nil || w.Code != code || w.Outcome != wire.OutcomeNotExecuted || !strings.Contains(w.Message, want) || len(w.Message) > 600 {
		t.Errorf("got %v, want %s, not-executed, with %q", err, code, want)
	}
}

// proves: PERS-6, PERS-16
func TestWhatIsNotTheCallersIsNotOverwritten(t *testing.T) {
	root := workspace(t, map[string]string{
		".cotal/agents/operator.md": "---\nname: operator\ncapabilities: [spawn]\n---\nx",
		".cotal/agents/other.md":    "---\nname: other\nowner: local.OTHER\n---\nx",
		".cotal/agents/broken.md":   "---\nname: broken\nsubscribe: 1\n---\nx",
		".cotal/agents/half.md":     "---\nname: half",
		"outside.md":                "---\nname: outside\nowner: local.ME\n---\nx",
	})
	s, me := NewStore(root, authz.Open), someone("ME")
	for link, to := range map[string]string{"link": "../../outside.md", "inner": "other.md", "dangling": "../../../nowhere.md", "self": "self.md"} {
		if err := os.Symlink(to, filepath.Join(Dir(root), link+".md")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(Dir(root), "dir.md"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(Dir(root), "pipe.md"), 0o600); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(Dir(root), "huge.md")
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 1<<40); err != nil { // sparse
		t.Fatal(err)
	}
	before := snapshot(t, root)
	for name, want := range map[string]string{
		"operator": "belongs to the operator of this host",
		"other":    "belongs to local.OTHER",
		"broken":   "subscribe must be a list; it stays as it is",
		"half":     "no closing --- line; it stays as it is",
		"link":     "is not a plain file", "inner": "is not a plain file", "dangling": "is not a plain file", "self": "is not a plain file",
		"dir": "is not a plain file", "pipe": "is not a plain file", "huge": "larger than 256 KiB; it stays as it is",
		"": "a name is needed", "../x": "is not a name", "a/b": "is not a name", ".x": "is not a name", "-x": "must not begin with a dash",
		"a\x00b": "is not a name", "a\nb": "is not a name", "rev.md": "is not a name", strings.Repeat("x", 200): "at most 128",
		"$(id)": "is not a name", "ä": "is not a name", "..": "is not a name",
	} {
		_, err := s.Define(me, wire.DefinePersonaArgs{Name: name, Persona: "mine now"})
		refused(t, err, wire.CodeFailedPrecondition, want)
	}
	if after := snapshot(t, root); !reflect.DeepEqual(after, before) {
		t.Errorf("refused definitions changed the directory:\n%v\n%v", before, after)
	}
	// In a space of users the owner is the user, whichever instrument it uses.
	const anna = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	u := NewStore(root, authz.User)
	if _, err := u.Define(wire.Caller{Owner: anna, Actor: "a"}, wire.DefinePersonaArgs{Name: "annas", Persona: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Define(wire.Caller{Owner: anna, Actor: "b"}, wire.DefinePersonaArgs{Name: "annas", Persona: "y"}); err != nil {
		t.Error(err)
	}
	_, err := u.Define(wire.Caller{Owner: "u_bbbbbbbbbbbbbbbbbbbbbbbbbb", Actor: "a"}, wire.DefinePersonaArgs{Name: "annas", Persona: "z"})
	refused(t, err, wire.CodeFailedPrecondition, "belongs to "+anna)
}

// snapshot is what the directory holds: name, mode, size and time of each.
func snapshot(t *testing.T, root string) (out []string) {
	t.Helper()
	for _, name := range files(t, root) {
		st, err := os.Lstat(filepath.Join(Dir(root), name))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprint(name, st.Mode(), st.Size(), st.ModTime()))
	}
	return out
}

// Two hosts over one workspace and many callers: one of them gets the name, and every reader sees a whole file.
func TestConcurrentDefinitionsOfOneName(t *testing.T) {
	for round := range 20 {
		root := t.TempDir()
		stores := []*Store{NewStore(root, authz.Open), NewStore(root, authz.Open)}
		const callers = 16
		errs := make([]error, callers)
		var wg, readers sync.WaitGroup
		done := make(chan struct{})
		readers.Go(func() {
			for {
				if p, err := Load(root, "rev"); err == nil && len(p.Body) != 4096 || err != nil && !strings.HasPrefix(err.Error(), "no persona") {
					t.Errorf("round %d: a reader saw %d bytes, %v", round, len(p.Body), err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
		for i := range callers {
			wg.Go(func() {
				body := strings.Repeat(string(rune('a'+i)), 4096)
				_, errs[i] = stores[i%2].Define(someone(fmt.Sprint("C", i)), wire.DefinePersonaArgs{Name: "rev", Persona: body})
			})
		}
		wg.Wait()
		close(done)
		readers.Wait()
		won := -1
		for i, err := range errs {
			switch {
			case err == nil && won >= 0:
				t.Fatalf("round %d: %d and %d both won", round, won, i)
			case err == nil:
				won = i
			default:
				refused(t, err, wire.CodeFailedPrecondition, "persona rev")
			}
		}
		p, err := Load(root, "rev")
		if won < 0 || err != nil || p.Owner != fmt.Sprint("local.C", won) || p.Body[0] != byte('a'+won) {
			t.Fatalf("round %d: %d won, the file is %s's: %v", round, won, p.Owner, err)
		}
		if names := files(t, root); len(names) != 1 {
			t.Fatalf("round %d: left %q", round, names)
		}
	}
}

// proves: PERS-11, PERS-12
func TestPersonasAreShownToWhoMayReadThem(t *testing.T) {
	root := workspace(t, map[string]string{
		".cotal/agents/shared.md": full[:strings.Index(full, "owner:")] + full[strings.Index(full, "team:"):],
		".cotal/agents/mine.md":   "---\nname: m\nowner: local.ME\nmodel: x\n---\nMine.",
		".cotal/agents/theirs.md": "---\nname: t\nowner: local.OTHER\nmodel: x\nrole: r\n---\nTheirs.",
		".cotal/agents/broken.md": "---\nname: b\nagnet: [x]\n---\n",
	})
	me := someone("ME")
	shared := wire.PersonaRow{Name: "shared", Role: "reviewer", Model: "stub/one", Description: "Reads what others write."}
	mine := wire.PersonaRow{Name: "mine", Model: "x", Owner: "local.ME"}
	for _, r := range []authz.Regime{authz.Open, authz.Static} {
		s := NewStore(root, r)
		got, err := s.Rows(me)
		want := []wire.PersonaRow{mine, shared, {Name: "theirs"}}
		if r == authz.Open {
			if len(got) == 0 || got[0].Name != "broken" || !strings.Contains(got[0].Error, "line 3: agnet is not a known key") || !strings.Contains(got[0].Error, "did you mean agent?") {
				t.Errorf("broken: %+v", got)
			}
			got = got[1:]
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", r, got, err)
		}
		for name, want := range map[string]wire.PersonaRow{"shared": shared, "mine": mine} {
			want.Persona = map[string]string{"shared": "You review.\n\n--- not a border", "mine": "Mine."}[name]
			if got, err := s.Row(me, name); err != nil || got != want {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		// What is not there, not readable and not the caller's is one answer but for the name.
		var texts []string
		for _, name := range []string{"nobody", "broken", "theirs", "../mine", ".cotal/agents/mine.md", ""} {
			_, err := s.Row(me, name)
			refused(t, err, wire.CodeNotFound, "no persona")
			texts = append(texts, strings.Replace(err.Error(), fmt.Sprintf("%q", name), "?", 1))
		}
		for _, text := range texts {
			if text != texts[0] {
				t.Errorf("told apart: %q", texts)
			}
		}
	}
	if rows, err := NewStore(t.TempDir(), authz.Open).Rows(me); err != nil || rows == nil || len(rows) != 0 {
		t.Errorf("a workspace without personas: %v, %v", rows, err)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("---\nname: a\ndescription: |\n  a\n   b: c\n\n\"<<\": x\n\"null\": \"~\"\nlaunchOptions: {a: [1e21, -0.5, \"1\", \"\", null, {b: \"2026-01-01\"}]}\n---\n---\nx"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := Parse("/p.md", raw)
		if err != nil {
			return
		}
		again, err := Encode(p)
		if err != nil {
			t.Fatalf("read, but not written: %v", err)
		}
		if len(again) > MaxSize {
			return
		}
		q, err := Parse("/p.md", again)
		if err != nil {
			t.Fatalf("written, but not read: %v\n%s", err, again)
		}
		p.Warnings, q.Warnings = nil, nil
		for _, l := range []*[]string{&p.Subscribe, &q.Subscribe, &p.Tags, &q.Tags, &p.Quiet, &q.Quiet, &p.Muted, &q.Muted, &p.Capabilities, &q.Capabilities} {
			if len(*l) == 0 {
				*l = nil
			}
		}
		for _, m := range []*map[string]any{&p.LaunchOptions, &q.LaunchOptions} {
			if len(*m) == 0 {
				*m = nil
			}
		}
		if !reflect.DeepEqual(p, q) {
			t.Fatalf("read  %+v\nagain %+v\n%s", p, q, again)
		}
	})
}

// A host that was killed while it wrote a persona left .define-NNN in the directory for ever.
func TestWhatAKilledDefinitionLeftIsRemoved(t *testing.T) {
	root := t.TempDir()
	dir := Dir(root)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	leave := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leave(".define-123")
	leave(".define-mine") // nothing that is written here
	other, err := newTemp(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	owned := filepath.Base(other.Name())
	s := NewStore(root, authz.Open)
	if got := files(t, root); !slices.Equal(got, []string{owned, ".define-mine"}) {
		t.Errorf("a new store leaves %v", got)
	}
	leave(".define-456")
	if _, err := s.Define(someone("ME"), wire.DefinePersonaArgs{Name: "rev", Persona: "You review."}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, root); !slices.Equal(got, []string{owned, ".define-mine", "rev.md"}) {
		t.Errorf("a definition leaves %v", got)
	}
	other.Close() // as it is when its process ends
	NewStore(root, authz.Open)
	if got := files(t, root); !slices.Equal(got, []string{".define-mine", "rev.md"}) {
		t.Errorf("the next store leaves %v", got)
	}
}
