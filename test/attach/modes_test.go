//go:build linux

package attach

import (
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// modes runs a test in an open space, where all sessions share a connection, and in an authenticated one, where each has
// its own.
func modes(t *testing.T, do func(*testing.T, *harness.World)) {
	t.Helper()
	modesOf(t, "", do)
}

func modesOf(t *testing.T, name string, do func(*testing.T, *harness.World)) {
	t.Helper()
	if name != "" {
		name += ", "
	}
	for _, m := range []struct {
		name  string
		world func(testing.TB) *harness.World
	}{{"open", harness.New}, {"authenticated", harness.NewAuthenticated}} {
		t.Run(name+m.name, func(t *testing.T) {
			t.Parallel()
			do(t, m.world(t))
		})
	}
}

// A session is granted to who can use it. In an authenticated space the rails are in the credentials of operators, which
// ask in mode any. In mode owner, in which agents ask for what they spawned, it is refused with the reason, and nothing is
// opened.
//
// proves: ATTACH-4
func TestASessionThatItsHolderCouldNotUseIsNotGranted(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	w.Start(harness.HostOptions{})
	row := w.SpawnFake("worker", answering) // by the operator, as whom the client below calls
	c := seatview.Client(t, w)
	call := seatview.Call(t, row, "")
	call.Authz = wire.AuthzOwner
	_, err := seatview.AttachMesh(t, c, call)
	if refused := refusal(t, err, wire.CodePermissionDenied); !strings.Contains(refused.Message, "only an operator's credential") {
		t.Errorf("the refusal does not say why: %s", refused.Message)
	}
	if n := w.Inspect("worker").Attached; n != 0 {
		t.Errorf("%d terminals are attached to it", n)
	}
	m := seatview.MustAttachMesh(t, c, seatview.Call(t, row, wire.AttachWriter))
	m.See("up")
}

// The operator of one host attaches to the seat of another one, which made neither its credential nor its row: the rails
// of sessions are those of the space's endpoint.
func TestASeatOfASiblingIsAttachedToWithTheCredentialOfOnesOwnHost(t *testing.T) {
	t.Parallel()
	a, b := harness.NewAuthenticated(t), harness.NewAuthenticated(t)
	broker := a.StartBroker()
	a.Start(harness.HostOptions{})
	b.Start(harness.HostOptions{Args: []string{"--server", broker.URL, "--keys", a.Root}})
	row := b.SpawnFake("yours", answering)
	if row.InstanceID == a.Endpoint().InstanceID {
		t.Fatal("both hosts are one instance")
	}
	m := seatview.MustAttachMesh(t, seatview.Client(t, a), seatview.Call(t, row, wire.AttachWriter))
	m.See("up")
	if err := m.Type("from afar\n"); err != nil {
		t.Fatal(err)
	}
	m.See("got from afar")
}
