package trust

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nats-io/jwt/v2"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// grants collects the subjects of one credential. Every list is an allow list: a credential without a row may
// nothing. All names are literal, since wildcards never match inside a token.
type grants struct {
	space    string
	endpoint string   // of the host: manager
	instance string   // id of the host's instance
	commands []string // that the host serves
	account  string   // public key of the space's account
	holder   wire.Caller
	connID   string // public key of the connection
	scope    Scope

	pub, sub, deny []string
}

// permissions is the result, sorted and each once, so that the same grant is the same bytes.
func (g *grants) permissions() jwt.Permissions {
	tidy := func(list []string) jwt.StringList {
		slices.Sort(list)
		return slices.Compact(list)
	}
	return jwt.Permissions{
		Pub: jwt.Permission{Allow: tidy(g.pub), Deny: tidy(g.deny)},
		Sub: jwt.Permission{Allow: tidy(g.sub)},
	}
}

func (g *grants) publish(s ...string)   { g.pub = append(g.pub, s...) }
func (g *grants) subscribe(s ...string) { g.sub = append(g.sub, s...) }

// p is a subject of the space.
func (g *grants) p(tail string) string { return "cotal." + g.space + "." + tail }

// stream is the name of a stream, and kv that of the stream behind a bucket; key is a key of a bucket.
func (g *grants) stream(s string) string      { return s + "_" + g.space }
func (g *grants) kv(b wire.Bucket) string     { return wire.BucketStream(g.bucket(b)) }
func (g *grants) bucket(b wire.Bucket) string { return "cotal_" + string(b) + "_" + g.space }
func (g *grants) key(b wire.Bucket, key string) string {
	return wire.BucketSubject(g.bucket(b), key)
}

func api(what string) string { return "$JS.API." + what }

func triple(c wire.Caller) string { return c.Owner + "." + c.Actor + "." + c.UID }

// own is what every connection of the space has: its inbox.
func (g *grants) own() { g.subscribe(g.inbox()) }

func (g *grants) inbox() string { return wire.InboxPrefix(g.connID) + ".>" }

// read lets a holder read single messages of a stream from its leader. The answer goes to an inbox of the
// reader's choice, so only what is trusted may.
func (g *grants) read(streams ...string) {
	for _, s := range streams {
		g.publish(api("STREAM.MSG.GET." + s))
	}
}

func (g *grants) info(streams ...string) {
	for _, s := range streams {
		g.publish(api("STREAM.INFO." + s))
	}
}

// serve is the rails of commands and what a responder publishes.
func (g *grants) serve(endpoint, instance string, commands []string) {
	e, epoch := wire.EndpointToken(endpoint), strconv.FormatUint(g.scope.Epoch, 10)
	for _, cmd := range commands {
		g.subscribe(
			g.p("ep.one."+e+"."+cmd+".>")+" "+e, // in the queue group alone
			g.p("ep.all."+e+"."+cmd+".>"),
			g.p("ep.inst."+e+"."+instance+"."+cmd+".>"),
		)
	}
	g.publish(
		g.p("ep.reply."+e+"."+instance+"."+epoch+".*.*.*.*"),
		g.p("epe."+e+"."+instance+"."+epoch+".>"),
	)
}

// present is a holder's own card.
func (g *grants) present() {
	g.publish(g.key(wire.BucketPresence, g.holder.Principal()))
}

// watch is a bucket that everybody of the space may read: with consumers of one's own, which only forward to
// one's own inbox.
func (g *grants) watch(buckets ...wire.Bucket) {
	for _, b := range buckets {
		kv := g.kv(b)
		g.info(kv)
		g.publish(api("CONSUMER.CREATE."+kv+".>"), api("CONSUMER.INFO."+kv+".>"), api("CONSUMER.DELETE."+kv+".>"))
	}
	g.publish("$JS.FC.>")
}

func (g *grants) supervisor() {
	g.own()
	g.serve(g.endpoint, g.instance, g.commands)
	g.present()
}

func (g *grants) leaseholder() {
	g.own()
	g.publish(g.key(wire.BucketManager, g.instance))
	g.info(g.kv(wire.BucketManager))
	g.read(g.kv(wire.BucketManager))
}

func (g *grants) watcher() {
	g.own()
	g.watch(wire.BucketPresence)
}

