package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of Records.
var (
	// ErrStoreLost: this host has written to a stream that the broker does not have. What was in it is
	// unknown, so it is never made anew behind the user's back.
	ErrStoreLost = errors.New("a store of the mesh is gone")
	// ErrStoreUnfit: a stream is there, and would lose what has to be kept.
	ErrStoreUnfit = errors.New("a store of the mesh would lose records")
)

// storeConfig is the part of a stream's configuration that matters here.
type storeConfig struct {
	Name              string          `json:"name"`
	Subjects          []string        `json:"subjects"`
	Retention         string          `json:"retention"`
	Storage           string          `json:"storage"`
	Discard           string          `json:"discard"`
	MaxMsgsPerSubject int64           `json:"max_msgs_per_subject"`
	DiscardNewPer     bool            `json:"discard_new_per_subject,omitempty"`
	MaxMsgs           int64           `json:"max_msgs"`
	MaxBytes          int64           `json:"max_bytes"`
	MaxAge            time.Duration   `json:"max_age"`
	NumReplicas       int             `json:"num_replicas"`
	AllowDirect       bool            `json:"allow_direct"`
	DenyDelete        bool            `json:"deny_delete"`
	DenyPurge         bool            `json:"deny_purge"`
	AllowMsgTTL       bool            `json:"allow_msg_ttl,omitempty"`
	Mirror            json.RawMessage `json:"mirror,omitempty"`
	Sources           json.RawMessage `json:"sources,omitempty"`
}

// recordStores are the streams of Records, by the key of Records.names, with what the contract says of
// each. Nothing ages, nothing is bounded and nothing is mirrored: the oldest row may be the one that
// matters. The buckets are plain streams, since a client library that makes key-value buckets switches on
// what these must not have.
func recordStores(space string) (map[string]storeConfig, error) {
	plain := storeConfig{Retention: "limits", Storage: "file", Discard: "new", MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, NumReplicas: 1}
	stores := map[string]storeConfig{}
	for _, stream := range []string{wire.StreamFact, wire.StreamContract} {
		c := plain
		c.AllowDirect = true
		if stream == wire.StreamFact {
			// A fact is written once, and once more when its data is evicted; more is refused. The server keeps the
			// block of a stream that is being written in memory as a whole, and gives one with such a bound blocks of
			// half the size.
			c.MaxMsgsPerSubject, c.DiscardNewPer = 2, true
		}
		c.DenyDelete, c.DenyPurge = stream == wire.StreamContract, stream == wire.StreamContract
		var err error
		if c.Name, err = wire.StreamName(stream, space); err != nil {
			return nil, err
		}
		if c.Subjects, err = wire.StreamSubjects(stream, space); err != nil {
			return nil, err
		}
		stores[stream] = c
	}
	for _, bucket := range []wire.Bucket{wire.BucketRecords, wire.BucketAuth} {
		name, err := wire.BucketName(bucket, space)
		if err != nil {
			return nil, err
		}
		c := plain
		c.Name, c.Subjects, c.MaxMsgsPerSubject = wire.BucketStream(name), []string{wire.BucketSubject(name, ">")}, 1
		c.AllowDirect = bucket == wire.BucketRecords
		c.AllowMsgTTL = bucket == wire.BucketAuth // rows of credentials end with them
		stores[string(bucket)] = c
	}
	return stores, nil
}

// unfit says why a stream that somebody else made cannot keep what this store has to keep; empty when it
// can. A finite bound is allowed where it refuses new messages instead of dropping old ones.
func (want storeConfig) unfit(have storeConfig) string {
	finite := have.MaxMsgs > 0 || have.MaxBytes > 0
	switch {
	case !slices.Equal(have.Subjects, want.Subjects):
		return fmt.Sprintf("its subjects are %v, not %v", have.Subjects, want.Subjects)
	case have.Retention != want.Retention:
		return "its retention is " + have.Retention + ", not limits"
	case have.Storage != want.Storage:
		return "it is kept in " + have.Storage + ", not in files"
	case have.MaxAge > 0 && have.MaxAge < wire.ReceiptRetention && want.Name == have.Name && strings.HasPrefix(have.Name, wire.StreamFact+"_"):
		return fmt.Sprintf("it forgets facts after %s, before %s", have.MaxAge, wire.ReceiptRetention)
	case have.MaxAge > 0 && !strings.HasPrefix(have.Name, wire.StreamFact+"_"):
		return fmt.Sprintf("it forgets after %s", have.MaxAge)
	case finite && have.Discard != "new":
		return "it is bounded and drops old messages"
	case want.MaxMsgsPerSubject == 1 && have.MaxMsgsPerSubject != 1:
		return "it keeps more than one value of a key"
	case want.MaxMsgsPerSubject != 1 && have.MaxMsgsPerSubject > 0 && (have.Discard != "new" || !have.DiscardNewPer):
		return "it drops old messages of a subject"
	case len(have.Mirror) > 0 || len(have.Sources) > 0:
		return "it is a copy of another stream"
	case have.AllowDirect && !want.AllowDirect:
		return "it answers reads from any copy (allow_direct)"
	}
	return ""
}

