package trust

import (
	"context"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// A signing key that is taken away at once, because it was stolen, costs nobody whose credential is renewed: what the next key
// signs is there before its holder has tried twice.
func TestWhoIsRenewedOutlivesASigningKeyThatWasDropped(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(20*time.Second))
	defer cancel()
	s, err := r.auth.Stand(ctx, Request{Profile: Observer})
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	// Without a network between the two: nothing is buffered there.
	b, err := bus.Connect(ctx, bus.Config{InProcess: r.br.InProcess(), Credentials: s})
	must(t, err)
	defer b.Close()
	was := s.Current()
	must(t, r.keys.Rotate(ctx))
	_, err = r.auth.PushAccount(ctx)
	must(t, err)
	if s.Current().ID != was.ID {
		t.Error("a credential whose key still counts was renewed")
	}
	must(t, r.keys.Drop(ctx))
	_, err = r.auth.PushAccount(ctx)
	must(t, err)
	dropped := time.Now()
	for s.Current().ID == was.ID || !b.Connected() {
		select {
		case <-ctx.Done():
			_, err := s.Health()
			t.Fatalf("renewed: %v, connected: %v, %v", s.Current().ID != was.ID, b.Connected(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if d := time.Since(dropped); d > busy.Limit(3*time.Second) {
		t.Errorf("it was without its broker for %s", d)
	}
	if now := s.Current(); now.Public != was.Public || now.issuer == was.issuer {
		t.Errorf("the next credential is of key %s, signed by %s; it was %s, %s", now.Public, now.issuer, was.Public, was.issuer)
	}
}