func (g *grants) goalWriter() {
	g.own()
	e := wire.EndpointToken(g.endpoint)
	for _, leaf := range []string{"goal.*.*.*.*.bind", "goal.*.*.*.*.result", "eff.>", "receipt.>", "wrk.>", "cp.>"} {
		g.publish(g.p("epf." + e + "." + leaf))
	}
	for _, kind := range []string{wire.KindGoal, wire.KindGoalIndex, wire.KindCheckpoint, wire.KindLease, wire.KindGoalEffect, wire.KindNameClaim} {
		g.publish(g.key(wire.BucketRecords, kind+"."+e+".>"))
	}
	g.publish(
		g.key(wire.BucketRecords, wire.KindMigration+"."+e),
		g.key(wire.BucketRecords, wire.KindService+"."+e+"."+g.instance+"."+wire.PartStatus),
	)
	g.read(g.stream(wire.StreamFact), g.kv(wire.BucketRecords), g.kv(wire.BucketAuth))
}

func (g *grants) session() {
	g.own()
	g.rail(g.scope.Session, g.scope.Epoch)
}

func (g *grants) farewell() {
	g.own()
	for _, past := range g.scope.Past {
		g.rail(past.ID, past.Epoch)
	}
}

// rail is the serving side of one attach session.
func (g *grants) rail(session string, epoch uint64) {
	rail := g.p("eps." + wire.EndpointToken(g.endpoint) + "." + session + "." + strconv.FormatUint(epoch, 10) + ".")
	g.publish(rail + wire.SessionOut)
	g.subscribe(rail + wire.SessionIn)
}

// spaceStreams are what a space consists of.
func (g *grants) spaceStreams() []string {
	var out []string
	for _, s := range []string{wire.StreamChat, wire.StreamDirect, wire.StreamTask, wire.StreamFact, wire.StreamContract} {
		out = append(out, g.stream(s))
	}
	for _, b := range []wire.Bucket{wire.BucketRecords, wire.BucketAuth, wire.BucketPresence, wire.BucketChannels, wire.BucketMembership, wire.BucketManager} {
		out = append(out, g.kv(b))
	}
	return out
}

func (g *grants) setUp() {
	g.own()
	for _, s := range g.spaceStreams() {
		g.publish(api("STREAM.CREATE." + s))
		g.info(s)
	}
	for _, b := range []wire.Bucket{wire.BucketPresence, wire.BucketChannels, wire.BucketMembership, wire.BucketManager} {
		g.publish(api("STREAM.UPDATE." + g.kv(b))) // those that somebody else made may allow rollups
	}
	g.publish(g.key(wire.BucketChannels, wire.DefaultsKey))
	g.read(g.kv(wire.BucketChannels))
}

func (g *grants) executor() {
	g.own()
	e := wire.EndpointToken(g.endpoint)
	// The rows of its own family: a credential's row is written before the credential is used, also its own.
	g.publish(g.key(wire.BucketAuth, wire.KindEndpointCred+"."+e+"."+g.instance+".>"))
	g.read(g.kv(wire.BucketAuth), g.kv(wire.BucketRecords))
	t := g.scope.Target
	if t.IsZero() {
		g.publish(
			g.key(wire.BucketAuth, wire.KindEndpointGate+"."+e+"."+g.instance),
			g.key(wire.BucketAuth, wire.KindRepair+"."+e+"."+g.instance),
			g.key(wire.BucketRecords, wire.KindService+"."+e+"."+g.instance+"."+wire.PartSpec),
			g.key(wire.BucketRecords, wire.KindService+"."+e+"."+g.instance+"."+wire.PartStatus),
			g.key(wire.BucketRecords, wire.KindGovern+"."+e),
			g.p("epc.*"),
		)
		g.read(g.stream(wire.StreamContract))
		return
	}
	g.publish(
		g.key(wire.BucketAuth, wire.KindGate+"."+t.UID),
		g.key(wire.BucketAuth, wire.KindCredential+"."+t.UID+".>"),
		g.key(wire.BucketRecords, wire.KindUID+"."+t.UID),
		g.key(wire.BucketRecords, wire.KindFrontier+"."+t.UID),
		g.key(wire.BucketRecords, wire.KindLifecycle+"."+t.Principal()),
		g.key(wire.BucketRecords, wire.KindLifecycle+"."+t.Principal()+"."+t.UID+".*"),
		g.key(wire.BucketRecords, wire.KindObligation+"."+t.UID+".>"),
	)
	if g.scope.Alias != "" {
		g.publish(g.key(wire.BucketRecords, kindSlot+"."+t.Owner+"."+g.scope.Alias))
	}
	if g.scope.OpID != "" {
		g.publish(g.key(wire.BucketAuth, wire.KindStage+"."+g.scope.OpID+".>"))
	}
	g.info(g.stream(wire.StreamDirect), g.stream(wire.StreamFact), g.kv(wire.BucketRecords)) // their frontiers
}

// kindSlot is the kind of the rows of aliases: mgrslot.<owner>.<alias>.
const kindSlot = "mgrslot"

