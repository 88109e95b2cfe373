package trust

import (
	"context"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// What a seat's credential costs: an executor for the life, its row, the seat's row, the gate.
func BenchmarkMintOfAnAgent(b *testing.B) {
	r := newRig(b)
	uid := r.activate()
	for b.Loop() {
		r.mint(Request{Profile: Agent, UID: uid, Scope: Scope{Read: []string{"dev"}, Write: []string{"dev"}}})
	}
}

// What a one-shot connection costs, from nothing to closed.
func BenchmarkOneShot(b *testing.B) {
	r := newRig(b)
	target := wire.Caller{Owner: "local", Actor: "TARGET", UID: wire.NewUID()}
	for b.Loop() {
		err := r.auth.With(b.Context(), Request{Profile: Provisioner, Scope: Scope{Target: target}}, func(context.Context, *bus.Bus) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
}

// What the end of a seat's credential costs, proved on every server, with a hundred other lives.
func BenchmarkRevoke(b *testing.B) {
	r := newRig(b)
	for range 100 {
		r.mint(Request{Profile: Agent, UID: r.activate()})
	}
	for b.Loop() {
		b.StopTimer()
		uid := r.activate()
		r.mint(Request{Profile: Agent, UID: uid})
		b.StartTimer()
		if _, err := r.auth.Revoke(b.Context(), Life{UID: uid}); err != nil {
			b.Fatal(err)
		}
	}
}

// What a first start pays for its keys, and a later one.
func BenchmarkKeys(b *testing.B) {
	for name, again := range map[string]bool{"made": false, "opened": true} {
		b.Run(name, func(b *testing.B) {
			root := b.TempDir()
			for b.Loop() {
				if !again {
					root = b.TempDir()
				}
				store, err := OpenFileStore(b.Context(), root)
				if err != nil {
					b.Fatal(err)
				}
				k, err := MakeKeyring(b.Context(), store, space)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := k.Bundle(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
