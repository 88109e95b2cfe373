package wire

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// planeSubject is a parser of this package that gives back what it understood, built again.
type planeSubject struct {
	name  string
	parse func(string) (string, error)
}

var planeSubjects = []planeSubject{
	{"request", func(s string) (string, error) { return reparse(ParseRequestSubject(s)) }},
	{"reply", func(s string) (string, error) { return reparse(ParseReplySubject(s)) }},
	{"event", func(s string) (string, error) { return reparse(ParseEventSubject(s)) }},
	{"message", func(s string) (string, error) { return reparse(ParseMessageSubject(s)) }},
	{"submission", func(s string) (string, error) { return reparse(ParseSubmissionSubject(s)) }},
	{"fact", func(s string) (string, error) { return reparse(ParseFactSubject(s)) }},
	{"timer", func(s string) (string, error) { return reparse(ParseTimerSubject(s)) }},
	{"record write", func(s string) (string, error) { return reparse(ParseRecordWriteSubject(s)) }},
	{"work", func(s string) (string, error) { return reparse(ParseWorkSubject(s)) }},
	{"session", func(s string) (string, error) { return reparse(ParseSessionSubject(s)) }},
	{"artifact", func(s string) (string, error) {
		space, digest, err := ParseArtifactSubject(s)
		if err != nil {
			return "", err
		}
		return ArtifactSubject(space, digest)
	}},
	{"run", func(s string) (string, error) {
		space, id, err := ParseRunSubject(s)
		if err != nil {
			return "", err
		}
		return RunSubject(space, id)
	}},
}

func reparse[T interface{ Subject() (string, error) }](v T, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return v.Subject()
}

const triple = "local." + testNkey + "." + testUID

