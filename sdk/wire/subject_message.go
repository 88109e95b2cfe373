package wire

import "strings"

// MessageKind is the kind of a message subject. It alone says how a message was sent; what the payload
// says about that is not believed.
type MessageKind string

// Message kinds.
const (
	MessageChat    MessageKind = "chat" // multicast: a channel
	MessageDirect  MessageKind = "inst" // unicast: one principal, a direct message
	MessageService MessageKind = "svc"  // anycast: any one of a role
)

// Delivery is the word for a kind in front of a person or an agent.
func (k MessageKind) Delivery() string {
	switch k {
	case MessageChat:
		return "channel"
	case MessageDirect:
		return "dm"
	case MessageService:
		return "anycast"
	}
	return ""
}

// MessageSubject is the subject of a message taken apart:
//
//	cotal.<space>.chat.<owner>.<actor>.<channel...>
//	cotal.<space>.inst.<recipient owner>.<recipient actor>.<owner>.<actor>
//	cotal.<space>.svc.<role>.<owner>.<actor>
type MessageSubject struct {
	Kind    MessageKind
	Space   string
	Sender  Principal
	Channel string    // MessageChat
	To      Principal // MessageDirect
	Role    string    // MessageService: a token, see Sanitize
}

// Rest is the part of the subject that is neither prefix, kind nor sender: channel, recipient or role.
func (m MessageSubject) Rest() string {
	switch m.Kind {
	case MessageChat:
		return m.Channel
	case MessageDirect:
		return m.To.String()
	default:
		return m.Role
	}
}

func (m MessageSubject) check(op string) error {
	bad := func(field, value, problem string) error {
		return &SubjectError{op, field, tokenProblem(value, problem)}
	}
	switch {
	case !ValidSpace(m.Space):
		return bad("space", m.Space, whySpace)
	case !ValidOwner(m.Sender.Owner):
		return bad("sender owner", m.Sender.Owner, whyOwner)
	case !ValidActor(m.Sender.Actor):
		return bad("sender actor", m.Sender.Actor, whyActor)
	case m.Kind != MessageChat && m.Channel != "":
		return bad("channel", m.Channel, "has no place in this kind")
	case m.Kind != MessageDirect && m.To != Principal{}:
		return bad("recipient", m.To.String(), "has no place in this kind")
	case m.Kind != MessageService && m.Role != "":
		return bad("role", m.Role, "has no place in this kind")
	}
	switch m.Kind {
	case MessageChat:
		if !ValidChannel(m.Channel) {
			return bad("channel", m.Channel, "is not tokens of [A-Za-z0-9_-] joined by dots")
		}
	case MessageDirect:
		if !ValidOwner(m.To.Owner) {
			return bad("recipient owner", m.To.Owner, whyOwner)
		}
		if !ValidActor(m.To.Actor) {
			return bad("recipient actor", m.To.Actor, whyActor)
		}
	case MessageService:
		if !ValidToken(m.Role) {
			return bad("role", m.Role, whyToken)
		}
	default:
		return bad("kind", string(m.Kind), "is not chat, inst or svc")
	}
	return nil
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles:
// sanitise a role or channel before, knowingly.
func (m MessageSubject) Subject() (string, error) {
	if err := m.check("build message subject"); err != nil {
		return "", err
	}
	prefix := "cotal." + m.Space + "." + string(m.Kind) + "."
	if m.Kind == MessageChat {
		return prefix + m.Sender.String() + "." + m.Channel, nil
	}
	return prefix + m.Rest() + "." + m.Sender.String(), nil
}

// ParseMessageSubject takes a message subject apart. Anything it refuses (another kind, another arity,
// an owner slot without an owner token) has no sender and is not delivered.
func ParseMessageSubject(subject string) (MessageSubject, error) {
	const op = "parse message subject"
	if len(subject) > MaxChannel+MaxSubject {
		return MessageSubject{}, &SubjectError{op, "subject", "is too long"}
	}
	c := &cursor{tok: strings.Split(subject, ".")}
	if c.next() != "cotal" {
		return MessageSubject{}, &SubjectError{op, "prefix", "is not cotal"}
	}
	m := MessageSubject{Space: c.next(), Kind: MessageKind(c.next())}
	switch {
	case m.Kind == MessageChat && c.left() >= 3:
		m.Sender = Principal{c.next(), c.next()}
		m.Channel = strings.Join(c.tok[c.i:], ".")
	case m.Kind == MessageDirect && c.left() == 4:
		m.To = Principal{c.next(), c.next()}
		m.Sender = Principal{c.next(), c.next()}
	case m.Kind == MessageService && c.left() == 3:
		m.Role = c.next()
		m.Sender = Principal{c.next(), c.next()}
	default:
		return MessageSubject{}, &SubjectError{op, "subject", "has another kind or another number of tokens"}
	}
	if err := m.check(op); err != nil {
		return MessageSubject{}, err
	}
	return m, nil
}

// ChannelFilter subscribes a channel or pattern, whoever sends. It refuses what is neither.
func ChannelFilter(space, pattern string) (string, error) {
	const op = "build channel filter"
	switch {
	case !ValidSpace(space):
		return "", &SubjectError{op, "space", tokenProblem(space, whySpace)}
	case !ValidChannelPattern(pattern):
		return "", &SubjectError{op, "channel", tokenProblem(pattern, "is not a channel or a pattern of channels")}
	}
	return "cotal." + space + ".chat.*.*." + pattern, nil
}

// DirectFilter subscribes the direct messages of one principal.
func DirectFilter(space string, p Principal) (string, error) {
	const op = "build direct filter"
	switch {
	case !ValidSpace(space):
		return "", &SubjectError{op, "space", tokenProblem(space, whySpace)}
	case !p.Valid():
		return "", &SubjectError{op, "recipient", tokenProblem(p.String(), whyPrincipal)}
	}
	return "cotal." + space + ".inst." + p.String() + ".>", nil
}

// ServiceFilter subscribes the messages to a role.
func ServiceFilter(space, role string) (string, error) {
	const op = "build service filter"
	switch {
	case !ValidSpace(space):
		return "", &SubjectError{op, "space", tokenProblem(space, whySpace)}
	case !ValidToken(role):
		return "", &SubjectError{op, "role", tokenProblem(role, whyToken)}
	}
	return "cotal." + space + ".svc." + role + ".>", nil
}
