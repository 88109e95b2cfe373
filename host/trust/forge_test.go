package trust

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// makeDirect makes the durable of a life's direct messages, with the credential that is for it.
func (r *rig) makeDirect(me wire.Caller) {
	r.t.Helper()
	p := wire.Principal{Owner: me.Owner, Actor: me.Actor}
	js, err := r.dial(r.mint(Request{Profile: Provisioner, Scope: Scope{Target: me}})).JetStream()
	must(r.t, err)
	_, err = js.AddConsumer("DM_main", &nats.ConsumerConfig{
		Durable: wire.DurableDirect(p, me.UID), Name: wire.DurableDirect(p, me.UID), FilterSubject: "cotal.main.inst." + p.String() + ".>",
		AckPolicy: nats.AckExplicitPolicy, AckWait: wire.AckWait, DeliverPolicy: nats.DeliverByStartSequencePolicy, OptStartSeq: 1,
	})
	must(r.t, err)
}

// Whoever reads a stream chooses where the answer goes. What is handed out keeps its own subject all the same, so
// an agent that has a message of its own sent to the rail of a command, to a sister's inbox or to a sister's card
// is nobody else there.
func TestAnAnswerThatIsSentElsewhereMakesNobodyOfItsReader(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	key, err := r.auth.NewKey()
	must(t, err)
	me := wire.Caller{Owner: "local", Actor: key.Public, UID: uid}
	r.makeDirect(me)
	// Past the door of the embedded server, as to one that has none.
	agent, err := dialAs(r.br.URL(), r.mint(Request{Profile: Agent, UID: uid, Key: key}), nats.InProcessServer(r.br.InProcess()))
	must(t, err)
	t.Cleanup(func() { agent.Close(); <-agent.closed })
	host := r.dial(r.mint(Request{Profile: Supervisor, Scope: Scope{Epoch: 1}}))
	got := make(chan *nats.Msg, 10)
	_, err = host.ChanQueueSubscribe("cotal.main.ep.one.manager.ps.>", wire.EndpointManager, got)
	must(t, err)
	must(t, host.FlushTimeout(busy.Limit(5*time.Second)))
	own := "cotal.main.inst." + me.Principal() + "." + me.Principal()
	say := func() {
		t.Helper()
		if _, err := agent.Request(own, []byte("forged"), busy.Limit(5*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{
		"cotal.main.ep.one.manager.ps." + triple(stranger) + "." + strings.Repeat("N", 22),
		"cotal.main.inst.local.VICTIM." + stranger.Principal(),
		"$KV.cotal_presence_main." + stranger.Principal(),
	} {
		must(t, agent.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.DM_main."+wire.DurableDirect(wire.Principal{Owner: me.Owner, Actor: me.Actor}, uid), to, []byte(`{"batch":1}`)))
		say()
	}
	select {
	case m := <-got:
		if _, err := wire.ParseRequestSubject(m.Subject); err == nil || m.Subject != own {
			t.Errorf("the host got a request on %s", m.Subject)
		}
	case <-time.After(busy.Limit(5 * time.Second)):
		t.Error("the answer went nowhere: this test shows nothing")
	}
	say() // after whatever was stored before
	js, err := r.dial(r.mint(Request{Profile: Purger})).JetStream()
	must(t, err)
	info, err := js.StreamInfo("DM_main", &nats.StreamInfoRequest{SubjectsFilter: ">"})
	must(t, err)
	for subject := range info.State.Subjects {
		if subject != own {
			t.Errorf("a direct message was kept as %s", subject)
		}
	}
	watch := r.dial(r.mint(Request{Profile: Observer}))
	sub, err := watch.SubscribeSync(watch.NewInbox())
	must(t, err)
	must(t, watch.PublishRequest("$JS.API.CONSUMER.CREATE.KV_cotal_presence_main.look", watch.NewRespInbox(),
		[]byte(`{"stream_name":"KV_cotal_presence_main","config":{"name":"look","deliver_subject":"`+sub.Subject+`","deliver_policy":"all","ack_policy":"none","mem_storage":true}}`)))
	for {
		m, err := sub.NextMsg(500 * time.Millisecond)
		if err != nil {
			break // nothing more is kept
		}
		if strings.HasPrefix(m.Subject, "$KV.") {
			t.Errorf("a card was kept as %s", m.Subject)
		}
	}
}
