package bridge

import (
	"testing"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Every state an agent is shown in comes from what its program told, in this table.
func TestAnEventOfAProgramIsShownAsWhatItMeans(t *testing.T) {
	fresh := State{Status: wire.StatusIdle}
	busy := State{Status: wire.StatusWorking, Turn: true}
	inTool := State{Status: wire.StatusWorking, Activity: "Bash", Turn: true, Tool: "Bash"}
	asked := State{Status: wire.StatusWaiting, Turn: true, Tool: "Bash", Condition: &wire.PresenceCondition{Code: "approval"}}
	for _, c := range []struct {
		name     string
		from     State
		hook     string
		text     string
		status   string
		code     string
		activity string
		gone     bool
	}{
		{"a session that starts is idle", fresh, "SessionStart", `{"source":"startup"}`, "idle", "", "", false},
		{"a session that starts again behind a failure is idle and sound", State{Status: "idle", Condition: asked.Condition}, "SessionStart", `{}`, "idle", "", "", false},
		{"a session that starts within a turn goes on working", busy, "SessionStart", `{"source":"compact"}`, "working", "", "", false},
		{"a session that starts behind one that ended is there", State{Status: "idle", Gone: true}, "SessionStart", `{}`, "idle", "", "", false},
		{"a prompt means work", fresh, "UserPromptSubmit", `{"prompt":"x"}`, "working", "", "", false},
		{"a prompt of another program means work", fresh, "BeforeAgent", `{}`, "working", "", "", false},
		{"the way a name is written does not matter", fresh, "user-prompt-submit", `{}`, "working", "", "", false},
		{"a tool says what is being done", busy, "PreToolUse", `{"tool_name":"Bash"}`, "working", "", "Bash", false},
		{"a tool that ended leaves work", inTool, "PostToolUse", `{"tool_name":"Bash"}`, "working", "", "", false},
		{"a tool that ran was allowed", asked, "PostToolUse", `{"tool_name":"Bash"}`, "working", "", "", false},
		{"a request for permission waits for a person", inTool, "PermissionRequest", `{"tool_name":"Bash"}`, "waiting", "approval", "Bash", false},
		{"a notice of a permission prompt waits for a person", inTool, "Notification", `{"notification_type":"permission_prompt"}`, "waiting", "approval", "Bash", false},
		{"a notice of another program's permission prompt too", busy, "Notification", `{"notification_type":"ToolPermission"}`, "waiting", "approval", "", false},
		{"a notice of a question waits for input", busy, "Notification", `{"notification_type":"agent_needs_input"}`, "waiting", "input", "", false},
		{"a notice of a dialog waits for input", busy, "Notification", `{"notification_type":"elicitation_dialog"}`, "waiting", "input", "", false},
		{"a notice that nothing happens changes nothing", fresh, "Notification", `{"notification_type":"idle_prompt"}`, "idle", "", "", false},
		{"a notice of no kind is not read for its words", busy, "Notification", `{"message":"Claude needs your permission to use Bash"}`, "working", "", "", false},
		{"the end of a turn is idle", inTool, "Stop", `{}`, "idle", "", "", false},
		{"the end of a turn ends what was waited for", asked, "Stop", `{}`, "idle", "", "", false},
		{"the end of a turn of another program is idle", busy, "AfterAgent", `{}`, "idle", "", "", false},
		{"a notify command tells the end of a turn", busy, "", `{"type":"agent-turn-complete"}`, "idle", "", "", false},
		{"a turn that failed says why", busy, "StopFailure", `{"error":"rate_limit"}`, "idle", "rate_limit", "", false},
		{"a turn that failed in a nested way says why", busy, "StopFailure", `{"error":{"type":"authentication_error","message":"no"}}`, "idle", "auth", "", false},
		{"a turn that failed without a word failed", busy, "StopFailure", `{}`, "idle", "failed", "", false},
		{"a session that ends is gone", fresh, "SessionEnd", `{"reason":"logout"}`, "idle", "", "", true},
		{"a session that is cleared is not gone", busy, "SessionEnd", `{"reason":"clear"}`, "idle", "", "", false},
		{"a tool that was stopped by hand ends the turn", inTool, "PostToolUseFailure", `{"tool_name":"Bash","error":"x","is_interrupt":true}`, "idle", "", "", false},
		{"a tool that failed leaves work", inTool, "PostToolUseFailure", `{"tool_name":"Bash","error":"x"}`, "working", "", "", false},
		{"an input field that nobody uses ends a turn that was stopped by hand", busy, "Notification", `{"notification_type":"idle_prompt"}`, "idle", "", "", false},
		{"an input field that nobody uses ends a question that was put away", asked, "Notification", `{"notification_type":"idle_prompt"}`, "idle", "", "", false},
		{"a failure stays until something else happens", State{Status: "idle", Condition: &wire.PresenceCondition{Code: "auth"}}, "Notification", `{"notification_type":"idle_prompt"}`, "idle", "auth", "", false},
		{"compacting is work", fresh, "PreCompact", `{"trigger":"manual"}`, "working", "", "compacting its context", false},
		{"compacting by hand ends idle", State{Status: "working"}, "SessionStart", `{"source":"compact"}`, "idle", "", "", false},
		{"compacting by hand ends idle in a program that says so", State{Status: "working"}, "PostCompact", `{}`, "idle", "", "", false},
		{"compacting within a turn ends in it", busy, "PostCompact", `{}`, "working", "", "", false},
		{"a dialog of a tool server waits for input", busy, "Elicitation", `{"message":"which one?"}`, "waiting", "input", "", false},
		{"an event that nobody knows changes nothing", busy, "SubagentStop", `{}`, "working", "", "", false},
		{"a text that is no JSON still has its event", fresh, "UserPromptSubmit", `not json`, "working", "", "", false},
		{"a program may say its state itself", fresh, "status", `{"status":"waiting","condition":"input","activity":"a question"}`, "waiting", "input", "a question", false},
		{"a condition can be told beside the state", busy, "status", `{"condition":"retrying"}`, "working", "retrying", "", false},
		{"a state of no name is passed over", busy, "status", `{"status":"offline"}`, "working", "", "", false},
		{"a condition of no name is passed over", busy, "status", `{"status":"idle","condition":"tired"}`, "idle", "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Judge(c.from, ParseEvent(c.hook, []byte(c.text)))
			if got.Status != c.from.Status && got.By != ByHook && (c.hook != EventStatus || got.By != ByProgram) {
				t.Errorf("it is known by %q", got.By)
			}
			code := ""
			if got.Condition != nil {
				code = got.Condition.Code
			}
			if got.Status != c.status || code != c.code || got.Activity != c.activity || got.Gone != c.gone {
				t.Errorf("got %s/%q/%q gone %v", got.Status, code, got.Activity, got.Gone)
			}
		})
	}
}

