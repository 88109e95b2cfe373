package launch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The checks of this file stand in the order in which a spawn is accepted. Each is a pure function over what was
// read before, has no effect, and refuses with the field, the cause and the way out.

// maxReadinessMs is a day: longer is a mistake, and a duration must not overflow.
const maxReadinessMs = 24 * 60 * 60 * 1000

// CheckTimings refuses a connector whose times are none.
func CheckTimings(info sdk.Info) error {
	f := info.Connector
	if f.ReadinessTimeoutMs < 0 || f.ReadinessTimeoutMs > maxReadinessMs {
		return precondition("connector %s states a readiness window of %d ms; it must be 1..%d", info.Name, f.ReadinessTimeoutMs, maxReadinessMs)
	}
	if f.StopGraceMs < 0 || f.StopGraceMs > maxReadinessMs {
		return precondition("connector %s states a stop grace of %d ms; it must be 1..%d", info.Name, f.StopGraceMs, maxReadinessMs)
	}
	return nil
}

// CheckResume refuses a session to fork from where the connector cannot: taken for a fresh start it would be
// another conversation than the one that was asked for.
func CheckResume(args wire.SpawnArgs, info sdk.Info) error {
	if r := checkArgs(args); r != nil {
		return r
	}
	if args.Resume != nil && !info.Connector.SupportsResume {
		return unsupported(info, "resume", "start fresh instead")
	}
	return nil
}

// CheckServed refuses by name what this host cannot do at all, so that it is never passed over.
func CheckServed(args wire.SpawnArgs) error {
	switch {
	case args.ResumeClaim != nil:
		return unserved("resumeClaim: this host receives no transcripts of other hosts; resume a session of this machine, or start fresh")
	case args.ResumeAgent != nil:
		return unserved("resumeAgent goes with resumeClaim, and this host receives no transcripts of other hosts; leave it out")
	}
	return nil
}

// CheckSupervise refuses supervision that would not be kept: it takes a runtime that watches its seats' ends as
// their parent does, and a program that can be started without its first prompt.
func CheckSupervise(args wire.SpawnArgs, runtime string, info sdk.Info) error {
	switch {
	case args.Supervise == nil:
		return nil
	case runtime != "pty":
		return precondition("supervise: seats of runtime %s are not started again; use runtime pty, or leave supervise out", runtime)
	case !info.Connector.SupportsFreshStart && !info.Connector.SupportsSessionContinuation:
		return unsupported(info, "supervise: it can neither start afresh nor go on with a session", "leave it out")
	}
	return nil
}

// RoleManager is the role that launches others.
const RoleManager = "manager"

// CheckRole refuses the role manager to who has no right to spawn. The role is the effective one, wherever it
// came from.
func (out Profile) CheckRole() error {
	if out.Role != RoleManager || slices.Contains(out.Capabilities, "spawn") {
		return nil
	}
	way := "give the role in a persona that says capabilities: [spawn]"
	if out.PersonaPath != "" {
		way = "add capabilities: [spawn] to " + out.PersonaPath
	}
	return precondition("role %s needs the capability spawn, which only an operator gives; %s, or choose another role", RoleManager, way)
}

// CheckFeatures refuses what the connector would have to honour and cannot.
func (out Profile) CheckFeatures(info sdk.Info) error {
	f := info.Connector
	for _, c := range []struct {
		given, supported bool
		field, way       string
	}{
		{out.Model != "", f.SupportsModel, "model", "leave it out" + by(out.ModelBy, out.PersonaPath)},
		{out.Variant != "", f.SupportsModelVariant, "variant", "leave it out" + by(out.VariantBy, out.PersonaPath)},
		{out.Prompt != "", f.SupportsPrompt, "prompt", "send it with cotal input once the seat runs"},
		{out.Continuity == wire.ContinuityExact, f.SupportsSessionContinuation, "continuity exact", "launch it with continuity none"},
	} {
		if c.given && !c.supported {
			return unsupported(info, c.field, c.way)
		}
	}
	if given, ok := out.LaunchOptions["permissions"]; ok && len(f.Permissions) > 0 {
		if text, ok := given.(string); !ok || !slices.Contains(f.Permissions, text) {
			return precondition("launchOptions.permissions: connector %s does not support %v; say permissions=%s, or choose another agent",
				info.Name, given, strings.Join(f.Permissions, " or permissions="))
		}
	}
	return nil
}

