//go:build linux

package wire

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// patience bounds how long a test waits for an answer that has to come.
const patience = 60 * time.Second

// idle is an agent that prints one line and waits; what is typed to it is echoed by its terminal alone.
const idle = `[{"print": "up\n"}, {"hang": true}]`

// recorder starts a seat whose agent writes down, in a file of the workspace, what is typed to it, and waits
// until it reads.
func (r *rig) recorder(name, file string) acceptance {
	r.t.Helper()
	r.Write(file, "")
	ready := r.Path(file + ".reads")
	a := r.spawn(name, fmt.Sprintf(`[{"raw": true}, {"write": {"file": %q, "text": ""}}, {"hexlog": {"file": %q, "bytes": 100000000}}]`, ready, r.Path(file)))
	harness.Eventually(r.t, patience, name+" reads", func() (bool, string) {
		_, err := os.Stat(ready)
		return err == nil, fmt.Sprint(err)
	})
	return a
}

// triple names a caller or a seat on the wire.
type triple struct{ owner, actor, uid string }

func (c triple) principal() string { return c.owner + "." + c.actor }
func (c triple) tokens() []string  { return []string{c.owner, c.actor, c.uid} }

// rig is one host and one bare connection to its broker.
type rig struct {
	*harness.World
	t    *testing.T
	host *harness.Host
	nc   *nats.Conn
	tap  *nats.Subscription // hears everything, and so counts as somebody on every subject

	space, instance string
	epoch           uint64
	me              triple
	commands        map[string]commandDoc // as describe declares them
	description     described
	victim          triple // a seat that runs, under the name victim
	gone            triple // one that ran

	*ears
}

// ears hear everything on the subjects of the space, in order, and know what was said here.
type ears struct {
	mu    sync.Mutex
	heard []*nats.Msg
	more  chan struct{}
	asked map[string]*request // by nonce
}

// newRig starts a host, connects to it, and asks it for its commands.
func newRig(t *testing.T) *rig {
	t.Helper()
	return connect(t, harness.New(t), harness.HostOptions{})
}

// connect starts a host in a world that exists.
func connect(t *testing.T, w *harness.World, o harness.HostOptions) *rig {
	t.Helper()
	r := &rig{World: w, t: t, ears: &ears{more: make(chan struct{}, 1), asked: map[string]*request{}}}
	r.host = w.Start(o)
	r.dial()
	r.me = newCaller()
	r.describe()
	// Plugins start behind "ready", and leave their files when they do.
	harness.Eventually(t, patience, "every plugin is ready", func() (bool, string) {
		var status struct {
			Plugins []struct{ Name, State string }
		}
		r.into(r.request("status", nil), &status)
		for _, p := range status.Plugins {
			if p.State != "ready" {
				return false, p.Name + " is " + p.State
			}
		}
		return len(status.Plugins) > 0, "none"
	})
	return r
}

// dial connects as any program does that finds endpoint.json.
func (r *rig) dial() {
	r.t.Helper()
	var e struct{ URL, TokenFile, Space, InstanceID string }
	text, err := os.ReadFile(r.Path(".cotal", "host", "endpoint.json"))
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		r.t.Fatalf("read endpoint.json: %v", err)
	}
	token, err := os.ReadFile(e.TokenFile)
	if err != nil {
		r.t.Fatal(err)
	}
	r.space, r.instance = e.Space, e.InstanceID
	r.nc, err = nats.Connect(e.URL, nats.Token(strings.TrimSpace(string(token))), nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1))
	if err != nil {
		r.t.Fatalf("connect: %v", err)
	}
	r.t.Cleanup(r.nc.Close)
	sub, err := r.nc.Subscribe("cotal."+r.space+".>", r.hear)
	r.tap = sub
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = r.nc.FlushTimeout(patience)
	}
	if err != nil {
		r.t.Fatalf("listen: %v", err)
	}
}

func (r *ears) hear(m *nats.Msg) {
	r.mu.Lock()
	r.heard = append(r.heard, m)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// since returns what was heard behind a mark.
func (r *ears) since(mark int) []*nats.Msg {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.heard[mark:])
}

func (r *ears) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heard)
}

// subject builds a subject of the space.
func (r *rig) subject(tokens ...string) string {
	return strings.Join(append([]string{"cotal", r.space}, tokens...), ".")
}

// newCaller makes an identity that nobody has.
func newCaller() triple { return triple{"local", "raw_" + random(8), newUID()} }

func newUID() string { return strings.ToLower(base32.StdEncoding.EncodeToString(randomBytes(20)))[:26] }

// newNonce is the secret of one call: 192 bits.
func newNonce() string { return base64.RawURLEncoding.EncodeToString(randomBytes(24)) }

