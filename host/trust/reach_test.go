package trust

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

var update = flag.Bool("update", false, "write testdata/reach.txt as the broker decides now; read the difference line by line")

// reachFile has a verdict on each class of subjects: who may reach it.
const reachFile = "testdata/reach.txt"

// class is one class of subjects, tried by one subject of it.
type class struct {
	name    string
	subject string
	sub     bool // subscribed, else published
	queue   string
}

// holder is one credential that tries everything.
type holder struct {
	name string
	req  Request
}

// target is the life that one-shots are pinned to, and stranger is another agent.
var (
	target   = wire.Caller{Owner: "local", Actor: "TARGET", UID: strings.Repeat("t", 26)}
	stranger = wire.Caller{Owner: "local", Actor: "STRANGER", UID: strings.Repeat("s", 26)}
	session  = strings.Repeat("S", 22)
	opID     = strings.Repeat("o", 26)
)

func holders(uid string) []holder {
	agent := Scope{Read: []string{"dev", "team.>"}, Write: []string{"dev"}}
	spawner := agent
	spawner.Role, spawner.Spawn = "reviewer", true
	return []holder{
		{"supervisor", Request{Profile: Supervisor, Scope: Scope{Epoch: 1}}},
		{"leaseholder", Request{Profile: Leaseholder}},
		{"watcher", Request{Profile: Watcher}},
		{"goal-writer", Request{Profile: GoalWriter}},
		{"session", Request{Profile: Session, Scope: Scope{Epoch: 1, Session: session}}},
		{"farewell", Request{Profile: Farewell, Scope: Scope{Past: []PastSession{{ID: session, Epoch: 1}}}}},
		{"executor", Request{Profile: Executor}},
		{"executor-of-life", Request{Profile: Executor, Scope: Scope{Target: target, Alias: "reviewer", OpID: opID}}},
		{"provisioner", Request{Profile: Provisioner, Scope: Scope{Target: target, Role: "reviewer"}}},
		{"deprovisioner", Request{Profile: Deprovisioner, Scope: Scope{Target: target}}},
		{"purger", Request{Profile: Purger}},
		{"eraser", Request{Profile: Eraser}},
		{"agent", Request{Profile: Agent, UID: uid, Scope: agent}},
		{"agent-that-spawns", Request{Profile: Agent, UID: uid, Scope: spawner}},
		{"observer", Request{Profile: Observer}},
		{"operator", Request{Profile: Operator}},
		{"deliverer", Request{Profile: Deliverer, Scope: Scope{Epoch: 1}}},
		{"evictor", Request{Profile: Evictor}},
		{"set-up", Request{Profile: SetUp}},
	}
}

// apiVerbs are what the JetStream API does with a stream; %s is the stream.
var apiVerbs = []string{
	"STREAM.CREATE.%s", "STREAM.UPDATE.%s", "STREAM.DELETE.%s", "STREAM.PURGE.%s", "STREAM.INFO.%s", "STREAM.MSG.GET.%s", "STREAM.MSG.DELETE.%s",
	"STREAM.SNAPSHOT.%s", "STREAM.RESTORE.%s", "STREAM.LEADER.STEPDOWN.%s", "STREAM.PEER.REMOVE.%s", "DIRECT.GET.%s", "DIRECT.GET.%s.x",
	"CONSUMER.CREATE.%s", "CONSUMER.CREATE.%s.any", "CONSUMER.CREATE.%s.any.>", "CONSUMER.DURABLE.CREATE.%s.any", "CONSUMER.INFO.%s.any",
	"CONSUMER.MSG.NEXT.%s.any", "CONSUMER.DELETE.%s.any", "CONSUMER.NAMES.%s", "CONSUMER.LIST.%s", "CONSUMER.PAUSE.%s.any",
	"CONSUMER.UNPIN.%s.any", "CONSUMER.LEADER.STEPDOWN.%s.any",
}

