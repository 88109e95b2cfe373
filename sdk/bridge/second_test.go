package bridge

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestWhatIsKnownBesideTheHooks(t *testing.T) {
	idle := State{Status: "idle", By: ByHook}
	failed := State{Status: "idle", By: ByHook, Condition: &wire.PresenceCondition{Code: "auth"}}
	busy := State{Status: "working", By: ByHook, Turn: true, Activity: "Bash", Tool: "Bash"}
	asked := State{Status: "waiting", By: ByHook, Turn: true, Activity: "Bash", Condition: &wire.PresenceCondition{Code: "approval"}}
	told := time.UnixMilli(1_000_000)
	later, earlier := told.Add(time.Second), told.Add(-time.Second)
	const limit = time.Minute
	for _, c := range []struct {
		name             string
		from             State
		f                filed
		quiet            time.Duration
		status, by, code string
	}{
		{"no file, and a turn that tells something", busy, filed{}, time.Second, "working", ByHook, ""},
		{"a turn that tells nothing for long is over", busy, filed{}, limit, "idle", BySilence, ""},
		{"a question stays open for ever", asked, filed{}, time.Hour, "waiting", ByHook, "approval"},
		{"an idle agent stays idle", failed, filed{}, time.Hour, "idle", ByHook, "auth"},
		{"a turn that was stopped by hand", busy, filed{status: "idle", since: later}, time.Second, "idle", ByFile, ""},
		{"a question that was answered with no", asked, filed{status: "idle", since: later}, time.Second, "idle", ByFile, ""},
		{"a question that was answered with yes", asked, filed{status: "working", since: later}, time.Second, "working", ByFile, ""},
		{"a question that no hook tells of", busy, filed{status: "waiting", since: later, waiting: "dialog open"}, time.Second, "waiting", ByFile, "input"},
		{"a question between turns", idle, filed{status: "waiting", since: later}, time.Second, "waiting", ByFile, "input"},
		{"a turn that no hook tells of", idle, filed{status: "working", since: later}, time.Second, "working", ByFile, ""},
		{"what the hooks know already stays as they say it", asked, filed{status: "waiting", since: later, waiting: "dialog open"}, time.Second, "waiting", ByHook, "approval"},
		{"a failure is not covered up", failed, filed{status: "idle", since: later}, time.Second, "idle", ByHook, "auth"},
		{"a file that is older than the last hook says nothing", busy, filed{status: "idle", since: earlier}, time.Second, "working", ByHook, ""},
		{"a program that says that it works is not over", busy, filed{status: "working", since: earlier}, time.Hour, "working", ByHook, ""},
		{"a program that says that it is idle may be over", busy, filed{status: "idle", since: earlier}, time.Hour, "idle", BySilence, ""},
		{"a session that ended stays ended", State{Status: "idle", Gone: true, By: ByHook}, filed{status: "working", since: later}, time.Second, "idle", ByHook, ""},
	} {
		got := amend(c.from, told, c.quiet, c.f, limit)
		code := ""
		if got.Condition != nil {
			code = got.Condition.Code
		}
		if got.Status != c.status || got.By != c.by || code != c.code {
			t.Errorf("%s: %s by %s, %q", c.name, got.Status, got.By, code)
		}
		if got.Status == "idle" && got.Turn {
			t.Errorf("%s: the turn is still open", c.name)
		}
	}
	if got := amend(busy, told, time.Hour, filed{}, 0); got != busy {
		t.Errorf("without a limit: %+v", got)
	}
}

func TestAStatusFileIsReadForWhatItSays(t *testing.T) {
	written := time.UnixMilli(7_000)
	for _, c := range []struct {
		name, text, status, waiting string
		since                       int64
	}{
		{"idle", `{"pid":1,"status":"idle","statusUpdatedAt":5000}`, "idle", "", 5000},
		{"busy is working", `{"status":"busy","statusUpdatedAt":5000.5}`, "working", "", 5000},
		{"waiting says for what", `{"status":"waiting","waitingFor":"dialog open"}`, "waiting", "dialog open", 7000},
		{"a time of another kind is when it was written", `{"status":"idle","statusUpdatedAt":"now"}`, "idle", "", 7000},
		{"a word that nobody knows", `{"status":"tired"}`, "", "", 7000},
		{"a status of another kind", `{"status":7}`, "", "", 7000},
	} {
		if got := parseStatusFile([]byte(c.text), written); got.status != c.status || got.waiting != c.waiting || got.since.UnixMilli() != c.since {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	for _, text := range []string{``, `{"status":`, `[]`, `null`, `"idle"`} {
		if got := parseStatusFile([]byte(text), written); got.status != "" {
			t.Errorf("%q says %+v", text, got)
		}
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir, filepath.Join(dir, "none")} {
		if got := readStatusFile(path); got.status != "" {
			t.Errorf("%s says %+v", path, got)
		}
	}
	file := filepath.Join(dir, "s.json")
	if err := os.WriteFile(file, []byte(`{"status":"busy"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readStatusFile(file); got.status != wire.StatusWorking || time.Since(got.since) > time.Hour {
		t.Errorf("a file says %+v", got)
	}
}

func FuzzStatusFile(f *testing.F) {
	f.Add([]byte(`{"status":"waiting","waitingFor":"dialog open","statusUpdatedAt":1764489600000}`))
	f.Add([]byte(`{"status":"busy","statusUpdatedAt":-1e300}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got := parseStatusFile(text, time.UnixMilli(7_000))
		switch got.status {
		case "", wire.StatusIdle, wire.StatusWorking, wire.StatusWaiting:
		default:
			t.Fatalf("status %q", got.status)
		}
		s := amend(State{Status: wire.StatusIdle}, time.UnixMilli(0), 0, got, 0)
		p := wire.Presence{
			Card:   wire.AgentCard{ID: "local.UABC", Name: "x", Kind: wire.CardAgent, ProtocolVersion: wire.ProtocolVersion},
			Status: s.Status, Activity: s.Activity, Condition: s.Condition, LifecycleUID: "abcdefghijklmnopqrstuvwxyz", TS: 1,
		}
		if _, err := p.Encode(); err != nil {
			t.Fatalf("%+v cannot be published: %v", s, err)
		}
	})
}
