package mesh_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestJoinIsSeenWithEverythingOnItsCard(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.roster(t, s.client(t, "watcher"))
	if v := r.View(); v.State != mesh.ViewCurrent || len(v.Rows) != 0 {
		t.Fatalf("an empty space: %+v", v)
	}
	c := s.client(t, "reviewer")
	before := time.Now()
	p := join(t, c, mesh.JoinConfig{
		Card: wire.AgentCard{Role: "review", Description: "reads diffs", Tags: []string{"go"}}, Activity: "looking around",
		Condition: &wire.PresenceCondition{Code: "retrying", Source: "provider"},
	})
	got, err := r.Await(t.Context(), is(c, wire.StatusIdle))
	if err != nil {
		t.Fatal(err)
	}
	if got.Card.Name != "reviewer" || got.Card.Kind != wire.CardAgent || got.Card.Role != "review" ||
		got.Card.ProtocolVersion != wire.ProtocolVersion || got.LifecycleUID != c.Caller().UID || got.Activity != "looking around" ||
		got.Condition == nil || got.Condition.Code != "retrying" {
		t.Errorf("seen: %+v", got)
	}
	if got.StatusSince == 0 || got.ActivitySince == 0 || got.TS < before.UnixMilli() {
		t.Errorf("times: %+v", got)
	}
	v := r.View()
	if row, ok := v.Row(c.Caller().Principal()); !ok || row.Card.Name != "reviewer" {
		t.Errorf("row of the principal: %+v, %v", row, ok)
	}
	if at := v.SeenAt(c.Caller().Principal()); at.Before(before.Add(-time.Second)) || !v.OfflineSince(c.Caller().Principal()).IsZero() {
		t.Errorf("seen at %s, offline since %s", at, v.OfflineSince(c.Caller().Principal()))
	}
	if at, err := p.Published(); err != nil || at.Before(before) {
		t.Errorf("published at %s, %v", at, err)
	}
}

func TestStatusAndConditionReachWatchersAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.roster(t, s.client(t, "watcher"))
	c := s.client(t, "worker")
	p := join(t, c, mesh.JoinConfig{})
	first := p.Record()
	if err := p.SetStatus(t.Context(), wire.StatusWorking, "on the parser"); err != nil {
		t.Fatal(err)
	}
	got, err := r.Await(t.Context(), is(c, wire.StatusWorking))
	if err != nil {
		t.Fatal(err)
	}
	if got.Activity != "on the parser" || got.ActivitySince == 0 || got.StatusSince < first.StatusSince {
		t.Errorf("working: %+v", got)
	}
	if err := p.SetCondition(t.Context(), &wire.PresenceCondition{Code: "rate_limit", Message: "429"}); err != nil {
		t.Fatal(err)
	}
	got, err = r.Await(t.Context(), func(p wire.Presence) bool { return p.Condition != nil })
	if err != nil || got.Condition.Message != "429" || got.StatusSince != p.Record().StatusSince {
		t.Errorf("condition: %+v, %v", got, err)
	}
	if err := p.SetCondition(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err = r.Await(t.Context(), func(p wire.Presence) bool { return p.Condition == nil }); err != nil {
		t.Fatal(err)
	}
	// What is wrong is refused before it is published, and leaves the record as it was.
	for name, edit := range map[string]func(*wire.Presence){
		"an unknown condition":   func(p *wire.Presence) { p.Condition = &wire.PresenceCondition{Code: "bored"} },
		"an unknown status":      func(p *wire.Presence) { p.Status = "busy" },
		"offline without leave":  func(p *wire.Presence) { p.Status = wire.StatusOffline },
		"no name":                func(p *wire.Presence) { p.Card.Name = "" },
		"a mode of an odd sort":  func(p *wire.Presence) { p.ChannelModes = map[string]string{"dev": "loud"} },
		"a channel with a space": func(p *wire.Presence) { p.ChannelModes = map[string]string{"de v": "quiet"} },
	} {
		var wrong *wire.FieldError
		if err := p.Update(t.Context(), edit); !errors.As(err, &wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if rec := p.Record(); rec.Status != wire.StatusWorking || rec.Condition != nil || rec.ChannelModes != nil {
		t.Errorf("after the refusals: %+v", rec)
	}
	// Who it is stays.
	err = p.Update(t.Context(), func(p *wire.Presence) { p.LifecycleUID, p.Card.ID = wire.NewUID(), "local.somebody" })
	if rec := p.Record(); err != nil || rec.Card.ID != c.Caller().Principal() || rec.LifecycleUID != c.Caller().UID {
		t.Errorf("after an update of its identity: %+v, %v", rec, err)
	}
}

func TestLeaveIsSeenAtOnceAndOnlyOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.roster(t, s.client(t, "watcher"))
	c := s.client(t, "worker")
	p := join(t, c, mesh.JoinConfig{})
	if _, err := r.Await(t.Context(), is(c, wire.StatusIdle)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := p.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := r.Await(t.Context(), is(c, wire.StatusOffline))
	if err != nil || got.StatusSince != 0 {
		t.Fatalf("offline: %+v, %v", got, err)
	}
	if d := time.Since(start); d >= wire.PresenceWindow-wire.PresenceHeartbeat {
		t.Errorf("a clean leave was seen after %s", d)
	}
	eventually(t, "it is known since when", 4*wire.PresenceWindow, func() bool {
		return !r.View().OfflineSince(c.Caller().Principal()).IsZero()
	})
	if err := p.Leave(t.Context()); err != nil {
		t.Errorf("a second leave: %v", err)
	}
	if err := p.SetStatus(t.Context(), wire.StatusWorking, ""); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("an update after the leave: %v", err)
	}
}

// A late goodbye of a life that is over says nothing about the one that took its place.
func TestLeaveOfAnEarlierLifeTouchesNoLaterOne(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.roster(t, s.client(t, "watcher"))
	first := s.client(t, "worker")
	old := join(t, first, mesh.JoinConfig{})
	who := first.Caller()
	who.UID = wire.NewUID()
	second := s.client(t, "worker", func(c *mesh.Config) { c.Caller = who })
	fresh := join(t, second, mesh.JoinConfig{Status: wire.StatusWorking})
	if err := old.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Whatever the leave did stands before this in the stream.
	if err := fresh.SetStatus(t.Context(), wire.StatusWaiting, ""); err != nil {
		t.Fatal(err)
	}
	for v := r.View(); ; v = r.View() {
		changed := r.Changed()
		row, _ := v.Row(who.Principal())
		if row.Status == wire.StatusOffline {
			t.Fatalf("the later life went with the earlier one: %+v", row)
		}
		if row.LifecycleUID == who.UID && row.Status == wire.StatusWaiting {
			break
		}
		<-changed
	}
}

func TestJoinRefusesWhatItIsNot(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.client(t, "worker")
	for name, cfg := range map[string]mesh.JoinConfig{
		"another principal":  {Card: wire.AgentCard{ID: "local.somebody"}},
		"an odd kind":        {Card: wire.AgentCard{Kind: "robot"}},
		"offline":            {Status: wire.StatusOffline},
		"a uid that is none": {LifecycleUID: "short"},
		"an odd condition":   {Condition: &wire.PresenceCondition{Code: "bored"}},
	} {
		var wrong *wire.FieldError
		if _, err := c.Join(t.Context(), cfg); !errors.As(err, &wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v := s.roster(t, c).View(); len(v.Rows) != 0 {
		t.Errorf("something was published: %+v", v.Rows)
	}
	nowhere := s.client(t, "worker", func(c *mesh.Config) { c.Space = "elsewhere" })
	if _, err := nowhere.Join(t.Context(), mesh.JoinConfig{}); !errors.Is(err, mesh.ErrNotSetUp) {
		t.Errorf("a space that nobody set up: %v", err)
	}
	if _, err := nowhere.WatchPresence(t.Context()); !errors.Is(err, mesh.ErrNotSetUp) {
		t.Errorf("a watch there: %v", err)
	}
}

// Somebody else's card under one's own key, and the other way round, are dropped and told of once.
func TestRecordsUnderTheWrongKeyAreDropped(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var mu sync.Mutex
	var told []string
	r := s.roster(t, s.client(t, "watcher"), mesh.OnRejected(func(key string, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, key)
	}))
	nc, err := nats.Connect(s.URL(), nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := s.client(t, "worker")
	p := join(t, c, mesh.JoinConfig{})
	body, err := p.Record().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for key, text := range map[string]string{"local.thief": string(body), "local.noise": "{"} {
			if err := nc.Publish("$KV.cotal_presence_main."+key, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := p.SetStatus(t.Context(), wire.StatusWorking, ""); err != nil { // behind them in the stream
		t.Fatal(err)
	}
	if _, err := r.Await(t.Context(), is(c, wire.StatusWorking)); err != nil {
		t.Fatal(err)
	}
	if rows := r.View().Rows; len(rows) != 1 {
		t.Errorf("rows: %+v", rows)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(told)
	if !slices.Equal(told, []string{"local.noise", "local.thief"}) {
		t.Errorf("told of %v", told)
	}
}

// proves: SEAT-2, I1
func TestParticipantsComeBackAfterTheServerWasAway(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.roster(t, s.client(t, "watcher"))
	c := s.client(t, "worker")
	p := join(t, c, mesh.JoinConfig{})
	if _, err := r.Await(t.Context(), is(c, wire.StatusIdle)); err != nil {
		t.Fatal(err)
	}
	port := s.Port()
	s.Shutdown()
	// A change that cannot be published now is kept.
	if err := p.SetStatus(t.Context(), wire.StatusWorking, "offline work"); !errors.Is(err, mesh.ErrUnreachable) && !errors.Is(err, mesh.ErrNoReply) {
		t.Fatalf("a change while the server is away: %v", err)
	}
	watched := make(chan []string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { watched <- verdicts(ctx, r, c.Caller().Principal()) }()
	s.start(t, port)
	if _, err := r.Await(t.Context(), is(c, wire.StatusWorking)); err != nil {
		t.Fatal(err)
	}
	if st := r.View().State; st != mesh.ViewStale {
		t.Errorf("the view is %s as soon as the server is back; nobody else had the time to be heard", st)
	}
	eventually(t, "the view is current again", 10*wire.PresenceWindow, func() bool { return r.View().State == mesh.ViewCurrent })
	cancel()
	if got := <-watched; len(got) > 0 {
		t.Errorf("verdicts over the loss: %v", got)
	}
}

// verdicts notes every moment at which a current view takes somebody for gone who is there.
func verdicts(ctx context.Context, r *mesh.Roster, principal string) []string {
	var wrong []string
	for {
		changed := r.Changed()
		v := r.View()
		row, ok := v.Row(principal)
		if v.State == mesh.ViewCurrent && (!ok || row.Status == wire.StatusOffline) {
			wrong = append(wrong, "gone at "+v.At.String())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return wrong
		}
	}
}

// The bucket is deleted and made anew under everybody: the server says nothing about it to a watch.
//
// proves: SEAT-2, I1
func TestAWatchThatWasCutSilentlyIsNoticed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.roster(t, s.client(t, "watcher"))
	c := s.client(t, "worker")
	p := join(t, c, mesh.JoinConfig{})
	if _, err := r.Await(t.Context(), is(c, wire.StatusIdle)); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.URL(), nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream("KV_cotal_presence_main"); err != nil {
		t.Fatal(err)
	}
	s.setUp(t)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan []string, 1)
	go func() { watched <- verdicts(ctx, r, c.Caller().Principal()) }()
	if err := p.SetStatus(t.Context(), wire.StatusWorking, ""); err != nil {
		t.Fatal(err)
	}
	got, err := r.Await(t.Context(), is(c, wire.StatusWorking))
	if err != nil || got.LifecycleUID != c.Caller().UID {
		t.Fatalf("behind the new bucket: %+v, %v", got, err)
	}
	cancel()
	if got := <-watched; len(got) > 0 {
		t.Errorf("verdicts of the cut watch: %v", got)
	}
}

func TestWhoDiesWithoutAWordIsOfflineAfterTheWindow(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a presence window")
	}
	s := startServer(t)
	r := s.roster(t, s.client(t, "watcher"))
	c := s.client(t, "worker")
	join(t, c, mesh.JoinConfig{})
	if _, err := r.Await(t.Context(), is(c, wire.StatusIdle)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	start := time.Now()
	if _, err := r.Await(t.Context(), is(c, wire.StatusOffline)); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < wire.PresenceWindow-wire.PresenceHeartbeat-time.Second {
		t.Errorf("taken for gone after %s", d)
	}
}

func TestTheEndOfTheClientEndsWhatItStarted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.client(t, "worker")
	r := s.roster(t, c)
	p := join(t, c, mesh.JoinConfig{})
	waiting := make(chan error, 1)
	go func() {
		_, err := r.Await(context.Background(), func(p wire.Presence) bool { return p.Status == wire.StatusWorking })
		waiting <- err
	}()
	c.Close()
	if err := <-waiting; !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("await: %v", err)
	}
	<-r.Done()
	if err := p.Leave(t.Context()); err != nil {
		t.Errorf("leave after the end: %v", err)
	}
	if err := p.SetStatus(t.Context(), wire.StatusWorking, ""); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("update after the end: %v", err)
	}
}

// A host has one connection, and does on it what everybody does on theirs.
func TestTheSameOverABorrowedConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := s.bus(t)
	r, err := b.WatchPresence(t.Context(), space)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	who, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Mesh(space, who, "manager")
	if err != nil {
		t.Fatal(err)
	}
	p := join(t, c, mesh.JoinConfig{Card: wire.AgentCard{Kind: wire.CardEndpoint}})
	got, err := r.Await(t.Context(), is(c, wire.StatusIdle))
	if err != nil || got.Card.Name != "manager" || got.Card.Kind != wire.CardEndpoint {
		t.Fatalf("seen: %+v, %v", got, err)
	}
	if err := p.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if !b.Connected() {
		t.Error("the client took the host's connection with it")
	}
}
