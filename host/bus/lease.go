package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// leaseReconnect is how long a connection of leases waits at most before it tries to reach a lost server
// again: a lease that nobody could write for a TTL is over.
const leaseReconnect = time.Second

// soon is backoff with that bound.
func soon(attempts int) time.Duration { return min(backoff(attempts), leaseReconnect) }

// firstRevision bounds the first revision of a bucket that is made; whoever reads numbers as doubles has room left to count.
const firstRevision = 1 << 50

// LeaseRow is one lease as it was read.
type LeaseRow struct {
	InstanceID string
	Value      []byte
	Rev        uint64    // what Update and Delete expect
	At         time.Time // when it was written, by the broker's clock
}

// Leases is the bucket of the liveness leases of a space, one row for each instance of its managers. The broker drops
// a row that was not written for wire.LeaseTTL. Reads are answered by the leader, writes are compare-and-set.
//
// It has a connection of its own that keeps nothing for later (a Strict bus is one): a renewal that was given up must
// not happen when the server is back, when it may be somebody else's lease. Once it was found or made, the bucket is never made again: who
// holds what is unknown without it. A principal that holds leases needs, on that connection, to publish to
// $KV.<bucket>.<instance id>, $JS.API.STREAM.INFO.KV_<bucket> and $JS.API.STREAM.MSG.GET.KV_<bucket>, and where nobody
// has made the bucket yet, $JS.API.STREAM.CREATE.KV_<bucket>.
type Leases struct {
	r      *Records
	bucket string
	want   messageStore
	known  func(name string) bool
	made   func(name string) error
	up     chan struct{}
	shared bool // the connection is that of the bus

	opening chan struct{} // a token: one opens at a time
	mu      sync.Mutex
	found   bool
	remade  bool
}

// LeasesConfig says whose leases. Known and Made are those of Records.
type LeasesConfig struct {
	Space string
	Known func(name string) bool
	Made  func(name string) error
	TTL   time.Duration // of a row; default wire.LeaseTTL, which the contract demands; tests shorten it
	// Remade: somebody who may make the bucket found it gone and made it anew just now. See Leases.Remade.
	Remade bool
}

// Leases opens the leases of a space. Nothing is asked of the server before Open or the first operation, which may make
// the bucket.
//
// Errors: ErrUnreachable.
func (b *Bus) Leases(cfg LeasesConfig) (*Leases, error) {
	bucket, err := wire.BucketName(wire.BucketManager, cfg.Space)
	if err != nil {
		return nil, fmt.Errorf("open leases: %w", err)
	}
	ttl := cmp.Or(cfg.TTL, wire.LeaseTTL)
	l := &Leases{
		bucket: bucket, known: cfg.Known, made: cfg.Made, remade: cfg.Remade, up: make(chan struct{}, 1), opening: make(chan struct{}, 1),
		// What client libraries make for a key-value bucket with a TTL, since they open these as such; but for rollups, see
		// ForbidRollups.
		want: messageStore{
			Name: wire.BucketStream(bucket), Subjects: []string{wire.BucketSubject(bucket, ">")}, Retention: "limits", Storage: "file",
			Discard: "new", MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxBytes: -1, MaxAge: ttl, NumReplicas: 1,
			DuplicateWindow: ttl, AllowDirect: true, DenyDelete: true,
		},
	}
	back := func() {
		select {
		case l.up <- struct{}{}:
		default:
		}
	}
	l.r = &Records{space: cfg.Space, denied: &b.denied, nc: b.nc, link: b.line}
	if b.strict {
		l.shared = true
		b.onBack(back)
		return l, nil
	}
	l.r.link = newLifeline()
	l.r.nc, err = b.dial("leases", nats.ReconnectBufSize(-1), nats.CustomReconnectDelay(soon),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { l.r.link.lost() }),
		nats.ReconnectHandler(func(*nats.Conn) { back() }))
	if err != nil {
		return nil, fmt.Errorf("open leases: %w", err)
	}
	return l, nil
}

// Up gets a value after every time that the server was lost and is back.
func (l *Leases) Up() <-chan struct{} { return l.up }

// Space is the space whose leases these are.
func (l *Leases) Space() string { return l.r.space }

