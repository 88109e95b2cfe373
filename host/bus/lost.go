package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// StoreFact is how one stream of a space stands on its broker.
type StoreFact struct {
	Name    string
	Missing bool
	// Unfit says why it cannot keep what has to be kept; empty when it can.
	Unfit    string
	Messages uint64
}

// Stores looks at every stream of a space, and makes none. They are in the order of their names.
//
// Errors: ErrUnavailable.
func (b *Bus) Stores(ctx context.Context, space string) ([]StoreFact, error) {
	checks := map[string]func(raw json.RawMessage) (string, error){}
	records, err := recordStores(space)
	if err != nil {
		return nil, fmt.Errorf("look at streams: %w", err)
	}
	for _, want := range records {
		checks[want.Name] = func(raw json.RawMessage) (string, error) {
			var have storeConfig
			err := json.Unmarshal(raw, &have)
			return want.unfit(have), err
		}
	}
	messages, err := messageStores(space)
	if err != nil {
		return nil, fmt.Errorf("look at streams: %w", err)
	}
	for _, want := range messages {
		checks[want.Name] = func(raw json.RawMessage) (string, error) {
			var have messageStore
			err := json.Unmarshal(raw, &have)
			return want.unfit(have), err
		}
	}
	leases, err := wire.BucketName(wire.BucketManager, space)
	if err != nil {
		return nil, fmt.Errorf("look at streams: %w", err)
	}
	checks[wire.BucketStream(leases)] = func(json.RawMessage) (string, error) { return "", nil }

	js := b.messages(space)
	var out []StoreFact
	for name, unfit := range checks {
		f := StoreFact{Name: name}
		raw, err := js.api(ctx, "STREAM.INFO."+name, struct{}{})
		var refusal *nats.APIError
		var info struct {
			Config json.RawMessage `json:"config"`
			State  struct {
				Messages uint64 `json:"messages"`
			} `json:"state"`
		}
		switch {
		case errors.As(err, &refusal) && refusal.ErrorCode == nats.JSErrCodeStreamNotFound:
			f.Missing, err = true, nil
		case err == nil:
			if err = json.Unmarshal(raw, &info); err == nil {
				f.Messages = info.State.Messages
				f.Unfit, err = unfit(info.Config)
			}
			if err != nil {
				err = fmt.Errorf("%w readably: %w", ErrUnavailable, err)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("look at stream %s: %w", name, err)
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b StoreFact) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// StreamNames lists the streams of a space that a host makes and remembers.
func StreamNames(space string) ([]string, error) {
	records, err := recordStores(space)
	if err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	messages, err := messageStores(space)
	if err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	var names []string
	for _, c := range records {
		names = append(names, c.Name)
	}
	for _, c := range messages {
		if c.lasting {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// HasDurable reports whether a stream has a durable of that name. A stream that is gone has none.
//
// Errors: ErrUnavailable.
func (b *Bus) HasDurable(ctx context.Context, space, stream, name string) (bool, error) {
	on, err := wire.StreamName(stream, space)
	if err == nil {
		_, err = b.messages(space).api(ctx, "CONSUMER.INFO."+on+"."+name, struct{}{})
	}
	var refusal *nats.APIError
	if errors.As(err, &refusal) && (refusal.ErrorCode == nats.JSErrCodeConsumerNotFound || refusal.ErrorCode == nats.JSErrCodeStreamNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at durable %s of %s: %w", name, on, err)
	}
	return true, nil
}
