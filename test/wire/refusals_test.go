//go:build linux

package wire

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// silence is the code of a case that gets no answer at all.
const silence = ""

// refusal is one way to make a request wrong.
type refusal struct {
	what string
	// spoil makes the one thing wrong. It returns false when the case makes no sense for the command.
	spoil func(r *rig, c command, q *request) bool
	code  string // "" : it is not answered
	// nonceID: the envelope cannot be read, so the answer carries the nonce as its id.
	nonceID bool
	kind    string // of a detail that the refusal carries
}

// whole replaces the payload.
func whole(s string) func(*rig, command, *request) bool {
	return func(_ *rig, _ command, q *request) bool { q.raw = []byte(s); return true }
}

// member sets one member of the envelope, or (nil) leaves it out.
func member(name string, v any) func(*rig, command, *request) bool {
	return func(_ *rig, _ command, q *request) bool {
		if v == nil {
			delete(q.body, name)
		} else {
			q.body[name] = v
		}
		return true
	}
}

func opMember(name string, v any) func(*rig, command, *request) bool {
	return func(_ *rig, _ command, q *request) bool {
		if v == nil {
			delete(q.op(), name)
		} else {
			q.op()[name] = v
		}
		return true
	}
}

// edited changes the payload as text.
func edited(old, with string) func(*rig, command, *request) bool {
	return func(r *rig, _ command, q *request) bool {
		text := string(q.payload())
		if !strings.Contains(text, old) {
			r.t.Fatalf("%s does not hold %s", text, old)
		}
		q.raw = []byte(strings.Replace(text, old, with, 1))
		return true
	}
}

// envelopes are requests whose envelope is wrong, whatever the command.
var envelopes = []refusal{
	{what: "no payload", spoil: whole(""), code: "bad-request", nonceID: true},
	{what: "an object that does not end", spoil: whole(`{"v":1`), code: "bad-request", nonceID: true},
	{what: "a list", spoil: whole(`[]`), code: "bad-request", nonceID: true},
	{what: "null", spoil: whole(`null`), code: "bad-request", nonceID: true},
	{what: "a text", spoil: whole(`"ps"`), code: "bad-request", nonceID: true},
	{what: "not UTF-8", spoil: whole("{\"v\":1,\"id\":\"\xff\xfe\"}"), code: "bad-request", nonceID: true},
	{what: "binary", spoil: whole("\x00\x01\x02"), code: "bad-request", nonceID: true},
	{what: "something behind the end", spoil: func(_ *rig, _ command, q *request) bool {
		q.raw = append(q.payload(), "{}"...)
		return true
	}, code: "bad-request", nonceID: true},
	{what: "a thousand objects in one another", spoil: whole(strings.Repeat(`{"a":`, 1000) + "1" + strings.Repeat("}", 1000)), code: "bad-request", nonceID: true},
	{what: "the body of version 0", spoil: whole(`{"op":"ps","args":{}}`), code: "unsupported-version", nonceID: true},
	{what: "v is missing", spoil: member("v", nil), code: "bad-request"},
	{what: "v 2", spoil: member("v", 2), code: "unsupported-version"},
	{what: "v 0", spoil: member("v", 0), code: "unsupported-version"},
	{what: "v as text", spoil: member("v", "1"), code: "bad-request"},
	{what: "id is missing", spoil: member("id", nil), code: "bad-request", nonceID: true},
	{what: "id with a dot", spoil: member("id", "a.b"), code: "bad-request", nonceID: true},
	{what: "id as number", spoil: member("id", 7), code: "bad-request", nonceID: true},
	{what: "id of 65 characters", spoil: member("id", strings.Repeat("i", 65)), code: "bad-request", nonceID: true},
	{what: "op is missing", spoil: member("op", nil), code: "bad-request"},
	{what: "op as text", spoil: member("op", "ps"), code: "bad-request"},
	{what: "op.command is missing", spoil: opMember("command", nil), code: "bad-request"},
	{what: "op.command in capitals", spoil: opMember("command", "PS"), code: "bad-request"},
	{what: "op.command of another command", spoil: opMember("command", "some-other"), code: "op-mismatch"},
	{what: "op.endpoint of another endpoint", spoil: opMember("endpoint", "delivery"), code: "op-mismatch"},
	{what: "op.inputDigest is no digest", spoil: opMember("inputDigest", "sha256:abc"), code: "bad-request"},
	{what: "op.inputDigest in capitals", spoil: opMember("inputDigest", "sha256:"+strings.Repeat("AB", 32)), code: "bad-request"},
	{what: "class journal", spoil: member("class", "journal"), code: "class-mismatch"},
	{what: "class nobody knows", spoil: member("class", "quick"), code: "bad-request"},
	{what: "class is missing", spoil: member("class", nil), code: "bad-request"},
	{what: "replyExpected as text", spoil: member("replyExpected", "yes"), code: "bad-request"},
	{what: "replyExpected is missing", spoil: member("replyExpected", nil), code: "bad-request"},
	{what: "from is missing", spoil: member("from", nil), code: "bad-request"},
	{what: "from without id", spoil: member("from", map[string]any{"name": "x"}), code: "bad-request"},
	{what: "from.id in dash form", spoil: member("from", map[string]any{"id": "local-x"}), code: "bad-request"},
	{what: "from.id of somebody else", spoil: member("from", map[string]any{"id": "local.somebody"}), code: "sender-mismatch"},
	{what: "deadlineMs is missing", spoil: member("deadlineMs", nil), code: "bad-request"},
	{what: "deadlineMs 0", spoil: member("deadlineMs", 0), code: "bad-request"},
	{what: "deadlineMs below 0", spoil: member("deadlineMs", -5), code: "bad-request"},
	{what: "deadlineMs with a fraction", spoil: edited(`"deadlineMs":15000`, `"deadlineMs":1.5`), code: "bad-request"},
	{what: "deadlineMs 2^53", spoil: edited(`"deadlineMs":15000`, `"deadlineMs":9007199254740992`), code: "bad-request"},
	{what: "deadlineMs as text", spoil: member("deadlineMs", "15000"), code: "bad-request"},
	{what: "goalId is no id", spoil: member("goalId", "a b"), code: "bad-request"},
	{what: "args as list", spoil: member("args", []int{}), code: "bad-request"},
	{what: "args as text", spoil: member("args", "x"), code: "bad-request"},
	{what: "auth as number", spoil: member("auth", 5), code: "bad-request"},
	{what: "a member twice", spoil: edited(`"class":"ephemeral"`, `"class":"ephemeral","class":"ephemeral"`), code: "bad-request", nonceID: true},
	{what: "a member of a member twice", spoil: edited(`"endpoint":"manager"`, `"endpoint":"manager","endpoint":"manager"`), code: "bad-request", nonceID: true},
	{what: "a member twice, once escaped", spoil: edited(`"class":"ephemeral"`, `"class":"ephemeral","cl\u0061ss":"ephemeral"`), code: "bad-request", nonceID: true},
}

