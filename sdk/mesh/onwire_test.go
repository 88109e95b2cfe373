package mesh_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// What stands on the wire is read here by hand, as somebody who knows only the contract would.
func TestPresenceOnTheWire(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	js, err := s.raw(t).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue("cotal_presence_main")
	if err != nil {
		t.Fatal(err)
	}
	w, err := kv.WatchAll()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Stop() }()
	if e := <-w.Updates(); e != nil { // nil: nobody is there yet
		t.Fatalf("somebody is there: %s", e.Key())
	}
	c := s.client(t, "worker")
	me := join(t, c, mesh.JoinConfig{Card: wire.AgentCard{Role: "review"}, Status: wire.StatusWorking, Activity: "x"})
	record := func() (nats.KeyValueEntry, map[string]any) {
		t.Helper()
		select {
		case e := <-w.Updates():
			var m map[string]any
			if err := json.Unmarshal(e.Value(), &m); err != nil {
				t.Fatal(err)
			}
			return e, m
		case <-time.After(20 * time.Second):
			t.Fatal("no record comes")
			return nil, nil
		}
	}
	e, first := record()
	id := c.Caller().Principal()
	if e.Key() != id {
		t.Errorf("its key is %s", e.Key())
	}
	card := map[string]any{"id": id, "name": "worker", "kind": "agent", "role": "review", "protocolVersion": "0.4"}
	if !reflect.DeepEqual(first["card"], card) || first["status"] != "working" || first["activity"] != "x" || first["lifecycleUid"] != c.Caller().UID {
		t.Errorf("the record: %s", e.Value())
	}
	for _, name := range []string{"condition", "environment", "attention", "channelModes"} {
		if v, ok := first[name]; ok {
			t.Errorf("%s is there and says nothing: %v", name, v)
		}
	}
	second, next := record()
	if gap := second.Created().Sub(e.Created()); gap < wire.PresenceHeartbeat-500*time.Millisecond {
		t.Errorf("the next heartbeat came after %s", gap)
	}
	if next["ts"].(float64) <= first["ts"].(float64) || next["statusSince"] != first["statusSince"] {
		t.Errorf("the next heartbeat: %s", second.Value())
	}
	if err := me.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	for {
		e, last := record()
		if last["status"] != "offline" { // a heartbeat that was on its way
			continue
		}
		if _, ok := last["statusSince"]; ok {
			t.Errorf("an offline record has a statusSince: %s", e.Value())
		}
		break
	}
	select {
	case e := <-w.Updates():
		t.Errorf("a heartbeat behind the goodbye: %s", e.Value())
	case <-time.After(wire.PresenceHeartbeat + 500*time.Millisecond):
	}
}

func TestMessagesOnTheWire(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	nc := s.raw(t)
	sub, err := nc.SubscribeSync("cotal.main.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := s.client(t, "alice")
	me := c.Caller().Principal()
	for _, tc := range []struct {
		m       wire.Message
		subject string
		way     map[string]any
	}{
		{wire.Message{Channel: "team.backend", Mentions: []string{"bob"}}, "cotal.main.chat." + me + ".team.backend", map[string]any{"channel": "team.backend", "mentions": []any{"bob"}}},
		{wire.Message{To: "u_bbbbbbbbbbbbbbbbbbbbbbbbbb.bob", ReplyTo: "m0"}, "cotal.main.inst.u_bbbbbbbbbbbbbbbbbbbbbbbbbb.bob." + me, map[string]any{"to": "u_bbbbbbbbbbbbbbbbbbbbbbbbbb.bob", "replyTo": "m0"}},
		{wire.Message{ToService: "reviewer"}, "cotal.main.svc.reviewer." + me, map[string]any{"toService": "reviewer"}},
	} {
		tc.m.Parts = mesh.Text("hello")
		sent, err := c.Send(t.Context(), tc.m)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := sub.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(msg.Data, &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"id": sent.ID, "ts": float64(sent.TS), "space": "main", "from": map[string]any{"id": me, "name": "alice"},
			"parts": []any{map[string]any{"kind": "text", "text": "hello"}},
		}
		for k, v := range tc.way {
			want[k] = v
		}
		if msg.Subject != tc.subject || msg.Header.Get("Nats-Msg-Id") != sent.ID || !reflect.DeepEqual(got, want) {
			t.Errorf("%s %v %s", msg.Subject, msg.Header, msg.Data)
		}
	}
}
