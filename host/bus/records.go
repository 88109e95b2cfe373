package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of Records. They are wrapped with what was asked.
var (
	// ErrConflict: the compare-and-set was lost. Read again; what stands may be an earlier write of
	// one's own whose answer was lost.
	ErrConflict = errors.New("another write came first")
	// ErrAbsent: the store answered, and there is no such row.
	ErrAbsent = errors.New("no such record")
	// ErrUnavailable: the store did not answer. Of a write that means unknown, unless the error is
	// ErrNotWritten as well.
	ErrUnavailable = errors.New("the mesh store did not answer")
	// ErrNotWritten comes with ErrUnavailable when it is certain that nothing was sent.
	ErrNotWritten = errors.New("nothing was written")
	// ErrCorrupt: a row that nobody may delete carries a delete marker, or bytes are not what their
	// digest says. That is damage, and neither absence nor leave to write anew.
	ErrCorrupt = errors.New("the mesh store is damaged")
)

// recordTimeout bounds one request to the store. A broker that is there answers in a millisecond, one that
// syncs every write to a slow disk in a hundred.
const recordTimeout = 5 * time.Second

// jsSequenceNotFound is an error code of the JetStream API (nats-server's errors.json) that the library does not name.
const jsSequenceNotFound nats.ErrorCode = 10043

// Records is the durable state of one space on its broker: rows of the records and auth buckets, facts,
// and contract artifacts. Every read is answered by the leader of the stream, as a fence demands; every
// write is a compare-and-set.
//
// It has a connection of its own that keeps nothing for later: a write that was given up must not happen
// when the server is back, unless it was on its way already.
type Records struct {
	nc    *nats.Conn
	space string
	names map[string]string // stream by what it is for, see recordStores
	// link ends when the connection is lost, and another one takes its place: what waits for an answer then
	// need not wait any longer.
	link   *lifeline
	denied *denials // of the bus
	marks  bool     // it may not remove a message: whoever may, may remove any
	eraser *eraser  // who removes them for it; nil: nobody
}

type link struct {
	up   context.Context
	lose context.CancelFunc
}

func newLink() *link {
	up, lose := context.WithCancel(context.Background())
	return &link{up, lose}
}

// lifeline is the link of a connection as it is now.
type lifeline struct{ atomic.Pointer[link] }

func newLifeline() *lifeline {
	l := &lifeline{}
	l.Store(newLink())
	return l
}

// lost ends what waits for an answer over the connection that was.
func (l *lifeline) lost() { l.Swap(newLink()).lose() }

// Entry is one row as it was read.
type Entry struct {
	Key   wire.Key
	Value []byte
	Rev   uint64    // what Update and Delete expect
	At    time.Time // when it was written, by the broker's clock
}

// Space is the space whose records these are.
func (r *Records) Space() string { return r.space }

// Connected reports whether the server is reachable now.
func (r *Records) Connected() bool { return r.nc.IsConnected() }

// Create writes a row that does not exist, and returns its revision. A row that was deleted is free only
// among goal index entries; of any other kind its marker is damage.
//
// Errors: ErrConflict (the row exists), ErrCorrupt, ErrUnavailable (unknown), a *wire.KeyError.
func (r *Records) Create(ctx context.Context, key wire.Key, value []byte) (uint64, error) {
	subject, err := r.subject(key)
	if err != nil {
		return 0, fmt.Errorf("create record: %w", err)
	}
	rev, err := r.publish(ctx, subject, value, 0, "")
	if errors.Is(err, ErrConflict) {
		// What stands there may be a marker: free for an index entry, damage for everything else.
		m, gerr := r.last(ctx, key, subject)
		switch {
		case gerr != nil && !errors.Is(gerr, ErrAbsent):
			err = gerr
		case gerr != nil:
			err = fmt.Errorf("%w and went away again", ErrConflict)
		case !m.marker():
		case key.Kind == wire.KindGoalIndex:
			rev, err = r.publish(ctx, subject, value, m.Seq, "")
		default:
			err = ErrCorrupt
		}
	}
	if err != nil {
		return 0, fmt.Errorf("create record %s: %w", nameOf(key), err)
	}
	return rev, nil
}