// binds are requests that are bound, to another incarnation or where a bind has no place. They are refused
// before arguments and target are looked at.
var binds = []refusal{
	{what: "bound to another instance", spoil: elsewhere, code: "failed-precondition", kind: "ai.cotal.ep.bind-refused"},
	{what: "bound to the epoch before", spoil: bind(func(r *rig) (any, any) { return r.instance, r.epoch - 1 }), code: "expired", kind: "ai.cotal.ep.bind-refused"},
	{what: "bound to the epoch to come", spoil: bind(func(r *rig) (any, any) { return r.instance, r.epoch + 1 }), code: "expired", kind: "ai.cotal.ep.bind-refused"},
	{what: "bound without epoch", spoil: bind(func(r *rig) (any, any) { return r.instance, nil }), code: "bad-request"},
	{what: "bound to no instance id", spoil: bind(func(r *rig) (any, any) { return "manager", r.epoch }), code: "bad-request"},
	{what: "bound to an epoch below 0", spoil: bind(func(r *rig) (any, any) { return r.instance, -1 }), code: "bad-request"},
	{what: "bound to another instance, with arguments that are wrong", spoil: func(r *rig, c command, q *request) bool {
		q.body["args"] = map[string]any{"nosuch": 1}
		return elsewhere(r, c, q)
	}, code: "failed-precondition", kind: "ai.cotal.ep.bind-refused"},
	{what: "bound to another epoch, with a target that is gone", spoil: func(r *rig, c command, q *request) bool {
		if !c.targeted() || c.modes[0] == "self" {
			return false
		}
		q.at("any", triple{"local", r.victim.actor, newUID()})
		return bind(func(r *rig) (any, any) { return r.instance, r.epoch + 7 })(r, c, q)
	}, code: "expired", kind: "ai.cotal.ep.bind-refused"},
	{what: "bound on the rail of an instance to another one", spoil: func(r *rig, c command, q *request) bool {
		q.on("inst")
		return bind(func(r *rig) (any, any) { return strings.Repeat("z", 26), r.epoch })(r, c, q)
	}, code: "bad-request"},
	{what: "bound in a scatter", spoil: func(r *rig, c command, q *request) bool {
		if instanceOnly[c.name] {
			return false
		}
		q.on("all")
		return bind(func(r *rig) (any, any) { return r.instance, r.epoch })(r, c, q)
	}, code: "bad-request"},
}

