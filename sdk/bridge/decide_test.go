package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestWhatBecomesOfAMessage(t *testing.T) {
	for _, c := range []struct {
		name string
		a    arrival
		want route
	}{
		{"a direct message wakes", arrival{kind: wire.MessageDirect}, routeWake},
		{"a direct message wakes whoever wants nothing else", arrival{kind: wire.MessageDirect, attention: wire.AttentionFocus}, routeWake},
		{"a request to a role wakes", arrival{kind: wire.MessageService, attention: wire.AttentionDND}, routeWake},
		{"what is said on a channel comes with a turn", arrival{kind: wire.MessageChat}, routeHold},
		{"a mention wakes", arrival{kind: wire.MessageChat, mentioned: true}, routeWake},
		{"a mention wakes whoever is not to be disturbed", arrival{kind: wire.MessageChat, mentioned: true, attention: wire.AttentionDND}, routeWake},
		{"a mention wakes on a quiet channel", arrival{kind: wire.MessageChat, mentioned: true, mode: wire.ChannelQuiet}, routeWake},
		{"nothing comes from a muted channel", arrival{kind: wire.MessageChat, mentioned: true, mode: wire.ChannelMuted}, routeDrop},
		{"a quiet channel waits to be asked", arrival{kind: wire.MessageChat, mode: wire.ChannelQuiet}, routeSilent},
		{"a channel waits to be asked by whoever is focused", arrival{kind: wire.MessageChat, attention: wire.AttentionFocus}, routeSilent},
		{"a channel waits for the next turn of whoever is not to be disturbed", arrival{kind: wire.MessageChat, attention: wire.AttentionDND}, routeTurn},
		{"history waits to be asked", arrival{kind: wire.MessageChat, historical: true, mentioned: true}, routeSilent},
	} {
		if got := routeOf(c.a); got != c.want {
			t.Errorf("%s: %d, not %d", c.name, got, c.want)
		}
	}
}