func TestAFailureOfAProgramHasACode(t *testing.T) {
	known := map[string]bool{}
	for _, c := range wire.ConditionCodes() {
		known[c] = true
	}
	for native, want := range map[string]string{
		"rate_limit": "rate_limit", "overloaded": "overloaded", "overloaded_error": "overloaded", "authentication_failed": "auth",
		"invalid_credentials": "auth", "billing_error": "billing", "account_suspended": "billing", "insufficient_quota": "billing",
		"invalid_request": "request", "model_not_found": "model", "server_error": "server", "api_error": "server",
		"max_output_tokens": "context", "context_length_exceeded": "context", "unknown": "failed", "": "failed", "budget": "budget",
		"RateLimitError": "rate_limit",
	} {
		if got := ConditionOf(native); got != want {
			t.Errorf("%q is %s, not %s", native, got, want)
		}
	}
	for _, m := range conditionWords {
		if !known[m.code] {
			t.Errorf("%s is no code of the wire", m.code)
		}
	}
}

func TestWhichSessionAProgramCanBeReopenedIn(t *testing.T) {
	for _, c := range []struct {
		name, known string
		hook, text  string
		want        string
	}{
		{"one that begins is none yet", "", "SessionStart", `{"session_id":"s1","source":"startup"}`, ""},
		{"a fork that begins is none either", "s1", "SessionStart", `{"session_id":"s2","source":"resume"}`, ""},
		{"one that was cleared is left", "s1", "SessionStart", `{"session_id":"s2","source":"clear"}`, ""},
		{"one whose context is compacted goes on", "s1", "SessionStart", `{"session_id":"s1","source":"compact"}`, "s1"},
		{"a program that does not say how it began one is believed", "", "SessionStart", `{"session_id":"s1"}`, "s1"},
		{"what is said in one is written down", "", "UserPromptSubmit", `{"session_id":"s1"}`, "s1"},
		{"a notice is no word in it", "", "Notification", `{"session_id":"s1","notification_type":"idle_prompt"}`, ""},
		{"nor is its end", "", "SessionEnd", `{"session_id":"s1"}`, ""},
		{"an end does not make it another", "s1", "SessionEnd", `{"session_id":"s1"}`, "s1"},
		{"an event that names none leaves it", "s1", "Stop", `{}`, "s1"},
		{"a program that says its state itself knows it", "s1", "status", `{"status":"idle","session":"s2"}`, "s2"},
	} {
		if got := sessionOf(c.known, ParseEvent(c.hook, []byte(c.text))); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWhetherASessionWasCleared(t *testing.T) {
	for _, c := range []struct {
		name       string
		before     bool
		hook, text string
		want       bool
	}{
		{"one that begins was not", false, "SessionStart", `{"source":"startup"}`, false},
		{"one that a person clears", false, "SessionStart", `{"source":"clear"}`, true},
		{"what is told afterwards leaves it so", true, "Notification", `{}`, true},
		{"compacting is no clearing", false, "SessionStart", `{"source":"compact"}`, false},
		{"another one that is opened then", true, "SessionStart", `{"source":"resume"}`, false},
	} {
		if got := clearedBehind(c.before, ParseEvent(c.hook, []byte(c.text))); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestAStatusOfAProviderHasACode(t *testing.T) {
	for status, want := range map[int]string{
		0: "", 200: "", 400: "request", 401: "auth", 402: "billing", 403: "auth", 404: "model", 422: "request", 429: "rate_limit",
		500: "server", 503: "server", 529: "overloaded",
	} {
		if got := ConditionOfStatus(status); got != want {
			t.Errorf("%d is %q, want %q", status, got, want)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add("Stop", []byte(`{"session_id":"x","error":{"type":"a"}}`))
	f.Add("", []byte(`{"type":7}`))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		e := ParseEvent(name, text)
		s := Judge(State{Status: wire.StatusIdle}, e)
		p := wire.Presence{
			Card:   wire.AgentCard{ID: "local.UABC", Name: "x", Kind: wire.CardAgent, ProtocolVersion: wire.ProtocolVersion},
			Status: s.Status, Activity: s.Activity, Condition: s.Condition, LifecycleUID: "abcdefghijklmnopqrstuvwxyz", TS: 1,
		}
		if _, err := p.Encode(); err != nil {
			t.Fatalf("%+v cannot be published: %v", s, err)
		}
		if len(e.Message) > maxWords+8 || !utf8.ValidString(e.Message) {
			t.Fatalf("message %q", e.Message)
		}
	})
}