// Remade reports whether the bucket was known to this host, was gone, and was made anew: leases that are held by
// living processes may have been in it.
func (l *Leases) Remade() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remade
}

// Open finds the bucket, or makes it, once: whoever may make it does that for those who may only hold leases.
//
// Errors: ErrStoreUnfit (the text names the stream and the repair), ErrUnavailable, that of made.
func (l *Leases) Open(ctx context.Context) error {
	if l.isFound() {
		return nil
	}
	if err := l.open(ctx); err != nil {
		return fmt.Errorf("open leases of %s: %w", l.r.space, err)
	}
	return nil
}

// open finds the bucket, or makes it, once.
func (l *Leases) open(ctx context.Context) error {
	select {
	case l.opening <- struct{}{}:
		defer func() { <-l.opening }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
	if l.isFound() {
		return nil
	}
	raw, err := l.r.api(ctx, "STREAM.INFO."+l.want.Name, struct{}{})
	var refusal *nats.APIError
	made, known := false, l.known(l.want.Name)
	if err != nil && errors.As(err, &refusal) && refusal.ErrorCode == nats.JSErrCodeStreamNotFound {
		// Revisions are counted by the stream. One that is made anew must have none of those that a holder may still
		// have in hand: its write, late, would pass for the renewal of another one's lease.
		raw, err = l.r.api(ctx, "STREAM.CREATE."+l.want.Name, struct {
			messageStore
			FirstSeq uint64 `json:"first_seq"`
		}{l.want, 1 + rand.Uint64N(firstRevision)})
		made = err == nil
		if err != nil && errors.As(err, &refusal) && refusal.ErrorCode == nats.JSErrCodeStreamNameInUse {
			raw, err = l.r.api(ctx, "STREAM.INFO."+l.want.Name, struct{}{}) // another host was quicker, with other settings
		}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", l.want.Name, err)
	}
	var info struct {
		Config messageStore `json:"config"`
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		return fmt.Errorf("stream %s: %w readably: %w", l.want.Name, ErrUnavailable, err)
	}
	if why := l.unfit(info.Config); why != "" {
		return fmt.Errorf("%w: stream %s: %s; change its configuration, or remove it while no host of the space runs", ErrStoreUnfit, l.want.Name, why)
	}
	l.mu.Lock()
	l.remade = l.remade || made && known
	l.mu.Unlock()
	if !known {
		if err := l.made(l.want.Name); err != nil {
			return fmt.Errorf("%w: remember stream %s: %w", ErrUnavailable, l.want.Name, err)
		}
	}
	l.mu.Lock()
	l.found = true
	l.mu.Unlock()
	return nil
}

// unfit says why a bucket that somebody else made cannot keep leases; empty when it can. A lease means nothing where
// rows live for another time, or where an older value of a key is left when the last one is removed.
func (l *Leases) unfit(have messageStore) string {
	switch {
	case !slices.Equal(have.Subjects, l.want.Subjects):
		return fmt.Sprintf("its subjects are %v, not %v", have.Subjects, l.want.Subjects)
	case have.MaxAge != l.want.MaxAge:
		return fmt.Sprintf("a row of it lives %s, not %s", have.MaxAge, l.want.MaxAge)
	case have.MaxMsgsPerSubject != 1:
		return "it keeps more than one value of a key"
	}
	return ""
}

func (l *Leases) isFound() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.found
}

func (l *Leases) ready(ctx context.Context, instanceID string) (subject string, err error) {
	if !wire.ValidUID(instanceID) {
		return "", fmt.Errorf("instance id %q is not one", instanceID)
	}
	if !l.isFound() {
		err = l.open(ctx)
	}
	return wire.BucketSubject(l.bucket, instanceID), err
}

// Get reads a lease from the leader.
//
// Errors: ErrAbsent (nobody holds it; a bucket that is gone is ErrUnavailable), ErrUnavailable, ErrStoreUnfit.
func (l *Leases) Get(ctx context.Context, instanceID string) (LeaseRow, error) {
	subject, err := l.ready(ctx, instanceID)
	var m stored
	if err == nil {
		m, err = l.r.message(ctx, l.want.Name, map[string]any{"last_by_subj": subject})
	}
	if err == nil && m.marker() {
		err = ErrAbsent
	}
	if err != nil {
		return LeaseRow{}, fmt.Errorf("read lease %s: %w", instanceID, err)
	}
	return LeaseRow{InstanceID: instanceID, Value: m.Data, Rev: m.Seq, At: m.Time}, nil
}

