package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// proves: OUT-1
func TestOutcomeOfCall(t *testing.T) {
	refusal := func(o Outcome) *EndpointReply { return &EndpointReply{Error: &Error{Code: CodeInternal, Outcome: o}} }
	for _, c := range []struct {
		name  string
		seen  Seen
		reply *EndpointReply
		want  Outcome
	}{
		{"refused before it was sent", SeenNothingSent, nil, OutcomeNotExecuted},
		{"a publish that the broker refused", SeenPublishError, nil, OutcomeNotExecuted},
		{"nobody there, says the broker", SeenNoResponder, nil, OutcomeNotExecuted},
		{"sent, and then nothing", SeenNoReply, nil, OutcomeUnknown},
		{"a success", SeenReply, &EndpointReply{OK: true}, OutcomeExecuted},
		{"a refusal says it itself", SeenReply, refusal(OutcomeNotExecuted), OutcomeNotExecuted},
		{"a refusal that says nothing", SeenReply, refusal(""), OutcomeUnknown},
		{"a refusal with a word nobody knows", SeenReply, refusal("perhaps"), OutcomeUnknown},
		{"a success that is not believed happened all the same", SeenBadReply, &EndpointReply{OK: true}, OutcomeExecuted},
		{"a refusal that is not believed still says it", SeenBadReply, refusal(OutcomeExecuted), OutcomeExecuted},
		{"a reply that cannot be read", SeenBadReply, nil, OutcomeUnknown},
		{"a reply that is neither", SeenReply, &EndpointReply{}, OutcomeUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := OutcomeOfCall(c.seen, c.reply); got != c.want {
				t.Fatalf("%s; want %s", got, c.want)
			}
		})
	}
}

func TestMayReissue(t *testing.T) {
	bind := Refuse(CodeExpired, "bound to epoch 4").With(DetailBindRefused, nil)
	unsure := bind.With(DetailBindRefused, nil)
	unsure.Outcome = OutcomeUnknown
	for _, c := range []struct {
		name    string
		err     error
		pinned  bool
		attempt int
		want    bool
	}{
		{"a refusal of the bind fence may go elsewhere", bind, false, 1, true},
		{"also when it comes wrapped", fmt.Errorf("call: %w", bind), false, MaxReissue, true},
		{"not for ever", bind, false, MaxReissue + 1, false},
		{"not when the caller pinned an instance", bind, true, 1, false},
		{"not when it does not say that nothing happened", unsure, false, 1, false},
		{"not after any other refusal", Refuse(CodeExpired, "the life is over"), false, 1, false},
		{"not after silence", errors.New("no reply"), false, 1, false},
		{"not after success", nil, false, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := MayReissue(c.err, c.pinned, c.attempt); got != c.want {
				t.Fatal(got)
			}
		})
	}
}

func TestErrorCatalogue(t *testing.T) {
	codes := Codes()
	if len(codes) != 21 || len(codeMeanings) != len(codes) {
		t.Errorf("%d codes, %d meanings", len(codes), len(codeMeanings))
	}
	for _, c := range codes {
		if CodeMeaning(c) == "" || !ValidCode(c) || len(c) > MaxErrCode {
			t.Errorf("%s has no meaning", c)
		}
	}
	if CodeMeaning("com.acme.broken") != "" {
		t.Error("an extension has a meaning here")
	}
}

// proves: OUT-12
func TestLifecycleBlocked(t *testing.T) {
	e := LifecycleBlocked(OpRetirement, testUID2, LifeRetiring, "", "wait for it, or run doctor")
	d, ok := e.Detail(DetailLifecycleBlocked)
	if !ok || e.Outcome != OutcomeNotExecuted || d.Data["opId"] != testUID2 || d.Data["blockedOp"] != OpRetirement || d.Data["headState"] != LifeRetiring {
		t.Fatalf("%+v", e)
	}
	if _, there := d.Data["gateState"]; there {
		t.Error("a state that is not known is there")
	}
	for _, fact := range []string{OpRetirement, testUID2, "run doctor"} { // some callers print the message only
		if !strings.Contains(e.Message, fact) {
			t.Errorf("the message does not say %s: %s", fact, e.Message)
		}
	}
	p, err := json.Marshal(e)
	if err != nil || !strings.Contains(string(p), `"kind":"ai.cotal.ep.lifecycle-blocked"`) {
		t.Errorf("%s, %v", p, err)
	}
}

func TestArgumentsOfTheCommands(t *testing.T) {
	for _, c := range []struct {
		name, in string
		dst      any
		field    string // "" = taken
	}{
		{"models of everybody", `{}`, &ModelsArgs{}, ""},
		{"resolve-cwd of nothing", `{}`, &ResolveCwdArgs{}, "cwd"},
		{"resolve-agent of nobody", `{"agent":"claude"}`, &ResolveAgentArgs{}, "name"},
		{"a launch with its spec", `{"runId":"r1","name":"a","spec":{"x":1}}`, &LaunchArgs{}, ""},
		{"a launch with a list for a spec", `{"runId":"r1","name":"a","spec":[]}`, &LaunchArgs{}, "spec"},
		{"a launch of a run with a path", `{"runId":"../r","name":"a"}`, &LaunchArgs{}, "runId"},
		{"a launch without name", `{"runId":"r1"}`, &LaunchArgs{}, "name"},
		{"an attach as of old", `{}`, &AttachArgs{}, ""},
		{"an attach that takes over", `{"role":"writer","takeover":true,"rows":24,"cols":80}`, &AttachArgs{}, ""},
		{"an observer that takes over", `{"role":"observer","takeover":true}`, &AttachArgs{}, "takeover"},
		{"an attach in a role nobody knows", `{"role":"boss"}`, &AttachArgs{}, "role"},
		{"a persona", `{"name":"a","persona":"text","subscribe":["team.>"],"model":""}`, &DefinePersonaArgs{}, ""},
		{"a persona that grants itself something", `{"name":"a","persona":"text","capabilities":["spawn"]}`, &DefinePersonaArgs{}, "capabilities"},
		{"a persona without text", `{"name":"a"}`, &DefinePersonaArgs{}, "persona"},
		{"a persona on a channel that is none", `{"name":"a","persona":"t","allowPublish":["a..b"]}`, &DefinePersonaArgs{}, "allowPublish.0"},
		{"a purge", `{"includeDms":true}`, &PurgeArgs{}, ""},
		{"a stop", `{"graceful":false}`, &StopArgs{}, ""},
		{"an empty text", `{"text":"","enter":false}`, &InputArgs{}, "text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := DecodeArgs(json.RawMessage(c.in), c.dst)
			if c.field == "" && err != nil || c.field != "" && (err == nil || err.Outcome != OutcomeNotExecuted || !strings.Contains(err.Message, "args: "+c.field+" ")) {
				t.Fatalf("%v; want a refusal that names %q", err, c.field)
			}
		})
	}
}