// elsewhere binds to an instance that does not exist, on a rail that does not name one.
func elsewhere(r *rig, c command, q *request) bool {
	return bind(func(r *rig) (any, any) { return strings.Repeat("z", 26), r.epoch })(r, c, q) && q.mode != "inst"
}

// bind sets the fence. describe takes none at all.
func bind(to func(*rig) (any, any)) func(*rig, command, *request) bool {
	return func(r *rig, c command, q *request) bool {
		instance, epoch := to(r)
		b := map[string]any{"instanceId": instance}
		if epoch != nil {
			b["epoch"] = epoch
		}
		q.body["bind"] = b
		return c.name != "describe"
	}
}

// targets are requests whose target is wrong.
var targets = []refusal{
	{what: "a target where none belongs", spoil: func(r *rig, c command, q *request) bool {
		q.body["target"] = targetOf(r.victim)
		return !c.targeted()
	}, code: "target-mismatch"},
	{what: "a mode where none belongs", spoil: func(r *rig, c command, q *request) bool {
		q.at("any", r.victim)
		return !c.targeted()
	}, code: "target-mismatch"},
	{what: "no mode and no target", spoil: func(_ *rig, c command, q *request) bool {
		q.authz = nil
		delete(q.body, "target")
		return c.targeted()
	}, code: "target-mismatch"},
	{what: "a mode without a target in the body", spoil: aimed(func(r *rig, q *request) { delete(q.body, "target") }), code: "target-mismatch"},
	{what: "a target of another owner than the subject's", spoil: aimed(func(r *rig, q *request) {
		q.body["target"] = targetOf(triple{"u_" + strings.Repeat("a", 26), r.victim.actor, r.victim.uid})
	}), code: "target-mismatch"},
	{what: "a target without uid", spoil: aimed(func(r *rig, q *request) {
		q.body["target"] = map[string]any{"owner": r.victim.owner, "actor": r.victim.actor}
	}), code: "bad-request"},
	{what: "a target with a uid in capitals", spoil: aimed(func(r *rig, q *request) {
		q.body["target"] = targetOf(triple{r.victim.owner, r.victim.actor, strings.ToUpper(r.victim.uid)})
	}), code: "bad-request"},
	{what: "a target as text", spoil: aimed(func(r *rig, q *request) { q.body["target"] = "victim" }), code: "bad-request"},
	{what: "a life that nobody lived, under an actor that lives", spoil: aimed(func(r *rig, q *request) {
		q.at("any", triple{r.victim.owner, r.victim.actor, newUID()})
	}), code: "expired"},
	{what: "the uid of a life, under another actor", spoil: aimed(func(r *rig, q *request) {
		q.at("any", triple{r.victim.owner, "somebody", r.victim.uid})
	}), code: "expired"},
	{what: "a life that is over", spoil: func(r *rig, c command, q *request) bool {
		q.at("any", r.gone)
		return c.targeted() && c.modes[0] != "self" && c.name != "despawn" // it is stopped, which is no refusal
	}, code: "expired"},
	{what: "an actor nobody has", spoil: aimed(func(r *rig, q *request) { q.at("any", newCaller()) }), code: "expired"},
	{what: "mode owner over another owner", spoil: aimed(func(r *rig, q *request) {
		q.at("owner", triple{"u_" + strings.Repeat("b", 26), r.victim.actor, r.victim.uid})
	}), code: "permission-denied"},
	{what: "mode self, where it is not admitted", spoil: aimed(func(r *rig, q *request) {
		q.authz = []string{"self"}
		delete(q.body, "target")
	}), code: "permission-denied"},
	{what: "mode child", spoil: inMode("child"), code: "permission-denied"},
	{what: "mode ledger", spoil: inMode("ledger"), code: "permission-denied"},
	{what: "mode handle", spoil: inWholeMode("handle"), code: "permission-denied"},
	{what: "mode exact", spoil: inWholeMode("exact"), code: "permission-denied"},
	{what: "mode any, where self alone is admitted", spoil: func(r *rig, c command, q *request) bool {
		q.as(r.me).at("any", r.victim)
		return c.targeted() && c.modes[0] == "self"
	}, code: "permission-denied"},
	{what: "mode self with a target", spoil: func(r *rig, c command, q *request) bool {
		q.body["target"] = targetOf(r.victim)
		return c.targeted() && c.modes[0] == "self"
	}, code: "target-mismatch"},
	{what: "mode self, by a caller that is no seat", spoil: func(r *rig, c command, q *request) bool {
		q.as(r.me)
		return c.targeted() && c.modes[0] == "self"
	}, code: "expired"},
	{what: "mode self, by a seat with the uid of another life", spoil: func(r *rig, c command, q *request) bool {
		q.as(triple{r.victim.owner, r.victim.actor, newUID()})
		return c.targeted() && c.modes[0] == "self"
	}, code: "expired"},
}