func (g *grants) provisioner() {
	g.own()
	t := g.scope.Target
	p := wire.Principal{Owner: t.Owner, Actor: t.Actor}
	dm := g.stream(wire.StreamDirect)
	g.durable(dm, wire.DurableDirect(p, t.UID), g.p("inst."+p.String()+".>"))
	g.info(dm) // its frontier
	g.publish(g.key(wire.BucketMembership, p.String()))
	if g.scope.Role != "" {
		// It is shared by everybody of the role: made, and never taken away with a life.
		task, name := g.stream(wire.StreamTask), wire.DurableService(g.scope.Role)
		g.publish(api("CONSUMER.CREATE."+task+"."+name+"."+g.p("svc."+g.scope.Role+".>")), api("CONSUMER.INFO."+task+"."+name))
	}
}

// durable lets a holder make and take away one durable, with one filter.
func (g *grants) durable(stream, name, filter string) {
	g.publish(
		api("CONSUMER.CREATE."+stream+"."+name+"."+filter),
		api("CONSUMER.INFO."+stream+"."+name),
		api("CONSUMER.DELETE."+stream+"."+name),
	)
}

func (g *grants) deprovisioner() {
	g.own()
	t := g.scope.Target
	p := wire.Principal{Owner: t.Owner, Actor: t.Actor}
	for stream, name := range map[string]string{
		g.stream(wire.StreamDirect): wire.DurableDirect(p, t.UID),
		g.stream(wire.StreamChat):   wire.DurableHistory(p, t.UID),
	} {
		g.publish(api("CONSUMER.INFO."+stream+"."+name), api("CONSUMER.DELETE."+stream+"."+name))
	}
	g.publish(g.key(wire.BucketMembership, p.String()), g.key(wire.BucketPresence, p.String()))
}

func (g *grants) purger() {
	g.own()
	for _, s := range []string{g.stream(wire.StreamChat), g.stream(wire.StreamDirect)} {
		g.publish(api("STREAM.PURGE." + s))
		g.info(s)
	}
}

func (g *grants) eraser() {
	g.own()
	for _, s := range []string{g.stream(wire.StreamFact), g.kv(wire.BucketRecords)} {
		g.publish(api("STREAM.MSG.DELETE." + s))
		g.read(s)
	}
}

// rails a caller may use: any one instance, one that it names, all of them.
var (
	oneByOne = []string{"one.%s.", "inst.%s.*."}
	allRails = []string{"one.%s.", "inst.%s.*.", "all.%s."}
)

// call lets a caller call one command of an endpoint, in one mode, on rails of the unversioned kind. target is
// what stands for the target in a grant: nothing, *, an owner, three tokens.
func (g *grants) call(rails []string, endpoint, command string, mode wire.Authz, target string) {
	tail := command + "."
	if mode != wire.AuthzNone {
		tail += string(mode) + "."
	}
	if target != "" {
		tail += target + "."
	}
	tail += triple(g.holder) + ".*"
	for _, rail := range rails {
		g.publish(g.p("ep." + fmt.Sprintf(rail, endpoint) + tail))
	}
}

// answers is what comes back to a caller: replies, and the progress of its goals.
func (g *grants) answers() {
	g.subscribe(g.p("ep.reply.*.*.*."+triple(g.holder)+".*"), g.p("epe.*.*.*.goal."+triple(g.holder)+".>"))
}

// speak is what a participant says as itself.
func (g *grants) speak() {
	me := g.holder.Principal()
	g.publish(g.p("inst.*.*."+me), g.p("svc.*."+me))
}

// Commands of the manager that an agent may call: every agent, and one that may spawn.
var (
	agentSelf      = []string{wire.CmdStop, wire.CmdNudge, "turn-pending", "turn-yield", "run-answer"}
	agentSpawn     = []string{wire.CmdSpawn, wire.CmdResolveCwd, wire.CmdResolveAgent, wire.CmdInspect, wire.CmdGoalResult, wire.CmdListPersonas, wire.CmdShowPersona, wire.CmdDefinePersona}
	agentSpawnedBy = []string{wire.CmdDespawn, wire.CmdAttach}
)

