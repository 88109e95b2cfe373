package wire

import "slices"

// Responder is the incarnation that got a request.
type Responder struct {
	InstanceID string
	Epoch      uint64
}

// CommandSpec is the part of a command's contract that admission needs.
type CommandSpec struct {
	Class        Class
	Targeted     bool
	Modes        []Authz // admitted authorization modes of a targeted command
	InputDigest  string  // closure digests; of describe there are none
	OutputDigest string
}

// CmdDescribe is the reserved command every endpoint serves.
const CmdDescribe = "describe"

// Admit decides whether a well-formed request may reach its handler. spec is nil for a command this
// endpoint does not know. The order is part of the contract: the bind fence comes before anything
// that looks at arguments or targets. A refusal always says not-executed.
func Admit(s RequestSubject, e EndpointRequest, me Responder, spec *CommandSpec) *Error {
	if err := checkBind(s, e.Bind, me); err != nil {
		return err
	}
	if e.Op.Endpoint != s.Endpoint || e.Op.Command != s.Command {
		return Refuse(CodeOpMismatch, "op names %s of %s, the subject %s of %s", e.Op.Command, e.Op.Endpoint, s.Command, s.Endpoint)
	}
	if e.From.ID != s.Caller.Principal() {
		return Refuse(CodeSenderMismatch, "from.id is %s, the subject says %s", e.From.ID, s.Caller.Principal())
	}
	if spec == nil {
		return Refuse(CodeUnimplemented, "endpoint %s has no command %s", s.Endpoint, s.Command)
	}
	if e.Class != spec.Class {
		return Refuse(CodeClassMismatch, "class is %s, the command %s is %s", e.Class, s.Command, spec.Class)
	}
	if e.DeadlineMs == 0 && (e.ReplyExpected || s.Mode == ModeAll || e.Class == ClassJournal) {
		return Refuse(CodeBadRequest, "request: deadlineMs is missing")
	}
	if err := checkTarget(s, e.Target, spec); err != nil {
		return err
	}
	return checkContract(s, e.Op, spec)
}

func checkBind(s RequestSubject, b *Bind, me Responder) *Error {
	switch {
	case b == nil:
		return nil
	case s.Command == CmdDescribe:
		return Refuse(CodeBadRequest, "request: bind has no place on describe")
	case s.Mode == ModeAll:
		return Refuse(CodeBadRequest, "request: bind has no place on a scatter")
	case s.Mode == ModeInstance && b.InstanceID != s.InstanceID:
		return Refuse(CodeBadRequest, "request: bind.instanceId is %s, the subject names %s", b.InstanceID, s.InstanceID)
	}
	data := map[string]any{"instanceId": me.InstanceID, "epoch": me.Epoch}
	switch {
	case b.InstanceID != me.InstanceID:
		return Refuse(CodeFailedPrecondition, "request is bound to instance %s, this is %s", b.InstanceID, me.InstanceID).
			With(DetailBindRefused, data)
	case b.Epoch != me.Epoch:
		return Refuse(CodeExpired, "request is bound to epoch %d of instance %s, this is epoch %d", b.Epoch, me.InstanceID, me.Epoch).
			With(DetailBindRefused, data)
	}
	return nil
}

func checkTarget(s RequestSubject, t *Target, spec *CommandSpec) *Error {
	switch {
	case !spec.Targeted && s.Authz != AuthzNone:
		return Refuse(CodeTargetMismatch, "command %s takes no target, the subject has authorization mode %s", s.Command, s.Authz)
	case spec.Targeted && s.Authz == AuthzNone:
		return Refuse(CodeTargetMismatch, "command %s needs a target, the subject has none", s.Command)
	case spec.Targeted && !slices.Contains(spec.Modes, s.Authz):
		return Refuse(CodePermissionDenied, "command %s does not admit authorization mode %s", s.Command, s.Authz)
	}
	n := s.Authz.targetTokens()
	switch {
	case n <= 0 && t != nil:
		return Refuse(CodeTargetMismatch, "request: target has no place in this authorization mode")
	case n <= 0:
		return nil
	case t == nil:
		return Refuse(CodeTargetMismatch, "request: target is missing, authorization mode %s needs it", s.Authz)
	case t.Owner != s.TargetOwner:
		return Refuse(CodeTargetMismatch, "target.owner is %s, the subject says %s", t.Owner, s.TargetOwner)
	case n == 3 && t.Actor != s.TargetActor:
		return Refuse(CodeTargetMismatch, "target.actor is %s, the subject says %s", t.Actor, s.TargetActor)
	case n == 3 && t.LifecycleUID != s.TargetUID:
		return Refuse(CodeTargetMismatch, "target.lifecycleUid is %s, the subject says %s", t.LifecycleUID, s.TargetUID)
	case (s.Authz == AuthzOwner || s.Authz == AuthzChild) && s.TargetOwner != s.Caller.Owner:
		return Refuse(CodePermissionDenied, "authorization mode %s reaches only the caller's own owner %s, not %s", s.Authz, s.Caller.Owner, s.TargetOwner)
	}
	return nil
}

// checkContract demands the digests of the contract that is served. describe is exempt: it is how a caller
// gets them.
func checkContract(s RequestSubject, op Op, spec *CommandSpec) *Error {
	if s.Command == CmdDescribe {
		return nil
	}
	for _, d := range []struct{ field, got, want string }{
		{"op.inputDigest", op.InputDigest, spec.InputDigest},
		{"op.outputDigest", op.OutputDigest, spec.OutputDigest},
	} {
		switch d.got {
		case d.want:
		case "":
			return Refuse(CodeContractMismatch, "%s of %s is missing; ask describe for it", d.field, s.Command)
		default:
			return Refuse(CodeContractMismatch, "%s of %s is %s, this endpoint serves %s", d.field, s.Command, d.got, d.want)
		}
	}
	return nil
}
