package wire

import "strings"

// FactKind is a reserved topic of the facts of an endpoint. A fact is published once, create-only, and
// never changes.
type FactKind string

// Fact kinds and who writes them.
const (
	FactDecision   FactKind = "dec"         // accepted or rejected; the canonicalizer
	FactQuarantine FactKind = "quar"        // a submission nobody can decide; the canonicalizer
	FactGoalBind   FactKind = "goal.bind"   // the first fingerprint of a goal id wins; the goal writer
	FactGoalResult FactKind = "goal.result" // the one terminal of a goal; the commit principal
	FactWork       FactKind = "wrk"         // the end of one item of a pool; the commit principal
	FactEffect     FactKind = "eff"         // the effect of a decision is complete; the commit principal
	FactCheckpoint FactKind = "cp"          // the one settlement of a checkpoint; the commit principal
	FactReceipt    FactKind = "receipt"     // signed evidence of one execution; the commit principal
)

// FactSubject is the subject of a fact, cotal.<space>.epf.<endpoint>.<topic>, with one of the topics
//
//	dec.<owner>.<actor>.<uid>.<id>
//	quar.<source sequence>
//	goal.<owner>.<actor>.<uid>.<goal id>.bind
//	goal.<owner>.<actor>.<uid>.<goal id>.result
//	wrk.<pool>.<owner>.<actor>.<uid>.<id>
//	eff.<owner>.<actor>.<uid>.<id>
//	cp.<token>
//	receipt.<owner>.<actor>.<uid>.<id>.<source sequence>
type FactSubject struct {
	Space     string
	Endpoint  string
	Kind      FactKind
	Caller    Caller // every kind but quar and cp
	ID        string // request id, goal id or checkpoint token; every kind but quar
	Pool      string // wrk only
	SourceSeq uint64 // quar and receipt only
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (f FactSubject) Subject() (string, error) {
	b := build("build fact subject", f.Space, "epf")
	b.endpoint(f.Endpoint)
	word, leaf, _ := strings.Cut(string(f.Kind), ".")
	b.word(word)
	hasCaller, hasID := true, true
	switch f.Kind {
	case FactDecision, FactGoalBind, FactGoalResult, FactEffect, FactReceipt:
	case FactWork:
		b.add("pool", f.Pool, ValidPool, whyCommand)
	case FactCheckpoint:
		hasCaller = false
	case FactQuarantine:
		hasCaller, hasID = false, false
	default:
		b.fail("fact kind", string(f.Kind), "is not known")
	}
	if hasCaller {
		b.caller(f.Caller)
	}
	if hasID {
		b.add("id", f.ID, ValidID, whyID)
	}
	if leaf != "" {
		b.word(leaf)
	}
	seq := f.Kind == FactQuarantine || f.Kind == FactReceipt
	if seq {
		b.integer("source sequence", f.SourceSeq)
	}
	b.absent("caller", !hasCaller && !f.Caller.IsZero())
	b.absent("id", !hasID && f.ID != "")
	b.absent("pool", f.Kind != FactWork && f.Pool != "")
	b.absent("source sequence", !seq && f.SourceSeq != 0)
	return b.join()
}

// ParseFactSubject takes a fact subject apart. Topics that are not reserved are refused.
func ParseFactSubject(subject string) (FactSubject, error) {
	const op = "parse fact subject"
	c, space, err := open(op, subject, "epf", 3, true)
	if err != nil {
		return FactSubject{}, err
	}
	f := FactSubject{Space: space, Endpoint: c.endpoint()}
	f.Kind = FactKind(c.next())
	switch f.Kind {
	case FactQuarantine:
		f.SourceSeq = c.integer()
	case FactCheckpoint:
		f.ID = c.next()
	case "goal":
		f.Caller, f.ID = c.caller(), c.next()
		f.Kind += FactKind("." + c.next())
	case FactWork:
		f.Pool = c.next()
		f.Caller, f.ID = c.caller(), c.next()
	case FactReceipt:
		f.Caller, f.ID = c.caller(), c.next()
		f.SourceSeq = c.integer()
	default:
		f.Caller, f.ID = c.caller(), c.next()
	}
	made, err := f.Subject()
	return rebuilt(op, subject, f, made, err)
}

// FactFilter subscribes or reads all facts of one kind of an endpoint, of any caller.
func FactFilter(space, endpoint string, kind FactKind) (string, error) {
	b := build("build fact filter", space, "epf")
	b.endpoint(endpoint)
	switch kind {
	case FactGoalBind, FactGoalResult:
		_, leaf, _ := strings.Cut(string(kind), ".")
		b.tok = append(b.tok, "goal", "*", "*", "*", "*", leaf)
	case FactDecision, FactQuarantine, FactWork, FactEffect, FactCheckpoint, FactReceipt:
		b.tok = append(b.tok, string(kind), ">")
	default:
		b.fail("fact kind", string(kind), "is not known")
	}
	return b.join()
}

// Reserved first tokens of an event topic.
const (
	EventCluster    = "ev"   // ev.<cluster>.<event>
	EventGoal       = "goal" // goal.<owner>.<actor>.<uid>.<goal id>.<what>
	EventCheckpoint = "cp"   // cp.<token>.<what>
)

// EventTopic is a reserved event topic taken apart.
type EventTopic struct {
	Kind    string
	Cluster string // ev: the URN of the cluster, with dots
	Caller  Caller // goal
	ID      string // goal: the goal id; cp: the token
	What    string // the event: progress, ...
}

// Tokens builds the topic of an EventSubject. It refuses (a *SubjectError) rather than mangles.
func (t EventTopic) Tokens() ([]string, error) {
	b := &builder{op: "build event topic"}
	b.word(t.Kind)
	switch t.Kind {
	case EventCluster:
		b.add("cluster", EndpointToken(t.Cluster), func(string) bool { return ValidURN(t.Cluster) }, "is not a reverse-DNS name")
	case EventGoal:
		b.caller(t.Caller)
		b.add("goal id", t.ID, ValidID, whyID)
	case EventCheckpoint:
		b.add("token", t.ID, ValidID, whyID)
	default:
		b.fail("topic", t.Kind, "is not reserved")
	}
	b.add("event", t.What, ValidID, whyID)
	b.absent("cluster", t.Kind != EventCluster && t.Cluster != "")
	b.absent("caller", t.Kind != EventGoal && !t.Caller.IsZero())
	b.absent("id", t.Kind == EventCluster && t.ID != "")
	if b.err != nil {
		return nil, b.err
	}
	return b.tok, nil
}

// ParseEventTopic takes the topic of an EventSubject apart. It refuses topics that are not reserved.
func ParseEventTopic(topic []string) (EventTopic, error) {
	const op = "parse event topic"
	c := &cursor{tok: topic}
	t := EventTopic{Kind: c.next()}
	switch t.Kind {
	case EventCluster:
		t.Cluster = strings.ReplaceAll(c.next(), "_", ".")
	case EventGoal:
		t.Caller, t.ID = c.caller(), c.next()
	case EventCheckpoint:
		t.ID = c.next()
	}
	t.What = c.next()
	tok, err := t.Tokens()
	return rebuilt(op, strings.Join(topic, "."), t, strings.Join(tok, "."), err)
}