// Update replaces the row that has revision rev, and returns its new one.
//
// Errors: ErrConflict (it has another revision, or is gone), ErrUnavailable (unknown), a *wire.KeyError.
func (r *Records) Update(ctx context.Context, key wire.Key, value []byte, rev uint64) (uint64, error) {
	subject, err := r.subject(key)
	if err == nil && rev == 0 {
		err = errors.New("no revision given")
	}
	if err != nil {
		return 0, fmt.Errorf("update record: %w", err)
	}
	if rev, err = r.publish(ctx, subject, value, rev, ""); err != nil {
		return 0, fmt.Errorf("update record %s: %w", nameOf(key), err)
	}
	return rev, nil
}

// Delete removes the row that has revision rev. Only goal index entries are ever deleted. What is removed is
// the message of that revision, which leaves nothing behind to be scanned at every boot; a store that does
// not allow that, and Rows of credentials that do not and that nobody erases for, get the delete marker of a key-value
// bucket. (A marker must not be removed in its turn: a
// server that was killed would find the row below it again, since it notes on disk only the removals that
// somebody asked for.)
//
// Errors: ErrConflict, ErrUnavailable (unknown), a *wire.KeyError.
func (r *Records) Delete(ctx context.Context, key wire.Key, rev uint64) error {
	subject, err := r.subject(key)
	if err == nil && key.Kind != wire.KindGoalIndex {
		err = errors.New("rows of this kind are never deleted")
	}
	if err == nil && rev == 0 {
		err = errors.New("no revision given")
	}
	if err != nil {
		return fmt.Errorf("delete record: %w", err)
	}
	err = r.erase(ctx, r.stream(key), rev)
	var refusal *nats.APIError
	if errors.As(err, &refusal) || errors.Is(err, ErrDenied) || errors.Is(err, errNoEraser) {
		_, err = r.publish(ctx, subject, nil, rev, "DEL")
	}
	if err != nil {
		return fmt.Errorf("delete record %s: %w", nameOf(key), err)
	}
	return nil
}

// Get reads a row from the leader.
//
// Errors: ErrAbsent, ErrCorrupt, ErrUnavailable, a *wire.KeyError.
func (r *Records) Get(ctx context.Context, key wire.Key) (Entry, error) {
	subject, err := r.subject(key)
	if err != nil {
		return Entry{}, fmt.Errorf("read record: %w", err)
	}
	m, err := r.last(ctx, key, subject)
	if err == nil && m.marker() {
		err = ErrCorrupt
		if key.Kind == wire.KindGoalIndex {
			err = ErrAbsent
		}
	}
	if err != nil {
		return Entry{}, fmt.Errorf("read record %s: %w", nameOf(key), err)
	}
	return Entry{Key: key, Value: m.Data, Rev: m.Seq, At: m.Time}, nil
}

// Scan reads all rows whose key begins with the given tokens ("goalidx.manager", or what wire.KeyFilter
// returns), from the leader, in the order they were written. A row that is rewritten meanwhile may be
// returned twice, the later one last. Keys that are not of a known form are left out: they are nobody's
// here. A marker where no deletion is allowed is returned as ErrCorrupt, after all other rows.
//
// Errors: ErrUnavailable, and then the rows are not all of them.
func (r *Records) Scan(ctx context.Context, prefix string) ([]Entry, error) {
	prefix = strings.TrimSuffix(prefix, ".>")
	kind, _, _ := strings.Cut(prefix, ".")
	bucket := bucketOf(kind)
	if bucket == "" {
		return nil, fmt.Errorf("scan records: kind %q is not known", kind)
	}
	stream := r.names[string(bucket)]
	root := wire.BucketSubject(strings.TrimPrefix(stream, "KV_"), "")
	var rows []Entry
	var damaged error
	for seq := uint64(1); ; {
		m, err := r.message(ctx, stream, map[string]any{"seq": seq, "next_by_subj": root + prefix + ".>"})
		if errors.Is(err, ErrAbsent) {
			return rows, damaged
		}
		if err != nil {
			return rows, fmt.Errorf("scan records %s: %w", prefix, err)
		}
		seq = m.Seq + 1
		key, err := wire.ParseKey(strings.TrimPrefix(m.Subject, root))
		switch {
		case err != nil:
		case !m.marker():
			rows = append(rows, Entry{Key: key, Value: m.Data, Rev: m.Seq, At: m.Time})
		case key.Kind != wire.KindGoalIndex:
			damaged = errors.Join(damaged, fmt.Errorf("scan records: %s: %w", nameOf(key), ErrCorrupt))
		}
	}
}