// keyOf is a key of a kind, of that endpoint, instance, life.
func keyOf(t *testing.T, kind, instance string, who wire.Caller) []string {
	t.Helper()
	e := "manager"
	q := map[string][]string{
		wire.KindService: {e + "." + instance + ".spec", e + "." + instance + ".status"}, wire.KindSigner: {"k.spec"}, wire.KindHandle: {"k.x.spec"},
		wire.KindContracts: {e + ".spec"}, wire.KindGoal: {e + "." + triple(who) + ".g.status"}, wire.KindCheckpoint: {e + ".x.status"},
		wire.KindLease: {e + ".p." + triple(who) + ".x.status"}, wire.KindLifecycle: {who.Principal(), who.Principal() + "." + who.UID + ".spec"},
		wire.KindUID: {who.UID}, wire.KindFrontier: {who.UID}, wire.KindGovern: {e}, wire.KindPolicy: {e + "." + strings.Repeat("0", 64)},
		wire.KindObligation: {who.UID + "." + e + "." + triple(who) + ".x"}, wire.KindGoalIndex: {e + "." + triple(who) + ".g"},
		wire.KindGoalEffect: {e + "." + triple(who) + ".g.1"}, wire.KindNameClaim: {e + ".x"}, wire.KindMigration: {e},
		wire.KindGate: {who.UID}, wire.KindEndpointGate: {e + "." + instance}, wire.KindCredential: {who.UID + ".sha256-x"},
		wire.KindEndpointCred: {e + "." + instance + ".sha256-x"}, wire.KindRepair: {e + "." + instance}, wire.KindSourceGate: {"k.x"},
		wire.KindCredentialSource: {"k.x." + who.UID + ".sha256-x"}, wire.KindSession: {session}, wire.KindStage: {opID + ".x"}, wire.KindPlane: {""},
		kindSlot: {who.Owner + ".reviewer", who.Owner + ".other"},
	}[kind]
	if q == nil {
		t.Fatalf("records of kind %q have no example here: every kind needs one, and a verdict in %s", kind, reachFile)
	}
	var out []string
	for _, k := range q {
		out = append(out, strings.TrimSuffix(kind+"."+k, "."))
	}
	return out
}

