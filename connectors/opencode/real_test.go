package opencode_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/agents"
)

// The real program, installed from the registry, on a plain pty, against a stub of its model. Each step
// is one launch built by the connector; they share a home, so that later ones find the session of the
// first.
//
// proves: CONN-1, CONN-3
func TestRealOpencode(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.OpenCode))
	session := realFreshStart(t, w)
	if t.Failed() {
		return
	}
	realFork(t, w, session)
	realReopenWithPrompt(t, w, session)
	realReopen(t, w, session)
	// The program keeps one directory of this name for all its processes; the libraries it unpacks at
	// every start went into the seats.
	left, err := filepath.Glob(w.path("tmp/*"))
	hidden, _ := filepath.Glob(w.path("tmp/.*"))
	if len(hidden) != 0 || len(left) > 1 || (len(left) == 1 && left[0] != w.path("tmp/opencode")) {
		t.Errorf("the program left %v %v in the temporary directory (%v)", left, hidden, err)
	}
}

// realFreshStart proves prompt, persona, typed input, the permission default, the
// password and the stop, and returns the session's id.
func realFreshStart(t *testing.T, w *world) string {
	r := w.launch(func(req *sdk.LaunchRequest) {
		req.Prompt = "--fresh start\nof two lines"
		req.Persona = "PERSONA-TEXT: you are careful."
	})
	got := r.asked("fresh start")
	if got.Turn.LastUser() != r.Req.Prompt {
		t.Errorf("the model was asked %q, want the prompt %q", got.Turn.LastUser(), r.Req.Prompt)
	}
	for _, want := range []string{"PERSONA-TEXT", "INSTRUCTIONS-OF-THE-USER"} {
		if !strings.Contains(got.Turn.System, want) {
			t.Errorf("the system prompt lacks %s", want)
		}
	}
	r.AwaitReady()
	r.Submit("typed turn\nwith two lines")
	if typed := r.asked("typed turn"); typed.Turn.LastUser() != "typed turn\nwith two lines" || len(typed.Turn.Users) != 2 {
		t.Errorf("after typing the model was asked %q, want the typed text as second turn", typed.Turn.Users)
	}
	marker := w.path("project/made-by-the-agent")
	r.awaitIdle()
	r.Submit(`TOOLCALL bash {"command":"touch ` + marker + `","description":"make a file"}`)
	var pending []struct {
		Permission string `json:"permission"`
	}
	r.Await("the question for permission", func() bool {
		r.get("/permission", &pending)
		return len(pending) > 0
	})
	if _, err := os.Stat(marker); err == nil || pending[0].Permission != "bash" {
		t.Errorf("permissions=ask: file made before the answer (%v), question %+v", err, pending)
	}
	resp, err := http.Get(r.url(api.HealthPath))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("the API answers HTTP %d without the password, want 401", resp.StatusCode)
	}
	var sessions []struct {
		ID string `json:"id"`
	}
	r.get("/session", &sessions)
	if len(sessions) != 1 {
		t.Fatalf("sessions %+v, want one", sessions)
	}
	if err := r.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if state := r.AwaitEnd(); state.ExitCode() != 0 {
		t.Errorf("after SIGTERM: %s, want exit 0", state)
	}
	r.Reap(w.connector)
	return sessions[0].ID
}

// realFork proves that a fork carries the history, leaves its source alone, and that the launcher ends
// with its client, leaving nothing.
func realFork(t *testing.T, w *world, session string) {
	r := w.launch(func(req *sdk.LaunchRequest) {
		req.Resume, req.Prompt = session, "HISTORY for the fork"
		req.Model, req.Variant = "stub/stub-model", "low"
		req.LaunchOptions["permissions"] = "allow"
	})
	if base := filepath.Base(r.Spec.Path); base != "cotal-opencode-seat" {
		t.Fatalf("the fork runs %s, not the launcher", base)
	}
	got := r.asked("for the fork")
	if !strings.Contains(got.Reply, "typed turn") || got.Turn.Model != "stub-model" || got.Turn.Effort != "low" {
		t.Errorf("the fork was asked model %q effort %q, and answered %q, want the history", got.Turn.Model, got.Turn.Effort, got.Reply)
	}
	r.AwaitReady()
	r.awaitIdle()
	marker := w.path("project/allowed")
	r.Submit(`TOOLCALL bash {"command":"touch ` + marker + `","description":"make a file"}`)
	r.Await("the file made without a question", func() bool {
		_, err := os.Stat(marker)
		return err == nil
	})
	r.awaitIdle()
	if strings.Contains(r.messages(session), "for the fork") {
		t.Error("the source session holds the fork's prompt")
	}
	r.Type("\x03") // at an empty input field this ends the client
	if state := r.AwaitEnd(); state.ExitCode() != 0 {
		t.Errorf("after the client's end: %s, want its exit code 0", state)
	}
	r.Reap(w.connector)
}