func random(n int) string {
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(randomBytes(n)))[:n]
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// request is one message that is about to be sent. Every part of it can be made wrong.
type request struct {
	rig      *rig
	mode     string // one, inst, all
	instance string
	endpoint string
	command  string
	authz    []string // authorization mode and target tokens
	caller   triple
	nonce    string
	subject  string         // when set, it is used as it is
	body     map[string]any // the envelope; absent members are not sent
	raw      []byte         // when set, it is sent instead of body
	header   nats.Header
	answerTo string // transport reply address, which nobody may use
	replies  int    // how many answers are right
}

// request makes a request that is right: on the class rail, or on the instance rail for a command that is
// served there alone.
func (r *rig) request(command string, args any) *request {
	q := &request{
		rig: r, mode: "one", instance: r.instance, endpoint: "manager", command: command, caller: r.me, nonce: newNonce(),
		header: nats.Header{},
	}
	op := map[string]any{"endpoint": "manager", "command": command}
	if doc, ok := r.commands[command]; ok && doc.InputDigest != "" {
		op["inputDigest"], op["outputDigest"] = doc.InputDigest, doc.OutputDigest
	}
	q.body = map[string]any{
		"v": 1, "id": random(22), "op": op, "class": "ephemeral", "replyExpected": true,
		"from": map[string]any{"id": r.me.principal()}, "deadlineMs": 15000,
	}
	if args != nil {
		q.body["args"] = args
	}
	if instanceOnly[command] {
		q.mode = "inst"
	}
	return q
}

// as sets who asks.
func (q *request) as(c triple) *request {
	q.caller = c
	q.body["from"] = map[string]any{"id": c.principal()}
	return q
}

// at aims a request at a seat in mode owner or any, by subject and body.
func (q *request) at(mode string, t triple) *request {
	q.authz = []string{mode, t.owner}
	q.body["target"] = targetOf(t)
	return q
}

func targetOf(t triple) map[string]any {
	return map[string]any{"owner": t.owner, "actor": t.actor, "lifecycleUid": t.uid}
}

// on sets the rail.
func (q *request) on(mode string) *request { q.mode = mode; return q }

func (q *request) op() map[string]any { return q.body["op"].(map[string]any) }

func (q *request) subjectText() string {
	if q.subject != "" {
		return q.subject
	}
	tokens := []string{"ep", q.mode, q.endpoint}
	if q.mode == "inst" {
		tokens = append(tokens, q.instance)
	}
	tokens = append(tokens, q.command)
	tokens = append(tokens, q.authz...)
	return q.rig.subject(append(append(tokens, q.caller.tokens()...), q.nonce)...)
}

func (q *request) payload() []byte {
	if q.raw != nil {
		return q.raw
	}
	text, err := json.Marshal(q.body)
	if err != nil {
		panic(err) // a test that cannot spell its request
	}
	return text
}

// publish sends a request and waits for nothing.
func (r *rig) publish(q *request) {
	r.t.Helper()
	m := &nats.Msg{Subject: q.subjectText(), Reply: q.answerTo, Data: q.payload(), Header: q.header}
	r.mu.Lock()
	r.asked[q.nonce] = q
	r.mu.Unlock()
	if err := r.nc.PublishMsg(m); err != nil {
		r.t.Fatalf("publish on %s: %v", m.Subject, err)
	}
}

// reply is one answer, taken apart.
type reply struct {
	instance, epoch string
	ID              string
	OK              bool
	Data            json.RawMessage
	Error           *struct {
		Code, Message, Outcome string
		Details                []map[string]any
	}
}

func (p *reply) String() string {
	switch {
	case p == nil:
		return "no answer"
	case p.Error != nil:
		return fmt.Sprintf("%s, outcome %q: %s", p.Error.Code, p.Error.Outcome, p.Error.Message)
	}
	return "ok: " + string(p.Data)
}

// call sends a request and waits for its answer.
func (r *rig) call(q *request) *reply {
	r.t.Helper()
	return r.calls(q, 1)[0]
}

// calls sends a request and waits for n answers on its reply rail.
func (r *rig) calls(q *request, n int) []*reply {
	r.t.Helper()
	mark := r.mark()
	q.replies += n
	r.publish(q)
	return r.answers(q, mark, n)
}

// answers waits until n answers to a request were heard behind a mark.
func (r *rig) answers(q *request, mark, n int) []*reply {
	r.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		var got []*reply
		for _, m := range r.since(mark) {
			if p := r.replyTo(q, m); p != nil {
				got = append(got, p)
			}
		}
		if len(got) >= n {
			return got
		}
		select {
		case <-r.more:
		case <-look.C:
			if !r.host.Running() {
				r.t.Fatalf("%s: the host has ended", q.subjectText())
			}
		case <-limit.C:
			r.t.Fatalf("%s: %d answers after %v, want %d; heard: %s", q.subjectText(), len(got), patience, n, subjects(r.since(mark)))
		}
	}
}

