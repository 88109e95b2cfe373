//go:build linux

package auth

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// thief is a bare connection with a credential that somebody took, which notes what the broker refuses it.
type thief struct {
	*nats.Conn
	wire.Caller
	token  string // of one that the test has made itself
	closed chan struct{}

	mu      sync.Mutex
	refused []string
}

// steal connects with a copy of a credentials file, as whoever has it would.
func (r *rig) steal(text []byte, me wire.Caller) (*thief, error) {
	r.t.Helper()
	path := r.t.TempDir() + "/stolen.creds"
	if err := os.WriteFile(path, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
	return r.intrude(me, nats.UserCredentials(path))
}

func (r *rig) intrude(me wire.Caller, who nats.Option) (*thief, error) {
	th := &thief{Caller: me, closed: make(chan struct{})}
	var err error
	th.Conn, err = nats.Connect(r.url, who, nats.CustomInboxPrefix(wire.InboxPrefix(me.Actor)), nats.NoReconnect(), nats.Timeout(busy.Limit(10*time.Second)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			th.mu.Lock()
			defer th.mu.Unlock()
			th.refused = append(th.refused, err.Error())
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(th.closed) }))
	if err == nil {
		r.t.Cleanup(th.Close)
	}
	return th, err
}

// take returns what was refused since the last call, once the broker has answered everything before it. Refusals are
// told in order: a marker that is refused for certain is the last one.
func (th *thief) take(t *testing.T) []string {
	t.Helper()
	marker := "never.granted." + nats.NewInbox()
	if err := th.Publish(marker, nil); err != nil {
		t.Fatal(err)
	}
	if err := th.FlushTimeout(busy.Limit(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		th.mu.Lock()
		n := len(th.refused)
		if n > 0 && strings.Contains(th.refused[n-1], marker) {
			out := th.refused[:n-1]
			th.refused = nil
			th.mu.Unlock()
			return out
		}
		th.mu.Unlock()
		select {
		case <-t.Context().Done():
			t.Fatal("the broker does not refuse what was never granted")
		case <-time.After(time.Millisecond): // a look at what another goroutine notes
		}
	}
}

// try is one thing that is tried: published, or with sub subscribed.
type try struct {
	sub     bool
	subject string
	queue   string
}

func (t try) String() string {
	switch {
	case t.queue != "":
		return "subscribe " + t.subject + " in " + t.queue
	case t.sub:
		return "subscribe " + t.subject
	}
	return "publish " + t.subject
}

var violation = regexp.MustCompile(`Permissions Violation for (Publish|Subscription) to "([^"]*)"(?: using queue "([^"]*)")?`)

// reaches tries everything, and returns what the broker did not refuse. Subscriptions come first: what is published
// changes things.
func (th *thief) reaches(t *testing.T, all []try) map[try]bool {
	t.Helper()
	reached := map[try]bool{}
	for _, a := range all {
		reached[a] = true
	}
	note := func() {
		for _, line := range th.take(t) {
			m := violation.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("the broker said something else: %s", line)
			}
			delete(reached, try{sub: m[1] == "Subscription", subject: m[2], queue: m[3]})
		}
	}
	var subs []*nats.Subscription
	for _, a := range all {
		if !a.sub {
			continue
		}
		s, err := th.QueueSubscribe(a.subject, a.queue, func(*nats.Msg) {})
		if err != nil {
			t.Fatalf("%v: %v", a, err)
		}
		subs = append(subs, s)
	}
	note()
	for _, s := range subs {
		_ = s.Unsubscribe() // one that was refused is none
	}
	for _, a := range all {
		if !a.sub {
			if err := th.Publish(a.subject, nil); err != nil {
				t.Fatalf("%v: %v", a, err)
			}
		}
	}
	note()
	return reached
}