func TestWhenAnAgentMayBeWoken(t *testing.T) {
	for _, c := range []struct {
		name string
		s    State
		want bool
	}{
		{"idle", State{Status: "idle"}, true},
		{"idle behind a failure", State{Status: "idle", Condition: &wire.PresenceCondition{Code: "rate_limit"}}, true},
		{"working", State{Status: "working", Turn: true}, false},
		{"a dialog is open", State{Status: "waiting", Turn: true}, false},
		{"a dialog is open between turns", State{Status: "idle", Condition: &wire.PresenceCondition{Code: "input"}}, false},
		{"its session ended", State{Status: "idle", Gone: true}, false},
	} {
		if got := mayWake(c.s); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestWhatAnAgentIsShownAs(t *testing.T) {
	idle, work := State{Status: "idle", By: ByHook}, State{Status: "working", By: ByFile, Turn: true}
	for _, c := range []struct {
		name     string
		s        State
		heard    bool
		claim    string
		want, by string
	}{
		{"nothing was told", State{Status: "idle"}, false, "", "idle", ""},
		{"a program without hooks is what its agent says", State{Status: "idle"}, false, "working", "working", ByAgent},
		{"hooks know better that it works", work, true, "idle", "working", ByFile},
		{"hooks know better that it does not", idle, true, "working", "idle", ByHook},
		{"between turns an agent may wait for somebody", idle, true, "waiting", "waiting", ByAgent},
		{"a failure is not covered up", State{Status: "idle", By: ByHook, Condition: &wire.PresenceCondition{Code: "auth"}}, true, "waiting", "idle", ByHook},
	} {
		if got, by := shownStatus(c.s, c.heard, c.claim); got != c.want || by != c.by {
			t.Errorf("%s: %s by %s, not %s by %s", c.name, got, by, c.want, c.by)
		}
	}
}

func TestASecondQuestionTakesThePlaceOfTheFirst(t *testing.T) {
	var b Bridge
	var r wire.Presence
	for _, tool := range []string{"Bash", "Write"} {
		b.state = Judge(b.state, Event{Name: "PermissionRequest", Tool: tool})
		if b.fill(&r); r.Condition == nil || r.Condition.Message != tool || r.Condition.Since == 0 {
			t.Errorf("a question for %s is shown as %+v", tool, r.Condition)
		}
	}
	r.Condition.Since = 1
	if b.fill(&r); r.Condition.Since != 1 {
		t.Error("a question that is still open began anew")
	}
}

func TestANotificationIsNoWork(t *testing.T) {
	b := Bridge{change: make(chan struct{}, 1), bell: make(chan struct{}, 1)}
	b.onFrame(frame{Event: Event{Name: "Stop"}})
	before := b.active
	b.onFrame(frame{Event: Event{Name: "Notification", Kind: "idle_prompt"}})
	if before.IsZero() || b.active != before || b.lately.Before(before) {
		t.Errorf("the end of a turn at %v, a notification behind it: active at %v, last told at %v", before, b.active, b.lately)
	}
}

func TestAHostThatSaysNothingOfAGoalIsNotOneThatStartsIt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	b := Bridge{trouble: errors.New("away")}
	if result, err := b.await(ctx, "g", wire.Acceptance{}, nil); result != nil || !errors.Is(err, ErrNotConnected) {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestAnAnswerThatNobodyWaitsForLeavesMessagesUnread(t *testing.T) {
	b := Bridge{trouble: errors.New("away")}
	b.ctx = t.Context()
	b.box.put(item{m: mesh.Message{Kind: wire.MessageChat, Message: wire.Message{ID: "c", Channel: "team", Parts: mesh.Text("x")}}})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if text, err := b.readInbox(over, inboxArgs{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := b.readInbox(t.Context(), inboxArgs{}); err != nil || !strings.Contains(text, `"channel":"team"`) {
		t.Errorf("%q, %v", text, err)
	}
}

func TestWhichMessagesAnIdleAgentIsToldOf(t *testing.T) {
	for _, c := range []struct {
		name       string
		it         item
		unanswered bool
		want       bool
	}{
		{"one that may wake it", item{urgent: true}, false, true},
		{"one that waits to be asked for", item{}, true, false},
		{"one that it was told of", item{urgent: true, nudges: 1}, false, false},
		{"one that it was told of, and took no turn", item{urgent: true, nudges: 1}, true, true},
		{"one that it was told of so often that it does not help", item{urgent: true, nudges: maxNudges}, true, false},
	} {
		if got := mayBring(c.it, c.unanswered); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestWhoANameMeans(t *testing.T) {
	row := func(name, id, status string) wire.Presence {
		return wire.Presence{Card: wire.AgentCard{ID: id, Name: name, Kind: wire.CardAgent}, Status: status}
	}
	rows := []wire.Presence{
		row("ann", "local.UA", "idle"), row("bob", "local.UB1", "idle"), row("bob", "local.UB2", "working"),
		row("cid", "local.UC1", "offline"), row("cid", "local.UC2", "idle"), row("dan", "local.UD", "offline"),
	}
	for _, c := range []struct {
		name, ref, state, want, says string
	}{
		{"a name", "ann", mesh.ViewCurrent, "local.UA", ""},
		{"a name, however it is written", "Ann", mesh.ViewCurrent, "local.UA", ""},
		{"an id", "local.UB2", mesh.ViewCurrent, "local.UB2", ""},
		{"a name of two", "bob", mesh.ViewCurrent, "", "say which by its id: local.UB1, local.UB2"},
		{"a name of one who is there and one who is gone", "cid", mesh.ViewCurrent, "local.UC2", ""},
		{"a name of one who is gone", "dan", mesh.ViewCurrent, "", "dan is offline (local.UD)"},
		{"a name of one who may be gone", "dan", mesh.ViewStale, "local.UD", ""},
		{"a name of nobody", "eve", mesh.ViewCurrent, "", "nobody here is called eve; there are: ann, bob, bob, cid"},
		{"a name of nobody who is seen", "eve", mesh.ViewStale, "", "not known for certain"},
		{"an id that nobody has seen", "local.UX", mesh.ViewCurrent, "local.UX", ""},
	} {
		got, err := choose(mesh.View{Rows: rows, State: c.state}, c.ref)
		if c.says == "" && (err != nil || got.Card.ID != c.want) || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %s, %v", c.name, got.Card.ID, err)
		}
	}
}

func TestWhereAnAgentSpeaksThatNamesNoChannel(t *testing.T) {
	for _, c := range []struct {
		name             string
		launched, joined []string
		want             string
	}{
		{"none", nil, nil, ""},
		{"the first that it was launched with", []string{"a", "b"}, []string{"b", "a"}, "a"},
		{"one that it did not get to is not meant", []string{"a", "b"}, []string{"b"}, "b"},
		{"one that it joined itself", nil, []string{"c"}, "c"},
		{"a pattern is no channel", []string{"team.>"}, []string{"team.>", "c"}, "c"},
	} {
		if got := firstChannel(c.launched, c.joined); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	for channel, want := range map[string]bool{"team": true, "team.x": false, "dev.a.b": true, "dev": false, "dev.>": true, "*": false} {
		if got := (&Launch{}).covers([]string{"team", "dev.>"}, channel); got != want {
			t.Errorf("%s: %v", channel, got)
		}
	}
	// Where nothing is said the mesh decides in open mode, and with a credential nothing is granted.
	for creds, want := range map[string]string{"": "what the mesh lets you", "/c": "none"} {
		l := &Launch{Creds: creds}
		if got := l.covers(nil, "team"); got != (creds == "") || l.allowed(nil) != want {
			t.Errorf("credential %q: %v, %q", creds, got, l.allowed(nil))
		}
	}
}

// An inbox holds what fits, tells what it dropped, and drops nothing that was sent to the agent alone.
func TestAnInboxIsBounded(t *testing.T) {
	var b inbox
	said := func(i int, text string) item {
		return item{m: mesh.Message{Kind: wire.MessageChat, Message: wire.Message{ID: fmt.Sprint("c", i), Channel: "team", Parts: mesh.Text(text)}}}
	}
	sent := func(i int) item {
		return item{m: mesh.Message{Kind: wire.MessageDirect, Message: wire.Message{ID: fmt.Sprint("d", i), Parts: mesh.Text("x")}}, d: &mesh.Delivery{}}
	}
	all := func(item) bool { return true }
	for i := range maxDirectItems {
		if !b.put(sent(i)) || b.put(sent(i)) {
			t.Fatal("a message is not taken, or taken twice")
		}
	}
	room := b.full()
	if room == nil {
		t.Fatal("there is no end to direct messages")
	}
	for i := range maxChannelItems + 7 {
		b.put(said(i, strings.Repeat("y", 300)))
	}
	if direct, channel := b.unread(); direct != maxDirectItems || channel != maxChannelItems {
		t.Errorf("%d direct, %d of channels", direct, channel)
	}
	items, left, dropped := b.look(all)
	if items[0].m.ID != "d0" || left == 0 || dropped != 7 || len(items)+left != maxDirectItems+maxChannelItems {
		t.Errorf("%d items from %s on, %d left, %d dropped", len(items), items[0].m.ID, left, dropped)
	}
	b.remove(items[:1])
	select {
	case <-room:
	default:
		t.Error("there is no room behind a reading")
	}
	if b.full() != nil {
		t.Error("it is full with room in it")
	}
	// One message that is larger than a reading comes alone.
	b = inbox{}
	b.put(said(1, strings.Repeat("z", window*2)))
	b.put(said(2, "small"))
	if items, left, _ := b.look(all); len(items) != 1 || left != 1 || items[0].m.ID != "c1" {
		t.Errorf("%d items, %d left", len(items), left)
	}
	taken, _, _ := b.take(all)
	if items, _, _ := b.look(all); len(taken) != 1 || len(items) != 1 || items[0].m.ID != "c2" {
		t.Errorf("%d were taken, %d are left", len(taken), len(items))
	}
	b.back(taken)
	if items, left, _ := b.look(all); len(items) != 1 || left != 1 || items[0].m.ID != "c1" {
		t.Errorf("what was put back: %d items, %d left", len(items), left)
	}
	// What is taken out is still unread, until it is removed: then whoever has it out cannot put it back.
	task := sent(1)
	b.put(task)
	taken, _, _ = b.take(func(it item) bool { return it.d != nil })
	if len(taken) != 1 || !b.has(task) {
		t.Errorf("%d were taken, and what was taken counts as read", len(taken))
	}
	b.back(taken)
	taken, _, _ = b.take(func(it item) bool { return it.d != nil })
	b.remove([]item{task})
	b.back(taken)
	if len(taken) != 1 || b.has(task) {
		t.Errorf("%d were taken again, and a task that goes to another is put back", len(taken))
	}
	b.dropChannel("team")
	if items, _, _ := b.look(all); len(items) != 0 {
		t.Error("a muted channel is still there")
	}
}

func TestALaunchNamesItsFault(t *testing.T) {
	dir := t.TempDir()
	good := map[string]string{
		"COTAL_SPACE": "main", "COTAL_NAME": "rev", "COTAL_ID": "local.UABC", "COTAL_LIFECYCLE_UID": wire.NewUID(),
		"COTAL_SUBSCRIBE": "team, dev.>", "COTAL_CAPABILITIES": "spawn", "COTAL_MANAGER_INSTANCE": "i",
	}
	const servers = `{"servers":"nats://127.0.0.1:1","token":"t0psecret"`
	for i, c := range []struct {
		name, text string
		mode       os.FileMode
		drop       string // of the environment
		set        string
		says       string
	}{
		{"the environment says who it is", servers + `}`, 0o600, "", "", ""},
		{"a file that others read", servers + `}`, 0o640, "", "", "chmod 600"},
		{"a file of something else", `hello`, 0o600, "", "", "launch material"},
		{"no server", `{"token":"x"}`, 0o600, "", "", "servers: is missing"},
		{"no id", servers + `}`, 0o600, "COTAL_ID", "", "COTAL_ID"},
		{"no name", servers + `}`, 0o600, "COTAL_NAME", "", "COTAL_NAME"},
		{"no life", servers + `}`, 0o600, "COTAL_LIFECYCLE_UID", "short", "COTAL_LIFECYCLE_UID"},
		{"a space that is none", servers + `}`, 0o600, "COTAL_SPACE", "a.b", "COTAL_SPACE"},
		{"a seat whose life is none", servers + `,"seat":{"space":"main","name":"n","id":"local.UABC","lifecycleUid":"X"}}`, 0o600, "", "", "seat.lifecycleUid"},
		{"a list that is none", servers + `,"seat":{"space":"main","name":"n","id":"local.UABC","lifecycleUid":"abcdefghijklmnopqrstuvwxyz","subscribe":"team"}}`, 0o600, "", "", "seat.subscribe"},
	} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		l, err := ReadLaunch(path, func(name string) string {
			if name == c.drop {
				return c.set
			}
			return good[name]
		})
		if c.says == "" {
			if err != nil || len(l.Subscribe) != 2 || !l.Can(CapabilitySpawn) || l.Instance != "i" || l.Socket != filepath.Join(dir, "bridge.sock") {
				t.Errorf("%s: %+v, %v", c.name, l.LaunchSeat, err)
			}
			if text := fmt.Sprintf("%v %+v %#v", l, l, l); strings.Contains(text, "t0psecret") {
				t.Errorf("%s: printed: %s", c.name, text)
			}
			continue
		}
		if !errors.Is(err, ErrLaunch) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) && c.drop == "" {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && strings.Contains(err.Error(), "t0psecret") {
			t.Errorf("%s: the error has the secret: %v", c.name, err)
		}
	}
	if _, err := ReadLaunch("", func(string) string { return "" }); !errors.Is(err, ErrLaunch) || !strings.Contains(err.Error(), wire.LaunchMaterialEnv) {
		t.Errorf("no file is named: %v", err)
	}
}

func TestWhatAnAnswerToANudgeMeans(t *testing.T) {
	later, failed := func(err error) bool { return errors.Is(err, ErrNotNow) }, func(err error) bool { return err != nil && !errors.Is(err, ErrNotNow) }
	for _, c := range []struct {
		name string
		err  error
		is   func(error) bool
	}{
		{"it was typed", nil, func(err error) bool { return err == nil }},
		{"it may have been typed", fmt.Errorf("call: %w", mesh.ErrNoReply), func(err error) bool { return err == nil }},
		{"a person types", &wire.Error{Code: wire.CodeUnavailable, Outcome: wire.OutcomeNotExecuted}, later},
		{"the host is away", fmt.Errorf("call: %w", mesh.ErrNoResponder), later},
		{"the mesh is away", ErrNotConnected, later},
		{"the runtime cannot type", &wire.Error{Code: wire.CodeUnimplemented, Outcome: wire.OutcomeNotExecuted}, failed},
		{"the seat is not the host's", &wire.Error{Code: wire.CodeExpired, Outcome: wire.OutcomeNotExecuted}, failed},
	} {
		if got := nudgeError(c.err); !c.is(got) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
