package wire

import (
	"strings"
	"testing"
)

var (
	me       = Responder{InstanceID: testInst, Epoch: 5}
	plain    = &CommandSpec{Class: ClassEphemeral}
	aimed    = &CommandSpec{Class: ClassEphemeral, Targeted: true, Modes: []Authz{AuthzSelf, AuthzOwner, AuthzAny, AuthzExact, AuthzChild}}
	bobLocal = Target{Owner: "local", Actor: "bob", LifecycleUID: testUID2}
)

func req(f func(*EndpointRequest)) EndpointRequest {
	e := validRequest()
	f(&e)
	return e
}

func aim(t Target) EndpointRequest {
	return req(func(e *EndpointRequest) { e.Op.Command, e.Target = "despawn", &t })
}

func TestAdmit(t *testing.T) {
	for _, c := range []struct {
		name string
		s    RequestSubject
		e    EndpointRequest
		spec *CommandSpec
		code string // "" = admitted
		say  string
	}{
		{"a plain call is admitted", base(), validRequest(), plain, "", ""},
		{"a cast needs no deadline", base(), req(func(e *EndpointRequest) { e.ReplyExpected, e.DeadlineMs = false, 0 }), plain, "", ""},
		{"a call needs a deadline", base(), req(func(e *EndpointRequest) { e.DeadlineMs = 0 }), plain, CodeBadRequest, "deadlineMs"},
		{
			"a scatter needs a deadline even as a cast",
			with(func(r *RequestSubject) { r.Mode = ModeAll }),
			req(func(e *EndpointRequest) { e.ReplyExpected, e.DeadlineMs = false, 0 }), plain, CodeBadRequest, "deadlineMs",
		},

		{"a bind to this incarnation is admitted", base(), req(func(e *EndpointRequest) { e.Bind = &Bind{testInst, 5} }), plain, "", ""},
		{"a bind to another instance is refused", base(), req(func(e *EndpointRequest) { e.Bind = &Bind{testUID, 5} }), plain, CodeFailedPrecondition, "bound to instance"},
		{"a bind to another epoch is expired", base(), req(func(e *EndpointRequest) { e.Bind = &Bind{testInst, 4} }), plain, CodeExpired, "epoch 4"},
		{
			"a bind on describe is malformed",
			with(func(r *RequestSubject) { r.Command = CmdDescribe }),
			req(func(e *EndpointRequest) { e.Op.Command, e.Bind = CmdDescribe, &Bind{testInst, 5} }), plain, CodeBadRequest, "describe",
		},
		{
			"a bind on a scatter is malformed",
			with(func(r *RequestSubject) { r.Mode = ModeAll }),
			req(func(e *EndpointRequest) { e.Bind = &Bind{testInst, 5} }), plain, CodeBadRequest, "scatter",
		},
		{
			"a bind to another instance than the subject's is malformed",
			with(func(r *RequestSubject) { r.Mode, r.InstanceID = ModeInstance, testInst }),
			req(func(e *EndpointRequest) { e.Bind = &Bind{testUID, 5} }), plain, CodeBadRequest, "bind.instanceId",
		},
		{
			"the bind fence comes before everything else",
			base(), req(func(e *EndpointRequest) {
				e.Bind, e.Op.Command, e.From.ID, e.Class = &Bind{testInst, 4}, "other", "local.mallory", ClassJournal
			}), nil, CodeExpired, "epoch",
		},

		{"an op that is not the subject's is refused", base(), req(func(e *EndpointRequest) { e.Op.Command = "spawn" }), plain, CodeOpMismatch, "spawn"},
		{"an endpoint that is not the subject's is refused", base(), req(func(e *EndpointRequest) { e.Op.Endpoint = "auth" }), plain, CodeOpMismatch, "auth"},
		{"a sender that is not the subject's is refused", base(), req(func(e *EndpointRequest) { e.From.ID = "local.mallory" }), plain, CodeSenderMismatch, "mallory"},
		{"an unknown command is unimplemented", base(), validRequest(), nil, CodeUnimplemented, "ps"},
		{"a class that is not the command's is refused", base(), req(func(e *EndpointRequest) { e.Class = ClassJournal }), plain, CodeClassMismatch, "journal"},

		{"a target on an untargeted command is refused", base(), req(func(e *EndpointRequest) { e.Target = &bobLocal }), plain, CodeTargetMismatch, "target"},
		{"a mode on an untargeted command is refused", targeted(AuthzOwner, "local", "", ""), aim(bobLocal), plain, CodeTargetMismatch, "takes no target"},
		{
			"a targeted command without mode is refused",
			with(func(r *RequestSubject) { r.Command = "despawn" }), aim(bobLocal), aimed, CodeTargetMismatch, "needs a target",
		},
		{"a mode the command does not admit is refused", targeted(AuthzLedger, "local", "", ""), aim(bobLocal), aimed, CodePermissionDenied, "ledger"},
		{"mode owner with a body target is admitted", targeted(AuthzOwner, "local", "", ""), aim(bobLocal), aimed, "", ""},
		{
			"mode owner without a body target is refused",
			targeted(AuthzOwner, "local", "", ""), req(func(e *EndpointRequest) { e.Op.Command = "despawn" }), aimed, CodeTargetMismatch, "missing",
		},
		{
			"a body target of another owner is refused",
			targeted(AuthzAny, userTok, "", ""), aim(bobLocal), aimed, CodeTargetMismatch, "target.owner",
		},
		{
			"mode owner does not reach another owner",
			targeted(AuthzOwner, userTok, "", ""), aim(Target{Owner: userTok, Actor: "bob", LifecycleUID: testUID2}), aimed, CodePermissionDenied, "own owner",
		},
		{
			"mode any reaches another owner",
			targeted(AuthzAny, userTok, "", ""), aim(Target{Owner: userTok, Actor: "bob", LifecycleUID: testUID2}), aimed, "", "",
		},
		{"mode self takes no body target", targeted(AuthzSelf, "", "", ""), aim(bobLocal), aimed, CodeTargetMismatch, "no place"},
		{"mode exact with its own target is admitted", targeted(AuthzExact, "local", "bob", testUID2), aim(bobLocal), aimed, "", ""},
		{"mode exact with another actor is refused", targeted(AuthzExact, "local", "eve", testUID2), aim(bobLocal), aimed, CodeTargetMismatch, "target.actor"},
		{"mode exact with another life is refused", targeted(AuthzExact, "local", "bob", testUID), aim(bobLocal), aimed, CodeTargetMismatch, "target.lifecycleUid"},

		{
			"the digests that are served are admitted",
			base(), req(func(e *EndpointRequest) { e.Op.InputDigest, e.Op.OutputDigest = Digest(nil), VoidDigest }),
			&CommandSpec{Class: ClassEphemeral, InputDigest: Digest(nil), OutputDigest: VoidDigest}, "", "",
		},
		{
			"a missing digest of the arguments is refused",
			base(), req(func(e *EndpointRequest) { e.Op.OutputDigest = VoidDigest }),
			&CommandSpec{Class: ClassEphemeral, InputDigest: Digest(nil), OutputDigest: VoidDigest}, CodeContractMismatch, "op.inputDigest of ps is missing",
		},
		{
			"a missing digest of the reply is refused",
			base(), req(func(e *EndpointRequest) { e.Op.InputDigest = Digest(nil) }),
			&CommandSpec{Class: ClassEphemeral, InputDigest: Digest(nil), OutputDigest: VoidDigest}, CodeContractMismatch, "op.outputDigest of ps is missing",
		},
		{
			"describe is exempt: it is how digests are got",
			with(func(r *RequestSubject) { r.Command = CmdDescribe }),
			req(func(e *EndpointRequest) { e.Op.Command = CmdDescribe }), plain, "", "",
		},
		{
			"a digest that is not the served one is refused",
			base(), req(func(e *EndpointRequest) { e.Op.InputDigest = Digest([]byte("old")) }),
			&CommandSpec{Class: ClassEphemeral, InputDigest: Digest(nil)}, CodeContractMismatch, "op.inputDigest",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Admit(c.s, c.e, me, c.spec)
			switch {
			case c.code == "" && got != nil:
				t.Fatalf("refused: %v", got)
			case c.code == "":
			case got == nil || got.Code != c.code || !strings.Contains(got.Message, c.say):
				t.Fatalf("got %v; want %s saying %q", got, c.code, c.say)
			case got.Outcome != OutcomeNotExecuted:
				t.Fatalf("outcome %q; want not-executed", got.Outcome)
			}
		})
	}
}

func TestBindRefusalCarriesItsDetail(t *testing.T) {
	err := Admit(base(), req(func(e *EndpointRequest) { e.Bind = &Bind{testInst, 4} }), me, plain)
	if d, ok := err.Detail(DetailBindRefused); !ok || d.Data["epoch"] != uint64(5) {
		t.Fatalf("details %+v", err.Details)
	}
}