// verbs are what the JetStream API does with a stream, and with one of its consumers.
var (
	streamVerbs = []string{
		"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.INFO", "STREAM.MSG.GET", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT",
		"STREAM.RESTORE", "STREAM.LEADER.STEPDOWN", "STREAM.PEER.REMOVE", "DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.NAMES", "CONSUMER.LIST",
	}
	consumerVerbs = []string{
		"CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.INFO", "CONSUMER.MSG.NEXT", "CONSUMER.DELETE", "CONSUMER.PAUSE", "CONSUMER.UNPIN",
		"CONSUMER.RESET", "CONSUMER.LEADER.STEPDOWN",
	}
	accountVerbs = []string{
		"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.TEMPLATE.CREATE.x", "META.LEADER.STEPDOWN", "SERVER.REMOVE", "SERVER.EVACUATE",
		"ACCOUNT.PURGE.%s", "ACCOUNT.STREAM.MOVE.%s.CHAT", "ACCOUNT.STREAM.CANCEL_MOVE.%s.CHAT",
	}
	systemVerbs = []string{
		"REQ.SERVER.PING", "REQ.SERVER.PING.CONNZ", "REQ.SERVER.PING.VARZ", "REQ.SERVER.%[2]s.CONNZ", "REQ.SERVER.%[2]s.KICK", "REQ.SERVER.%[2]s.LDM",
		"REQ.SERVER.%[2]s.RELOAD", "REQ.SERVER.%[2]s.JSZ", "REQ.CLAIMS.UPDATE", "REQ.CLAIMS.DELETE", "REQ.CLAIMS.LIST", "REQ.CLAIMS.PACK",
		"REQ.ACCOUNT.%[1]s.CLAIMS.UPDATE", "REQ.ACCOUNT.%[1]s.CLAIMS.LOOKUP", "REQ.ACCOUNT.%[1]s.CONNZ", "REQ.ACCOUNT.%[1]s.JSZ", "REQ.ACCOUNT.PING.CONNZ",
		"REQ.USER.INFO", "REQ.USER.AUTH", "ACCOUNT.%[1]s.CONNECT",
	}
)

// literal makes a subject that can be published of one that can be subscribed.
func literal(subject string) string {
	tok := strings.Split(subject, ".")
	for i, t := range tok {
		switch t {
		case "*":
			tok[i] = "x"
		case ">":
			tok[i] = "x.y"
		}
	}
	return strings.Join(tok, ".")
}

