//go:build linux

package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestTheReplyAddressOfTheTransportIsIgnored: whatever address a request carries, its answer comes on the rail of
// its caller and nowhere else; so does a refusal, of every command.
//
// proves: OUT-1
func TestTheReplyAddressOfTheTransportIsIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.victim = r.spawn("victim", idle).seat()
	inbox := make(chan *nats.Msg, 1024)
	elsewhere := r.nc.NewInbox()
	sub, err := r.nc.ChanSubscribe(elsewhere, inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	stranger := newCaller()
	other := r.subject(append(append([]string{"ep", "reply", "manager", r.instance, fmt.Sprint(r.epoch)}, stranger.tokens()...), newNonce())...)
	mark := r.mark()
	for _, c := range table {
		for _, address := range []string{elsewhere, other} {
			q := r.right(c)
			q.answerTo = address
			q.body["replyTo"] = address // nor does the envelope know one
			q.body["reply"] = address
			if !reads[c.name] {
				q.body["args"] = map[string]any{"nosuch": 1}
			}
			p := r.call(q)
			if reads[c.name] != p.OK {
				t.Errorf("%s: %v", c.name, p)
			}
		}
	}
	r.barrier()
	if n := len(inbox); n > 0 {
		t.Errorf("%d answers went to the address of the transport: %s", n, (<-inbox).Data)
	}
	for _, m := range r.since(mark) {
		if m.Subject == other {
			t.Errorf("a stranger was answered: %s", m.Data)
		}
	}
	r.strays(mark)
}

// reads are commands that change nothing, so that a test may have them carried out.
var reads = map[string]bool{"status": true, "ps": true, "inspect": true, "instances": true, "goal-result": true, "list-personas": true, "describe": true, "resolve-cwd": true, "terminal": true}

// TestACastIsCarriedOutAndNotAnswered.
func TestACastIsCarriedOutAndNotAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.victim = r.recorder("victim", "typed").seat()
	mark := r.mark()
	q := r.request("input", map[string]any{"text": "cast", "enter": false}).at("any", r.victim)
	q.body["replyExpected"] = false
	delete(q.body, "deadlineMs") // a cast needs none
	r.publish(q)
	r.awaitTyped("typed", "cast")
	r.barrier()
	r.strays(mark)
}

// TestTheBrokerSaysThatNobodyIsThere: for a command nobody serves, an instance that is not, and a rail that is not
// served, the broker itself answers on the sentinel: a transport reply address that is the caller's own rail with
// the word no-responders in place of an instance.
func TestTheBrokerSaysThatNobodyIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := r.tap.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*request){
		"a command nobody knows":                         func(q *request) { q.command = "dance" },
		"a command nobody knows, of the instance":        func(q *request) { q.on("inst").command = "dance" },
		"a command nobody knows, in a scatter":           func(q *request) { q.on("all").command = "dance" },
		"another instance":                               func(q *request) { q.on("inst").instance = newUID() },
		"another endpoint":                               func(q *request) { q.endpoint = "delivery" },
		"a command of one host, on the rail of all":      func(q *request) { q.on("all").command = "shutdown" },
		"a command of one host, on the rail of whoever":  func(q *request) { q.command = "shutdown" },
		"the rail of credentials that nobody issues yet": func(q *request) { q.subject = strings.Replace(q.subjectText(), ".ep.", ".ep.v1.", 1) },
	} {
		q := r.request("ps", nil)
		change(q)
		sentinel := r.subject(append(append([]string{"ep", "reply", "manager", "no-responders", "0"}, q.caller.tokens()...), q.nonce)...)
		got, err := r.nc.SubscribeSync(sentinel)
		if err != nil {
			t.Fatal(err)
		}
		q.answerTo = sentinel
		r.publish(q)
		if m, err := got.NextMsg(patience); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s: %v %+v", what, err, m)
		}
		_ = got.Unsubscribe()
	}
}
