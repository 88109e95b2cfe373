package codex_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// The real program, installed from the registry, on a plain pty, against a stub of its model, on a real mesh. Each
// step is one launch built by the connector; they share a workspace, so that later ones find the session of the first.
//
// proves: CONN-1, CONN-3
func TestRealCodex(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.Codex))
	session := realFreshStart(t, w)
	if t.Failed() {
		return
	}
	realFork(t, w, session)
	realReopen(t, w, session)
	left, err := os.ReadDir(w.path("operator/.codex"))
	if err != nil || len(left) != 1 || left[0].Name() != "config.toml" {
		t.Errorf("the operator's home of the program holds %v, %v; want his configuration alone", left, err)
	}
}

// realFreshStart proves presence, prompt, persona, model, effort, typed input, tools of the mesh, what the mesh shows
// of the turn, a question and its answer, an interrupt, and waking. It returns the session's id.
func realFreshStart(t *testing.T, w *world) string {
	inbox, err := w.peer.DirectMessages(t.Context(), mesh.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer inbox.Close()
	r := w.launch(func(req *sdk.LaunchRequest) {
		req.Prompt = "--fresh start SLOW 2\nof two lines"
		req.Persona = "PERSONA-TEXT: you are careful."
		req.Model, req.Variant = "other-model", "high"
	})
	p := r.showsStatus(wire.StatusWorking)
	session := p.Card.MetaString("sessionId")
	if p.LifecycleUID != r.Req.LifecycleUID || session == "" {
		t.Errorf("it appears as %+v, want the life it was launched for and its session", p)
	}
	got := r.asked("fresh start")
	if got.Turn.LastUser() != r.Req.Prompt || got.Turn.Model != "other-model" || got.Turn.Effort != "high" {
		t.Errorf("the model %q was asked %q with effort %q, want what the launch said", got.Turn.Model, got.Turn.LastUser(), got.Turn.Effort)
	}
	for _, want := range []string{"PERSONA-TEXT", "INSTRUCTIONS-OF-THE-USER"} {
		if !strings.Contains(got.Turn.System, want) {
			t.Errorf("the system prompt lacks %s", want)
		}
	}
	if !slices.Contains(got.Turn.Tools, "mcp__cotal__cotal_dm") {
		t.Errorf("the tools %q lack those of the mesh", got.Turn.Tools)
	}
	r.showsStatus(wire.StatusIdle)

	r.Submit("typed turn\nwith two lines")
	if typed := r.asked("typed turn"); typed.Turn.LastUser() != "typed turn\nwith two lines" || len(typed.Turn.Users) != 2 {
		t.Errorf("after typing the model was asked %q, want the typed text as second turn", typed.Turn.Users)
	}
	r.showsStatus(wire.StatusIdle)

	r.Submit(`TOOLCALL mcp__cotal__cotal_dm {"to":"` + w.peer.Caller().Principal() + `","text":"hello from codex"}`)
	if m := w.hears(inbox, "hello from codex"); m.From.Name != "worker" {
		t.Errorf("the message is from %+v, want the seat", m.From)
	}
	r.showsStatus(wire.StatusIdle)

	marker := w.path("outside")
	r.Submit(`TOOLCALL exec_command {"cmd":"touch ` + marker + `","sandbox_permissions":"require_escalated","justification":"a test"}`)
	p = r.showsStatus(wire.StatusWaiting)
	if _, err := os.Stat(marker); err == nil || p.Condition == nil || p.Condition.Code != "approval" {
		t.Errorf("permissions=ask: file made before the answer (%v), shown as %+v", err, p.Condition)
	}
	r.press("y", "the file that was allowed", func() bool {
		_, err := os.Stat(marker)
		return err == nil
	})
	r.showsStatus(wire.StatusIdle)

	r.Submit("SLOW 9000 to be interrupted")
	r.showsStatus(wire.StatusWorking)
	r.press("\x1b", "the end of the turn", func() bool {
		return slices.ContainsFunc(w.roster.View().Rows, func(p wire.Presence) bool {
			return p.Card.ID == r.Req.Principal && p.Status == wire.StatusIdle
		})
	})
	if p := r.showsStatus(wire.StatusIdle); p.Condition != nil {
		t.Errorf("an interrupt is shown as the failure %+v", p.Condition)
	}

	if _, err := w.peer.SendDirect(t.Context(), r.Req.Principal, "WAKE-UP-CALL"); err != nil {
		t.Fatal(err)
	}
	if got := r.asked("WAKE-UP-CALL"); !strings.Contains(got.Turn.LastUser(), `"from":"peer"`) {
		t.Errorf("woken with %q, want the message as it came", got.Turn.LastUser())
	}
	r.showsStatus(wire.StatusIdle)
	r.end()
	return session
}

// realFork proves that a fork carries the history, that its model can be another one, that allow asks nothing, and that
// its source is left alone.
func realFork(t *testing.T, w *world, session string) {
	r := w.launch(func(req *sdk.LaunchRequest) {
		req.Resume, req.Prompt = session, "HISTORY for the fork"
		req.Model, req.Variant = "stub-model", "low"
		req.LaunchOptions["permissions"] = "allow"
	})
	got := r.asked("for the fork")
	if !strings.Contains(got.Reply, "typed turn") || got.Turn.Model != "stub-model" || got.Turn.Effort != "low" {
		t.Errorf("the fork was asked model %q effort %q, and answered %q, want the history", got.Turn.Model, got.Turn.Effort, got.Reply)
	}
	p := r.showsStatus(wire.StatusIdle)
	if forked := p.Card.MetaString("sessionId"); forked == session || forked == "" {
		t.Errorf("the fork has the session %q, want one of its own", forked)
	}
	marker := w.path("allowed")
	r.Submit(`TOOLCALL exec_command {"cmd":"touch ` + marker + `"}`)
	r.Await("the file made without a question", func() bool {
		_, err := os.Stat(marker)
		return err == nil
	})
	r.showsStatus(wire.StatusIdle)
	r.end()
}

// realReopen proves that a session goes on as itself, without what was said in its fork, and that a seat without a prompt
// waits for one.
func realReopen(t *testing.T, w *world, session string) {
	r := w.launch(func(req *sdk.LaunchRequest) { req.Continue = session })
	r.showsStatus(wire.StatusIdle)
	r.Submit("HISTORY again")
	got := r.asked("HISTORY again")
	if !strings.Contains(got.Reply, "typed turn") || strings.Contains(got.Reply, "for the fork") || got.Turn.Model != "other-model" {
		t.Errorf("model %q answered %q, want the history without the fork's, and the session's own model", got.Turn.Model, got.Reply)
	}
	r.shows("the session itself", func(p wire.Presence) bool { return p.Card.MetaString("sessionId") == session })
	r.end()
}

// A seat without a prompt is there, and can be spoken to. What was said can be forked when it is a session of the
// operator's own too.
func TestRealCodexWithoutAPrompt(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.Codex))
	r := w.launch(nil)
	r.showsStatus(wire.StatusIdle)
	r.Submit("FIRST-WORDS")
	r.asked("FIRST-WORDS")
	r.showsStatus(wire.StatusIdle)
	if _, err := w.peer.SendDirect(t.Context(), r.Req.Principal, "THEN-A-MESSAGE"); err != nil {
		t.Fatal(err)
	}
	r.asked("THEN-A-MESSAGE")
	session := r.showsStatus(wire.StatusIdle).Card.MetaString("sessionId")
	r.end()

	mine := w.becomesTheOperators(session)
	before := w.read(mine)
	r = w.launch(func(req *sdk.LaunchRequest) {
		req.Resume = session
		req.Dir = w.dir("s-" + strings.Repeat("deep", 30)) // too deep for sockets
	})
	r.Submit("HISTORY of a fork")
	if got := r.asked("HISTORY of a fork"); !strings.Contains(got.Reply, "FIRST-WORDS") {
		t.Errorf("the fork answered %q, want the history", got.Reply)
	}
	r.end()
	if w.read(mine) != before {
		t.Error("the operator's session was written to")
	}
}

