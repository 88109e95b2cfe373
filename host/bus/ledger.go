package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// headerTTL makes the broker forget a message after a while.
const headerTTL = "Nats-TTL"

// jsTTLDisabled: the stream does not forget single messages.
const jsTTLDisabled nats.ErrorCode = 10166

// Rows are the records of a space over this connection, which has to be a Strict or a OneShot one where anything is
// written: nothing is made and nothing is looked for, so that a credential for a few rows is enough. They end with the
// connection.
func (b *Bus) Rows(space string) (*Records, error) {
	stores, err := recordStores(space)
	if err != nil {
		return nil, fmt.Errorf("open rows: %w", err)
	}
	r := &Records{space: space, names: map[string]string{}, nc: b.nc, denied: &b.denied, link: b.line, marks: true}
	for what, c := range stores {
		r.names[what] = c.Name
	}
	return r, nil
}

// CreateFor is Create of a row that the broker forgets after ttl, rounded up to seconds.
//
// Errors: as of Create, and ErrStoreUnfit (the bucket keeps its rows for ever).
func (r *Records) CreateFor(ctx context.Context, key wire.Key, value []byte, ttl time.Duration) (uint64, error) {
	return r.writeFor(ctx, "create", key, value, 0, ttl)
}

// UpdateFor is Update of a row that the broker forgets after ttl, rounded up to seconds. Without it a row that
// was to end would stay for ever.
//
// Errors: as of Update, and ErrStoreUnfit.
func (r *Records) UpdateFor(ctx context.Context, key wire.Key, value []byte, rev uint64, ttl time.Duration) (uint64, error) {
	if rev == 0 {
		return 0, errors.New("update record: no revision given")
	}
	return r.writeFor(ctx, "update", key, value, rev, ttl)
}

func (r *Records) writeFor(ctx context.Context, what string, key wire.Key, value []byte, rev uint64, ttl time.Duration) (uint64, error) {
	subject, err := r.subject(key)
	if err != nil {
		return 0, fmt.Errorf("%s record: %w", what, err)
	}
	seconds := max(1, int64((ttl+time.Second-1)/time.Second))
	raw, err := r.request(ctx, &nats.Msg{Subject: subject, Data: value, Header: nats.Header{
		wire.HeaderExpectedSeq: {strconv.FormatUint(rev, 10)},
		headerTTL:              {strconv.FormatInt(seconds, 10) + "s"},
	}})
	var refusal *nats.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode == jsTTLDisabled {
		err = fmt.Errorf("%w: stream %s keeps every row for ever (allow_msg_ttl is off)", ErrStoreUnfit, r.stream(key))
	}
	var ack struct {
		Seq uint64 `json:"seq"`
	}
	if err == nil && (json.Unmarshal(raw, &ack) != nil || ack.Seq == 0) {
		err = fmt.Errorf("%w to a write readably", ErrUnavailable)
	}
	if err != nil {
		return 0, fmt.Errorf("%s record %s: %w", what, nameOf(key), err)
	}
	return ack.Seq, nil
}
