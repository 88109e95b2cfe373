package attach

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
)

// Bounds of credentials of sessions.
const (
	railMargin = 30 * time.Second // a credential outlives its session: the session says why it is over
	dropWait   = 2 * time.Second  // for the ledger to hear which credentials nobody holds any more
	openAtOnce = 8                // whoever comes back to a host that was away does so at once, and each is a few handshakes
)

// Authority makes the credentials of sessions; a trust.Authority implements it.
type Authority interface {
	Mint(ctx context.Context, r trust.Request) (trust.Credential, error)
	Drop(ctx context.Context, gone ...trust.Credential) error
}

// OwnConfig configures Own. Reach is how the broker is reached; whatever says who connects is replaced.
type OwnConfig struct {
	Authority Authority
	Reach     bus.Config
	Log       hclog.Logger
}

// Own gives each session a connection and a credential of its own, which reaches the two subjects of that session and
// nothing else. Both end with it. A copy of one is good for a rail that nobody serves any more; the ledger says so within
// moments, and when the host stops at the latest.
func Own(cfg OwnConfig) Lines {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	return &own{cfg: cfg, opening: make(chan struct{}, openAtOnce)}
}

type own struct {
	cfg     OwnConfig
	opening chan struct{} // a token for each that is being opened

	mu     sync.Mutex
	gone   []trust.Credential // that the ledger has not heard of
	busy   bool               // somebody is telling it
	closed bool
	tell   sync.WaitGroup
}

// Open mints for as long as the session may last: it is never renewed, since a connection would have to be made anew.
func (o *own) Open(ctx context.Context, of Rail, lost func()) (Rails, error) {
	return o.dial(ctx, trust.Request{
		Profile: trust.Session, Life: lasts(trust.Session, time.Until(of.Until)),
		Scope: trust.Scope{Epoch: of.Epoch, Session: of.Session},
	}, func(connected bool, _ string) {
		if !connected {
			lost()
		}
	})
}

func (o *own) Past(ctx context.Context, of []Rail) (Rails, error) {
	r := trust.Request{Profile: trust.Farewell, Life: lasts(trust.Farewell, refuseFor)}
	for _, p := range of {
		r.Scope.Past = append(r.Scope.Past, trust.PastSession{ID: p.Session, Epoch: p.Epoch})
	}
	return o.dial(ctx, r, func(bool, string) {})
}

func lasts(p trust.Profile, d time.Duration) time.Duration { return min(d+railMargin, p.Longest()) }

func (o *own) dial(ctx context.Context, r trust.Request, onState func(bool, string)) (Rails, error) {
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		return nil, ErrStopping
	}
	select {
	case o.opening <- struct{}{}:
		defer func() { <-o.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c, err := o.cfg.Authority.Mint(ctx, r)
	if err != nil {
		return nil, err
	}
	cfg := o.cfg.Reach
	cfg.Token, cfg.TokenFile, cfg.CredsFile = "", "", ""
	cfg.Credentials, cfg.Name, cfg.OnState = c, "cotal-host "+string(r.Profile), onState
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		o.drop(c)
		return nil, err
	}
	return &ownRails{Bus: b, end: sync.OnceFunc(func() {
		b.Close()
		o.drop(c)
	})}, nil
}

// ownRails is a connection that ends together with its credential.
type ownRails struct {
	*bus.Bus
	end func()
}

func (r *ownRails) Close() { r.end() }

// drop has the ledger told that nobody holds a credential any more. It waits for nothing; whatever comes up meanwhile goes
// with the next telling.
func (o *own) drop(c trust.Credential) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = append(o.gone, c)
	if !o.busy {
		o.busy = true
		o.tell.Go(o.tellLedger)
	}
}

func (o *own) tellLedger() {
	for {
		o.mu.Lock()
		gone := o.gone
		o.gone = nil
		if o.busy = len(gone) > 0; !o.busy {
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), dropWait)
		if err := o.cfg.Authority.Drop(ctx, gone...); err != nil {
			o.cfg.Log.Debug("rows of sessions that are over stay active until their end", "credentials", len(gone), "err", err)
		}
		cancel()
	}
}

// Close waits until the ledger was told, at most for what one telling takes.
func (o *own) Close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.tell.Wait()
}