// classes lists every class of subjects, by what the contract has: its streams, buckets, kinds of keys, planes and
// modes, the JetStream API and the system's own subjects. me is the holder.
func classes(t *testing.T, me wire.Caller, account string) []class {
	t.Helper()
	var out []class
	pub := func(name, subject string) { out = append(out, class{name: "pub " + name, subject: subject}) }
	sub := func(name, subject, queue string) {
		out = append(out, class{name: "sub " + name, subject: subject, sub: true, queue: queue})
	}
	p := func(tail string) string { return "cotal." + space + "." + tail }

	// The JetStream API, on every stream there is, and on none.
	streams := map[string]string{}
	for _, s := range wire.Streams() {
		streams[s] = s + "_" + space
	}
	for _, b := range wire.Buckets() {
		streams["KV_"+string(b)] = "KV_cotal_" + string(b) + "_" + space
	}
	streams["other"] = "CHAT_other"
	for name, stream := range streams {
		for _, verb := range apiVerbs {
			pub("api "+fmt.Sprintf(verb, name), "$JS.API."+fmt.Sprintf(verb, stream))
		}
		pub("ack "+name+" any", "$JS.ACK."+stream+".any.1.1.1.1.0")
	}
	for _, what := range []string{
		"INFO", "STREAM.NAMES", "STREAM.LIST", "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE." + account,
		"ACCOUNT.STREAM.MOVE." + account + ".CHAT_main", "STREAM.TEMPLATE.CREATE.x",
	} {
		pub("api "+strings.ReplaceAll(what, account, "ACC"), "$JS.API."+what)
	}
	pub("api DIRECT.GET of a contract's document", "$JS.API.DIRECT.GET."+streams[wire.StreamContract]+"."+p("epc."+strings.Repeat("0", 64)))
	// Durables by name: one's own, the target's, a stranger's.
	for who, c := range map[string]wire.Caller{"own": me, "target": target, "stranger": stranger} {
		pr := wire.Principal{Owner: c.Owner, Actor: c.Actor}
		dm, hist := wire.DurableDirect(pr, c.UID), wire.DurableHistory(pr, c.UID)
		for _, verb := range []string{"INFO", "MSG.NEXT", "DELETE"} {
			pub(fmt.Sprintf("durable %s dm %s", verb, who), "$JS.API.CONSUMER."+verb+".DM_main."+dm)
			pub(fmt.Sprintf("durable %s history %s", verb, who), "$JS.API.CONSUMER."+verb+".CHAT_main."+hist)
		}
		pub("durable CREATE dm "+who+" with its own filter", "$JS.API.CONSUMER.CREATE.DM_main."+dm+"."+p("inst."+pr.String()+".>"))
		pub("durable CREATE dm "+who+" with the filter of all", "$JS.API.CONSUMER.CREATE.DM_main."+dm+"."+p("inst.>"))
		pub("durable CREATE history "+who+" of a channel that is granted", "$JS.API.CONSUMER.CREATE.CHAT_main."+hist+"."+p("chat.*.*.dev"))
		pub("durable CREATE history "+who+" of one that is not", "$JS.API.CONSUMER.CREATE.CHAT_main."+hist+"."+p("chat.*.*.ops"))
		pub("durable CREATE history "+who+" of all", "$JS.API.CONSUMER.CREATE.CHAT_main."+hist+"."+p("chat.>"))
		pub("ack dm "+who, "$JS.ACK.DM_main."+dm+".1.1.1.1.0")
	}
	for _, role := range []string{"reviewer", "other"} {
		pub("durable CREATE role "+role, "$JS.API.CONSUMER.CREATE.TASK_main.svc_"+role+"."+p("svc."+role+".>"))
		for _, verb := range []string{"INFO", "MSG.NEXT", "DELETE"} {
			pub("durable "+verb+" role "+role, "$JS.API.CONSUMER."+verb+".TASK_main.svc_"+role)
		}
		pub("ack role "+role, "$JS.ACK.TASK_main.svc_"+role+".1.1.1.1.0")
	}
	pub("flow control", "$JS.FC.CHAT_main.any.x")

	// Keys, of oneself, of the target, of a stranger.
	for _, b := range wire.Buckets() {
		bucket := "cotal_" + string(b) + "_" + space
		kinds := wire.Kinds(b)
		if b == wire.BucketRecords {
			kinds = append(kinds, kindSlot)
		}
		slices.Sort(kinds)
		for _, kind := range slices.Compact(kinds) {
			for who, c := range map[string]wire.Caller{"own": me, "target": target, "stranger": stranger} {
				instance := map[string]string{"own": inst1}[who]
				mine := keyOf(t, kind, inst1, me)
				for i, key := range keyOf(t, kind, cmp.Or(instance, stranger.UID), c) {
					if who != "own" && key == mine[i] {
						continue // nobody in particular stands in it
					}
					pub(fmt.Sprintf("key %s %s %d %s", b, kind, i, who), wire.BucketSubject(bucket, key))
				}
			}
		}
		if len(kinds) == 0 {
			for who, c := range map[string]wire.Caller{"own": me, "target": target, "stranger": stranger} {
				pub(fmt.Sprintf("key %s principal %s", b, who), wire.BucketSubject(bucket, c.Principal()))
			}
			for what, key := range map[string]string{"instance own": inst1, "instance other": stranger.UID, "channel": "dev", "defaults": wire.DefaultsKey} {
				pub(fmt.Sprintf("key %s %s", b, what), wire.BucketSubject(bucket, key))
			}
		}
		sub("keys "+string(b)+" all", wire.BucketSubject(bucket, ">"), "")
	}

	// The messaging plane.
	for who, c := range map[string]wire.Caller{"own": me, "stranger": stranger} {
		pub("chat as "+who+" in a channel that is granted", p("chat."+c.Principal()+".dev"))
		pub("chat as "+who+" in one that is not", p("chat."+c.Principal()+".ops"))
		pub("direct as "+who, p("inst."+target.Principal()+"."+c.Principal()))
		pub("service as "+who, p("svc.reviewer."+c.Principal()))
		sub("direct to "+who, p("inst."+c.Principal()+".>"), "")
		sub("replies to "+who, p("ep.reply.*.*.*."+triple(c)+".*"), "")
		sub("goal events of "+who, p("epe.*.*.*.goal."+triple(c)+".>"), "")
		sub("inbox of "+who, wire.InboxPrefix(c.Actor)+".>", "")
	}
	for what, s := range map[string]string{
		"channel that is granted": "chat.*.*.dev", "pattern that is granted": "chat.*.*.team.>", "channel that is not": "chat.*.*.ops",
		"all channels": "chat.>", "all direct messages": "inst.>", "all services": "svc.>", "role": "svc.reviewer.>",
	} {
		sub(what, p(s), "")
	}

	// The endpoint plane: every mode on every rail, of the commands of each sort.
	aims := map[wire.Authz]string{
		wire.AuthzNone: "", wire.AuthzSelf: "self.", wire.AuthzOwner: "owner.local.", wire.AuthzAny: "any.local.", wire.AuthzChild: "child.local.",
		wire.AuthzLedger: "ledger.local.", wire.AuthzHandle: "handle." + triple(target) + ".", wire.AuthzExact: "exact." + triple(target) + ".",
	}
	nonce := strings.Repeat("N", 22)
	for _, endpoint := range []string{"manager", "auth", "delivery", "com_example"} {
		for _, cmd := range []string{"describe", "ps", "stop", "spawn", "despawn", "input", "purge", "retire-lifecycle", "evict-principal"} {
			for mode, aim := range aims {
				for rail, r := range map[string]string{"one": "one." + endpoint, "all": "all." + endpoint, "inst": "inst." + endpoint + "." + inst1} {
					m := cmp.Or(string(mode), "untargeted")
					pub(fmt.Sprintf("call %s %s %s %s as own", endpoint, cmd, rail, m), p("ep."+r+"."+cmd+"."+aim+triple(me)+"."+nonce))
					if endpoint == "manager" {
						pub(fmt.Sprintf("call %s %s %s %s as stranger", endpoint, cmd, rail, m), p("ep."+r+"."+cmd+"."+aim+triple(stranger)+"."+nonce))
						pub(fmt.Sprintf("call v1 %s %s %s %s as own", endpoint, cmd, rail, m), p("ep.v1."+r+"."+cmd+"."+aim+triple(me)+".g."+nonce))
					}
				}
			}
		}
		for rail, r := range map[string]string{"one": "one." + endpoint + ".ps.>", "all": "all." + endpoint + ".ps.>", "inst own": "inst." + endpoint + "." + inst1 + ".ps.>", "inst other": "inst." + endpoint + "." + stranger.UID + ".ps.>"} {
			sub("serve "+endpoint+" "+rail, p("ep."+r), "")
			sub("serve "+endpoint+" "+rail+" in its queue", p("ep."+r), endpoint)
			sub("serve "+endpoint+" "+rail+" in another queue", p("ep."+r), "thief")
		}
		for who, instance := range map[string]string{"own": inst1, "other": stranger.UID} {
			pub("reply "+endpoint+" "+who, p("ep.reply."+endpoint+"."+instance+".1."+triple(stranger)+"."+nonce))
			pub("reply "+endpoint+" "+who+" of another epoch", p("ep.reply."+endpoint+"."+instance+".2."+triple(stranger)+"."+nonce))
			pub("event "+endpoint+" "+who, p("epe."+endpoint+"."+instance+".1.goal."+triple(stranger)+".g.progress"))
			pub("record write "+endpoint+" "+who, p("epr."+endpoint+"."+instance+".1.svc."+endpoint+"."+instance))
			for _, phase := range []string{wire.TimerSchedule, wire.TimerArmed, wire.TimerFire} {
				pub("timer "+phase+" "+endpoint+" "+who, p("ept."+endpoint+"."+instance+".1.t."+phase))
			}
		}
		for _, fact := range []string{
			"dec." + triple(stranger) + ".x", "quar.1", "goal." + triple(stranger) + ".g.bind", "goal." + triple(stranger) + ".g.result",
			"wrk.p." + triple(stranger) + ".x", "eff." + triple(stranger) + ".x", "cp.x", "receipt." + triple(stranger) + ".x.1",
		} {
			pub("fact "+endpoint+" "+strings.ReplaceAll(fact, triple(stranger), "*"), p("epf."+endpoint+"."+fact))
		}
		pub("submission "+endpoint, p("epj."+endpoint+".run-start."+triple(me)))
		pub("work "+endpoint, p("epw."+endpoint+".p."+triple(me)+".x"))
		for who, id := range map[string]string{"own": session, "other": strings.Repeat("X", 22)} {
			for _, dir := range []string{wire.SessionIn, wire.SessionOut} {
				pub("session "+endpoint+" "+who+" "+dir, p("eps."+endpoint+"."+id+".1."+dir))
				sub("session "+endpoint+" "+who+" "+dir, p("eps."+endpoint+"."+id+".1."+dir), "")
			}
		}
	}
	pub("artifact", p("epc."+strings.Repeat("0", 64)))
	pub("run journal", p("wfj.x"))
	pub("trace", p("trace.x"))
	for _, old := range []string{"ctl", "control"} {
		pub("retired rail "+old, p(old+".manager."+me.Principal()))
		sub("retired rail "+old, p(old+".>"), "")
	}
	for _, plane := range []string{"ep", "ep.reply", "ep.v1", "epe", "epf", "epj", "ept", "epr", "epc", "epw", "eps", "wfj", "trace"} {
		sub("plane "+plane, p(plane+".>"), "")
	}

	// Another space, everything, and the system.
	pub("another space", "cotal.other.chat."+me.Principal()+".dev")
	sub("another space", "cotal.other.>", "")
	for _, all := range []string{">", "*", "cotal.>", p(">"), "_INBOX.>", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$JS.EVENT.>", "$KV.>", "$O.>", "$SYS.>"} {
		sub("all of "+strings.ReplaceAll(all, "cotal."+space, "space"), all, "")
	}
	for name, s := range map[string]string{
		"ping": "REQ.SERVER.PING", "ping connz": "REQ.SERVER.PING.CONNZ", "connz": "REQ.SERVER.SID.CONNZ", "kick": "REQ.SERVER.SID.KICK", "varz": "REQ.SERVER.SID.VARZ",
		"reload": "REQ.SERVER.SID.RELOAD", "ldm": "REQ.SERVER.SID.LDM", "jsz": "REQ.SERVER.SID.JSZ", "claims update": "REQ.CLAIMS.UPDATE", "claims delete": "REQ.CLAIMS.DELETE",
		"claims list": "REQ.CLAIMS.LIST", "claims pack": "REQ.CLAIMS.PACK", "update of the account": "REQ.ACCOUNT." + account + ".CLAIMS.UPDATE",
		"update of another account": "REQ.ACCOUNT.AOTHER.CLAIMS.UPDATE", "lookup": "REQ.ACCOUNT." + account + ".CLAIMS.LOOKUP", "account connz": "REQ.ACCOUNT." + account + ".CONNZ",
		"account ping": "REQ.ACCOUNT.PING.CONNZ", "user info": "REQ.USER.INFO", "auth callout": "REQ.USER.AUTH", "connect event": "ACCOUNT." + account + ".CONNECT",
	} {
		pub("system "+name, "$SYS."+s)
	}
	slices.SortFunc(out, func(a, b class) int { return strings.Compare(a.name, b.name) })
	for i := range out[1:] {
		if out[i].name == out[i+1].name {
			t.Fatalf("class %q stands twice", out[i].name)
		}
	}
	return out
}