// proves: CAT-1, CAT-2
func TestRealCodexListsItsModels(t *testing.T) {
	q := sdk.ModelQuery{Binaries: map[string]string{"codex": agents.Need(t, agents.Codex)}, BaseEnv: []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir()}}
	got, err := configured(t, "", "").ListModels(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range got.Models {
		if m.ID == "" || len(m.Variants) == 0 {
			t.Errorf("%+v, want a name and its reasoning efforts", m)
		}
	}
	if len(got.Models) == 0 || got.Source == "" {
		t.Errorf("%+v, want models and where they are from", got)
	}
}

// A person at the terminal may go to another session; the mesh then shows that one, and wakes it.
func TestRealCodexIsFollowedToAnotherSession(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.Codex))
	r := w.launch(func(req *sdk.LaunchRequest) { req.Prompt = "in the first session" })
	r.asked("in the first session")
	first := r.showsStatus(wire.StatusIdle).Card.MetaString("sessionId")
	r.Submit("/new")
	second := r.shows("another session", func(p wire.Presence) bool { return p.Card.MetaString("sessionId") != first })
	r.Await("the second session in its file", func() bool {
		files, _ := filepath.Glob(w.path(".cotal/codex/sessions/*/*/*/*" + second.Card.MetaString("sessionId") + ".jsonl"))
		return len(files) == 1
	})
	r.Submit("SLOW 2 in the second session")
	r.showsStatus(wire.StatusWorking)
	if got := r.asked("in the second session"); len(got.Turn.Users) != 1 {
		t.Errorf("the model was asked %q, want a new session", got.Turn.Users)
	}
	r.showsStatus(wire.StatusIdle)
	if _, err := w.peer.SendDirect(t.Context(), r.Req.Principal, "WAKE-THE-SECOND"); err != nil {
		t.Fatal(err)
	}
	if got := r.asked("WAKE-THE-SECOND"); len(got.Turn.Users) != 2 {
		t.Errorf("woken with %q, want the second session (%s) woken", got.Turn.Users, second.Card.MetaString("sessionId"))
	}
	r.showsStatus(wire.StatusIdle)
	r.end()
}