// Create writes a lease that nobody holds, and returns its revision. What a release left behind is no lease.
//
// Errors: ErrConflict (somebody holds it), ErrUnavailable (unknown, unless it is ErrNotWritten), ErrStoreUnfit.
func (l *Leases) Create(ctx context.Context, instanceID string, value []byte) (uint64, error) {
	subject, err := l.ready(ctx, instanceID)
	var rev uint64
	if err == nil {
		rev, err = l.r.publish(ctx, subject, value, 0, "")
	}
	if errors.Is(err, ErrConflict) {
		m, gerr := l.r.message(ctx, l.want.Name, map[string]any{"last_by_subj": subject})
		switch {
		case gerr != nil && !errors.Is(gerr, ErrAbsent):
			err = gerr
		case gerr != nil:
			err = fmt.Errorf("%w and went away again", ErrConflict)
		case m.marker():
			rev, err = l.r.publish(ctx, subject, value, m.Seq, "")
		}
	}
	if err != nil {
		return 0, fmt.Errorf("create lease %s: %w", instanceID, err)
	}
	return rev, nil
}

// Update writes the lease that has revision rev again, and returns its new one.
//
// Errors: ErrConflict (it has another revision, or is gone), ErrUnavailable (unknown, unless it is ErrNotWritten).
func (l *Leases) Update(ctx context.Context, instanceID string, value []byte, rev uint64) (uint64, error) {
	subject, err := l.ready(ctx, instanceID)
	if err == nil && rev == 0 {
		err = errors.New("no revision given")
	}
	if err == nil {
		rev, err = l.r.publish(ctx, subject, value, rev, "")
	}
	if err != nil {
		return 0, fmt.Errorf("renew lease %s: %w", instanceID, err)
	}
	return rev, nil
}

// Delete ends the lease that has revision rev. It leaves the mark of a deletion behind, which ages as a row does.
//
// Errors: ErrConflict, ErrUnavailable (unknown, unless it is ErrNotWritten).
func (l *Leases) Delete(ctx context.Context, instanceID string, rev uint64) error {
	subject, err := l.ready(ctx, instanceID)
	if err == nil && rev == 0 {
		err = errors.New("no revision given")
	}
	if err == nil {
		_, err = l.r.publish(ctx, subject, nil, rev, "DEL")
	}
	if err != nil {
		return fmt.Errorf("delete lease %s: %w", instanceID, err)
	}
	return nil
}

// List reads the leases of all instances of the space.
//
// Errors: ErrUnavailable, and then they are not all of them; ErrStoreUnfit.
func (l *Leases) List(ctx context.Context) ([]LeaseRow, error) {
	if !l.isFound() {
		if err := l.open(ctx); err != nil {
			return nil, fmt.Errorf("list leases: %w", err)
		}
	}
	root := wire.BucketSubject(l.bucket, "")
	byID := map[string]LeaseRow{} // a row that is renewed meanwhile is met twice
	for seq := uint64(1); ; {
		m, err := l.r.message(ctx, l.want.Name, map[string]any{"seq": seq, "next_by_subj": root + ">"})
		if errors.Is(err, ErrAbsent) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("list leases: %w", err)
		}
		seq = m.Seq + 1
		id := strings.TrimPrefix(m.Subject, root)
		if delete(byID, id); !m.marker() && wire.ValidUID(id) {
			byID[id] = LeaseRow{InstanceID: id, Value: m.Data, Rev: m.Seq, At: m.Time}
		}
	}
	rows := make([]LeaseRow, 0, len(byID))
	for _, row := range byID {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b LeaseRow) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return rows, nil
}

// Close ends the connection that was made for the leases. The one of a Strict bus ends with it.
func (l *Leases) Close() {
	if !l.shared {
		l.r.nc.Close()
	}
}