var quoted = regexp.MustCompile(`Permissions Violation for (Publish|Subscription) to "([^"]*)"(?: using queue "([^"]*)")?`)

// tries lets a holder try every class, and returns the names of those that the broker let it reach.
func tries(t *testing.T, c *client, all []class) []string {
	t.Helper()
	denied := map[string]bool{}
	note := func() {
		for _, line := range c.take(t) {
			m := quoted.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("the broker said something else: %s", line)
			}
			denied[m[1]+" "+m[2]+" "+m[3]] = true
		}
	}
	var subs []*nats.Subscription
	for _, cl := range all {
		var err error
		switch {
		case !cl.sub:
			continue // after the subscriptions: whatever answers, nobody is surprised
		case cl.queue == "":
			var s *nats.Subscription
			s, err = c.Subscribe(cl.subject, func(*nats.Msg) {})
			subs = append(subs, s)
		default:
			var s *nats.Subscription
			s, err = c.QueueSubscribe(cl.subject, cl.queue, func(*nats.Msg) {})
			subs = append(subs, s)
		}
		if err != nil {
			t.Fatalf("%s: %v", cl.name, err)
		}
	}
	note()
	for _, s := range subs {
		_ = s.Unsubscribe() // one that was refused is none
	}
	for _, cl := range all {
		if !cl.sub {
			if err := c.Publish(cl.subject, nil); err != nil {
				t.Fatalf("%s: %v", cl.name, err)
			}
		}
	}
	note()
	var reached []string
	for _, cl := range all {
		what := "Publish"
		if cl.sub {
			what = "Subscription"
		}
		if !denied[what+" "+cl.subject+" "+cl.queue] {
			reached = append(reached, cl.name)
		}
	}
	return reached
}