func (g *grants) agent() {
	g.own()
	g.answers()
	g.speak()
	g.present()
	me := wire.Principal{Owner: g.holder.Owner, Actor: g.holder.Actor}
	g.call(allRails, "*", wire.CmdDescribe, wire.AuthzNone, "")
	manager := wire.EndpointManager
	for _, cmd := range agentSelf {
		g.call(oneByOne, manager, cmd, wire.AuthzSelf, "")
	}
	if g.scope.Spawn {
		for _, cmd := range agentSpawn {
			g.call(oneByOne, manager, cmd, wire.AuthzNone, "")
		}
		for _, cmd := range agentSpawnedBy {
			g.call(oneByOne, manager, cmd, wire.AuthzOwner, g.holder.Owner)
		}
	}

	chat, dm := g.stream(wire.StreamChat), g.stream(wire.StreamDirect)
	hist := wire.DurableHistory(me, g.holder.UID)
	for _, ch := range g.scope.Read {
		g.subscribe(g.p("chat.*.*." + ch))
		g.publish(api("CONSUMER.CREATE." + chat + "." + hist + "." + g.p("chat.*.*."+ch)))
	}
	for _, ch := range g.scope.Write {
		g.publish(g.p("chat." + me.String() + "." + ch))
	}
	g.publish(api("INFO"))
	g.info(chat)
	for _, what := range []string{"INFO", "MSG.NEXT", "DELETE"} {
		g.publish(api("CONSUMER." + what + "." + chat + "." + hist))
	}
	g.bind(dm, wire.DurableDirect(me, g.holder.UID))
	g.watch(wire.BucketPresence, wire.BucketChannels)
	g.read(g.kv(wire.BucketChannels))
	task := g.stream(wire.StreamTask)
	if g.scope.Role != "" {
		g.info(task)
		g.bind(task, wire.DurableService(g.scope.Role))
	}
	// A consumer of one's own over messages of others could have any filter.
	for _, s := range []string{dm, task} {
		g.deny = append(g.deny, api("CONSUMER.CREATE."+s), api("CONSUMER.CREATE."+s+".>"), api("CONSUMER.DURABLE.CREATE."+s+".>"))
	}
}

// bind lets a holder use a durable that somebody else made.
func (g *grants) bind(stream, name string) {
	g.publish(api("CONSUMER.INFO."+stream+"."+name), api("CONSUMER.MSG.NEXT."+stream+"."+name), "$JS.ACK."+stream+"."+name+".>")
}

func (g *grants) observer() {
	g.own()
	g.subscribe(g.p("chat.>"))
	chat := g.stream(wire.StreamChat)
	g.publish(api("INFO"), api("CONSUMER.CREATE."+chat), "$JS.ACK."+chat+".>")
	g.info(chat)
	for _, what := range []string{"CREATE", "INFO", "MSG.NEXT", "DELETE"} {
		g.publish(api("CONSUMER." + what + "." + chat + ".>"))
	}
	g.watch(wire.BucketPresence, wire.BucketChannels, wire.BucketMembership)
	g.read(g.kv(wire.BucketChannels), g.kv(wire.BucketMembership))
}

func (g *grants) operator() {
	g.observer()
	g.answers()
	g.speak()
	g.present()
	g.publish(g.p("chat." + g.holder.Principal() + ".>"))
	// The person at the machine: every command of every endpoint, in each mode that no redemption is needed for.
	g.call(allRails, "*", "*", wire.AuthzNone, "")
	g.call(allRails, "*", "*", wire.AuthzSelf, "")
	for _, mode := range []wire.Authz{wire.AuthzOwner, wire.AuthzAny, wire.AuthzChild, wire.AuthzLedger} {
		g.call(allRails, "*", "*", mode, "*")
	}
	g.call(allRails, "*", "*", wire.AuthzExact, "*.*.*")
	g.subscribe(g.p("epe.>"))
	// The documents of contracts: public, and verified by their digest.
	g.publish(api("DIRECT.GET." + g.stream(wire.StreamContract) + "." + g.p("epc.*")))
	// The sessions it is granted: their ids are secrets.
	e := wire.EndpointToken(g.endpoint)
	g.publish(g.p("eps." + e + ".*.*." + wire.SessionIn))
	g.subscribe(g.p("eps." + e + ".*.*." + wire.SessionOut))
}

// deliveryCommands are what a daemon of durable delivery answers.
var deliveryCommands = []string{
	wire.CmdDescribe, "durable-join", "durable-leave", "durable-list", "reload-creds", "reload-store-identity",
	"principal-liveness", "evict-principal", "lifecycle-memberships",
}

func (g *grants) deliverer() {
	g.own()
	g.serve("delivery", g.instance, deliveryCommands)
	chat := g.stream(wire.StreamChat)
	g.info(chat)
	for _, what := range []string{"CREATE", "INFO", "MSG.NEXT", "DELETE"} {
		g.publish(api("CONSUMER." + what + "." + chat + ".>"))
	}
	g.publish("$JS.ACK."+chat+".>", g.key(wire.BucketMembership, ">"))
	g.watch(wire.BucketChannels)
}

func (g *grants) evictor() {
	g.own()
	g.publish(
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.*.CONNZ", "$SYS.REQ.SERVER.*.KICK", "$SYS.REQ.SERVER.*.VARZ",
		"$SYS.REQ.ACCOUNT."+g.account+".CLAIMS.UPDATE", "$SYS.REQ.ACCOUNT."+g.account+".CLAIMS.LOOKUP",
	)
}
