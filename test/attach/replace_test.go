//go:build linux

package attach

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// opened is the id of the session that was opened last, from the ledger of the host.
func opened(t *testing.T, w *harness.World) string {
	t.Helper()
	text, err := os.ReadFile(w.Path(".cotal", "host", "sessions"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	id, _, ok := strings.Cut(lines[len(lines)-1], " ")
	if !ok {
		t.Fatalf("the ledger is %q", text)
	}
	return id
}

// A holder that comes back loses its session to the one that it comes back with, and to no refusal.
//
// proves: ATTACH-4
func TestASessionEndsForTheOneThatReplacesItAndForNoRefusal(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{Args: []string{"--max-sessions", "2"}})
	row := quiet(w, "worker")
	c := seatview.Client(t, w)
	once := func(role string) (*seatview.Mesh, string) {
		call := seatview.Call(t, row, role)
		call.Once = true
		m := seatview.MustAttachMesh(t, c, call)
		m.See("up")
		return m, opened(t, w)
	}
	writes, writing := once(wire.AttachWriter)
	watches, watching := once(wire.AttachObserver)
	target := seatview.Call(t, row, "").Target
	replace := func(id, role string) (wire.AttachReply, error) {
		ctx, cancel := context.WithTimeout(t.Context(), harness.DefaultWait)
		defer cancel()
		var reply wire.AttachReply
		_, err := c.Call(ctx, mesh.Call{
			Endpoint: wire.EndpointManager, Command: wire.CmdAttach, Instance: row.InstanceID, Authz: wire.AuthzAny,
			Target: &target, Args: wire.AttachArgs{Role: role, Replaces: id}, Deadline: harness.DefaultWait,
		}, &reply)
		return reply, err
	}
	_, err := replace(watching, wire.AttachWriter)
	refusal(t, err, wire.CodeConflict)
	if err := writes.Type("still here\n"); err != nil {
		t.Fatal(err)
	}
	watches.See("got still here")

	// The host is full: each has the place of the one that it replaces, and the keyboard that was its holder's.
	if reply, err := replace(watching, wire.AttachObserver); err != nil || reply.Role != wire.AttachObserver {
		t.Errorf("who watched comes back as %q, %v", reply.Role, err)
	}
	if reason, err := watches.Ended(); reason != wire.EndClosed || err != nil {
		t.Errorf("the session that was replaced ended as %q, %v", reason, err)
	}
	if reply, err := replace(writing, wire.AttachWriter); err != nil || reply.Role != wire.AttachWriter {
		t.Errorf("who had the keyboard comes back as %q, %v", reply.Role, err)
	}
	if reason, err := writes.Ended(); reason != wire.EndClosed || err != nil {
		t.Errorf("the session that had the keyboard ended as %q, %v", reason, err)
	}
}