// aimed is for commands with a target in the body.
func aimed(fn func(*rig, *request)) func(*rig, command, *request) bool {
	return func(r *rig, c command, q *request) bool {
		if !c.targeted() || c.modes[0] == "self" {
			return false
		}
		fn(r, q)
		return true
	}
}

func inMode(mode string) func(*rig, command, *request) bool {
	return func(r *rig, c command, q *request) bool {
		q.as(r.me).at(mode, r.victim)
		return c.targeted()
	}
}

func inWholeMode(mode string) func(*rig, command, *request) bool {
	return func(r *rig, c command, q *request) bool {
		q.as(r.me).at(mode, r.victim)
		q.authz = append([]string{mode}, r.victim.tokens()...)
		return c.targeted()
	}
}

// times are requests that came too late.
var times = []refusal{
	{what: "a deadline that passed a minute ago", spoil: deadlineAt(-time.Minute), code: "deadline-exceeded"},
	{what: "a deadline that has just passed", spoil: deadlineAt(-time.Millisecond), code: "deadline-exceeded"},
	{what: "a deadline of the year 1970", spoil: func(_ *rig, _ command, q *request) bool {
		q.header.Set("Cotal-Deadline-At", "1")
		return true
	}, code: "deadline-exceeded"},
	{what: "a deadline that passed, with a reply address", spoil: func(r *rig, c command, q *request) bool {
		q.answerTo = r.nc.NewInbox()
		return deadlineAt(-time.Minute)(r, c, q)
	}, code: "deadline-exceeded"},
	{what: "a cast that came too late", spoil: func(r *rig, c command, q *request) bool {
		q.body["replyExpected"] = false
		return deadlineAt(-time.Minute)(r, c, q)
	}, code: silence},
}

func deadlineAt(d time.Duration) func(*rig, command, *request) bool {
	return func(_ *rig, _ command, q *request) bool {
		q.header.Set("Cotal-Deadline-At", strconv.FormatInt(time.Now().Add(d).UnixMilli(), 10))
		return true
	}
}