// planeForms are the subject forms of every plane, one of each.
var planeForms = []struct {
	plane, want string
	build       func() (string, error)
}{
	{"submission", "cotal.main.epj.manager.deploy." + triple, SubmissionSubject{Space: "main", Endpoint: "manager", Command: "deploy", Caller: testCaller}.Subject},
	{"submission", "cotal.main.epj.com_acme_tool.deploy.self." + triple, SubmissionSubject{Space: "main", Endpoint: "com.acme.tool", Command: "deploy", Authz: AuthzSelf, Caller: testCaller}.Subject},
	{"submission", "cotal.main.epj.manager.deploy.owner.local." + triple, SubmissionSubject{Space: "main", Endpoint: "manager", Command: "deploy", Authz: AuthzOwner, TargetOwner: "local", Caller: testCaller}.Subject},
	{"submission", "cotal.main.epj.manager.deploy.exact." + userTok + ".bob." + testUID2 + "." + triple, SubmissionSubject{Space: "main", Endpoint: "manager", Command: "deploy", Authz: AuthzExact, TargetOwner: userTok, TargetActor: "bob", TargetUID: testUID2, Caller: testCaller}.Subject},
	{"timer", "cotal.main.ept.manager." + testInst + ".7.t-1.schedule", TimerSubject{"main", "manager", testInst, 7, "t-1", TimerSchedule}.Subject},
	{"timer", "cotal.main.ept.manager." + testInst + ".0.t1.armed", TimerSubject{"main", "manager", testInst, 0, "t1", TimerArmed}.Subject},
	{"timer", "cotal.main.ept.manager." + testInst + ".9007199254740991.t1.fire", TimerSubject{"main", "manager", testInst, MaxInteger, "t1", TimerFire}.Subject},
	{"record write", "cotal.main.epr.manager." + testInst + ".7.svc.manager." + testInst, RecordWriteSubject{"main", "manager", testInst, 7, ServiceKey("manager", testInst)}.Subject},
	{"record write", "cotal.main.epr.manager." + testInst + ".7.lease.com_acme.deep." + triple + ".r1", RecordWriteSubject{"main", "manager", testInst, 7, Key{Kind: KindLease, Qualifiers: []string{"com.acme", "deep", "local", testNkey, testUID, "r1"}}}.Subject},
	{"artifact", "cotal.main.epc." + testDigestA[7:], func() (string, error) { return ArtifactSubject("main", testDigestA) }},
	{"work", "cotal.main.epw.manager.deep." + triple + ".r1", WorkSubject{"main", "manager", "deep", testCaller, "r1"}.Subject},
	{"session", "cotal.main.eps.manager." + nonce + ".7.in", SessionSubject{"main", "manager", nonce, 7, SessionIn}.Subject},
	{"session", "cotal.main.eps.manager." + nonce + ".7.out", SessionSubject{"main", "manager", nonce, 7, SessionOut}.Subject},
	{"run", "cotal.main.wfj.run-1", func() (string, error) { return RunSubject("main", "run-1") }},

	{"fact", "cotal.main.epf.manager.dec." + triple + ".r1", FactSubject{Space: "main", Endpoint: "manager", Kind: FactDecision, Caller: testCaller, ID: "r1"}.Subject},
	{"fact", "cotal.main.epf.manager.quar.42", FactSubject{Space: "main", Endpoint: "manager", Kind: FactQuarantine, SourceSeq: 42}.Subject},
	{"fact", "cotal.main.epf.manager.goal." + triple + ".g1.bind", GoalRef{"manager", testCaller, "g1"}.Bind("main").Subject},
	{"fact", "cotal.main.epf.manager.goal." + triple + ".g1.result", GoalRef{"manager", testCaller, "g1"}.Result("main").Subject},
	{"fact", "cotal.main.epf.manager.wrk.deep." + triple + ".r1", FactSubject{Space: "main", Endpoint: "manager", Kind: FactWork, Caller: testCaller, ID: "r1", Pool: "deep"}.Subject},
	{"fact", "cotal.main.epf.manager.eff." + triple + ".r1", FactSubject{Space: "main", Endpoint: "manager", Kind: FactEffect, Caller: testCaller, ID: "r1"}.Subject},
	{"fact", "cotal.main.epf.manager.cp.tok", FactSubject{Space: "main", Endpoint: "manager", Kind: FactCheckpoint, ID: "tok"}.Subject},
	{"fact", "cotal.main.epf.manager.receipt." + triple + ".r1.42", FactSubject{Space: "main", Endpoint: "manager", Kind: FactReceipt, Caller: testCaller, ID: "r1", SourceSeq: 42}.Subject},

	{"event", "cotal.main.epe.manager." + testInst + ".7.ev.ai_cotal_manager.seat-exited", eventWith(EventTopic{Kind: EventCluster, Cluster: ManagerURN, What: "seat-exited"})},
	{"event", "cotal.main.epe.manager." + testInst + ".7.goal." + triple + ".g1.progress", eventWith(GoalRef{"manager", testCaller, "g1"}.Progress())},
	{"event", "cotal.main.epe.manager." + testInst + ".7.cp.tok.expired", eventWith(EventTopic{Kind: EventCheckpoint, ID: "tok", What: "expired"})},
	{"message", "cotal.main.chat.local." + testNkey + ".team.x", MessageSubject{Kind: MessageChat, Space: "main", Sender: Principal{"local", testNkey}, Channel: "team.x"}.Subject},
	{"message", "cotal.main.inst.local.bob.local." + testNkey, MessageSubject{Kind: MessageDirect, Space: "main", Sender: Principal{"local", testNkey}, To: Principal{"local", "bob"}}.Subject},
	{"message", "cotal.main.svc.reviewer.local." + testNkey, MessageSubject{Kind: MessageService, Space: "main", Sender: Principal{"local", testNkey}, Role: "reviewer"}.Subject},
	{"request", "cotal.main.ep.one.manager.ps." + triple + "." + nonce, base().Subject},
	{"reply", "cotal.main.ep.reply.manager." + testInst + ".7." + triple + "." + nonce, base().Reply(testInst, 7).Subject},
}

func eventWith(topic EventTopic) func() (string, error) {
	return func() (string, error) {
		tok, err := topic.Tokens()
		if err != nil {
			return "", err
		}
		if back, err := ParseEventTopic(tok); err != nil || back != topic {
			return "", errors.New("the topic does not parse back")
		}
		return EventSubject{Space: "main", Endpoint: "manager", InstanceID: testInst, Epoch: 7, Topic: tok}.Subject()
	}
}

func TestPlaneSubjects(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range planeForms {
		s, err := f.build()
		if err != nil || s != f.want {
			t.Errorf("%s builds %q, %v\nwant %s", f.plane, s, err, f.want)
		}
		seen[f.plane] = true
		for _, p := range planeSubjects {
			back, err := p.parse(f.want)
			if (err == nil) != (p.name == f.plane) || err == nil && back != f.want {
				t.Errorf("the parser of %s makes of the %s %s: %q, %v", p.name, f.plane, f.want, back, err)
			}
		}
	}
	for _, p := range planeSubjects {
		if !seen[p.name] {
			t.Errorf("no form of %s is tested", p.name)
		}
	}
}

