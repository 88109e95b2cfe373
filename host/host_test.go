package host

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestNewRefusesBeforeItTouchesAnything(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"a token without --open":     {Config{Root: t.TempDir(), Server: "nats://a:4222", TokenFile: "t"}, "--open"},
		"keys with --open":           {Config{Open: true, Root: t.TempDir(), Keys: t.TempDir()}, "--keys"},
		"a space that is no token":   {Config{Open: true, Root: t.TempDir(), Space: "a.b"}, "space"},
		"a root that does not exist": {Config{Open: true, Root: t.TempDir() + "/nowhere"}, "nowhere"},
		"a secret in the address":    {Config{Open: true, Root: t.TempDir(), Server: "nats://a:4222,nats://me:pssst@b:4222"}, "--token-file"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "pssst") {
				t.Errorf("got %v, want a text with %q and without a secret", err, c.says)
			}
		})
	}
}

// All ways of stopping are one stop: equal ones join it, and one that wants another fate for the seats
// is refused, since the running one has applied its own.
//
// proves: STOP-1
func TestStopsJoinAndAContraryOneIsRefused(t *testing.T) {
	h, err := New(Config{Open: true, Root: t.TempDir(), RuntimeDir: "/tmp/cotal-test", SeatRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	h.log = hclog.NewNullLogger()
	h.seats = seat.New(seat.Config{})
	defer h.seats.Close()
	if _, err := h.shutdown(true, nil); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := h.shutdown(true, nil); err != nil {
				t.Errorf("an equal stop: %v", err)
			}
		}()
	}
	wg.Wait()
	_, err = h.shutdown(false, nil)
	if e := wire.ErrorFrom(err); e == nil || e.Code != wire.CodeFailedPrecondition || e.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("a contrary stop: %v", err)
	}
	hasten := make(chan struct{})
	if _, err := h.shutdown(false, hasten); err != nil {
		t.Errorf("a signal during a stop must join it: %v", err)
	}
}

// A host gives up its journal and its lock at the end of its close: nothing of it may be at work by then, whatever it was.
func TestTheCloseOfAHostWaitsForWhatRunsBeside(t *testing.T) {
	h, err := New(Config{Open: true, Root: t.TempDir(), RuntimeDir: "/tmp/cotal-test", SeatRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if h.journal, err = journal.Open(filepath.Join(t.TempDir(), "journal.db")); err != nil {
		t.Fatal(err)
	}
	var late error
	h.background(func(ctx context.Context) {
		<-ctx.Done()
		late = h.journal.View(func(*journal.Tx) error { return nil })
	})
	h.background(h.pruneLoop)
	h.closeAll()
	h.beside.Wait()
	if late != nil {
		t.Errorf("what ran beside has found %v", late)
	}
}