// rails are subjects that no request has. Who sends there is nobody, so nobody is answered.
var rails = []refusal{
	{what: "a token too many", spoil: tokens(func(t []string) []string { return append(t, "more") }), code: silence},
	{what: "the nonce is missing", spoil: tokens(func(t []string) []string { return t[:len(t)-1] }), code: silence},
	{what: "a nonce of 21 characters", spoil: func(_ *rig, _ command, q *request) bool { q.nonce = q.nonce[:21]; return true }, code: silence},
	{what: "a nonce with a colon", spoil: func(_ *rig, _ command, q *request) bool { q.nonce = "a:b" + q.nonce[3:]; return true }, code: silence},
	{what: "a uid of 25 characters", spoil: tokens(func(t []string) []string { t[len(t)-2] = strings.Repeat("a", 25); return t }), code: silence},
	{what: "a uid in capitals", spoil: tokens(func(t []string) []string { t[len(t)-2] = strings.ToUpper(t[len(t)-2]); return t }), code: silence},
	{what: "an actor with a dash", spoil: tokens(func(t []string) []string { t[len(t)-3] = "a-b"; return t }), code: silence},
	{what: "an owner nobody can be", spoil: tokens(func(t []string) []string { t[len(t)-4] = "root"; return t }), code: silence},
	{what: "an unknown authorization mode", spoil: func(r *rig, _ command, q *request) bool {
		q.authz = []string{"root", "local"}
		return true
	}, code: silence},
	{what: "an untargeted arity with a mode", spoil: func(r *rig, _ command, q *request) bool { q.authz = []string{"any"}; return true }, code: silence},
	{what: "mode self with a target token", spoil: func(r *rig, _ command, q *request) bool {
		q.authz = []string{"self", "local"}
		return true
	}, code: silence},
	{what: "mode exact with one target token", spoil: func(r *rig, _ command, q *request) bool {
		q.authz = []string{"exact", "local"}
		return true
	}, code: silence},
	{what: "the rail of versioned credentials", spoil: func(r *rig, _ command, q *request) bool {
		q.subject = strings.Replace(q.subjectText(), ".ep.", ".ep.v1.", 1)
		return true
	}, code: silence},
	{what: "the rail that was cut", spoil: func(r *rig, c command, q *request) bool {
		q.subject = r.subject("ctl", "manager", c.name)
		return true
	}, code: silence},
	{what: "another space", spoil: func(r *rig, _ command, q *request) bool {
		q.subject = strings.Replace(q.subjectText(), "cotal."+r.space+".", "cotal.elsewhere.", 1)
		return true
	}, code: silence},
	{what: "the rail of another instance", spoil: func(r *rig, _ command, q *request) bool {
		q.on("inst").instance = newUID()
		return true
	}, code: silence},
	{what: "a rail of a command of one host that is not the instance's", spoil: func(r *rig, c command, q *request) bool {
		q.on("one")
		return instanceOnly[c.name]
	}, code: silence},
	{what: "a cast that is wrong", spoil: func(r *rig, _ command, q *request) bool {
		q.body["replyExpected"] = false
		q.body["v"] = 2
		return true
	}, code: silence},
	{what: "a cast with arguments that are wrong", spoil: func(r *rig, _ command, q *request) bool {
		q.body["replyExpected"] = false
		q.body["args"] = map[string]any{"nosuch": true}
		return true
	}, code: silence},
}

func tokens(fn func([]string) []string) func(*rig, command, *request) bool {
	return func(_ *rig, _ command, q *request) bool {
		q.subject = strings.Join(fn(strings.Split(q.subjectText(), ".")), ".")
		return true
	}
}

// sizes are requests that are too large for something.
var sizes = []refusal{
	{what: "an id of 4 KiB", spoil: member("id", strings.Repeat("i", 4096)), code: "bad-request", nonceID: true},
	{what: "arguments of 700 KiB that nobody knows", spoil: member("args", map[string]any{"nosuch": strings.Repeat("x", 700<<10)}), code: "bad-request"},
	{what: "arguments that are 5000 lists in one another", spoil: func(_ *rig, _ command, q *request) bool {
		q.body["args"] = map[string]any{}
		q.raw = []byte(strings.Replace(string(q.payload()), `"args":{}`, `"args":{"nosuch":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`, 1))
		return true
	}, code: "bad-request", nonceID: true},
	{what: "ten thousand members", spoil: func(_ *rig, _ command, q *request) bool {
		args := map[string]any{}
		for i := range 10000 {
			args["m"+strconv.Itoa(i)] = i
		}
		q.body["args"] = args
		return true
	}, code: "bad-request"},
}

// arguments makes a case of each text of arguments that the command refuses, and of those that every
// command refuses.
func (c command) arguments() []refusal {
	cases := []refusal{
		{what: "an argument nobody knows", spoil: func(r *rig, c command, q *request) bool {
			args := c.args(r)
			args["nosuch"] = 1
			q.body["args"] = args
			return true
		}, code: "bad-request"},
		{what: "the empty name as an argument", spoil: func(r *rig, c command, q *request) bool {
			args := c.args(r)
			args[""] = 1
			q.body["args"] = args
			return true
		}, code: "bad-request"},
	}
	for _, args := range c.refused {
		what := args
		if len(what) > 60 {
			what = fmt.Sprintf("%s… (%d bytes)", what[:60], len(args))
		}
		cases = append(cases, refusal{
			what: "arguments " + what, code: "bad-request",
			spoil: func(_ *rig, _ command, q *request) bool {
				delete(q.body, "args")
				body := string(q.payload())
				q.raw = []byte(strings.TrimSuffix(body, "}") + `,"args":` + args + `}`)
				return true
			},
			// A name that appears twice spoils the whole text, wherever it is.
			nonceID: twice(args),
		})
	}
	return cases
}

