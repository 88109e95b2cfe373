//go:build linux

package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// revokedWithin is how long a stolen credential may work after the command has returned that ended its seat: its
// connection is ended before that, and its own client has to notice.
const revokedWithin = time.Second

// endsIn waits for an end, for a time that is measured once it has passed: what kept it may have come meanwhile.
func endsIn(ended <-chan struct{}, d time.Duration) bool {
	for begin := time.Now(); ; {
		select {
		case <-ended:
			return true
		case <-time.After(10 * time.Millisecond):
		}
		if busy.Over(begin, d) {
			return false
		}
	}
}

// readers are those who watch presence or the registry of channels: whoever reads these may end another reader, who
// begins again.
var readers = regexp.MustCompile(`consumer KV_cotal_(presence|channels)_`)

// channelsOfTheft are what the agents of these tests may read and write.
var channelsOfTheft = []string{"open"}

// agents starts a host with two seats that are on the mesh; the credential of the first will be stolen.
func agents(t *testing.T, capabilities ...string) (r *rig, mine, hers wire.AgentRow) {
	t.Helper()
	w := harness.NewAuthenticated(t)
	w.UsePresence(0)
	persona := "---\nname: mine\nagent: " + harness.PresenceAgent + "\nsubscribe: [open]\nallowSubscribe: [open]\nallowPublish: [open]\n"
	if len(capabilities) > 0 {
		persona += "capabilities: [" + strings.Join(capabilities, ", ") + "]\n"
	}
	w.Persona("mine", persona+"---\nYou work.\n")
	r = over(t, w, harness.HostOptions{})
	c := r.Mesh()
	for _, name := range []string{"mine", "hers"} {
		args := r.PresenceArgs(name, `[{"join": {}}, {"hang": true}]`)
		if name == "mine" {
			args.Identity = "" // its persona
		} else {
			args.Subscribe, args.AllowSubscribe, args.AllowPublish = []string{"secret"}, []string{"secret"}, []string{"secret"}
		}
		if _, err := harness.Launch(t.Context(), c, args); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []struct{ channel, text string }{{"secret", "for her alone"}, {"open", "for all"}} {
		if _, err := c.SendChannel(t.Context(), m.channel, m.text); err != nil {
			t.Fatal(err)
		}
	}
	mine, hers = r.AwaitStatus("mine", "running"), r.AwaitStatus("hers", "running")
	if _, err := c.SendDirect(t.Context(), hers.ID, "between us"); err != nil {
		t.Fatal(err)
	}
	return r, mine, hers
}

// token is what of a credentials file is shown to a server.
func token(t *testing.T, file []byte) string {
	t.Helper()
	text, err := jwt.ParseDecoratedJWT(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// agentMay is what the contract gives an agent.
func (r *rig) agentMay(me wire.Caller, read, write []string, spawn bool) grant {
	var g grant
	pub := func(s ...string) { g.pub = append(g.pub, s...) }
	p := wire.Principal{Owner: me.Owner, Actor: me.Actor}
	chat, dm := "CHAT_"+r.space, "DM_"+r.space
	hist, own := wire.DurableHistory(p, me.UID), wire.DurableDirect(p, me.UID)
	g.sub = []string{
		wire.InboxPrefix(me.Actor) + ".>", r.p("ep.reply.*.*.*." + triple(me) + ".*"), r.p("epe.*.*.*.goal." + triple(me) + ".>"),
	}
	for _, ch := range read {
		g.sub = append(g.sub, r.p("chat.*.*."+ch))
		pub("$JS.API.CONSUMER.CREATE." + chat + "." + hist + "." + r.p("chat.*.*."+ch))
	}
	for _, ch := range write {
		pub(r.p("chat." + me.Principal() + "." + ch))
	}
	pub(r.p("inst.*.*."+me.Principal()), r.p("svc.*."+me.Principal()), r.kv(wire.BucketPresence, me.Principal()))
	for _, rail := range []string{"one.*.", "all.*.", "inst.*.*."} {
		pub(r.p("ep." + rail + "describe." + triple(me) + ".*"))
	}
	for _, rail := range []string{"one.manager.", "inst.manager.*."} {
		for _, cmd := range []string{"stop", "nudge", "turn-pending", "turn-yield", "run-answer"} {
			pub(r.p("ep." + rail + cmd + ".self." + triple(me) + ".*"))
		}
		if !spawn {
			continue
		}
		for _, cmd := range []string{"spawn", "resolve-cwd", "resolve-agent", "inspect", "goal-result", "list-personas", "show-persona", "define-persona"} {
			pub(r.p("ep." + rail + cmd + "." + triple(me) + ".*"))
		}
		for _, cmd := range []string{"despawn", "attach"} {
			pub(r.p("ep." + rail + cmd + ".owner." + me.Owner + "." + triple(me) + ".*"))
		}
	}
	pub("$JS.API.INFO", "$JS.FC.>", "$JS.API.STREAM.INFO."+chat)
	for _, v := range []string{"INFO", "MSG.NEXT", "DELETE"} {
		pub("$JS.API.CONSUMER." + v + "." + chat + "." + hist)
	}
	for _, v := range []string{"INFO", "MSG.NEXT"} {
		pub("$JS.API.CONSUMER." + v + "." + dm + "." + own)
	}
	pub("$JS.ACK." + dm + "." + own + ".>")
	for _, b := range []wire.Bucket{wire.BucketPresence, wire.BucketChannels} {
		kv := "KV_cotal_" + string(b) + "_" + r.space
		pub("$JS.API.STREAM.INFO." + kv)
		for _, v := range []string{"CREATE", "INFO", "DELETE"} {
			pub("$JS.API.CONSUMER." + v + "." + kv + ".>")
		}
	}
	pub("$JS.API.STREAM.MSG.GET.KV_cotal_channels_" + r.space)
	return g
}

// Whoever has the credential of an agent is that agent, and nobody else: of all there is in this space and in this
// broker it reaches what the agent was given, and from the moment on at which its seat is ended nothing at all.
//
// proves: CRED-3, AUTHZ-16
func TestAttack_AStolenCredentialIsItsAgentUntilThatIsEnded(t *testing.T) {
	t.Parallel()
	r, mine, hers := agents(t)
	me, she := callerOf(t, mine), callerOf(t, hers)
	host := wire.Caller{Owner: wire.OwnerLocal, Actor: "manager", UID: r.instance}
	for _, row := range r.presences() {
		if row != me.Principal() && row != she.Principal() {
			if p, err := wire.PrincipalOf(row); err == nil {
				host.Owner, host.Actor = p.Owner, p.Actor
			}
		}
	}
	_, text := r.credential(mine)
	th, err := r.steal(text, me)
	if err != nil {
		t.Fatal(err)
	}
	all := r.everything(t, me, she, host)
	before := r.still()
	may := r.agentMay(me, channelsOfTheft, channelsOfTheft, false)
	may.covers(t, "an agent", token(t, text))
	hold(t, "an agent", all, th.reaches(t, all), may)
	// What it published where it may is a message or its own card; nobody else's things have changed.
	_, other := compare(before, r.census())
	for _, o := range other {
		if !strings.Contains(o, me.Principal()) && !strings.Contains(o, me.Actor) && !strings.Contains(o, "connection ") && !readers.MatchString(o) {
			t.Errorf("what it tried has an effect: %s", o)
		}
	}

	r.CLI("stop", "mine").OK()
	ended := time.Now()
	if endsIn(th.closed, revokedWithin) {
		t.Logf("its connection was ended %v after the seat was", time.Since(ended).Round(time.Microsecond))
	} else {
		t.Errorf("its connection lives %v after the seat was ended", time.Since(ended))
	}
	if again, err := r.steal(text, me); err == nil {
		t.Errorf("a copy of the credential connects after its seat was ended: %v", again.Status())
	} else if !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) && !strings.Contains(strings.ToLower(err.Error()), "auth") {
		t.Errorf("a copy of the credential is refused with %v", err)
	}
}

// An agent that may spawn reaches the commands for that beside, and nothing more of the broker.
func TestAttack_AStolenCredentialThatMaySpawnReachesThatBeside(t *testing.T) {
	t.Parallel()
	r, mine, hers := agents(t, "spawn")
	me, she := callerOf(t, mine), callerOf(t, hers)
	_, text := r.credential(mine)
	th, err := r.steal(text, me)
	if err != nil {
		t.Fatal(err)
	}
	all := r.everything(t, me, she, wire.Caller{Owner: wire.OwnerLocal, Actor: "manager", UID: r.instance})
	may := r.agentMay(me, channelsOfTheft, channelsOfTheft, true)
	may.covers(t, "an agent that may spawn", token(t, text))
	hold(t, "an agent that may spawn", all, th.reaches(t, all), may)
}

// presences are the principals whose cards are there.
func (r *rig) presences() []string { return r.census().presences() }

func (c census) presences() (who []string) {
	for name := range c {
		if key, ok := strings.CutPrefix(name, "row "+string(wire.BucketPresence)+" "); ok {
			who = append(who, key)
		}
	}
	slices.Sort(who)
	return who
}

// A filter that is asked for in the text of a request and not in its subject, a stream of another name, a place of
// delivery that is somebody else's: the broker is held to what the subject says.
func TestAttack_WhatTheSubjectDoesNotSayIsNotGiven(t *testing.T) {
	t.Parallel()
	r, mine, hers := agents(t)
	me, she := callerOf(t, mine), callerOf(t, hers)
	_, text := r.credential(mine)
	th, err := r.steal(text, me)
	if err != nil {
		t.Fatal(err)
	}
	p, hp := wire.Principal{Owner: me.Owner, Actor: me.Actor}, wire.Principal{Owner: she.Owner, Actor: she.Actor}
	hist, own := wire.DurableHistory(p, me.UID), wire.DurableDirect(p, me.UID)
	chat, dm := "CHAT_"+r.space, "DM_"+r.space
	granted := "$JS.API.CONSUMER.CREATE." + chat + "." + hist + "." + r.p("chat.*.*.open")
	before := r.still()
	for what, req := range map[string]struct {
		subject string
		stream  string
		config  map[string]any
	}{
		"another channel":            {granted, chat, map[string]any{"filter_subject": r.p("chat.*.*.secret")}},
		"all channels":               {granted, chat, map[string]any{"filter_subject": r.p("chat.>")}},
		"no filter":                  {granted, chat, map[string]any{}},
		"two filters":                {granted, chat, map[string]any{"filter_subjects": []string{r.p("chat.*.*.open"), r.p("chat.*.*.secret")}}},
		"another stream":             {granted, dm, map[string]any{"filter_subject": r.p("inst.>")}},
		"the direct messages of her": {"$JS.API.CONSUMER.CREATE." + dm + "." + own + "." + r.p("inst."+hp.String()+".>"), dm, map[string]any{"filter_subject": r.p("inst." + hp.String() + ".>")}},
	} {
		config := map[string]any{"name": hist, "ack_policy": "none", "deliver_policy": "all", "mem_storage": true}
		maps.Copy(config, req.config)
		body, err := json.Marshal(map[string]any{"stream_name": req.stream, "config": config})
		if err != nil {
			t.Fatal(err)
		}
		m, err := th.Request(req.subject, body, 300*time.Millisecond)
		if err == nil && !bytes.Contains(m.Data, []byte(`"error"`)) {
			t.Errorf("%s: it is given: %s", what, m.Data)
		}
	}
	th.take(t)
	if _, other := compare(before, r.census()); len(other) > 0 {
		t.Errorf("something was made:%s", lines(other))
	}
}

// minted is what a copy of one of the host's own credentials is, made with the keys as the host makes it: none of them
// is ever a file.
func (r *rig) minted(t *testing.T, req trust.Request) *thief {
	t.Helper()
	store, err := trust.OpenFileStore(t.Context(), r.Root)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := trust.OpenKeyring(store, r.space)
	if err != nil {
		t.Fatal(err)
	}
	table, err := control.Commands(control.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := trust.NewStatic(trust.StaticConfig{
		Keys: keys, Instance: r.instance, Commands: append(slices.Sorted(maps.Keys(table)), wire.CmdDescribe), Reach: bus.Config{URL: r.url},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.Mint(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	th, err := r.intrude(wire.Caller{Owner: wire.OwnerLocal, Actor: c.Public, UID: r.instance}, nats.UserJWT(c.Token, c.Sign))
	if err == nil {
		th.token, err = c.Token()
	}
	if err != nil {
		t.Fatal(err)
	}
	return th
}

// epoch is that of the host that serves.
func (r *rig) epoch(t *testing.T) uint64 {
	t.Helper()
	m, ok := r.row("KV_cotal_auth_"+r.space, r.kv(wire.BucketAuth, "epgate.manager."+r.instance))
	if !ok {
		t.Fatal("the host has no gate")
	}
	g, err := wire.DecodeEndpointGate(m.Data)
	if err != nil {
		t.Fatal(err)
	}
	return g.ProcessEpoch
}

// supervisorMay is what the contract gives the one who serves.
func (r *rig) supervisorMay(me wire.Caller, epoch uint64) grant {
	e := strconv.FormatUint(epoch, 10)
	g := grant{
		pub: []string{
			r.p("ep.reply.manager." + r.instance + "." + e + ".*.*.*.*"), r.p("epe.manager." + r.instance + "." + e + ".>"),
			r.kv(wire.BucketPresence, me.Principal()),
		},
		sub: []string{wire.InboxPrefix(me.Actor) + ".>"},
	}
	table, err := control.Commands(control.Deps{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, cmd := range append(slices.Collect(maps.Keys(table)), wire.CmdDescribe) {
		g.sub = append(g.sub, r.p("ep.one.manager."+cmd+".>")+" manager", r.p("ep.all.manager."+cmd+".>"), r.p("ep.inst.manager."+r.instance+"."+cmd+".>"))
	}
	return g
}

// never is what nothing that a host holds for long may do, whatever the list says.
var never = []string{
	"$KV.cotal_auth_", "$JS.API.STREAM.CREATE.", "$JS.API.STREAM.PURGE.", "$JS.API.STREAM.DELETE.", "$JS.API.STREAM.UPDATE.", "$JS.API.CONSUMER.",
	"$JS.API.STREAM.MSG.DELETE.", "$JS.API.DIRECT.GET.", "$JS.ACK.", "$SYS.",
}

// A copy of the credential that a host serves with mints nothing, makes nothing, reads no message and takes none away. It
// is dead when the host was started again.
//
// proves: START-7
func TestAttack_ACopyOfTheSupervisorsCredentialServesAndNothingElse(t *testing.T) {
	t.Parallel()
	r, mine, hers := agents(t)
	epoch := r.epoch(t)
	th := r.minted(t, trust.Request{Profile: trust.Supervisor, Scope: trust.Scope{Epoch: epoch}})
	all := r.everything(t, th.Caller, callerOf(t, mine), callerOf(t, hers))
	reached := th.reaches(t, all)
	for a := range reached {
		for _, n := range never {
			if !a.sub && strings.HasPrefix(a.subject, n) {
				t.Errorf("it mints, makes, reads or takes away: %v", a)
			}
		}
		if a.sub && (within(a.subject, r.p("chat.>")) || within(a.subject, r.p("inst.>")) || within(a.subject, r.p("svc.>"))) {
			t.Errorf("it reads messages: %v", a)
		}
	}
	may := r.supervisorMay(th.Caller, epoch)
	may.covers(t, "a supervisor", th.token)
	hold(t, "a supervisor", all, reached, may)
	r.host.Kill()
	r.start(harness.HostOptions{})
	r.connected()
	if !endsIn(th.closed, patience) {
		t.Error("a copy is connected when another incarnation serves")
	}
}