// realReopenWithPrompt proves that the same session goes on, and that the end of the server is the end
// of the client.
func realReopenWithPrompt(t *testing.T, w *world, session string) {
	r := w.launch(func(req *sdk.LaunchRequest) { req.Continue, req.Prompt = session, "HISTORY of the same" })
	if got := r.asked("of the same"); !strings.Contains(got.Reply, "typed turn") || strings.Contains(got.Reply, "for the fork") {
		t.Errorf("reopened, it answered %q, want the history of the source alone", got.Reply)
	}
	r.AwaitReady()
	if !strings.Contains(r.messages(session), "of the same") {
		t.Error("the prompt did not go into the reopened session")
	}
	server := 0
	for _, p := range r.Left() {
		args, err := os.ReadFile("/proc/" + itoa(p.Identity.PID) + "/cmdline")
		if err == nil && strings.Contains(string(args), "\x00serve\x00") {
			server = p.Identity.PID
		}
	}
	if server == 0 {
		t.Fatal("no server among the seat's processes")
	}
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if state := r.AwaitEnd(); state.ExitCode() != 128+int(syscall.SIGKILL) {
		t.Errorf("after the server was killed: %s, want exit 137", state)
	}
	r.Reap(w.connector)
}

// realReopen proves the one-process way to reopen, and that a killed terminal leaves nothing.
func realReopen(t *testing.T, w *world, session string) {
	r := w.launch(func(req *sdk.LaunchRequest) { req.Continue = session })
	r.AwaitReady()
	r.Submit("HISTORY typed later")
	if got := r.asked("typed later"); !strings.Contains(got.Reply, "of the same") {
		t.Errorf("reopened without a prompt, it answered %q, want the history", got.Reply)
	}
	if err := r.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.AwaitEnd()
	r.Reap(w.connector)
}

// A pinned model and variant hold for the first turn and for those that are typed; a launcher that is killed leaves
// nothing.
//
// proves: CONN-1
func TestRealOpencodeLauncherKilled(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.OpenCode))
	long := "a long prompt " + strings.Repeat("goes over the API ", 8000) + "to its end"
	r := w.launch(func(req *sdk.LaunchRequest) { req.Prompt, req.Model, req.Variant = long, "stub/other-model", "high" })
	if got := r.asked("to its end"); got.Turn.LastUser() != long {
		t.Errorf("a prompt of %d bytes arrived with %d", len(long), len(got.Turn.LastUser()))
	}
	r.AwaitReady()
	r.awaitIdle()
	r.Submit("typed in the pinned model")
	for _, text := range []string{"to its end", "typed in the pinned model"} {
		if got := r.asked(text); got.Turn.Model != "other-model" || got.Turn.Effort != "high" {
			t.Errorf("%s: model %q effort %q, want other-model and high: the configuration pins another model for the default agent", text, got.Turn.Model, got.Turn.Effort)
		}
	}
	if err := r.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.AwaitEnd() // server and client end by themselves
	r.Reap(w.connector)
}

// proves: CONN-1
func TestRealOpencodeModels(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.OpenCode))
	req := w.request(nil)
	catalog, err := w.connector.ListModels(t.Context(), sdk.ModelQuery{
		Binaries: req.Binaries,
		BaseEnv:  append(req.BaseEnv, "HOME="+w.path("home"), "OPENCODE_CONFIG="+w.path("opencode.json"), "COTAL_NAME=x"),
	})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, m := range catalog.Models {
		found[m.ID] = m.Variants
		if m.Provider != "stub" || m.Name != "Stub" {
			t.Errorf("model %+v, want provider stub and name Stub", m)
		}
	}
	if len(found) != 2 || strings.Join(found["stub/stub-model"], " ") != "high low medium" {
		t.Errorf("models %v, want the two of the configuration with their variants", found)
	}
	if left, err := os.ReadDir(w.path("state")); err != nil || len(left) != 0 {
		t.Errorf("the query left %v (%v)", left, err)
	}
}

// A model that nobody offers ends the launch with a line that names it; no other model is asked instead.
//
// proves: CONN-2
func TestRealOpencodeRefusesAModelThatNobodyOffers(t *testing.T) {
	w := newWorld(t, agents.Need(t, agents.OpenCode))
	r := w.launch(func(req *sdk.LaunchRequest) { req.Model, req.Prompt = "stub/no-such-model", "hello" })
	if state := r.AwaitEnd(); state.ExitCode() != 1 {
		t.Errorf("%s, want exit code 1", state)
	}
	if want := `"stub/no-such-model" is not offered by provider "stub", which offers other-model, stub-model`; !strings.Contains(r.Screen(), want) {
		t.Errorf("the seat prints %q, want %q", r.Screen(), want)
	}
	if asked := w.stub.Requests(); len(asked) > 0 {
		t.Errorf("a model was asked: %+v", asked)
	}
	r.Reap(w.connector)
}
