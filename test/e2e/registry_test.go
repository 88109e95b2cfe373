package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Two hosts of one space are found by whoever asks everybody. One that was killed is missed and not waited for,
// and is the registered one again as soon as it is back, with a later epoch; one that was stopped is not expected.
//
// proves: STOP-11
func TestHostsOfASpaceAreFoundMissedAndForgotten(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef"
	one, two := harness.New(t), harness.New(t)
	tokenFile := one.Write("server.token", token+"\n")
	b, err := broker.Start(context.Background(), broker.Config{StoreDir: filepath.Join(one.Dir, "js"), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	where := harness.HostOptions{Args: []string{"--server", b.URL(), "--token-file", tokenFile}}
	one.Start(where)
	second := two.Start(where)
	first, other := one.Endpoint().InstanceID, two.Endpoint().InstanceID

	c := one.Mesh()
	ask := func() (epochs map[string]uint64, missing *mesh.MissingError, took time.Duration) {
		t.Helper()
		start := time.Now()
		answers, err := c.Scatter(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdStatus, Deadline: time.Minute}, 0)
		if err != nil && !errors.As(err, &missing) {
			t.Fatal(err)
		}
		epochs = map[string]uint64{}
		for _, a := range answers {
			if a.Err != nil {
				t.Errorf("%s: %v", a.InstanceID, a.Err)
			}
			epochs[a.InstanceID] = a.Epoch
		}
		return epochs, missing, time.Since(start)
	}
	if got, missing, _ := ask(); len(got) != 2 || missing != nil || got[first] != 1 || got[other] != 1 {
		t.Fatalf("answers of %v, missing %v", got, missing)
	}
	second.Kill()
	await(t, harness.DefaultWait, "the killed host is missed", func() (bool, string) {
		got, missing, took := ask()
		ok := len(got) == 1 && got[first] == 1 && missing != nil && len(missing.Gone) == 1 && missing.Gone[0].InstanceID == other
		return ok && took < busy.Limit(30*time.Second), fmt.Sprintf("answers of %v after %s, missing %v", got, took, missing)
	})
	second = two.Start(where)
	if got, missing, _ := ask(); len(got) != 2 || missing != nil || got[other] != 2 {
		t.Fatalf("after its return: answers of %v, missing %v", got, missing)
	}
	// A request that is bound to the incarnation before is not carried out by this one.
	_, err = c.Call(t.Context(), mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdPs, Bind: &wire.Bind{InstanceID: other, Epoch: 1},
	}, nil)
	if !errors.Is(err, &wire.Error{Code: wire.CodeExpired}) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Errorf("bound to an epoch that is over: %v (%s)", err, mesh.OutcomeOf(err))
	}
	two.Host("stop").OK()
	if _, ok := second.WaitExit(harness.DefaultWait); !ok {
		t.Fatal("the second host does not end")
	}
	if got, missing, _ := ask(); len(got) != 1 || missing != nil || got[first] != 1 {
		t.Fatalf("after its stop: answers of %v, missing %v", got, missing)
	}
	one.Host("stop").OK()
}