// A turn that fails is shown with what the program says of it, and one that the program tries again as one that runs.
func TestRealCodexSaysWhatIsInItsWay(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.Codex))
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error":{"message":"bad key","type":"invalid_request_error","code":"invalid_api_key"}}`, http.StatusUnauthorized)
	}))
	defer provider.Close()
	w.file("operator/.codex/config.toml", strings.ReplaceAll(w.read("operator/.codex/config.toml"), w.stub.BaseURL(), provider.URL+"/v1"))
	r := w.launch(func(req *sdk.LaunchRequest) { req.Prompt = "is anybody there?" })
	p := r.shows("a failure", func(p wire.Presence) bool { return p.Status == wire.StatusIdle && p.Condition != nil })
	if p.Condition.Code != "auth" || p.Condition.Source == "" || p.Condition.Message == "" {
		t.Errorf("shown as %+v, want auth, and the program's own words", p.Condition)
	}
	provider.Close()
	r.Submit("and now?")
	r.shows("another attempt", func(p wire.Presence) bool {
		return p.Status == wire.StatusWorking && p.Condition != nil && p.Condition.Code == "retrying"
	})
	r.end()
}

// Agents that Codex starts of its own have sessions of their own, and MCP servers; on the mesh the seat stays one
// participant, in its session.
func TestRealCodexIsOneParticipantWithAgentsOfItsOwn(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.Codex))
	r := w.launch(func(req *sdk.LaunchRequest) { req.Prompt = "before it has help" })
	r.asked("before it has help")
	session := r.showsStatus(wire.StatusIdle).Card.MetaString("sessionId")
	r.Submit(`TOOLCALL multi_agent_v1__spawn_agent {"message":"SLOW 1 and say aside"}`)
	got := r.request(func(q stubmodel.Request) bool {
		return q.Done && !q.Side && len(q.Turn.Users) == 1 && strings.Contains(q.Turn.LastUser(), "say aside")
	})
	if !slices.Contains(got.Turn.Tools, "mcp__cotal__cotal_dm") {
		t.Errorf("the other agent was asked %+v; want it to have the tools of the mesh", got.Turn)
	}
	if _, err := w.peer.SendDirect(t.Context(), r.Req.Principal, "WAKE-THE-SEAT"); err != nil {
		t.Fatal(err)
	}
	if got := r.asked("WAKE-THE-SEAT"); got.Turn.Users[0] != "before it has help" {
		t.Errorf("woken was the session of %q", got.Turn.Users)
	}
	p := r.showsStatus(wire.StatusIdle)
	if now := p.Card.MetaString("sessionId"); now != session {
		t.Errorf("the seat is shown in session %s, was in %s", now, session)
	}
	if rows := w.roster.View().Rows; len(rows) != 1 {
		t.Errorf("on the mesh are %+v, want the seat alone", rows)
	}
	r.end()
}