// replyTo reads a message as the answer to a request; nil when it is none. The subject must be the derived
// one: ep.reply.<endpoint>.<instance>.<epoch>.<caller>.<nonce>.
func (r *rig) replyTo(q *request, m *nats.Msg) *reply {
	r.t.Helper()
	tokens := strings.Split(m.Subject, ".")
	if len(tokens) != 11 || tokens[2] != "ep" || tokens[3] != "reply" || tokens[10] != q.nonce {
		return nil
	}
	if tokens[4] != "manager" || !slices.Equal(tokens[7:10], q.caller.tokens()) {
		r.t.Errorf("an answer came on %s, which is not the rail of %v", m.Subject, q.caller)
	}
	if m.Reply != "" {
		r.t.Errorf("an answer asks for an answer on %s", m.Reply)
	}
	p := &reply{instance: tokens[5], epoch: tokens[6]}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(m.Data, &members); err != nil {
		r.t.Fatalf("answer %s: %v", m.Data, err)
	}
	if err := json.Unmarshal(m.Data, p); err != nil {
		r.t.Fatalf("answer %s: %v", m.Data, err)
	}
	_, data := members["data"]
	_, failed := members["error"]
	if string(members["v"]) != "1" || p.OK == failed || data && failed || p.OK && p.Error != nil {
		r.t.Errorf("answer is no envelope of version 1: %s", m.Data)
	}
	if p.instance != r.instance || p.epoch != fmt.Sprint(r.epoch) && r.epoch != 0 {
		r.t.Errorf("an answer comes from instance %s, epoch %s; want %s, %d", p.instance, p.epoch, r.instance, r.epoch)
	}
	return p
}

func subjects(ms []*nats.Msg) string {
	var out []string
	for _, m := range ms {
		out = append(out, m.Subject)
	}
	return strings.Join(out, "\n  ")
}

// must calls and wants success.
func (r *rig) must(q *request) json.RawMessage {
	r.t.Helper()
	p := r.call(q)
	if !p.OK || p.ID != q.body["id"] {
		r.t.Fatalf("%s %s: %v (id %s)", q.command, q.payload(), p, p.ID)
	}
	return p.Data
}

// into is must, decoded.
func (r *rig) into(q *request, dst any) {
	r.t.Helper()
	data := r.must(q)
	if err := json.Unmarshal(data, dst); err != nil {
		r.t.Fatalf("%s answers %s: %v", q.command, data, err)
	}
}

// barrier waits until every rail has answered a read that was sent behind everything else.
func (r *rig) barrier() {
	r.t.Helper()
	for _, mode := range []string{"one", "inst", "all"} {
		for _, command := range []string{"ps", "describe"} {
			r.must(r.request(command, nil).on(mode))
		}
	}
}

// spawnArgs are those of a seat with the scripted agent.
func (r *rig) spawnArgs(name, script string) map[string]any {
	return map[string]any{
		"name": name, "identity": name, "agent": "command",
		"launchOptions": map[string]any{"argv": r.FakeAgent(script)},
	}
}

// acceptance is the answer to spawn and launch.
type acceptance struct {
	Name, Owner, Actor, UID, GoalID, Fingerprint string
	ReadinessDeadlineMs                          *int64
	Executor                                     struct {
		LifecycleUID string
		Epoch        *uint64
	}
}

func (a acceptance) seat() triple { return triple{a.Owner, a.Actor, a.UID} }

// spawn starts a seat and waits until its goal has succeeded.
func (r *rig) spawn(name, script string) acceptance {
	r.t.Helper()
	var a acceptance
	r.into(r.request("spawn", r.spawnArgs(name, script)), &a)
	if state := r.terminal(a.GoalID); state != "succeeded" {
		r.t.Fatalf("spawn of %s ended %s", name, state)
	}
	return a
}

// terminal waits for the terminal of a goal of this caller and returns its state.
func (r *rig) terminal(goal string) string {
	r.t.Helper()
	var state string
	harness.Eventually(r.t, patience, "goal "+goal+" has a terminal", func() (bool, string) {
		var g struct {
			GoalID string
			Phase  string
			Result *struct{ State string }
		}
		r.into(r.request("goal-result", map[string]any{"goalId": goal}), &g)
		if g.Result != nil {
			state = g.Result.State
		}
		return g.Result != nil, g.Phase
	})
	return state
}

// despawn ends a seat and waits for the proof.
func (r *rig) despawn(t triple) {
	r.t.Helper()
	r.must(r.request("despawn", map[string]any{"graceful": false, "waitForExit": true}).at("any", t))
}

// rows lists the seats by name.
func (r *rig) rows() map[string]map[string]any {
	r.t.Helper()
	var list []map[string]any
	r.into(r.request("ps", nil), &list)
	out := map[string]map[string]any{}
	for _, row := range list {
		out[row["name"].(string)] = row
	}
	return out
}

// under is the rig for a subtest: its failures are reported there.
func (r *rig) under(t *testing.T) *rig {
	return &rig{
		World: r.World, t: t, host: r.host, nc: r.nc, space: r.space, instance: r.instance, epoch: r.epoch, me: r.me,
		commands: r.commands, description: r.description, victim: r.victim, gone: r.gone, ears: r.ears,
	}
}