// A subject with a token more, a token less, an empty token, a wildcard for a token, or another case is
// not that subject; if a parser takes it all the same (a longer channel or topic), it is what it builds.
func TestNoParserTakesAnotherArity(t *testing.T) {
	// Token counts of the contract; channels, topics and record keys have more than one length.
	arity := map[string][]int{
		"request": {10, 11, 12, 13, 14, 15, 16, 17}, "reply": {11, 13}, "submission": {8, 9, 10, 12}, "timer": {8},
		"artifact": {4}, "work": {9}, "session": {7}, "run": {4}, "fact": {6, 9, 10},
	}
	for _, f := range planeForms {
		tok := strings.Split(f.want, ".")
		variants := map[string]string{
			f.want + ".x": "a token more", f.want + ".": "an empty token more", "x." + f.want: "a token in front",
			strings.ToUpper(f.want): "capitals", f.want + " ": "a space", f.want + "\n": "a line feed", "": "nothing",
		}
		for i := range tok {
			less := append(append([]string{}, tok[:i]...), tok[i+1:]...)
			variants[strings.Join(less, ".")] = "a token less"
			for _, v := range []string{"", "*", ">", "a.b", "\x00", "ö", "00", "-1"} {
				other := append([]string{}, tok...)
				other[i] = v
				variants[strings.Join(other, ".")] = "the token " + v
			}
		}
		for s, how := range variants {
			for _, p := range planeSubjects {
				back, err := p.parse(s)
				if err != nil {
					var se *SubjectError
					if !errors.As(err, &se) {
						t.Errorf("%s: %v is no *SubjectError", p.name, err)
					}
					continue
				}
				if back != s {
					t.Errorf("%s with %s: the parser of %s makes %q of %q", f.plane, how, p.name, back, s)
				}
				if n := strings.Count(s, ".") + 1; arity[p.name] != nil && !slices.Contains(arity[p.name], n) {
					t.Errorf("%s with %s: the parser of %s takes %d tokens: %q", f.plane, how, p.name, n, s)
				}
				if strings.ContainsAny(s, "*> \n\x00") {
					t.Errorf("the parser of %s takes %q", p.name, s)
				}
			}
		}
	}
}

func TestPlaneSubjectsRefuseToBuild(t *testing.T) {
	fact := FactSubject{Space: "main", Endpoint: "manager", Kind: FactDecision, Caller: testCaller, ID: "r1"}
	session := SessionSubject{"main", "manager", nonce, 7, SessionIn}
	for _, c := range []struct {
		name, field string
		build       func() (string, error)
	}{
		{"a fact with another kind's pool", "pool", func() (string, error) { f := fact; f.Pool = "deep"; return f.Subject() }},
		{"a decision with a sequence", "source sequence", func() (string, error) { f := fact; f.SourceSeq = 1; return f.Subject() }},
		{"a quarantine with a caller", "caller", func() (string, error) { f := fact; f.Kind, f.ID = FactQuarantine, ""; return f.Subject() }},
		{"a quarantine with an id", "id", func() (string, error) {
			f := fact
			f.Kind, f.Caller = FactQuarantine, Caller{}
			return f.Subject()
		}},
		{"a fact of no kind", "fact kind", func() (string, error) { f := fact; f.Kind = "goal"; return f.Subject() }},
		{"a work fact without pool", "pool", func() (string, error) { f := fact; f.Kind = FactWork; return f.Subject() }},
		{"a fact of a caller without uid", "caller uid", func() (string, error) { f := fact; f.Caller.UID = ""; return f.Subject() }},
		{"a session that can be guessed", "session id", func() (string, error) { s := session; s.SessionID = "1"; return s.Subject() }},
		{"a session in no direction", "direction", func() (string, error) { s := session; s.Dir = "up"; return s.Subject() }},
		{"an epoch beyond 2^53-1", "epoch", func() (string, error) { s := session; s.Epoch = MaxInteger + 1; return s.Subject() }},
		{"an endpoint with an underscore", "endpoint", func() (string, error) { s := session; s.Endpoint = "a_b"; return s.Subject() }},
		{"a timer of no phase", "phase", TimerSubject{"main", "manager", testInst, 7, "t", "now"}.Subject},
		{"a record write of a head", "record", RecordWriteSubject{"main", "manager", testInst, 7, GovernKey("manager")}.Subject},
		{"a record write of a spec", "record part", RecordWriteSubject{"main", "manager", testInst, 7, ServiceKey("manager", testInst).Spec()}.Subject},
		{"an artifact by bare hex", "digest", func() (string, error) { return ArtifactSubject("main", testDigestA[7:]) }},
		{"a submission with a target of another mode", "target actor", SubmissionSubject{Space: "main", Endpoint: "manager", Command: "x", Authz: AuthzOwner, TargetOwner: "local", TargetActor: "bob", Caller: testCaller}.Subject},
		{"a submission in a mode nobody knows", "authorization mode", SubmissionSubject{Space: "main", Endpoint: "manager", Command: "x", Authz: "root", Caller: testCaller}.Subject},
		{"an event topic of a cluster without dots", "cluster", eventWith(EventTopic{Kind: EventCluster, Cluster: "manager", What: "x"})},
		{"an event topic that is not reserved", "topic", eventWith(EventTopic{Kind: "x", What: "x"})},
		{"an event topic with another kind's id", "id", eventWith(EventTopic{Kind: EventCluster, Cluster: ManagerURN, ID: "x", What: "x"})},
	} {
		t.Run(c.name, func(t *testing.T) {
			var se *SubjectError
			if s, err := c.build(); !errors.As(err, &se) || se.Field != c.field {
				t.Fatalf("%q, %v; want a refusal that names %s", s, err, c.field)
			}
		})
	}
}