func twice(args string) bool {
	for _, name := range []string{"name", "agent", "cwd", "identity", "graceful", "text"} {
		if strings.Count(args, `"`+name+`":`) > 1 {
			return true
		}
	}
	return false
}

// TestWhatIsRefusedLeavesNoTrace sends every command wrong in every way, looks at each answer, and compares
// everything the host keeps before and after.
//
// proves: OUT-1, OUT-2, FENCE-12, INPUT-1
func TestWhatIsRefusedLeavesNoTrace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Persona("scribe", "---\nagent: command\nlaunchOptions:\n  argv: [cat]\n---\nYou write.\n")
	r.victim = r.recorder("victim", "typed").seat()
	r.gone = r.spawn("gone", idle).seat()
	r.despawn(r.gone)
	before := r.settled()
	first := before
	for _, c := range table {
		for _, group := range []struct {
			name  string
			cases []refusal
		}{
			{"envelope", envelopes},
			{"bind", binds},
			{"target", targets},
			{"late", times},
			{"arguments", c.arguments()},
			{"size", sizes},
			{"rail", rails},
			{"contract", contracts},
		} {
			t.Run(c.name+"/"+group.name, func(t *testing.T) {
				r := r.under(t)
				mark := r.mark()
				for _, x := range group.cases {
					r.refused(c, x)
				}
				r.barrier()
				r.strays(mark)
				after := r.traces()
				if d := difference(before, after); d != "" {
					t.Errorf("what was refused left traces:%s", d)
					before = after
				}
			})
			if !r.host.Running() {
				t.Fatalf("the host ended behind what was refused of %s", c.name)
			}
		}
	}
	if d := difference(first, r.settled()); d != "" {
		t.Errorf("behind all refusals something is left:%s", d)
	}
}

// refused sends one request that is wrong and looks at the answer.
func (r *rig) refused(c command, x refusal) {
	r.t.Helper()
	q := r.right(c)
	if !x.spoil(r, c, q) {
		return
	}
	if x.code == silence {
		r.publish(q) // what comes back is found by strays
		return
	}
	p := r.call(q)
	id := q.body["id"]
	if x.nonceID {
		id = q.nonce
	}
	switch {
	case p.Error == nil:
		r.t.Errorf("%s: it was carried out: %v", x.what, p)
	case p.Error.Code != x.code || p.Error.Outcome != "not-executed" || p.Error.Message == "":
		r.t.Errorf("%s: %v; want %s, not-executed", x.what, p, x.code)
	case p.ID != id:
		r.t.Errorf("%s: the answer is about %s, want %v", x.what, p.ID, id)
	case x.code == "expired" && x.kind == "" && !strings.Contains(p.Error.Message, q.life()):
		r.t.Errorf("%s: the refusal does not name the life %s: %s", x.what, q.life(), p.Error.Message)
	case x.kind != "" && !hasDetail(p, x.kind):
		r.t.Errorf("%s: no detail of kind %s in %v", x.what, x.kind, p.Error.Details)
	}
}

// life is the uid that a request is about.
func (q *request) life() string {
	if t, ok := q.body["target"].(map[string]any); ok {
		return t["lifecycleUid"].(string)
	}
	return q.caller.uid
}

func hasDetail(p *reply, kind string) bool {
	for _, d := range p.Error.Details {
		if d["kind"] == kind {
			return true
		}
	}
	return false
}

// strays looks for messages behind a mark that nobody should have sent: anything but the requests of this
// test and one answer to each that waits for one, and presence.
func (r *rig) strays(mark int) {
	r.t.Helper()
	answers := map[string]int{}
	for _, m := range r.since(mark) {
		tokens := strings.Split(m.Subject, ".")
		r.mu.Lock()
		q := r.asked[tokens[len(tokens)-1]]
		r.mu.Unlock()
		switch {
		case len(tokens) == 11 && tokens[3] == "reply" && q != nil:
			if answers[q.nonce]++; answers[q.nonce] > q.replies {
				r.t.Errorf("an answer too many on %s to %s: %s", m.Subject, q.payload(), m.Data)
			}
		case q != nil && q.subjectText() == m.Subject:
		case tokens[2] == "ep" || tokens[2] == "ctl": // a request of this test whose nonce is not its last token
		default:
			r.t.Errorf("somebody published on %s: %s", m.Subject, m.Data)
		}
	}
}
