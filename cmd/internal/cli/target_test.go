package cli

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
)

// A server that is stopped takes connections and never speaks. --timeout holds for it too.
func TestTimeoutBoundsTheWaitForAServerThatDoesNotSpeak(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	target := Target{Server: "nats://" + l.Addr().String(), Space: "main", Timeout: 200 * time.Millisecond}
	begun := time.Now()
	_, err = target.Connect(context.Background())
	if took := time.Since(begun); !errors.Is(err, mesh.ErrUnreachable) || took > 2*time.Second {
		t.Errorf("after %v: %v; want that the server is unreachable after 200 ms", took, err)
	}
}