// everything lists what a holder can try, by what is there: every stream, every consumer, every row, every subject that
// somebody listens on, everybody who is connected or has ever had a life, every command in every mode on every rail; as
// itself and as each of the others.
func (r *rig) everything(t *testing.T, me wire.Caller, others ...wire.Caller) []try {
	t.Helper()
	seen := map[try]bool{}
	pub := func(subject string) { seen[try{subject: subject}] = true }
	sub := func(subject string, queues ...string) {
		for _, q := range append(queues, "") {
			seen[try{sub: true, subject: subject, queue: q}] = true
		}
	}
	both := func(subject string) { pub(literal(subject)); sub(subject) }

	server := ""
	{
		var reply struct{ Server struct{ ID string } }
		r.ask(r.sys, "$SYS.REQ.SERVER.PING", nil, &reply)
		server = reply.Server.ID
	}
	everybody := append([]wire.Caller{me}, others...)
	streams := r.list()
	for _, name := range []string{"CHAT_other", "KV_other"} { // of another space, had it one
		streams = append(streams, stream{name: name})
	}
	durables := map[string]string{} // that each life would have, by stream
	for _, s := range streams {
		for _, v := range streamVerbs {
			pub("$JS.API." + v + "." + s.name)
		}
		pub("$JS.API.DIRECT.GET." + s.name + ".any.subject")
		filters := []string{">"}
		for subject := range s.State.Subjects {
			filters = append(filters, subject)
			both(subject)
			if i := strings.LastIndexByte(subject, '.'); i > 0 {
				both(subject[:i] + ".>")
				pub(subject[:i] + ".other")
			}
			pub("$JS.API.DIRECT.GET." + s.name + "." + subject)
		}
		names := []string{"any"}
		for _, c := range r.consumers(s.name) {
			names = append(names, c.Name)
			if c.Config.Filter != "" {
				filters = append(filters, c.Config.Filter)
			}
		}
		for _, c := range everybody {
			p := wire.Principal{Owner: c.Owner, Actor: c.Actor}
			for _, name := range []string{wire.DurableDirect(p, c.UID), wire.DurableHistory(p, c.UID), wire.DurableDelivery(p, c.UID)} {
				names = append(names, name)
				durables[name] = s.name
			}
			filters = append(filters, r.p("inst."+p.String()+".>"))
		}
		filters = append(filters, r.p("chat.>"), r.p("chat.*.*.open"), r.p("chat.*.*.secret"), r.p("inst.>"), r.p("svc.>"))
		for _, name := range names {
			for _, v := range consumerVerbs {
				pub("$JS.API." + v + "." + s.name + "." + name)
			}
			pub("$JS.ACK." + s.name + "." + name + ".1.1.1.1.0")
			for _, f := range filters {
				if strings.HasPrefix(name, "dm_") || strings.HasPrefix(name, "chathist_") || name == "any" {
					pub("$JS.API.CONSUMER.CREATE." + s.name + "." + name + "." + f)
				}
			}
		}
		sub("$JS.EVENT.ADVISORY.>")
	}
	for _, v := range accountVerbs {
		pub("$JS.API." + strings.ReplaceAll(v, "%s", r.account))
	}
	for _, v := range systemVerbs {
		both("$SYS." + strings.NewReplacer("%[1]s", r.account, "%[2]s", server).Replace(v))
	}
	for _, b := range wire.Buckets() {
		sub(r.kv(b, ">"))
		for _, kind := range wire.Kinds(b) {
			pub(r.kv(b, kind+".x"))
		}
		for _, c := range everybody {
			pub(r.kv(b, c.Principal()))
			for _, kind := range []string{"gate.", "uid.", "frontier."} {
				pub(r.kv(b, kind+c.UID))
			}
			pub(r.kv(b, "lifecycle."+c.Principal()))
			pub(r.kv(b, "cred."+c.UID+".sha256-x"))
		}
		pub(r.kv(b, r.instance))
	}

	// What anybody listens on, also in his queue, and his inbox.
	listened := 0
	for _, c := range r.conns(true) {
		for _, s := range c.Subscriptions {
			listened++
			subject, queue, _ := strings.Cut(s, " ")
			both(subject)
			if queue != "" {
				sub(subject, queue)
			}
			sub(subject, "queue_of_a_thief")
		}
		if c.User != "" {
			both(wire.InboxPrefix(c.User) + ".>")
		}
	}
	if listened < 50 {
		t.Fatalf("somebody listens on only %d subjects: the server does not tell", listened)
	}

	// What is said, and to whom.
	for _, c := range everybody {
		me := c.Principal()
		for _, ch := range []string{"open", "secret", "events." + others[0].Principal(), "events." + me} {
			pub(r.p("chat." + me + "." + ch))
			sub(r.p("chat.*.*." + ch))
		}
		for _, to := range everybody {
			pub(r.p("inst." + to.Principal() + "." + me))
		}
		pub(r.p("svc.reviewer." + me))
		sub(r.p("inst." + me + ".>"))
		sub(r.p("ep.reply.*.*.*." + triple(c) + ".*"))
		sub(r.p("epe.*.*.*.goal." + triple(c) + ".>"))
	}
	for _, plane := range []string{"chat", "inst", "svc", "ep", "ep.reply", "ep.v1", "epe", "epf", "epj", "ept", "epr", "epc", "epw", "eps", "wfj", "trace", "ctl", "control"} {
		both(r.p(plane + ".>"))
	}
	for _, all := range []string{">", "*", "cotal.>", r.p(">"), "cotal.other.>", "_INBOX.>", "$JS.>", "$JS.API.>", "$KV.>", "$O.>", "$SYS.>"} {
		sub(all)
	}

	// Every command of the host, and those of other endpoints that the contract knows.
	table, err := control.Commands(control.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	commands := []string{wire.CmdDescribe, "turn-pending", "turn-yield", "run-answer", "cancel", "retire-lifecycle", "evict-principal", "reload-creds"}
	for cmd := range table {
		commands = append(commands, cmd)
	}
	nonce := strings.Repeat("N", 22)
	session := strings.Repeat("S", 22)
	for _, endpoint := range []string{wire.EndpointManager, "auth", "delivery", "com_example"} {
		for _, rail := range []string{"one." + endpoint, "all." + endpoint, "inst." + endpoint + "." + r.instance} {
			for _, cmd := range commands {
				sub(r.p("ep."+rail+"."+cmd+".>"), endpoint, "queue_of_a_thief")
				for _, as := range everybody {
					aims := []string{"", "self.", "owner.local.", "any.local.", "child.local.", "ledger.local."}
					for _, c := range everybody {
						aims = append(aims, "handle."+triple(c)+".", "exact."+triple(c)+".")
					}
					for _, aim := range aims {
						pub(r.p("ep." + rail + "." + cmd + "." + aim + triple(as) + "." + nonce))
						if as == me && aim == "" {
							pub(r.p("ep.v1." + rail + "." + cmd + "." + aim + triple(as) + ".g." + nonce))
						}
					}
				}
			}
		}
		for _, c := range others {
			for _, epoch := range []string{"1", "2", "3"} {
				pub(r.p("ep.reply." + endpoint + "." + r.instance + "." + epoch + "." + triple(c) + "." + nonce))
				pub(r.p("epe." + endpoint + "." + r.instance + "." + epoch + ".goal." + triple(c) + ".g.progress"))
				for _, way := range []string{wire.SessionIn, wire.SessionOut} {
					both(r.p("eps." + endpoint + "." + session + "." + epoch + "." + way))
				}
			}
			for _, leaf := range []string{"bind", "result"} {
				pub(r.p("epf." + endpoint + ".goal." + triple(c) + ".g." + leaf))
			}
		}
		pub(r.p("epf." + endpoint + ".dec.x"))
		pub(r.p("epj." + endpoint + ".run-start." + triple(me)))
		pub(r.p("epw." + endpoint + ".p." + triple(me) + ".x"))
	}
	pub(r.p("epc." + strings.Repeat("0", 64)))
	pub("$JS.FC.CHAT.any.x")

	// Forms of a subject that a broker does not take are no attack.
	var out []try
	for a := range seen {
		if a.subject == "" || strings.ContainsAny(a.subject, " \t") || !a.sub && strings.ContainsAny(a.subject, "*>") {
			if strings.Contains(a.subject, ".CONSUMER.CREATE.") { // a filter stands in it as it is
				out = append(out, a)
			}
			continue
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b try) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// grant is what a holder may, as patterns of subjects. It is written down here a second time, from the contract: what
// host/trust grants is held against it.
type grant struct{ pub, sub []string }

func (g *grant) may(a try) bool {
	list := g.pub
	if a.sub {
		list = g.sub
	}
	return slices.ContainsFunc(list, func(pattern string) bool {
		p, queue, _ := strings.Cut(pattern, " ")
		return within(a.subject, p) && (queue == "" || queue == a.queue)
	})
}

// within reports whether everything that a subject stands for is within a pattern.
func within(subject, pattern string) bool {
	s, p := strings.Split(subject, "."), strings.Split(pattern, ".")
	for i, t := range p {
		switch {
		case t == ">":
			return len(s) > i
		case i >= len(s) || s[i] == ">":
			return false
		case t != "*" && t != s[i]:
			return false
		}
	}
	return len(s) == len(p)
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		what, subject, pattern string
		want                   bool
	}{
		{"a subject is within itself", "a.b", "a.b", true},
		{"another is not", "a.c", "a.b", false},
		{"a longer one is not", "a.b.c", "a.b", false},
		{"a shorter one is not", "a", "a.b", false},
		{"one token of any kind", "a.b.c", "a.*.c", true},
		{"a wildcard is within a wildcard", "a.*", "a.*", true},
		{"a wildcard is not within one of its tokens", "a.*", "a.b", false},
		{"all that follows", "a.b.c", "a.>", true},
		{"of which there has to be something", "a", "a.>", false},
		{"more is not within one token", "a.>", "a.*", false},
		{"a literal greater sign in a filter is a token of what follows", "a.b.>", "a.b.>", true},
	} {
		if within(c.subject, c.pattern) != c.want {
			t.Errorf("%s: %v", c.what, !c.want)
		}
	}
}

// covers holds that a token grants nothing beyond, whether somebody thought of trying it or not.
func (g *grant) covers(t *testing.T, who, token string) {
	t.Helper()
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		t.Fatal(err)
	}
	if len(claims.Pub.Allow) == 0 || len(claims.Sub.Allow) == 0 {
		t.Errorf("%s: the token has no list of what it may: it may everything", who)
	}
	for _, list := range []struct {
		what        string
		has, should []string
	}{{"publish", claims.Pub.Allow, g.pub}, {"subscribe", claims.Sub.Allow, g.sub}} {
		for _, pattern := range list.has {
			subject, queue, _ := strings.Cut(pattern, " ")
			if !slices.ContainsFunc(list.should, func(s string) bool {
				p, q, _ := strings.Cut(s, " ")
				return within(subject, p) && (q == "" || q == queue)
			}) {
				t.Errorf("%s: the token lets it %s %s", who, list.what, pattern)
			}
		}
	}
}

// hold fails for everything that is reached and not granted, and for everything that is granted and not reached.
func hold(t *testing.T, who string, all []try, reached map[try]bool, g grant) {
	t.Helper()
	n := 0
	var wrong []string
	for _, a := range all {
		switch {
		case reached[a] && !g.may(a):
			wrong = append(wrong, "is let through: "+a.String())
		case !reached[a] && g.may(a):
			wrong = append(wrong, "is refused its own: "+a.String())
		}
		if reached[a] {
			n++
		}
	}
	t.Logf("%s tried %d things, and reached %d of its own", who, len(all), n)
	if n == 0 {
		t.Errorf("%s reaches nothing at all: this shows nothing", who)
	}
	if len(wrong) > 0 {
		t.Errorf("%s: %d of %d things are wrong:%s", who, len(wrong), len(all), lines(wrong[:min(len(wrong), 40)]))
	}
	used := fmt.Sprint(len(g.pub), len(g.sub))
	for _, list := range []struct {
		sub bool
		of  []string
	}{{false, g.pub}, {true, g.sub}} {
		for _, pattern := range list.of {
			if !slices.ContainsFunc(all, func(a try) bool {
				one := grant{pub: []string{pattern}, sub: []string{pattern}}
				return a.sub == list.sub && one.may(a)
			}) {
				t.Errorf("%s: nothing within %q is tried (of %s)", who, pattern, used)
			}
		}
	}
}