func TestSubmissionOfARequest(t *testing.T) {
	r := targeted(AuthzHandle, userTok, "bob", testUID2)
	s, err := r.Submission().Subject()
	if err != nil || s != "cotal.main.epj.manager."+r.Command+".handle."+userTok+".bob."+testUID2+"."+triple {
		t.Fatalf("%s, %v", s, err)
	}
}

func TestServeAndGrantSubjects(t *testing.T) {
	r, err := CommandRails("main", "com.acme.tool", testInst, "ps", false)
	want := Rails{"com_acme_tool", "cotal.main.ep.one.com_acme_tool.ps.>", "cotal.main.ep.inst.com_acme_tool." + testInst + ".ps.>", "cotal.main.ep.all.com_acme_tool.ps.>"}
	if err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = CommandRails("main", "manager", testInst, "ps", true)
	want = Rails{"manager", "cotal.main.ep.v1.one.manager.ps.>", "cotal.main.ep.v1.inst.manager." + testInst + ".ps.>", "cotal.main.ep.v1.all.manager.ps.>"}
	if err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"*", ">", "", "Ps"} {
		if r, err := CommandRails("main", "manager", testInst, bad, false); err == nil {
			t.Errorf("command %q: %+v", bad, r)
		}
	}
	for want, got := range map[string]func() (string, error){
		"cotal.main.ep.reply.*.*.*." + triple + ".*":                  func() (string, error) { return CallerReplies("main", testCaller, false) },
		"cotal.main.ep.v1.reply.*.*.*." + triple + ".*.*":             func() (string, error) { return CallerReplies("main", testCaller, true) },
		"cotal.main.ep.reply.manager." + testInst + ".7.*.*.*.*":      func() (string, error) { return ResponderReplies("main", "manager", testInst, 7, false) },
		"cotal.main.ep.v1.reply.manager." + testInst + ".7.*.*.*.*.*": func() (string, error) { return ResponderReplies("main", "manager", testInst, 7, true) },
		"cotal.main.epf.manager.goal.*.*.*.*.result":                  func() (string, error) { return FactFilter("main", "manager", FactGoalResult) },
		"cotal.main.epf.manager.dec.>":                                func() (string, error) { return FactFilter("main", "manager", FactDecision) },
	} {
		if s, err := got(); err != nil || s != want {
			t.Errorf("%s, %v; want %s", s, err, want)
		}
	}
	if s, err := FactFilter("main", "manager", "goal"); err == nil {
		t.Errorf("%s", s)
	}
	// The grant of a caller covers exactly the replies to it: the same number of tokens, on each rail.
	for _, gen := range []string{"", strings.Repeat("0a", 16)} {
		req := with(func(r *RequestSubject) { r.Generation = gen })
		reply, err := req.Reply(testInst, 7).Subject()
		if err != nil {
			t.Fatal(err)
		}
		grant, _ := CallerReplies("main", testCaller, gen != "")
		give, _ := ResponderReplies("main", "manager", testInst, 7, gen != "")
		if !ChannelMatches(grant, reply) || !ChannelMatches(give, reply) {
			t.Errorf("%s is not covered by %s and %s", reply, grant, give)
		}
		other, _ := CallerReplies("main", testCaller, gen == "")
		if ChannelMatches(other, reply) {
			t.Errorf("%s is covered by the grant of the other rail", reply)
		}
	}
}

// The requester of a retirement may spell its mode either way; both carry the whole target.
func TestRetireLifecycleRailTakesBothModes(t *testing.T) {
	for _, mode := range []Authz{AuthzHandle, AuthzExact} {
		s := "cotal.main.ep.one.auth.retire-lifecycle." + string(mode) + "." + userTok + ".bob." + testUID2 + "." + triple + "." + nonce
		r, err := ParseRequestSubject(s)
		if err != nil || r.Endpoint != "auth" || r.Authz != mode || r.TargetUID != testUID2 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}
