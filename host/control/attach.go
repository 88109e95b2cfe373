package control

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Attacher opens attach sessions; host/attach implements it.
type Attacher interface {
	Grant(ctx context.Context, caller wire.Caller, target wire.Target, args wire.AttachArgs) (wire.AttachReply, error)
}

func attachRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdAttach, Capability: wire.CapManagerLifecycle, Targeted: true, Modes: targeted,
			ArgsShape: wire.Shape{Limits: map[string]wire.Limit{
				"role": {OneOf: []string{wire.AttachWriter, wire.AttachObserver}},
				"rows": {Max: 65535}, "cols": {Max: 65535},
			}},
			ReplyShape: wire.Shape{Limits: map[string]wire.Limit{"grant": {Type: "object"}}},
			Doc: "Opens a session on a seat's terminal and answers with its grant, which the caller alone may use, once, within seconds: " +
				"it subscribes to the grant's `out` subject and sends `ready` on its `in` subject. A refusal has opened nothing.",
		}, func(ctx context.Context, r *bus.Request, args wire.AttachArgs) (wire.AttachReply, error) {
			if d.Attach == nil {
				return wire.AttachReply{}, wire.Refuse(wire.CodeUnimplemented, "this host serves no attach sessions")
			}
			if err := authz.Session(d.Authz.Kind(), r.Subject.Authz); err != nil {
				return wire.AttachReply{}, err
			}
			return d.Attach.Grant(ctx, r.Caller(), r.Target(), args)
		}),
	}
}
