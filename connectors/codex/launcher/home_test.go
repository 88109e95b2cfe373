package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
)

func TestTheHomeLeadsToWhatOutlivesTheSeat(t *testing.T) {
	dir := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	p := plan.Plan{Home: at("home"), Store: at("w", ".cotal", "codex", "sessions"), Operator: at("operator")}
	put := func(text string, names ...string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(at(names...)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(names...), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(p.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	put("be kind", "operator", "AGENTS.md")
	put("a skill", "operator", "skills", "mine", "SKILL.md")
	put("hidden", "operator", "skills", ".system", "SKILL.md")
	put("allow ls", "operator", "rules", "default.rules")
	put("personal", "operator", "history.jsonl")
	for range 2 { // a seat that starts again has them already
		if err := linkHome(p); err != nil {
			t.Fatal(err)
		}
	}
	put("login", "home", "auth.json")
	put("allow ls and rm", "home", "rules", "default.rules")
	put("the program's own", "home", "skills", ".system", "SKILL.md")
	for path, want := range map[string]string{
		at("operator", "auth.json"):                     "login",
		at("operator", "rules", "default.rules"):        "allow ls",
		at("operator", "skills", ".system", "SKILL.md"): "hidden",
		at("home", "AGENTS.md"):                         "be kind",
		at("home", "skills", "mine", "SKILL.md"):        "a skill",
	} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
		}
	}
	if got, err := os.ReadFile(at("w", ".cotal", "codex", ".gitignore")); err != nil || string(got) != "*\n" {
		t.Errorf("what is said in seats could get into the workspace's history: %q, %v", got, err)
	}
	if info, err := os.Stat(at("home", "sessions")); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		t.Errorf("sessions: %v, %v; want a private directory", info, err)
	}
	if _, err := os.Lstat(at("home", "history.jsonl")); err == nil {
		t.Error("the operator's history is in the seat")
	}
}

func TestAHomeWithoutAnOperatorIsOne(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []plan.Plan{
		{Home: dir, Store: filepath.Join(dir, "w", "s")},
		{Home: dir, Store: filepath.Join(dir, "w", "s"), Operator: filepath.Join(dir, "never")},
	} {
		if err := linkHome(p); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
		if to, err := os.Readlink(filepath.Join(dir, "auth.json")); err == nil {
			t.Errorf("%+v: a login would be written to %s, where it cannot be", p, to)
		}
	}
}

func TestASessionOfTheOperatorIsCopiedToBeForked(t *testing.T) {
	dir := t.TempDir()
	store, name := filepath.Join(dir, "store"), "rollout-2026-01-02T10-00-00-x.jsonl"
	source := filepath.Join(dir, "operator", "sessions", "2026", "01", "02", name)
	if err := os.MkdirAll(filepath.Dir(source), 0o700); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(store, "2026", "01", "02", name)
	for _, text := range []string{"one\n", "one\ntwo\n"} { // it went on in between
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := bring(plan.Plan{Action: plan.ActionFork, Store: store, Session: "x", Rollout: source}); err != nil {
			t.Fatal(err)
		}
		was, err := os.Stat(source)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(copied)
		if info, serr := os.Stat(copied); err != nil || serr != nil || string(got) != text || !info.ModTime().Equal(was.ModTime()) {
			t.Errorf("the copy is %q of %v (%v, %v), want %q of %v", got, info, err, serr, text, was.ModTime())
		}
	}
	if err := bring(plan.Plan{Action: plan.ActionFork, Store: store, Session: "x", Rollout: copied}); err != nil {
		t.Errorf("a session that is a seat's already: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(copied)); err != nil || len(left) != 1 {
		t.Errorf("beside the copy is %v, %v", left, err)
	}
	if err := bring(plan.Plan{Action: plan.ActionFork, Store: store, Session: "x", Rollout: source + ".gone"}); err == nil {
		t.Error("a session that is gone was copied")
	}
	for name, text := range map[string]string{
		"a copy in which a seat went on": "one\ntwo\nof a seat\n",
		"a copy that says otherwise":     "one\nTWO\n",
	} {
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := bring(plan.Plan{Action: plan.ActionFork, Store: store, Session: "x", Rollout: source})
		if err == nil || !strings.Contains(err.Error(), copied) || !strings.Contains(err.Error(), source) {
			t.Errorf("%s: %v, want both files named", name, err)
		}
		if got, err := os.ReadFile(copied); err != nil || string(got) != text {
			t.Errorf("%s is now %q, %v", name, got, err)
		}
	}
}

// A session that is old enough to be pruned may be looked at just now by who prunes: he passes over what has changed.
func TestAnOldSessionThatIsTakenUpIsRenewed(t *testing.T) {
	store := t.TempDir()
	path := filepath.Join(store, "rollout-2026-01-02T10-00-00-x.jsonl")
	for _, action := range []plan.Action{plan.ActionFork, plan.ActionOpen} {
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := bring(plan.Plan{Action: action, Store: store, Session: "x", Rollout: path}); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 { // what renews it also closes it
			t.Errorf("%s: it is %v, %v", action, st, err)
		}
	}
}
