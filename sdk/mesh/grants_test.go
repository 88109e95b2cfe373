package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// agentGrants are what the contract grants an agent of the messaging plane, tried on a broker that enforces them.
func agentGrants(who wire.Caller, read, write []string) *natsd.Permissions {
	const (
		kv, chkv = "KV_cotal_presence_main", "KV_cotal_channels_main"
		chat, dm = "CHAT_main", "DM_main"
	)
	p := wire.Principal{Owner: who.Owner, Actor: who.Actor}
	hist, inbox := wire.DurableHistory(p, who.UID), wire.DurableDirect(p, who.UID)
	sub := []string{"_INBOX_" + who.Actor + ".>", "cotal.main.ep.reply.*.*.*." + who.Owner + "." + who.Actor + "." + who.UID + ".*"}
	pub := []string{
		"cotal.main.inst.*.*." + p.String(), "cotal.main.svc.*." + p.String(),
		"$JS.API.INFO", "$JS.API.STREAM.INFO." + chat, "$JS.API.STREAM.INFO." + kv, "$JS.API.STREAM.INFO." + chkv,
		"$JS.API.CONSUMER.INFO." + chat + "." + hist, "$JS.API.CONSUMER.MSG.NEXT." + chat + "." + hist, "$JS.API.CONSUMER.DELETE." + chat + "." + hist,
		"$JS.API.CONSUMER.INFO." + dm + "." + inbox, "$JS.API.CONSUMER.MSG.NEXT." + dm + "." + inbox, "$JS.ACK." + dm + "." + inbox + ".>",
		"$JS.API.CONSUMER.CREATE." + kv + ".>", "$JS.API.CONSUMER.INFO." + kv + ".>",
		"$JS.API.CONSUMER.CREATE." + chkv + ".>", "$JS.API.CONSUMER.INFO." + chkv + ".>",
		"$JS.FC.>", "$KV.cotal_presence_main." + p.String(), "$JS.API.STREAM.MSG.GET." + chkv,
	}
	for _, ch := range read {
		sub = append(sub, "cotal.main.chat.*.*."+ch)
		pub = append(pub, "$JS.API.CONSUMER.CREATE."+chat+"."+hist+".cotal.main.chat.*.*."+ch)
	}
	for _, ch := range write {
		pub = append(pub, "cotal.main.chat."+p.String()+"."+ch)
	}
	deny := []string{"$JS.API.CONSUMER.CREATE." + dm, "$JS.API.CONSUMER.CREATE." + dm + ".>", "$JS.API.CONSUMER.DURABLE.CREATE." + dm + ".>"}
	return &natsd.Permissions{Publish: &natsd.SubjectPermission{Allow: pub, Deny: deny}, Subscribe: &natsd.SubjectPermission{Allow: sub}}
}

// violations collects what the broker refused.
type violations struct {
	mu  sync.Mutex
	all []string
}

func (v *violations) add(_ *nats.Conn, _ *nats.Subscription, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, err.Error())
}

func (v *violations) take() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := strings.Join(v.all, "\n")
	v.all = nil
	return all
}

func TestAnAgentNeedsNoMoreThanTheContractGrantsIt(t *testing.T) {
	t.Parallel()
	who, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	srv, err := natsd.NewServer(&natsd.Options{
		Host: "127.0.0.1", Port: natsd.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*natsd.User{
			{Username: "admin", Password: "a"},
			{Username: "agent", Password: "b", Permissions: agentGrants(who, []string{"dev"}, []string{"dev"})},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(20 * time.Second) {
		t.Fatal("the broker does not start")
	}
	url := func(user string) string { return strings.Replace(srv.ClientURL(), "nats://", "nats://"+user+"@", 1) }
	b, err := bus.Connect(t.Context(), bus.Config{URL: url("admin:a")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.SetUpMessaging(t.Context(), space, func(string) bool { return false }, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	boss, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := b.Mesh(space, boss, "admin")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	// The provisioner makes the queue of the life before it begins.
	nc, err := nats.Connect(url("admin:a"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.AddConsumer("DM_main", &nats.ConsumerConfig{
		Durable: wire.DurableDirect(wire.Principal{Owner: who.Owner, Actor: who.Actor}, who.UID), FilterSubject: "cotal.main.inst." + who.Principal() + ".>",
		AckPolicy: nats.AckExplicitPolicy, AckWait: wire.AckWait, DeliverPolicy: nats.DeliverByStartSequencePolicy, OptStartSeq: 1,
	})
	if err != nil {
		t.Fatal(err)
	}

	// The agent's own connection, so that every refusal of the broker is seen.
	var refused violations
	anc, err := nats.Connect(url("agent:b"), nats.CustomInboxPrefix("_INBOX_"+who.Actor), nats.ErrorHandler(refused.add))
	if err != nil {
		t.Fatal(err)
	}
	defer anc.Close()
	c, err := mesh.FromConn(anc, mesh.Config{Space: space, Name: "agent", Caller: who})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	roster, err := c.WatchPresence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer roster.Close()
	me, err := c.Join(t.Context(), mesh.JoinConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := roster.Await(t.Context(), is(c, wire.StatusIdle)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := admin.SendChannel(t.Context(), "dev", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	dev := joinChannel(t, c, "dev", mesh.ChannelOptions{Replay: 2})
	say(t, c, "dev", "mine")
	if got := texts([]mesh.Message{next(t, dev), next(t, dev), next(t, dev)}); got != "1 2 mine" {
		t.Errorf("dev: %s", got)
	}
	if page, err := c.History(t.Context(), mesh.HistoryQuery{Channel: "dev", Limit: 2}); err != nil || texts(page) != "2 mine" {
		t.Errorf("history: %s, %v", texts(page), err)
	}
	if list, err := c.Channels(t.Context()); err != nil || len(list) != 1 || list[0].Messages != 4 {
		t.Errorf("channels: %+v, %v", list, err)
	}
	q := direct(t, c)
	if _, err := admin.SendDirect(t.Context(), who.Principal(), "for you"); err != nil {
		t.Fatal(err)
	}
	if d := nextDirect(t, q); d.Text() != "for you" {
		t.Errorf("direct: %+v", d)
	} else if err := d.Ack(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.SendDirect(t.Context(), boss.Principal(), "thanks"); err != nil {
		t.Error(err)
	}
	if err := me.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	dev.Leave()
	roster.Close()
	if all := refused.take(); all != "" {
		t.Errorf("the broker refused:\n%s", all)
	}

	// What is not granted is said to be denied where the broker says so, and is never taken for done.
	if _, err := c.JoinChannel(t.Context(), "ops", mesh.ChannelOptions{}); !errors.Is(err, mesh.ErrDenied) {
		t.Errorf("joining a channel that is not granted: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.SendChannel(short, "ops", "x"); err == nil {
		t.Error("a message to a channel that is not granted was sent")
	}
	if all := refused.take(); !strings.Contains(all, "chat.*.*.ops") || !strings.Contains(all, who.Principal()+".ops") {
		t.Errorf("the broker refused:\n%s", all)
	}
}
