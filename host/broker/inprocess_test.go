package broker

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/test/busy"
)

// Who is refused inside the process is told at once, whatever it still had to say.
func TestAClientThatIsRefusedInProcessDoesNotWaitForItsTimeout(t *testing.T) {
	b := start(t, Config{StoreDir: t.TempDir()})
	for range 20 {
		begun := time.Now()
		_, err := nats.Connect("", nats.InProcessServer(b.InProcess()), nats.Token("wrong"), nats.Timeout(busy.Limit(20*time.Second)))
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Fatalf("connect with a wrong token: %v", err)
		}
		if d := time.Since(begun); d > busy.Limit(5*time.Second) {
			t.Fatalf("refused after %s", d)
		}
	}
}

func TestWhatWasWrittenBeforeACloseArrives(t *testing.T) {
	near, far := net.Pipe()
	u := unblock(near)
	text := strings.Repeat("0123456789abcdef", 3*maxUnsent/16)
	got := make(chan string)
	go func() {
		raw, _ := io.ReadAll(far)
		got <- string(raw)
	}()
	for i := 0; i < len(text); i += 1000 {
		if _, err := u.Write([]byte(text[i:min(i+1000, len(text))])); err != nil {
			t.Fatal(err)
		}
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != text {
		t.Errorf("%d bytes arrived of %d", len(s), len(text))
	}
	if _, err := u.Write([]byte("late")); err == nil {
		t.Error("a closed connection takes more")
	}
}

// A server that is gone ends what waits for it: a write, and a close.
func TestNobodyWaitsForAServerThatReadsNothing(t *testing.T) {
	near, far := net.Pipe()
	u := unblock(near)
	if _, err := u.Write(make([]byte, 2*maxUnsent)); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error)
	go func() {
		for {
			if _, err := u.Write(make([]byte, maxUnsent)); err != nil {
				blocked <- err
				return
			}
		}
	}()
	done := make(chan struct{})
	go func() { _ = u.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(busy.Limit(10 * time.Second)):
		t.Fatal("a close waits")
	}
	if err := <-blocked; err == nil {
		t.Error("a write on it succeeded")
	}
	_ = far.Close()
}
