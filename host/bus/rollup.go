package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// sharedBuckets are the buckets in which principals of all kinds have a row of their own beside those of others.
var sharedBuckets = []wire.Bucket{wire.BucketPresence, wire.BucketChannels, wire.BucketMembership, wire.BucketManager}

// ForbidRollups sees to it that no write of one row of presence, channels, membership or leases takes away the others: a
// stream that allows the header Nats-Rollup empties itself for whoever may write a single subject of it. Buckets that
// this package makes do not; those of a client library, and of earlier versions, do, and are changed. Nothing else of
// them is. All four have to be there.
//
// Errors: ErrStoreUnfit (the text names the bucket and the repair), ErrUnavailable, a refusal of the broker.
func (b *Bus) ForbidRollups(ctx context.Context, space string) error {
	r := b.messages(space)
	g, ctx := errgroup.WithContext(ctx)
	for _, bucket := range sharedBuckets {
		g.Go(func() error {
			name, err := wire.BucketName(bucket, space)
			if err == nil {
				err = r.forbidRollups(ctx, wire.BucketStream(name))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("forbid rollups in %s: %w", space, err)
	}
	return nil
}

// streamText is a stream's configuration as the broker told it: what is unknown here is sent back as it came.
type streamText map[string]json.RawMessage

func (s streamText) allowsRollups() bool {
	return string(s["allow_rollup_hdrs"]) == "true" && string(s["deny_purge"]) != "true"
}

func (r *Records) forbidRollups(ctx context.Context, stream string) error {
	var have struct {
		Config streamText `json:"config"`
	}
	ask := func(what string, body any) error {
		raw, err := r.api(ctx, what+"."+stream, body)
		if err != nil {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
		have.Config = nil
		if err := json.Unmarshal(raw, &have); err != nil || have.Config == nil {
			return fmt.Errorf("stream %s: %w readably", stream, ErrUnavailable)
		}
		return nil
	}
	if err := ask("STREAM.INFO", struct{}{}); err != nil || !have.Config.allowsRollups() {
		return err
	}
	want := maps.Clone(have.Config)
	delete(want, "allow_rollup_hdrs")
	delete(want, "subject_delete_marker_ttl") // implies it
	if err := ask("STREAM.UPDATE", want); err != nil {
		return err
	}
	if have.Config.allowsRollups() {
		return fmt.Errorf("%w: stream %s: whoever may write one row may clear all (allow_rollup_hdrs); change its configuration, or move it away", ErrStoreUnfit, stream)
	}
	return nil
}
