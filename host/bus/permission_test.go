package bus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A request that the server does not let through was not carried out, and its caller is told so at once.
func TestARequestThatTheServerRefusesIsNotExecuted(t *testing.T) {
	who := mesh.Config{Space: "main", Token: ""}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		Users: []*server.User{{Username: "guest", Password: "guest", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"cotal.main.ep.one.manager.describe.>", "$JS.API.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{">"}},
		}}, {Username: "host", Password: "host"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(5 * time.Second) {
		t.Fatal("the server does not start")
	}
	addr := s.Addr().String()
	impostor(t, rawAt(t, "nats://host:host@"+addr), wire.Bind{InstanceID: inst1, Epoch: 1}, wire.Bind{InstanceID: inst1, Epoch: 1}, func(id string) []byte {
		return encodeReply(t, wire.EndpointReply{ID: id, OK: true})
	})
	who.URL = "nats://guest:guest@" + addr
	c, err := mesh.Connect(t.Context(), who)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	start := time.Now()
	for name, try := range map[string]func(mesh.Call) error{
		"a call":    func(k mesh.Call) error { _, err := c.Call(t.Context(), k, nil); return err },
		"a cast":    func(k mesh.Call) error { return c.Cast(t.Context(), k) },
		"a scatter": func(k mesh.Call) error { _, err := c.Scatter(t.Context(), k, 0); return err },
		"a describe on a rail it may not use": func(k mesh.Call) error {
			k.Instance = inst2
			_, err := c.Call(t.Context(), k, nil)
			return err
		},
	} {
		err := try(mesh.Call{Endpoint: "manager", Command: "ps", Deadline: time.Minute})
		var we *wire.Error
		if !errors.As(err, &we) || we.Code != wire.CodePermissionDenied || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
			t.Errorf("%s: %v (%s)", name, err, mesh.OutcomeOf(err))
		}
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("the callers were told after %s", took)
	}
}