// CheckModels holds what a seat would run on against the operator's policy for its role, after everything that was
// said is added up. Where there is a rule, launch options are refused altogether: the connector knows what they
// mean, and the host does not.
func (out Profile) CheckModels(policy map[string]config.ModelRule) error {
	rule, ok := policy[out.Role]
	if !ok {
		return nil
	}
	source := "the request"
	switch {
	case out.Launch != nil:
		source = fmt.Sprintf("agent %s of run %s", out.Launch.Requested, out.Launch.RunID)
	case out.PersonaPath != "":
		source = "persona " + out.PersonaPath
	}
	refuse := func(field, value string, by Origin, allowed []string) error {
		what := field + " " + value
		switch {
		case value == "" && len(allowed) > 0:
			return precondition("modelPolicy: %s: role %s may run on %s %s only, and no %s is named: say --%s %s; nothing was launched",
				source, out.Role, field, strings.Join(allowed, ", "), field, field, allowed[0])
		case value == "":
			what = "no " + field
		case by == FromFlag:
			what += " of the request"
		default:
			what += " of its definition"
		}
		return precondition("modelPolicy: %s: %s is not what role %s may run on: %s; nothing was launched", source, what, out.Role, strings.Join(allowed, ", "))
	}
	switch {
	case !slices.Contains(rule.Models, out.Model):
		return refuse("model", out.Model, out.ModelBy, rule.Models)
	case rule.Variants != nil && !slices.Contains(rule.Variants, out.Variant):
		return refuse("variant", out.Variant, out.VariantBy, rule.Variants)
	case len(out.LaunchOptions) > 0:
		return precondition("modelPolicy: %s: role %s has a policy, so no launch options may be given; nothing was launched", source, out.Role)
	}
	return nil
}

// CheckChannels refuses more channels than a seat may have, channels to read at boot that may not be read, and the event channel of anybody: it
// shows what its agent does, tool by tool. The seat's own is added by the host, once there is a principal to
// name it by; a wildcard is an ordinary grant.
func (out Profile) CheckChannels() error {
	for _, l := range out.channels() {
		if len(l.list) > persona.MaxChannels {
			return precondition("%s: %d channels, at most %d; name several by a wildcard", l.field, len(l.list), persona.MaxChannels)
		}
	}
	acl := ReadACL(out.Subscribe, out.AllowSubscribe)
	for _, c := range out.Subscribe {
		if !slices.ContainsFunc(acl, func(p string) bool { return persona.Covers(p, c) }) {
			return precondition("subscribe: %q is not within allowSubscribe", c)
		}
	}
	for _, l := range out.channels() {
		for _, c := range l.list {
			if owner, actor, ok := eventChannel(c); ok {
				return precondition("%s: %q is the event channel of %s.%s; an agent holds no event channel but its own, which it gets by itself", l.field, c, owner, actor)
			}
		}
	}
	return nil
}

// channelList is one of the lists of channels of a profile.
type channelList struct {
	field string
	list  []string
}

func (out Profile) channels() []channelList {
	return []channelList{{"subscribe", out.Subscribe}, {"allowSubscribe", out.AllowSubscribe}, {"allowPublish", out.AllowPublish}}
}

// eventChannel takes the name of a concrete event channel apart: events.<owner>.<actor>.
func eventChannel(c string) (owner, actor string, ok bool) {
	rest, ok := strings.CutPrefix(c, "events.")
	if !ok {
		return "", "", false
	}
	p, err := wire.PrincipalOf(rest)
	return p.Owner, p.Actor, err == nil
}

// ReadACL is what a seat may read: the list that says so, else what it reads at boot.
func ReadACL(subscribe, allowSubscribe []string) []string {
	if len(allowSubscribe) > 0 {
		return allowSubscribe
	}
	return subscribe
}

func unsupported(info sdk.Info, field, way string) *Refusal {
	return precondition("connector %s does not support %s; %s", info.Name, field, way)
}

func unserved(format string, args ...any) *Refusal {
	return &Refusal{Code: wire.CodeUnimplemented, Message: fmt.Sprintf(format, args...)}
}

func by(o Origin, path string) string {
	if o == FromPersona && path != "" {
		return " of " + path
	}
	return ""
}
