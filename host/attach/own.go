package attach

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
)

// Bounds of credentials of sessions.
const (
	railMargin = 30 * time.Second // a credential outlives its session: the session says why it is over
	tellWait   = 10 * time.Second // for one telling of the ledger which credentials nobody holds any more
	closeWait  = 2 * time.Second  // for the last telling, of a host that stops
	openAtOnce = 8                // whoever comes back to a host that was away does so at once, and each is a few handshakes
)

// tellAgain are the pauses before the ledger is told again; the last one is that of all further tries. What ended together
// has often ended with the broker.
var tellAgain = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}

// Authority makes the credentials of sessions; a trust.Authority implements it.
type Authority interface {
	Mint(ctx context.Context, r trust.Request) (trust.Credential, error)
	Drop(ctx context.Context, gone ...trust.Credential) error
}

// OwnConfig configures Own. Reach is how the broker is reached; whatever says who connects is replaced.
type OwnConfig struct {
	Authority Authority
	Reach     bus.Config
	// CloseWait bounds Close; default 2 s.
	CloseWait time.Duration
	Log       hclog.Logger
}

// Own gives each session a connection and a credential of its own, which reaches the two subjects of that session and
// nothing else. Both end with it. A copy of one is good for a rail that nobody serves any more; the ledger says so within
// moments, or once it can be told. What it could not be told by the time the host has stopped it calls active until its end.
func Own(cfg OwnConfig) Lines {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.CloseWait <= 0 {
		cfg.CloseWait = closeWait
	}
	o := &own{cfg: cfg, opening: make(chan struct{}, openAtOnce), closing: make(chan struct{})}
	o.life, o.end = context.WithCancel(context.Background())
	return o
}

type own struct {
	cfg     OwnConfig
	opening chan struct{} // a token for each that is being opened
	closing chan struct{} // closed by Close
	life    context.Context
	end     context.CancelFunc // nothing is minted and nothing is told any more

	mu     sync.Mutex
	gone   []trust.Credential // that the ledger has not heard of
	busy   bool               // somebody is telling it
	closed bool
	beside sync.WaitGroup // who opens, and who tells; the former are added to under mu before closed
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
	if o.closed {
		o.mu.Unlock()
		return nil, ErrStopping
	}
	o.beside.Add(1)
	o.mu.Unlock()
	defer o.beside.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(o.life, func() { cancel(ErrStopping) })()
	select {
	case o.opening <- struct{}{}:
		defer func() { <-o.opening }()
	case <-o.closing:
		return nil, ErrStopping
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c, err := o.cfg.Authority.Mint(ctx, r)
	if err != nil {
		return nil, err
	}
	select {
	case <-o.closing:
		o.drop(c)
		return nil, ErrStopping
	default:
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
		o.beside.Go(o.tellLedger)
	}
}

// tellLedger tells the ledger until there is nothing left to tell, or Close has waited long enough.
func (o *own) tellLedger() {
	failed := 0
	for {
		gone := o.takeGone()
		if len(gone) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(o.life, tellWait)
		err := o.cfg.Authority.Drop(ctx, gone...)
		cancel()
		if err == nil {
			failed = 0
			continue
		}
		o.mu.Lock()
		o.gone = append(gone, o.gone...)
		o.mu.Unlock()
		o.cfg.Log.Debug("rows of sessions that are over stay active for now", "credentials", len(gone), "err", err)
		pause := time.NewTimer(tellAgain[min(failed, len(tellAgain)-1)])
		failed++
		select {
		case <-pause.C:
		case <-o.soon(failed):
		case <-o.life.Done():
		}
		pause.Stop()
	}
}

// soon is closed when a try has to be made by now, and not after its pause: the host stops. After two of them it is
// waited for again.
func (o *own) soon(failed int) <-chan struct{} {
	if failed > 2 {
		return nil
	}
	return o.closing
}

// takeGone takes what the ledger is to be told, and says that nobody tells it when there is nothing: what is past its end
// it has forgotten by itself, and where everything is over it is not told any more.
func (o *own) takeGone() []trust.Credential {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	gone := slices.DeleteFunc(o.gone, func(c trust.Credential) bool { return now.After(c.Expires) })
	o.gone = nil
	if o.life.Err() != nil {
		if len(gone) > 0 {
			o.cfg.Log.Warn("rows of sessions that are over stay active until their end", "credentials", len(gone))
		}
		gone = nil
	}
	o.busy = len(gone) > 0
	return gone
}

// Close waits until nothing is opened any more and the ledger was told, at most CloseWait.
func (o *own) Close() {
	o.mu.Lock()
	closed := o.closed
	if o.closed = true; !closed {
		close(o.closing)
	}
	o.mu.Unlock()
	defer time.AfterFunc(o.cfg.CloseWait, o.end).Stop()
	o.beside.Wait()
	o.end()
}
