package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// exampleMesh starts what a host is to the examples: a server with a space that is set up.
func exampleMesh() (cfg mesh.Config, stop func()) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "mesh-example-")
	if err != nil {
		log.Fatal(err)
	}
	srv, err := broker.Start(ctx, broker.Config{StoreDir: dir, Token: "a token of the mesh"})
	if err != nil {
		log.Fatal(err)
	}
	b, err := bus.Connect(ctx, bus.Config{URL: srv.URL(), Token: "a token of the mesh"})
	if err != nil {
		log.Fatal(err)
	}
	err = b.SetUpMessaging(ctx, "main", func(string) bool { return false }, func(string) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	return mesh.Config{URL: srv.URL(), Token: "a token of the mesh", Space: "main", Reconnect: true}, func() {
		b.Close()
		srv.Shutdown()
		_ = os.RemoveAll(dir)
	}
}

func connect(cfg mesh.Config, name string) *mesh.Client {
	cfg.Name = name
	c, err := mesh.Connect(context.Background(), cfg)
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// A program appears in a space, works, and leaves.
func ExampleClient_Join() {
	cfg, stop := exampleMesh()
	defer stop()
	ctx := context.Background()

	cfg.Name = "reviewer"
	c, err := mesh.Connect(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	me, err := c.Join(ctx, mesh.JoinConfig{Card: wire.AgentCard{Role: "review", Description: "reads diffs"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := me.SetStatus(ctx, wire.StatusWorking, "on pull request 7"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(me.Record().Card.Name, "is", me.Record().Status, me.Record().Activity)
	if err := me.Leave(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: reviewer is working on pull request 7
}

// Await waits for somebody; the view says what it is worth before anybody's absence is believed.
func ExampleRoster_Await() {
	cfg, stop := exampleMesh()
	defer stop()
	ctx := context.Background()
	watcher, worker := connect(cfg, "watcher"), connect(cfg, "worker")
	defer watcher.Close()
	defer worker.Close()

	roster, err := watcher.WatchPresence(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer roster.Close()
	me, err := worker.Join(ctx, mesh.JoinConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer me.Leave(ctx)

	who, err := roster.Await(ctx, func(p wire.Presence) bool {
		return p.Card.Name == "worker" && p.Status != wire.StatusOffline
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(who.Card.Name, "is", who.Status)
	if v := roster.View(); v.State == mesh.ViewCurrent {
		fmt.Println(len(v.Rows), "in the space")
	}
	// Output:
	// worker is idle
	// 1 in the space
}

// A channel is read from what was said before, without a gap, to what is said now.
func ExampleClient_JoinChannel() {
	cfg, stop := exampleMesh()
	defer stop()
	ctx := context.Background()
	alice, bob := connect(cfg, "alice"), connect(cfg, "bob")
	defer alice.Close()
	defer bob.Close()

	if _, err := alice.SendChannel(ctx, "team.backend", "the build is red"); err != nil {
		log.Fatal(err)
	}
	ch, err := bob.JoinChannel(ctx, "team.backend", mesh.ChannelOptions{Replay: 20})
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Leave()
	if _, err := alice.SendChannel(ctx, "team.backend", "and green again"); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		m, err := ch.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s (before I came: %v)\n", m.From.Name, m.Text(), m.Historical)
	}
	// Output:
	// alice: the build is red (before I came: true)
	// alice: and green again (before I came: false)
}

// A direct message waits until it is acknowledged, over restarts of the program it is for.
func ExampleClient_DirectMessages() {
	cfg, stop := exampleMesh()
	defer stop()
	ctx := context.Background()
	alice, bob := connect(cfg, "alice"), connect(cfg, "bob")
	defer alice.Close()
	defer bob.Close()

	inbox, err := bob.DirectMessages(ctx, mesh.QueueOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer inbox.Close()
	if _, err := alice.SendDirect(ctx, bob.Caller().Principal(), "have you a minute?"); err != nil {
		log.Fatal(err)
	}
	d, err := inbox.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s asks: %s\n", d.From.Name, d.Text())
	if err := d.Ack(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: alice asks: have you a minute?
}

// History pages backwards through what was said on a channel.
func ExampleClient_History() {
	cfg, stop := exampleMesh()
	defer stop()
	ctx := context.Background()
	c := connect(cfg, "alice")
	defer c.Close()

	for i := range 5 {
		if _, err := c.SendChannel(ctx, "log", fmt.Sprint("entry ", i)); err != nil {
			log.Fatal(err)
		}
	}
	for before := uint64(0); ; {
		page, err := c.History(ctx, mesh.HistoryQuery{Channel: "log", Limit: 2, Before: before})
		if err != nil {
			log.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			fmt.Println(m.Text())
		}
		fmt.Println("--")
		before = page[0].Seq
	}
	// Output:
	// entry 3
	// entry 4
	// --
	// entry 1
	// entry 2
	// --
	// entry 0
	// --
}

// A message that may or may not have been kept is sent again as it is: it is kept once.
func ExampleClient_Send() {
	cfg, stop := exampleMesh()
	defer stop()
	ctx := context.Background()
	c := connect(cfg, "alice")
	defer c.Close()

	m, err := c.Send(ctx, wire.Message{Channel: "dev", Mentions: []string{"bob"}, Parts: mesh.Text("ready for review, @bob")})
	if errors.Is(err, mesh.ErrNoReply) { // kept or not
		m, err = c.Send(ctx, m)
	}
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Send(ctx, m); err != nil {
		log.Fatal(err)
	}
	page, err := c.History(ctx, mesh.HistoryQuery{Channel: "dev"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(page), "message")
	// Output: 1 message
}
