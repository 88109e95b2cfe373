package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// exampleHost serves a little of what a host does.
func exampleHost(cfg mesh.Config, instance string) (stop func()) {
	b, err := bus.Connect(context.Background(), bus.Config{URL: cfg.URL, Token: cfg.Token})
	if err != nil {
		log.Fatal(err)
	}
	_, err = b.Serve(context.Background(), bus.EndpointConfig{
		Space: cfg.Space, Endpoint: wire.EndpointManager, InstanceID: instance, Epoch: 1,
		Commands: map[string]bus.Command{
			wire.CmdPs: {Read: true, Handler: func(context.Context, *bus.Request) (any, *wire.Error) {
				return []wire.AgentRow{{Name: "reviewer", Status: "running"}}, nil
			}},
			wire.CmdInspect: {Read: true, Handler: func(context.Context, *bus.Request) (any, *wire.Error) {
				return nil, wire.Refuse(wire.CodeNotFound, "no seat is called nobody")
			}},
			wire.CmdInstances: {Read: true, Handler: func(context.Context, *bus.Request) (any, *wire.Error) {
				return wire.InstancesReply{Instances: []wire.ExpectedReply{{InstanceID: instance, Epoch: 1}}}, nil
			}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	return b.Close
}

const exampleInstance = "k3v9q2m8w5x7z4b6n1c0p8r2t5"

// A call goes to any host of the space. The error of one says whether its effect happened.
func ExampleClient_Call() {
	cfg, stop := exampleMesh()
	defer stop()
	defer exampleHost(cfg, exampleInstance)()
	c := connect(cfg, "operator")
	defer c.Close()

	var rows []wire.AgentRow
	_, err := c.Call(context.Background(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs}, &rows)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rows[0].Name, rows[0].Status)

	_, err = c.Call(context.Background(), mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdInspect, Args: wire.NameArgs{Name: "nobody"},
	}, nil)
	fmt.Println(errors.Is(err, &wire.Error{Code: wire.CodeNotFound}), mesh.OutcomeOf(err))
	// Output:
	// reviewer running
	// true not-executed
}

// A scatter asks every host, and says which of those it expected have not answered.
func ExampleClient_Scatter() {
	cfg, stop := exampleMesh()
	defer stop()
	defer exampleHost(cfg, exampleInstance)()
	c := connect(cfg, "operator")
	defer c.Close()

	answers, err := c.Scatter(context.Background(), mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdPs, Deadline: 5 * time.Second,
	}, 0)
	var missing *mesh.MissingError
	switch {
	case errors.As(err, &missing):
		fmt.Println("not heard from:", missing.Gone, missing.Silent)
	case err != nil:
		log.Fatal(err)
	}
	for _, a := range answers {
		fmt.Println(a.InstanceID, "answered in epoch", a.Epoch)
	}
	// Output: k3v9q2m8w5x7z4b6n1c0p8r2t5 answered in epoch 1
}

// Describe tells what an endpoint serves. Every document of the answer was verified.
func ExampleClient_Describe() {
	cfg, stop := exampleMesh()
	defer stop()
	defer exampleHost(cfg, exampleInstance)()
	c := connect(cfg, "operator")
	defer c.Close()

	contract, err := c.Describe(context.Background(), wire.EndpointManager, "")
	if err != nil {
		log.Fatal(err)
	}
	ps, _ := contract.Command(wire.CmdPs)
	fmt.Println(contract.Commands(), ps.Class)
	// Output: [inspect instances ps] ephemeral
}