// PutFact publishes a fact, create-only, and returns its sequence. The first one stands until it is dropped.
//
// Errors: ErrConflict (there is one), ErrUnavailable (unknown), a *wire.SubjectError.
func (r *Records) PutFact(ctx context.Context, f wire.FactSubject, value []byte) (uint64, error) {
	subject, err := f.Subject()
	if err == nil && f.Space != r.space {
		err = fmt.Errorf("the fact is of space %q", f.Space)
	}
	if err != nil {
		return 0, fmt.Errorf("put fact: %w", err)
	}
	seq, err := r.publish(ctx, subject, value, 0, "")
	if err != nil {
		return 0, fmt.Errorf("put fact %s: %w", subject, err)
	}
	return seq, nil
}

// GetFact reads a fact from the leader.
//
// Errors: ErrAbsent, ErrUnavailable, a *wire.SubjectError.
func (r *Records) GetFact(ctx context.Context, f wire.FactSubject) ([]byte, error) {
	subject, err := f.Subject()
	if err != nil {
		return nil, fmt.Errorf("read fact: %w", err)
	}
	m, err := r.message(ctx, r.names[wire.StreamFact], map[string]any{"last_by_subj": subject})
	if err != nil {
		return nil, fmt.Errorf("read fact %s: %w", subject, err)
	}
	return m.Data, nil
}

// PutArtifact stores a contract document under its artifact digest. That it is stored already is success.
//
// Errors: ErrCorrupt (value has another digest, or other bytes are stored under it), ErrUnavailable.
func (r *Records) PutArtifact(ctx context.Context, digest string, value []byte) error {
	subject, err := wire.ArtifactSubject(r.space, digest)
	if err == nil && wire.Digest(value) != digest {
		err = fmt.Errorf("%w: the bytes have digest %s", ErrCorrupt, wire.Digest(value))
	}
	if err == nil {
		_, err = r.publish(ctx, subject, value, 0, "")
	}
	if errors.Is(err, ErrConflict) {
		_, err = r.GetArtifact(ctx, digest)
	}
	if err != nil {
		return fmt.Errorf("put artifact %s: %w", digest, err)
	}
	return nil
}

// GetArtifact reads a contract document and verifies its digest.
//
// Errors: ErrAbsent, ErrCorrupt, ErrUnavailable.
func (r *Records) GetArtifact(ctx context.Context, digest string) ([]byte, error) {
	subject, err := wire.ArtifactSubject(r.space, digest)
	if err != nil {
		return nil, fmt.Errorf("read artifact: %w", err)
	}
	m, err := r.message(ctx, r.names[wire.StreamContract], map[string]any{"last_by_subj": subject})
	if err == nil && wire.Digest(m.Data) != digest {
		err = ErrCorrupt
	}
	if err != nil {
		return nil, fmt.Errorf("read artifact %s: %w", digest, err)
	}
	return m.Data, nil
}

// subject is where a key is written to, and stream where it is read from.
func (r *Records) subject(key wire.Key) (string, error) {
	name, err := key.Encode()
	if err != nil {
		return "", err
	}
	if key.Foreign() {
		return "", fmt.Errorf("rows of kind %s are never written here", key.Kind)
	}
	return wire.BucketSubject(strings.TrimPrefix(r.stream(key), "KV_"), name), nil
}

func (r *Records) stream(key wire.Key) string { return r.names[string(key.Bucket())] }

// bucketOf is the bucket that keys of a kind live in; a key's form is told by its number of qualifiers.
func bucketOf(kind string) wire.Bucket {
	for n := range 8 {
		if b := (wire.Key{Kind: kind, Qualifiers: make([]string, n)}).Bucket(); b != "" {
			return b
		}
	}
	return ""
}

func nameOf(key wire.Key) string {
	name, err := key.Encode()
	if err != nil {
		return key.Kind
	}
	return name
}

// stored is a message as STREAM.MSG.GET returns it.
type stored struct {
	Subject string    `json:"subject"`
	Seq     uint64    `json:"seq"`
	Hdrs    []byte    `json:"hdrs"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`
}

// marker reports whether the message is a deletion. The server's own marks of an expired or purged
// subject count as well: whatever took the row away, it is not there.
func (m stored) marker() bool {
	if len(m.Hdrs) == 0 {
		return false
	}
	h, err := nats.DecodeHeadersMsg(m.Hdrs)
	if err != nil {
		return true // unreadable is not present
	}
	return h.Get(wire.HeaderKVOperation) != "" || h.Get("Nats-Marker-Reason") != ""
}