// Every profile tries every class of subjects against the real broker, and reaches what the verdicts say and
// nothing else. A class that is new has no verdict, and fails.
//
// proves: START-7, CRED-1, CRED-3, AUTHZ-16, SLOT-4
func TestFieldG7_EveryProfileReachesWhatItsVerdictsSayAndNothingElse(t *testing.T) {
	r := newRig(t)
	account, err := r.keys.account()
	must(t, err)
	uid := r.activate()
	got := map[string][]string{} // class: holders
	minted := map[string]Credential{}
	for _, h := range holders(uid) { // before anybody tries: what they may, they really do
		if h.req.Profile == SetUp {
			if minted[h.name], _, err = r.auth.draft(h.req); err != nil {
				t.Fatal(err)
			}
		} else {
			minted[h.name] = r.mint(h.req)
		}
	}
	for _, h := range holders(uid) {
		c := minted[h.name]
		me := wire.Caller{Owner: "local", Actor: c.Public, UID: cmp.Or(h.req.UID, inst1)}
		all := classes(t, me, account)
		for _, cl := range all {
			if got[cl.name] == nil {
				got[cl.name] = []string{}
			}
		}
		for _, name := range tries(t, r.dial(c), all) {
			got[name] = append(got[name], h.name)
		}
	}
	t.Logf("%d classes, %d holders", len(got), len(holders(uid)))
	if *update {
		writeReach(t, got)
	}
	want := readReach(t)
	for _, name := range slices.Sorted(maps.Keys(got)) {
		verdict, ok := want[name]
		switch slices.Sort(got[name]); {
		case !ok:
			t.Errorf("%q has no verdict in %s; the broker lets through: %v", name, reachFile, got[name])
		case !slices.Equal(verdict, got[name]):
			t.Errorf("%q is reached by %v, want %v", name, got[name], verdict)
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s has a verdict on %q, which is not tried", reachFile, name)
		}
	}
	judge(t, got)
}

