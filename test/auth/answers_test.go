//go:build linux

package auth

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// The server answers to wherever a request says, and as itself. An answer that would land on a row, or where somebody else
// speaks, or be a command of the store, is refused before it is one: whatever it is an answer to.
//
// An agent could delete every stream of its space: the empty answer to a fetch was taken for that request.
func TestAttack_AnAnswerThatIsSentElsewhereChangesNothing(t *testing.T) {
	t.Parallel()
	r, mine, hers := agents(t)
	me, she := callerOf(t, mine), callerOf(t, hers)
	_, text := r.credential(mine)
	th, err := r.steal(text, me)
	if err != nil {
		t.Fatal(err)
	}
	p, hp := wire.Principal{Owner: me.Owner, Actor: me.Actor}, wire.Principal{Owner: she.Owner, Actor: she.Actor}
	dm, own := "DM_"+r.space, r.p("inst."+me.Principal()+"."+me.Principal())
	durable := wire.DurableDirect(p, me.UID)
	places := []string{
		r.kv(wire.BucketAuth, "gate."+she.UID), r.kv(wire.BucketAuth, "epgate.manager."+r.instance), r.kv(wire.BucketAuth, "gate."+strings.Repeat("z", 26)),
		r.kv(wire.BucketRecords, "mgrslot.local.hers"), r.kv(wire.BucketRecords, "lifecycle."+she.Principal()), r.kv(wire.BucketRecords, "svc.manager."+r.instance+".spec"),
		r.kv(wire.BucketManager, r.instance), r.kv(wire.BucketPresence, she.Principal()), r.kv(wire.BucketChannels, wire.DefaultsKey),
		r.p("chat." + she.Principal() + ".secret"), r.p("inst." + she.Principal() + ".local.NOBODY"), r.p("epf.manager.goal." + triple(she) + ".g.result"),
		r.p("epc." + strings.Repeat("0", 64)), r.p("ep.one.manager.purge." + triple(she) + "." + strings.Repeat("N", 22)), wire.InboxPrefix(she.Actor) + ".x",
		"$JS.API.CONSUMER.DELETE." + dm + "." + wire.DurableDirect(hp, she.UID), "$JS.API.STREAM.CREATE.X", "_R_.x",
	}
	for _, s := range r.list() {
		places = append(places, "$JS.API.STREAM.DELETE."+s.name, "$JS.API.STREAM.PURGE."+s.name)
	}
	requests := []struct{ subject, body string }{
		{"$JS.API.INFO", ""},
		{own, "forged"},
		{"$JS.API.STREAM.MSG.GET.KV_cotal_channels_" + r.space, `{"last_by_subj":` + quote(r.kv(wire.BucketChannels, wire.DefaultsKey)) + `}`},
		{"$JS.API.CONSUMER.MSG.NEXT." + dm + "." + durable, `{"batch":1}`},
		{"$JS.API.CONSUMER.MSG.NEXT." + dm + "." + durable, `{"batch":1,"no_wait":true}`},
		{"$JS.API.CONSUMER.MSG.NEXT." + dm + "." + durable, `{"batch":1,"expires":1000000,"idle_heartbeat":400000}`},
		{"$JS.ACK." + dm + "." + durable + ".1.1.1.1.0", "+ACK"},
		{"$JS.ACK." + dm + "." + durable + ".1.1.1.1.0", `+NXT {"batch":1,"no_wait":true}`},
		{r.p("ep.one.manager.describe." + triple(me) + "." + strings.Repeat("N", 22)), `{}`},
	}
	before := r.still()
	tries := 0
	for i, to := range places {
		for _, req := range requests {
			if err := th.PublishRequest(req.subject, to, []byte(req.body)); err != nil {
				t.Fatal(err)
			}
			tries++
		}
		// And as the place that a reader of its own delivers to, where it sends a sign of life while there is nothing.
		for _, bucket := range []string{"presence", "channels"} {
			stream := "KV_cotal_" + bucket + "_" + r.space
			body := fmt.Sprintf(`{"stream_name":%q,"config":{"name":"c%d","deliver_subject":%q,"deliver_policy":"all","ack_policy":"none","mem_storage":true,"idle_heartbeat":100000000}}`, stream, i, to)
			if err := th.PublishRequest(fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.c%d", stream, i), th.NewRespInbox(), []byte(body)); err != nil {
				t.Fatal(err)
			}
			tries++
		}
	}
	refused := th.take(t)
	if len(refused) != tries {
		t.Errorf("%d of %d were refused", len(refused), tries)
	}
	for _, line := range refused {
		if !strings.Contains(line, "Permissions Violation for Publish with Reply of") {
			t.Errorf("refused with %s", line)
		}
	}
	// What would have come of it would be there by now: readers that were made would give two signs of life.
	<-time.After(busy.Limit(250 * time.Millisecond))
	if _, other := compare(before, r.census()); len(other) > 0 {
		t.Errorf("something has changed:%s", lines(other))
	}
	for _, at := range []struct{ stream, subject string }{
		{"KV_cotal_auth_" + r.space, places[0]},
		{"KV_cotal_auth_" + r.space, places[1]},
		{"KV_cotal_records_" + r.space, places[3]},
		{"KV_cotal_records_" + r.space, places[4]},
		{"KV_cotal_records_" + r.space, places[5]},
		{"KV_cotal_manager_" + r.space, places[6]},
	} {
		if m, ok := r.row(at.stream, at.subject); !ok || strings.Contains(string(m.Data), "io.nats.jetstream") || strings.Contains(string(m.Data), `"stream":`) {
			t.Errorf("%s is %s", at.subject, m.Data)
		}
	}
	r.CLI("stop", "hers").OK() // of her nothing was spoiled
}

// A write of one row that is to take away all others of its bucket takes none away, and neither does any other way to
// write the header. An agent could so take away everybody's presence, the host's among them, and who held the host's
// own lease those of all hosts.
func TestAttack_AWriteOfOnesOwnRowClearsNobodyElses(t *testing.T) {
	t.Parallel()
	r, mine, hers := agents(t)
	me, she := callerOf(t, mine), callerOf(t, hers)
	_, text := r.credential(mine)
	th, err := r.steal(text, me)
	if err != nil {
		t.Fatal(err)
	}
	before := r.still()
	for _, who := range []struct {
		th  *thief
		row string
	}{
		{th, r.kv(wire.BucketPresence, me.Principal())},
		{r.minted(t, trust.Request{Profile: trust.Leaseholder}), r.kv(wire.BucketManager, r.instance)},
	} {
		tries := 0
		for _, header := range []string{"Nats-Rollup", "nats-rollup", "NATS-ROLLUP"} {
			for _, how := range []string{"all", " all", "ALL", "sub, all"} {
				m := &nats.Msg{Subject: who.row, Header: nats.Header{header: {how}}, Data: []byte(`{}`)}
				if header == "Nats-Rollup" && how == "all" {
					m.Header.Add(header, "sub")
				}
				if err := who.th.PublishMsg(m); err != nil {
					t.Fatal(err)
				}
				tries++
			}
		}
		if refused := who.th.take(t); len(refused) != tries {
			t.Errorf("%s: %d of %d were refused: %v", who.row, len(refused), tries, refused)
		}
	}
	now := r.census()
	for name := range before {
		if strings.HasPrefix(name, "row ") && !strings.Contains(name, me.Principal()) {
			if _, ok := now[name]; !ok {
				t.Errorf("%s is gone", name)
			}
		}
	}
	if here := r.presences(); !slices.Contains(here, she.Principal()) || len(here) < 3 {
		t.Errorf("present are %v", here)
	}
}