// last is the latest message of a key, marker or not.
func (r *Records) last(ctx context.Context, key wire.Key, subject string) (stored, error) {
	return r.message(ctx, r.stream(key), map[string]any{"last_by_subj": subject})
}

func (r *Records) message(ctx context.Context, stream string, query map[string]any) (stored, error) {
	raw, err := r.api(ctx, "STREAM.MSG.GET."+stream, query)
	if err != nil {
		return stored{}, err
	}
	var reply struct {
		Message stored `json:"message"`
	}
	if err := json.Unmarshal(raw, &reply); err != nil {
		return stored{}, fmt.Errorf("%w readably: %w", ErrUnavailable, err)
	}
	return reply.Message, nil
}

// Waits before a request to the API is repeated that nobody was there for.
const (
	absentTries = 6
	absentPause = 5 * time.Millisecond // doubles
)

// api sends a request to the JetStream API. A server that is given an account anew, as it is by every revocation, takes
// the API away from it for a moment: a request that met nobody was not carried out, and is sent again.
func (r *Records) api(ctx context.Context, what string, body any) ([]byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		reply, err := r.request(ctx, &nats.Msg{Subject: "$JS.API." + what, Data: raw})
		if !errors.Is(err, nats.ErrNoResponders) || try == absentTries {
			return reply, err
		}
		select {
		case <-time.After(absentPause << try):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// publish writes one message if the last one of its subject has the expected sequence.
func (r *Records) publish(ctx context.Context, subject string, value []byte, expect uint64, op string) (uint64, error) {
	h := nats.Header{wire.HeaderExpectedSeq: {strconv.FormatUint(expect, 10)}}
	if op != "" {
		h[wire.HeaderKVOperation] = []string{op}
	}
	raw, err := r.request(ctx, &nats.Msg{Subject: subject, Header: h, Data: value})
	if err != nil {
		return 0, err
	}
	var ack struct {
		Stream string `json:"stream"`
		Seq    uint64 `json:"seq"`
	}
	if err := json.Unmarshal(raw, &ack); err != nil || ack.Seq == 0 {
		return 0, fmt.Errorf("%w to a write readably", ErrUnavailable)
	}
	return ack.Seq, nil
}

func (r *Records) request(ctx context.Context, m *nats.Msg) ([]byte, error) {
	if !r.nc.IsConnected() {
		return nil, fmt.Errorf("%w: not connected: %w", ErrUnavailable, ErrNotWritten)
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	denied := r.denied.await(m.Subject)
	defer r.denied.forget(m.Subject, denied)
	go r.watch(r.nc.Stats().Reconnects, done, denied, cancel)
	reply, err := r.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		select {
		case <-denied:
			return nil, fmt.Errorf("%w: %w: %s: %w", ErrUnavailable, ErrDenied, m.Subject, ErrNotWritten)
		default:
		}
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%w: nobody keeps %s (is JetStream on?): %w: %w", ErrUnavailable, m.Subject, ErrNotWritten, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrMaxPayload):
		return nil, fmt.Errorf("%w: %w: %w", ErrUnavailable, err, ErrNotWritten)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var refusal struct {
		Error *nats.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &refusal); err != nil {
		return nil, fmt.Errorf("%w readably: %w", ErrUnavailable, err)
	}
	if e := refusal.Error; e != nil {
		return nil, refused(e)
	}
	return reply.Data, nil
}

// watch ends a request whose connection is lost, and one that the server refused to take. That is told late, at times when the next connection is there
// already: a request on that one goes on.
func (r *Records) watch(connection uint64, done, denied <-chan struct{}, cancel context.CancelFunc) {
	for {
		select {
		case <-denied:
			cancel()
			return
		case <-r.link.Load().up.Done():
			if !r.nc.IsConnected() || r.nc.Stats().Reconnects != connection {
				cancel()
				return
			}
		case <-done:
			return
		}
	}
}

// refused maps a refusal of the store. What is not known to mean that nothing was written is unknown.
func refused(e *nats.APIError) error {
	switch e.ErrorCode {
	case nats.JSErrCodeStreamWrongLastSequence, nats.JSErrCodeStreamWrongLastSequenceConstant, jsSequenceNotFound:
		return ErrConflict
	case nats.JSErrCodeMessageNotFound:
		return ErrAbsent
	case nats.JSErrCodeStreamNotFound:
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, e, ErrNotWritten)
	}
	if e.Code == http.StatusBadRequest || e.Code == http.StatusForbidden {
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, e, ErrNotWritten)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, e)
}