// judge holds the verdicts themselves to what is never granted, whatever the file says.
func judge(t *testing.T, got map[string][]string) {
	t.Helper()
	only := func(pattern string, holders ...string) {
		t.Helper()
		re, n := regexp.MustCompile(pattern), 0
		for name, who := range got {
			if !re.MatchString(name) {
				continue
			}
			n++
			for _, h := range who {
				if !slices.Contains(holders, h) {
					t.Errorf("%s reaches %q, which only %v may", h, name, holders)
				}
			}
		}
		if n == 0 {
			t.Errorf("no class matches %q", pattern)
		}
	}
	only(`^pub api STREAM\.(DELETE|SNAPSHOT|RESTORE|LEADER|PEER)`)
	only(`^pub api STREAM\.UPDATE\.(CHAT|DM|TASK|EPF|EPJ|EPW|EPE|EPR|EPT|EPT_REQ|EPC|WFJ|KV_records|KV_auth|other)$`)
	only(`^pub api STREAM\.UPDATE`, "set-up")
	only(`^pub api STREAM\.MSG\.DELETE\.(EPF|KV_records)$`, "eraser")
	only(`^pub api STREAM\.MSG\.DELETE\.(CHAT|DM|TASK|EPJ|EPW|EPE|EPR|EPT|EPT_REQ|EPC|WFJ|KV_auth|KV_presence|KV_channels|KV_membership|KV_manager|other)$`)
	only(`^pub api STREAM\.CREATE`, "set-up")
	only(`^pub api STREAM\.PURGE`, "purger")
	only(`^pub api (STREAM\.(NAMES|LIST|TEMPLATE)|META|SERVER|ACCOUNT)`)
	only(`^pub api CONSUMER\.(NAMES|LIST|PAUSE|UNPIN|LEADER|DURABLE)`)
	only(`^pub api .*\.other`)
	only(`^pub api CONSUMER\.\S*\.(DM|TASK|EPF|EPJ|EPW|EPE|EPR|EPT|EPT_REQ|EPC|WFJ|KV_records|KV_auth|KV_issued|KV_accepted|KV_admission|KV_manager)(\.|$)`)
	only(`^pub api (STREAM\.MSG\.GET|DIRECT\.GET)\.(CHAT|DM|TASK)`)
	only(`^pub (api STREAM\.MSG\.GET\.KV_auth|api STREAM\.MSG\.GET\.KV_records)`, "executor", "executor-of-life", "goal-writer", "eraser")
	only(`^pub api STREAM\.MSG\.GET\.KV_auth`, "executor", "executor-of-life", "goal-writer")
	only(`^pub key auth`, "executor", "executor-of-life")
	only(`^pub key records (lifecycle|uid|frontier|govern|policy|signer|handle|mgrslot)`, "executor", "executor-of-life")
	only(`^pub key (issued|accepted|admission)`)
	only(`^pub key manager`, "leaseholder")
	only(`^pub (chat|direct|service) as stranger|^pub call .* as stranger|^sub (direct|replies|inbox) .*stranger`)
	only(`^sub goal events of stranger`, "operator")
	only(`^pub (durable \S+|ack) dm stranger`)
	only(`^pub (durable \S+|ack) dm target`, "provisioner", "deprovisioner")
	only(`^pub (durable \S+|ack) history stranger`, "observer", "operator", "deliverer") // reads of channels, which they may read
	only(`^pub (durable|ack) role other`)
	only(`^pub key (auth|presence) .* stranger`)
	only(`^pub key records .* stranger`, "goal-writer") // the goals of every caller
	only(`^pub key membership .* stranger`, "deliverer")
	only(`^sub (all of|all direct|all services|role|plane (ep|ep\.reply|ep\.v1|epf|epj|ept|epr|epc|epw|eps|wfj|trace)$|another space)`)
	only(`^sub all channels`, "observer", "operator")
	only(`^sub serve manager`, "supervisor")
	only(`^sub serve .* other`)
	only(`^sub serve .* in another queue`, "supervisor", "deliverer") // a queue of its own rails is its own affair; see below
	only(`^sub serve manager one in another queue`)
	only(`^sub serve manager one$`)
	only(`^pub (reply|event|record write|timer|fact|submission|work) (auth|com_example)`)
	only(`^pub (reply|event) manager own$`, "supervisor")
	only(`of another epoch`)
	only(`^pub fact`, "goal-writer")
	only(`^pub system`, "evictor")
	only(`^pub system (claims|reload|ldm|update of another|auth callout|user info|jsz|account)`)
	only(`^pub call v1`)
	only(`^pub call \S+ (purge|input|evict-principal|retire-lifecycle) `, "operator")
	only(`^pub call .* (any|child|ledger|exact) as own`, "operator")
	only(`^pub call .* handle as own`)
	only(`^pub (retired|trace|run journal|another space)`)
	only(`^sub retired`)
}

const reachHead = `# Who reaches which class of subjects, as the broker decides: one class a line, then the holders, or - for nobody.
# TestFieldG7_EveryProfileReachesWhatItsVerdictsSayAndNothingElse tries all of them. A class without a line fails.
`

func writeReach(t *testing.T, got map[string][]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString(reachHead)
	for _, name := range slices.Sorted(maps.Keys(got)) {
		slices.Sort(got[name])
		fmt.Fprintf(&b, "%s: %s\n", name, cmp.Or(strings.Join(got[name], " "), "-"))
	}
	must(t, os.MkdirAll("testdata", 0o755))
	must(t, os.WriteFile(reachFile, []byte(b.String()), 0o644))
}

func readReach(t *testing.T) map[string][]string {
	t.Helper()
	f, err := os.Open(reachFile)
	must(t, err)
	defer f.Close()
	out := map[string][]string{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndex(line, ": ")
		if i < 0 {
			t.Fatalf("%s: %q is not a class and its holders", reachFile, line)
		}
		out[line[:i]] = []string{}
		if who := line[i+2:]; who != "-" {
			out[line[:i]] = strings.Fields(who)
		}
	}
	return out
}
