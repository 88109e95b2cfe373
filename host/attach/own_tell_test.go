package attach

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// weak is an authority whose ledger cannot be told a few times, and whose mints can be held up.
type weak struct {
	*mesh
	mu      sync.Mutex
	failing int
	minting chan struct{} // gets a value with each mint
	release chan struct{} // nil, or closed once mints go on
}

func (w *weak) Drop(ctx context.Context, gone ...trust.Credential) error {
	w.mu.Lock()
	w.failing--
	fail := w.failing >= 0
	w.mu.Unlock()
	if fail {
		return errors.New("the broker does not answer")
	}
	return w.mesh.Drop(ctx, gone...)
}

func (w *weak) Mint(ctx context.Context, r trust.Request) (trust.Credential, error) {
	if w.release != nil {
		w.minting <- struct{}{}
		<-w.release
	}
	return w.mesh.Mint(ctx, r)
}

func (w *weak) lines() Lines {
	lines := Own(OwnConfig{Authority: w, Reach: bus.Config{InProcess: w.br.InProcess()}, CloseWait: busy.Limit(10 * time.Second)})
	w.t.Cleanup(lines.Close)
	return lines
}

func rail() Rail {
	return Rail{Session: wire.NewSessionID(), Epoch: 7, Until: time.Now().Add(sessionTime)}
}

// A broker that was slow for a moment leaves no credential active for a day, however many sessions ended in it: the ledger
// is told again, and once more when the host stops.
func TestWhatTheLedgerCouldNotBeToldOfSessionsItIsToldLater(t *testing.T) {
	m := newMesh(t)
	for name, stops := range map[string]bool{"by itself": false, "when the host stops": true} {
		t.Run(name, func(t *testing.T) {
			w := &weak{mesh: m, failing: 1}
			lines := w.lines()
			begin := len(m.made)
			var open []Rails
			for range 5 {
				r, err := lines.Open(t.Context(), rail(), func() {})
				must(t, err)
				open = append(open, r)
			}
			for _, r := range open {
				r.Close()
			}
			if stops {
				lines.Close()
			}
			for i := begin; i < begin+len(open); i++ {
				eventually(t, "the ledger says that nobody holds it", func() bool { return m.over(m.of(i)) })
			}
		})
	}
}

// A host that stops while an attach is under way does not leave a credential behind of which nobody tells the ledger.
func TestACredentialThatIsMintedWhileTheHostStopsIsDropped(t *testing.T) {
	m := newMesh(t)
	w := &weak{mesh: m, minting: make(chan struct{}, 1), release: make(chan struct{})}
	lines := w.lines()
	opened := make(chan error, 1)
	go func() {
		_, err := lines.Open(t.Context(), rail(), func() {})
		opened <- err
	}()
	<-w.minting
	closed := make(chan struct{})
	go func() { lines.Close(); close(closed) }()
	<-lines.(*own).closing
	close(w.release)
	<-closed
	if err := <-opened; !errors.Is(err, ErrStopping) {
		t.Errorf("a session is opened on a host that stops: %v", err)
	}
	if n := len(m.made); n == 0 || !m.over(m.of(0)) {
		t.Errorf("of %d credentials the ledger calls one active that nobody holds", n)
	}
}
