package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// EventSubject is the subject of an event:
//
//	cotal.<space>.epe.<endpoint>.<instance>.<epoch>.<topic...>
//
// Events are never facts: a lost or duplicate one harms nobody.
type EventSubject struct {
	Space      string
	Endpoint   string
	InstanceID string
	Epoch      uint64
	Topic      []string
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (e EventSubject) Subject() (string, error) {
	const op = "build event subject"
	if err := e.check(op); err != nil {
		return "", err
	}
	tok := append([]string{"cotal", e.Space, "epe", EndpointToken(e.Endpoint), e.InstanceID, strconv.FormatUint(e.Epoch, 10)}, e.Topic...)
	return join(op, tok)
}

func (e EventSubject) check(op string) error {
	bad := func(field, value, problem string) error {
		return &SubjectError{op, field, tokenProblem(value, problem)}
	}
	switch {
	case !ValidSpace(e.Space):
		return bad("space", e.Space, whySpace)
	case !ValidEndpoint(e.Endpoint):
		return bad("endpoint", e.Endpoint, whyEndpoint)
	case !ValidUID(e.InstanceID):
		return bad("instance id", e.InstanceID, whyUID)
	case e.Epoch > MaxInteger:
		return bad("epoch", strconv.FormatUint(e.Epoch, 10), whyEpoch)
	case len(e.Topic) == 0:
		return bad("topic", "", "")
	}
	for _, t := range e.Topic {
		if !ValidID(t) {
			return bad("topic token", t, whyID)
		}
	}
	return nil
}

// ParseEventSubject takes an event subject apart.
func ParseEventSubject(subject string) (EventSubject, error) {
	const op = "parse event subject"
	c, space, err := split(op, subject, "epe")
	if err != nil {
		return EventSubject{}, err
	}
	e := EventSubject{Space: space}
	var ok bool
	if e.Endpoint, ok = endpointOfToken(c.next()); !ok {
		return EventSubject{}, &SubjectError{op, "endpoint", "is not an endpoint token"}
	}
	e.InstanceID = c.next()
	if e.Epoch, err = parseEpoch(op, c.next()); err != nil {
		return EventSubject{}, err
	}
	e.Topic = c.tok[c.i:]
	if err := e.check(op); err != nil {
		return EventSubject{}, err
	}
	return e, nil
}

// GoalProgressSubject is where the executor of a goal publishes its progress. The parts come from
// records that were checked when they were made; a part that breaks its grammar gives a subject
// that no broker accepts.
func GoalProgressSubject(space, endpoint, instanceID string, epoch uint64, c Caller, goalID string) string {
	return goalProgress(space, endpoint, instanceID, strconv.FormatUint(epoch, 10), c, goalID)
}

// GoalProgressFilter matches the progress of one goal whichever incarnation of the instance publishes
// it, so that a watch outlives a restart of the host. An empty instance id matches any instance.
func GoalProgressFilter(space, endpoint, instanceID string, c Caller, goalID string) string {
	if instanceID == "" {
		instanceID = "*"
	}
	return goalProgress(space, endpoint, instanceID, "*", c, goalID)
}

func goalProgress(space, endpoint, instance, epoch string, c Caller, goalID string) string {
	return strings.Join([]string{
		"cotal", space, "epe", EndpointToken(endpoint), instance, epoch,
		"goal", c.Owner, c.Actor, c.UID, goalID, "progress",
	}, ".")
}

// Event is the envelope of an event.
type Event struct {
	V           int             `json:"v"`
	Topic       string          `json:"topic"` // the topic tokens, joined by dots
	TS          int64           `json:"ts"`    // epoch milliseconds
	Data        json.RawMessage `json:"data"`
	Correlation *Correlation    `json:"correlation,omitempty"`
}

// DecodeEvent decodes and validates an event.
func DecodeEvent(p []byte) (Event, error) {
	var e Event
	f, err := readFields(p)
	if err != nil {
		return e, fmt.Errorf("decode event: %w", err)
	}
	f.integer("v", true, 1, 1, func(n int64) { e.V = int(n) })
	f.str("topic", true, nil, "", &e.Topic)
	f.integer("ts", true, 0, MaxInteger, func(n int64) { e.TS = n })
	e.Data = f.raw("data")
	e.Correlation = f.correlation()
	if f.err != nil {
		return Event{}, fmt.Errorf("decode event: %w", f.err)
	}
	return e, nil
}
