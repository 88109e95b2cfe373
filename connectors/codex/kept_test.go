package codex

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/private"
)

// What is kept of seats that are gone does not grow for ever. Live seats have their sessions in the same place, and keep
// them, however long nothing is said in them.
func TestOldSessionsGoAndThoseOfLiveSeatsStay(t *testing.T) {
	root, seats := t.TempDir(), t.TempDir()
	c := &Connector{}
	if err := c.Configure(t.Context(), sdk.PluginConfig{SeatRoot: seats, Config: json.RawMessage(`{"keep_sessions":2}`)}); err != nil {
		t.Fatal(err)
	}
	id := func(n int) string { return fmt.Sprintf("0199a213-81c0-7800-8aa1-%012d", n) }
	session := func(n int, head string) string {
		t.Helper()
		path := filepath.Join(storeDir(root), "2026", "01", fmt.Sprintf("%02d", n), "rollout-2026-01-02T10-00-00-"+id(n)+".jsonl")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(head+"\n{}\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	launch := func(name, source string, opened ...string) string {
		t.Helper()
		dir := filepath.Join(seats, name, "launch")
		p := plan.Plan{Version: plan.Version, Binary: "/b", Home: "/h", Store: storeDir(root), Cwd: "/c", Action: plan.ActionNew}
		if source != "" {
			p.Action, p.Session, p.Rollout = plan.ActionFork, source, "/r"
		}
		if err := errors.Join(os.MkdirAll(dir, 0o700), private.WriteJSON(filepath.Join(dir, planFile), p)); err != nil {
			t.Fatal(err)
		}
		for _, id := range opened {
			if err := plan.NoteSession(dir, id); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	reap := func(dir string) sdk.ReapReport {
		t.Helper()
		report, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: dir, WorkspaceRoot: root})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	want := map[string]bool{
		session(1, "{}"):                     false, // of a seat that is gone
		session(2, "{}"):                     true,  // a live seat has it open
		session(3, "{}"):                     true,  // and went to this one since
		session(4, "{}"):                     true,  // another was forked from it
		session(5, `{"parent":"`+id(2)+`"}`): true,  // of an agent of the first
		session(6, `{"parent":"`+id(1)+`"}`): false, // of an agent of one that is gone
		session(7, "{}"):                     false,
	}
	launch("one", "", id(2), id(3))
	launch("two", id(4), id(7)+"0")
	check := func(when string, all bool) {
		t.Helper()
		for path, stays := range want {
			if _, err := os.Stat(path); (err == nil) != (all || stays) {
				t.Errorf("%s: %s: %v, want there: %v", when, filepath.Base(path), err, all || stays)
			}
		}
	}
	reap(launch("gone", "", id(1), id(7)))
	check("just behind the end of its seat", true)
	c.now = func() time.Time { return time.Now().Add(100 * 24 * time.Hour) }
	report := reap(launch("later", ""))
	check("a hundred days later", false)
	if said := strings.Join(report.Evidence, "\n"); !strings.Contains(said, "3 sessions") {
		t.Errorf("the report says %s", said)
	}
	if err := os.RemoveAll(filepath.Join(seats, "one")); err != nil {
		t.Fatal(err)
	}
	reap(launch("later", ""))
	if left, _ := filepath.Glob(filepath.Join(storeDir(root), "*", "*", "*", "*")); len(left) != 1 {
		t.Errorf("left are %v, want the one that a live seat was forked from", left)
	}
}

// Nobody can find by it where Codex listened, and whoever lost the power has no Codex any more.
func TestASeatWhoseRecordOfASocketIsDamagedIsCleanedUp(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	record := filepath.Join(dir, plan.APISocket+".path")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(record, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	report, err := (&Connector{}).Reap(t.Context(), sdk.LeftoverRequest{Dir: dir, WorkspaceRoot: t.TempDir()})
	if err != nil || len(report.Removed) != 1 || report.Removed[0] != record {
		t.Errorf("removed are %v, %v", report.Removed, err)
	}
}

// Plugins are upgraded under seats that run: what one of another version has open is not known, and must not go.
func TestWhatASeatHasOpenThatIsNotUnderstoodIsKept(t *testing.T) {
	root, seats := t.TempDir(), t.TempDir()
	c := &Connector{now: func() time.Time { return time.Now().Add(100 * 24 * time.Hour) }}
	if err := c.Configure(t.Context(), sdk.PluginConfig{SeatRoot: seats}); err != nil {
		t.Fatal(err)
	}
	const id = "0199a213-81c0-7800-8aa1-000000000001"
	path := filepath.Join(storeDir(root), "2026", "01", "02", "rollout-2026-01-02T10-00-00-"+id+".jsonl")
	dir := filepath.Join(seats, "one", "launch")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600), os.MkdirAll(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	p := plan.Plan{Version: plan.Version, Binary: "/b", Home: "/h", Store: storeDir(root), Cwd: "/c", Action: plan.ActionNew}
	next := p
	next.Version++
	for _, c2 := range []struct {
		name  string
		plan  plan.Plan
		noted bool
		stays bool
	}{
		{"a seat whose plan is of another version", next, true, true},
		{"a seat that has not noted what it works in", p, false, true},
		{"a seat that works in another one", p, true, false},
	} {
		if err := errors.Join(private.WriteJSON(filepath.Join(dir, planFile), c2.plan), os.RemoveAll(filepath.Join(dir, plan.SessionsName))); err != nil {
			t.Fatal(err)
		}
		if c2.noted {
			if err := plan.NoteSession(dir, "0199a213-81c0-7800-8aa1-000000000002"); err != nil {
				t.Fatal(err)
			}
		}
		gone := filepath.Join(seats, "gone", "launch")
		report, err := c.Reap(t.Context(), sdk.LeftoverRequest{Dir: gone, WorkspaceRoot: root})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); (err == nil) != c2.stays {
			t.Errorf("%s: the session: %v, want there: %v", c2.name, err, c2.stays)
		}
		if said := strings.Join(report.Evidence, "\n"); strings.Contains(said, "no session is removed") != c2.stays {
			t.Errorf("%s: the report says %s", c2.name, said)
		}
	}
}

// A seat whose program ended goes on with its session: behind its end that is as good as new.
func TestTheSessionOfASeatThatEndsIsRenewed(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	const id = "0199a213-81c0-7800-8aa1-000000000001"
	path := filepath.Join(storeDir(root), "2026", "01", "02", "rollout-2026-01-02T10-00-00-"+id+".jsonl")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o644), plan.NoteSession(dir, id)); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Connector{}).Reap(t.Context(), sdk.LeftoverRequest{Dir: dir, WorkspaceRoot: root}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 { // what renews it also closes it
		t.Errorf("it is %v, %v", st, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