// Records opens the durable state of a space, and makes what is missing of it. known says whether this
// host has used a stream before, and made is told when it begins to: a stream that is known and that the
// broker lacks is not made again.
//
// Errors: ErrStoreLost and ErrStoreUnfit, whose text names the stream and the repair; ErrUnavailable;
// that of made.
func (b *Bus) Records(ctx context.Context, space string, known func(name string) bool, made func(name string) error) (*Records, error) {
	stores, err := recordStores(space)
	if err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	r := &Records{space: space, names: map[string]string{}, denied: &b.denied, nc: b.nc, link: b.line}
	if !b.strict {
		r.link = newLifeline()
		r.nc, err = b.dial("records", nats.ReconnectBufSize(-1), nats.DisconnectErrHandler(func(*nats.Conn, error) { r.link.lost() }))
		if err != nil {
			return nil, fmt.Errorf("open records: %w", err)
		}
	}
	for what, c := range stores {
		r.names[what] = c.Name
	}
	// One round trip for all of them: a host is up the sooner.
	results := make(chan error, len(stores))
	for _, c := range stores {
		go func() { results <- r.open(ctx, c, known(c.Name)) }()
	}
	err = opened(results, len(stores), "records")
	for _, c := range stores {
		if err == nil && !known(c.Name) {
			err = made(c.Name)
		}
	}
	if err != nil {
		if !b.strict {
			r.nc.Close()
		}
		return nil, fmt.Errorf("open records: %w", err)
	}
	return r, nil
}

// lostStore is a stream that was used and is gone.
type lostStore string

func (s lostStore) Error() string { return "stream " + string(s) + " is gone" }

// opened collects the results of n streams that were opened side by side. Those that are gone are told of once, with
// what can be done; what says what this host kept in them.
func opened(results <-chan error, n int, what string) error {
	var errs []error
	var lost []string
	for range n {
		err := <-results
		if gone := lostStore(""); errors.As(err, &gone) {
			lost = append(lost, string(gone))
			continue
		}
		errs = append(errs, err)
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		errs = append(errs, fmt.Errorf("%w: this host has kept %s in %s, and the broker has no such stream: "+
			"bring the broker's store back from a backup, or connect to the broker that has it; "+
			"to go on without what was kept there: cotal-host doctor --repair; in an open space move journal.db away; seats are found all the same", ErrStoreLost, what, strings.Join(lost, ", ")))
	}
	return errors.Join(errs...)
}

// open finds or makes one stream.
func (r *Records) open(ctx context.Context, want storeConfig, known bool) error {
	raw, err := r.api(ctx, "STREAM.INFO."+want.Name, struct{}{})
	var refusal *nats.APIError
	if err != nil && errors.As(err, &refusal) && refusal.ErrorCode == nats.JSErrCodeStreamNotFound {
		if known {
			return lostStore(want.Name)
		}
		raw, err = r.api(ctx, "STREAM.CREATE."+want.Name, want)
		if err != nil && errors.As(err, &refusal) && refusal.ErrorCode == nats.JSErrCodeStreamNameInUse {
			raw, err = r.api(ctx, "STREAM.INFO."+want.Name, struct{}{}) // another host was quicker, with other settings
		}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", want.Name, err)
	}
	var info struct {
		Config storeConfig `json:"config"`
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		return fmt.Errorf("stream %s: %w readably: %w", want.Name, ErrUnavailable, err)
	}
	if why := want.unfit(info.Config); why != "" {
		return fmt.Errorf("%w: stream %s: %s; change its configuration, or move it away", ErrStoreUnfit, want.Name, why)
	}
	return nil
}
