package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func (s *server) raw(t testing.TB) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.URL(), nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func joinChannel(t testing.TB, c *mesh.Client, pattern string, opts mesh.ChannelOptions) *mesh.Channel {
	t.Helper()
	ch, err := c.JoinChannel(t.Context(), pattern, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ch.Leave)
	return ch
}

func next(t testing.TB, ch *mesh.Channel) mesh.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, err := ch.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func say(t testing.TB, c *mesh.Client, channel, text string) wire.Message {
	t.Helper()
	m, err := c.SendChannel(t.Context(), channel, text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func texts(msgs []mesh.Message) string {
	var all []string
	for _, m := range msgs {
		all = append(all, m.Text())
	}
	return strings.Join(all, " ")
}

func TestMessagesOfAChannelReachItsMembers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	here := joinChannel(t, bob, "team.backend", mesh.ChannelOptions{})
	all := joinChannel(t, bob, "team.>", mesh.ChannelOptions{})
	other := joinChannel(t, bob, "team", mesh.ChannelOptions{})
	sent, err := alice.Send(t.Context(), wire.Message{
		Channel: "team.backend", Mentions: []string{"bob"}, ContextID: "pr-7",
		Parts: append(mesh.Text("look at this"), wire.Part{Kind: wire.PartData, Data: json.RawMessage(`{"n":1}`)}),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range []*mesh.Channel{here, all} {
		m := next(t, ch)
		if m.ID != sent.ID || m.Text() != "look at this" || m.From.Name != "alice" || m.Channel != "team.backend" ||
			m.Sender.String() != alice.Caller().Principal() || m.Kind != wire.MessageChat || m.Historical ||
			len(m.Parts) != 2 || m.ContextID != "pr-7" || !slices.Equal(m.Mentions, []string{"bob"}) {
			t.Errorf("got %+v", m)
		}
	}
	say(t, alice, "team", "to all")
	if m := next(t, other); m.Text() != "to all" {
		t.Errorf("a pattern behind a channel is not the channel: %+v", m)
	}
	if err := here.Backstop(); !errors.Is(err, mesh.ErrNoBackstop) {
		t.Errorf("backstop of a durable channel without a daemon: %v", err)
	}
	here.Leave()
	if _, err := here.Next(t.Context()); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("next after leaving: %v", err)
	}
}

func TestAMessageIsToldOnceHoweverOftenItIsSent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	ch := joinChannel(t, bob, "dev", mesh.ChannelOptions{})
	m := wire.Message{ID: wire.NewID(), Channel: "dev", Parts: mesh.Text("once")}
	for range 3 {
		if _, err := alice.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	say(t, alice, "dev", "and then")
	if a, b := next(t, ch), next(t, ch); a.Text() != "once" || b.Text() != "and then" {
		t.Errorf("got %q and %q", a.Text(), b.Text())
	}
	msgs, err := bob.History(t.Context(), mesh.HistoryQuery{Channel: "dev"})
	if err != nil || texts(msgs) != "once and then" {
		t.Errorf("history: %q, %v", texts(msgs), err)
	}
}

func TestWhatIsNotByWhomItSaysIsNotTold(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	reasons := make(chan string, 10)
	opts := mesh.ChannelOptions{OnRejected: func(_, reason string) { reasons <- reason }}
	ch := joinChannel(t, bob, "dev", opts)
	nc := s.raw(t)
	good, err := json.Marshal(wire.Message{
		ID: "m1", TS: 1, Space: space, From: wire.EndpointRef{ID: alice.Caller().Principal(), Name: "alice"}, Channel: "dev", Parts: mesh.Text("forged"),
	})
	if err != nil {
		t.Fatal(err)
	}
	nkey := alice.Caller().Actor
	for _, m := range []struct{ subject, body string }{
		{"cotal.main.chat.local.mallory.dev", string(good)},       // somebody else's name
		{"cotal.main.chat." + nkey + ".x.dev", string(good)},      // an owner that is none
		{"cotal.main.chat.local.mallory.dev", `{"id":"m2","ts":`}, // no JSON
	} {
		if err := nc.Publish(m.subject, []byte(m.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	say(t, alice, "dev", "real")
	if m := next(t, ch); m.Text() != "real" {
		t.Fatalf("told: %+v", m)
	}
	got := []string{<-reasons, <-reasons, <-reasons}
	slices.Sort(got)
	if want := []string{wire.RejectJSON, wire.RejectSubject, wire.RejectSender}; !slices.Equal(got, want) {
		t.Errorf("reasons %v, want %v", got, want)
	}
	msgs, err := bob.History(t.Context(), mesh.HistoryQuery{Channel: "dev"})
	if err != nil || texts(msgs) != "real" {
		t.Errorf("history: %q, %v", texts(msgs), err)
	}
}

func TestAJoinMayBeginWithWhatWasSaidBefore(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	for i := range 5 {
		say(t, alice, "dev", fmt.Sprint(i))
	}
	say(t, alice, "ops", "elsewhere")
	ch := joinChannel(t, bob, "dev", mesh.ChannelOptions{Replay: 3})
	say(t, alice, "dev", "new")
	var got []string
	for range 4 {
		m := next(t, ch)
		got = append(got, fmt.Sprintf("%s %v", m.Text(), m.Historical))
	}
	if want := []string{"2 true", "3 true", "4 true", "new false"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// A channel that does not allow it starts with what comes.
	no := false
	if err := alice.ConfigureChannel(t.Context(), "dev", wire.ChannelConfig{Replay: &no, DeliveryClass: wire.DeliveryLive}); err != nil {
		t.Fatal(err)
	}
	quiet := joinChannel(t, bob, "dev", mesh.ChannelOptions{Replay: 3})
	say(t, alice, "dev", "newer")
	if m := next(t, quiet); m.Text() != "newer" || quiet.Backstop() != nil {
		t.Errorf("got %+v, backstop %v", m, quiet.Backstop())
	}
}

func TestHistoryIsReadPageByPage(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob, carol := s.client(t, "alice"), s.client(t, "bob"), s.client(t, "carol")
	const n = 400
	for i := range n {
		if i == 30 || i == 230 { // much that is not asked for, in between
			for range 300 {
				say(t, carol, "noise", "x")
			}
		}
		say(t, []*mesh.Client{alice, bob}[i%2], "dev", fmt.Sprint(i))
	}
	var all []string
	before := uint64(0)
	for range n {
		page, err := carol.History(t.Context(), mesh.HistoryQuery{Channel: "dev", Limit: 90, Before: before})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		if len(page) > 90 {
			t.Fatalf("a page of %d", len(page))
		}
		var these []string
		for _, m := range page {
			these = append(these, m.Text())
		}
		all = append(these, all...)
		before = page[0].Seq
	}
	if len(all) != n || all[0] != "0" || all[n-1] != fmt.Sprint(n-1) || !slices.IsSortedFunc(all, func(a, b string) int {
		return len(a)*1000 + int(a[0]) - len(b)*1000 - int(b[0])
	}) {
		t.Errorf("%d messages: %v", len(all), all)
	}
	if page, err := carol.History(t.Context(), mesh.HistoryQuery{Channel: "nobody"}); err != nil || len(page) != 0 {
		t.Errorf("a channel without messages: %v, %v", page, err)
	}
	var wrong *wire.SubjectError
	if _, err := carol.History(t.Context(), mesh.HistoryQuery{Channel: "dev.>"}); !errors.As(err, &wrong) {
		t.Errorf("the history of a pattern: %v", err)
	}
	since := time.Now()
	say(t, alice, "dev", "late")
	page, err := carol.History(t.Context(), mesh.HistoryQuery{Channel: "dev", Since: since.Add(-time.Millisecond)})
	if err != nil || len(page) == 0 || page[len(page)-1].Text() != "late" || len(page) > 5 {
		t.Errorf("since: %q, %v", texts(page), err)
	}
	// Nothing stays on the server of all this.
	var info struct {
		State struct {
			Consumers int `json:"consumer_count"`
		} `json:"state"`
	}
	reply, err := s.raw(t).Request("$JS.API.STREAM.INFO.CHAT_main", nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(reply.Data, &info); err != nil || info.State.Consumers != 0 {
		t.Errorf("%d consumers are left (%v)", info.State.Consumers, err)
	}
}

func TestAMemberMissesNothingOverALossOfTheServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice := s.client(t, "alice")
	bob := s.client(t, "bob")
	ch := joinChannel(t, bob, "dev", mesh.ChannelOptions{})
	say(t, alice, "dev", "before")
	if m := next(t, ch); m.Text() != "before" {
		t.Fatalf("got %+v", m)
	}
	port := s.Port()
	s.Shutdown()
	s.start(t, port)
	// Somebody who is there first speaks before anybody else has found the way back.
	early := s.client(t, "early")
	say(t, early, "dev", "meanwhile")
	if m := next(t, ch); m.Text() != "meanwhile" || m.Historical {
		t.Errorf("got %+v", m)
	}
	eventually(t, "alice is back", 20*time.Second, func() bool {
		_, err := alice.SendChannel(t.Context(), "dev", "after")
		return err == nil
	})
	if m := next(t, ch); m.Text() != "after" || ch.Missed() {
		t.Errorf("got %+v, missed %v", m, ch.Missed())
	}
}

func nextDirect(t testing.TB, q *mesh.Queue) mesh.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	d, err := q.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func direct(t testing.TB, c *mesh.Client) *mesh.Queue {
	t.Helper()
	q, err := c.DirectMessages(t.Context(), mesh.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

func tell(t testing.TB, from, to *mesh.Client, text string) wire.Message {
	t.Helper()
	m, err := from.SendDirect(t.Context(), to.Caller().Principal(), text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDirectMessagesWaitForWhomTheyAreFor(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice := s.client(t, "alice")
	who, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	as := func(c *mesh.Config) { c.Caller = who }
	bob := s.client(t, "bob", as)
	before := tell(t, alice, bob, "before it looked")
	q := direct(t, bob)
	if d := nextDirect(t, q); d.ID != before.ID {
		t.Fatalf("got %+v", d)
	} else if err := d.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent := tell(t, alice, bob, "hello")
	d := nextDirect(t, q)
	if d.ID != sent.ID || d.Text() != "hello" || d.Kind != wire.MessageDirect || d.To != who.Principal() || d.Redelivered {
		t.Fatalf("got %+v", d)
	}
	if err := d.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	tell(t, alice, bob, "not acknowledged")
	if d := nextDirect(t, q); d.Text() != "not acknowledged" {
		t.Fatalf("got %+v", d)
	} else if err := d.Again(0); err != nil {
		t.Fatal(err)
	}
	d = nextDirect(t, q)
	if d.Text() != "not acknowledged" || !d.Redelivered {
		t.Fatalf("the second time: %+v", d)
	}
	if err := d.Again(0); err != nil {
		t.Fatal(err)
	}
	// The process ends; messages for its life are kept for the next one.
	bob.Close()
	tell(t, alice, bob, "while away")
	bob = s.client(t, "bob", as)
	q = direct(t, bob)
	var got []string
	for range 2 {
		d := nextDirect(t, q)
		got = append(got, d.Text())
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(got)
	if want := []string{"not acknowledged", "while away"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if d, err := q.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one more: %+v, %v", d, err)
	}
	// What came while nobody asked is not lost with the request that was given up.
	tell(t, alice, bob, "later")
	if d := nextDirect(t, q); d.Text() != "later" {
		t.Errorf("got %+v", d)
	}
}

// A principal that outlives its lives: a new one does not get what was meant for the one before.
func TestDirectMessagesToAnEarlierLifeAreNotForTheNext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice := s.client(t, "alice")
	for i := range 2 {
		bob := s.client(t, "bob", func(c *mesh.Config) {
			c.Caller = wire.Caller{Owner: wire.OwnerLocal, Actor: "bob", UID: wire.NewUID()}
		})
		q := direct(t, bob)
		tell(t, alice, bob, fmt.Sprint("life ", i))
		if d := nextDirect(t, q); d.Text() != fmt.Sprint("life ", i) {
			t.Errorf("got %+v", d)
		} // and dies before it acknowledges
		q.Close()
		tell(t, alice, bob, "too late")
	}
}

func TestAQueueGoesOnOverALossOfTheServerAndItsOwnEnd(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	q := direct(t, bob)
	got := make(chan string, 1)
	go func() {
		d, err := q.Next(context.Background())
		got <- fmt.Sprint(d.Text(), err)
	}()
	port := s.Port()
	s.Shutdown()
	s.start(t, port)
	eventually(t, "alice is back", 20*time.Second, func() bool {
		_, err := alice.SendDirect(t.Context(), bob.Caller().Principal(), "still there?")
		return err == nil
	})
	select {
	case text := <-got:
		if text != "still there?<nil>" {
			t.Errorf("got %s", text)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the message did not come")
	}
	go func() {
		_, err := q.Next(context.Background())
		got <- fmt.Sprint(errors.Is(err, mesh.ErrNotSetUp))
	}()
	if _, err := s.raw(t).Request("$JS.API.CONSUMER.DELETE.DM_main."+wire.DurableDirect(wire.Principal{Owner: "local", Actor: bob.Caller().Actor}, bob.Caller().UID), nil, time.Second); err != nil {
		t.Fatal(err)
	}
	select {
	case end := <-got:
		if end != "true" {
			t.Errorf("a queue that was deleted: %s", end)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a queue that was deleted is waited for")
	}
	q.Close()
	if _, err := q.Next(t.Context()); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("next after close: %v", err)
	}
}

func TestForgedDirectMessagesAreEndedForGood(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	reasons := make(chan string, 4)
	q, err := bob.DirectMessages(t.Context(), mesh.QueueOptions{OnRejected: func(_, reason string) { reasons <- reason }})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	body, err := json.Marshal(wire.Message{
		ID: "m1", TS: 1, Space: space, From: wire.EndpointRef{ID: alice.Caller().Principal(), Name: "alice"}, To: bob.Caller().Principal(), Parts: mesh.Text("forged"),
	})
	if err != nil {
		t.Fatal(err)
	}
	nc := s.raw(t)
	if _, err := nc.Request("cotal.main.inst."+bob.Caller().Principal()+".local.mallory", body, time.Second); err != nil {
		t.Fatal(err)
	}
	tell(t, alice, bob, "real")
	d := nextDirect(t, q)
	if d.Text() != "real" || <-reasons != wire.RejectSender {
		t.Fatalf("got %+v", d)
	}
	if err := d.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	var info struct {
		Unacked int `json:"num_ack_pending"`
	}
	eventually(t, "nothing is left to deliver again", 10*time.Second, func() bool {
		reply, err := nc.Request("$JS.API.CONSUMER.INFO.DM_main."+wire.DurableDirect(wire.Principal{Owner: "local", Actor: bob.Caller().Actor}, bob.Caller().UID), nil, time.Second)
		return err == nil && json.Unmarshal(reply.Data, &info) == nil && info.Unacked == 0
	})
}

func TestATaskGoesToOneOfItsRole(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	boss := s.client(t, "boss")
	var queues []*mesh.Queue
	for _, name := range []string{"r1", "r2"} {
		q, err := s.client(t, name).Tasks(t.Context(), "reviewer", mesh.QueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		queues = append(queues, q)
	}
	const n = 10
	for i := range n {
		if _, err := boss.Send(t.Context(), wire.Message{ToService: "reviewer", Parts: mesh.Text(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string, 2*n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, q := range queues {
		go func() {
			for {
				d, err := q.Next(ctx)
				if err != nil {
					return
				}
				if err := d.Ack(ctx); err == nil {
					got <- d.Text()
				}
			}
		}()
	}
	seen := map[string]int{}
	for range n {
		seen[<-got]++
	}
	if len(seen) != n {
		t.Errorf("tasks done: %v", seen)
	}
}

func TestChannelsAreListedWithWhatCountsForThem(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	no := false
	if err := alice.ConfigureChannel(t.Context(), "announce", wire.ChannelConfig{Replay: &no, ReplayWindow: "7d", Description: "what is new"}); err != nil {
		t.Fatal(err)
	}
	say(t, alice, "dev", "one")
	say(t, bob, "dev", "two")
	say(t, bob, "announce", "three")
	list, err := bob.Channels(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		got = append(got, fmt.Sprintf("%s %v %v %s %s %d %q", i.Name, i.Registered, i.Replay, i.ReplayWindow, i.DeliveryClass, i.Messages, i.Config.Description))
	}
	want := []string{`announce true false 7d durable 1 "what is new"`, `dev false true  durable 2 ""`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	info, err := bob.ChannelInfo(t.Context(), "announce")
	if err != nil || info.ReplayWindow != "7d" || !info.Registered {
		t.Errorf("info: %+v, %v", info, err)
	}
	for name, try := range map[string]func() error{
		"a channel with a space":    func() error { _, err := bob.ChannelInfo(t.Context(), "a b"); return err },
		"a pattern in the registry": func() error { return bob.ConfigureChannel(t.Context(), "a.*", wire.ChannelConfig{}) },
		"a description of 201 characters": func() error {
			return bob.ConfigureChannel(t.Context(), "a", wire.ChannelConfig{Description: strings.Repeat("x", 201)})
		},
		"a message to nobody": func() error { _, err := bob.Send(t.Context(), wire.Message{Parts: mesh.Text("x")}); return err },
		"a message to two": func() error {
			_, err := bob.Send(t.Context(), wire.Message{Channel: "a", To: "local.b", Parts: mesh.Text("x")})
			return err
		},
		"a message to a pattern": func() error { _, err := bob.SendChannel(t.Context(), "dev.*", "x"); return err },
		"a join of nothing":      func() error { _, err := bob.JoinChannel(t.Context(), "", mesh.ChannelOptions{}); return err },
	} {
		if err := try(); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
