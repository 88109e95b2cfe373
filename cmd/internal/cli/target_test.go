package cli

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
)

// silent is the address of a server that is stopped: it takes connections and never speaks.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "nats://" + l.Addr().String()
}

func TestAServerThatDoesNotSpeakIsGivenUp(t *testing.T) {
	one := silent(t)
	for name, c := range map[string]struct {
		url          string
		timeout      time.Duration
		least, under time.Duration
	}{
		"within two seconds, for whoever names no time": {one, 0, time.Second, 2 * time.Second},
		"within --timeout":                          {one, 200 * time.Millisecond, 0, time.Second},
		"within two seconds for several servers":    {one + "," + silent(t) + "," + silent(t), 0, time.Second, 2 * time.Second},
		"later, but not much, for who has patience": {one, time.Minute, 2 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := Target{Server: c.url, Space: "main", Timeout: c.timeout}
			begun := time.Now()
			_, err := target.Connect(context.Background())
			if took := time.Since(begun); !errors.Is(err, mesh.ErrUnreachable) || took < c.least || took > c.under {
				t.Errorf("after %v: %v; want that the server is unreachable after %v to %v", took, err, c.least, c.under)
			}
		})
	}
}

// Who gives up is not kept waiting by a server that does not speak.
func TestAConnectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	target := Target{Server: silent(t), Space: "main", Timeout: time.Minute}
	begun := time.Now()
	if _, err := target.Connect(ctx); err == nil || time.Since(begun) > time.Second {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
}
