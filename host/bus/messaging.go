package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// messageStore is the configuration of a stream of the messaging plane.
type messageStore struct {
	Name              string        `json:"name"`
	Subjects          []string      `json:"subjects"`
	Retention         string        `json:"retention"`
	Storage           string        `json:"storage"`
	Discard           string        `json:"discard"`
	MaxMsgsPerSubject int64         `json:"max_msgs_per_subject"`
	MaxMsgs           int64         `json:"max_msgs"`
	MaxBytes          int64         `json:"max_bytes"`
	MaxAge            time.Duration `json:"max_age"`
	DuplicateWindow   time.Duration `json:"duplicate_window,omitempty"`
	NumReplicas       int           `json:"num_replicas"`
	AllowDirect       bool          `json:"allow_direct"`
	AllowRollup       bool          `json:"allow_rollup_hdrs"`
	DenyDelete        bool          `json:"deny_delete"`
	AllowMsgTTL       bool          `json:"allow_msg_ttl,omitempty"`

	// lasting: what is in it is worth something. One that is known and gone is not made anew. The rest, presence
	// and who is on which channel, is said again within seconds by those it is about.
	lasting bool
}

// messageStores are the streams and buckets of the messaging plane of a space. Direct messages and tasks
// answer no direct reads: whoever may ask for one by its number would read everybody's.
func messageStores(space string) ([]messageStore, error) {
	var stores []messageStore
	for _, stream := range []string{wire.StreamChat, wire.StreamDirect, wire.StreamTask} {
		c := messageStore{
			Retention: "limits", Storage: "file", Discard: "old", MaxMsgsPerSubject: -1, MaxMsgs: -1, MaxBytes: -1,
			NumReplicas: 1, DuplicateWindow: wire.DuplicateWindow, lasting: true,
		}
		switch stream {
		case wire.StreamChat:
			c.MaxMsgsPerSubject, c.AllowDirect = wire.ChatPerSubject, true
		case wire.StreamTask:
			c.Retention = "workqueue"
		}
		var err error
		if c.Name, err = wire.StreamName(stream, space); err != nil {
			return nil, err
		}
		if c.Subjects, err = wire.StreamSubjects(stream, space); err != nil {
			return nil, err
		}
		stores = append(stores, c)
	}
	for _, bucket := range []wire.Bucket{wire.BucketPresence, wire.BucketChannels, wire.BucketMembership} {
		name, err := wire.BucketName(bucket, space)
		if err != nil {
			return nil, err
		}
		// What client libraries make for a key-value bucket, since they open these as such; but for rollups, see ForbidRollups.
		c := messageStore{
			Name: wire.BucketStream(name), Subjects: []string{wire.BucketSubject(name, ">")}, Retention: "limits", Storage: "file",
			Discard: "new", MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxBytes: -1, NumReplicas: 1, DuplicateWindow: wire.DuplicateWindow,
			AllowDirect: true, DenyDelete: true, lasting: bucket == wire.BucketChannels,
			AllowMsgTTL: bucket == wire.BucketMembership, // what is left of a row that was removed
		}
		if bucket == wire.BucketPresence {
			c.MaxAge, c.DuplicateWindow = wire.PresenceWindow, wire.PresenceWindow
		}
		stores = append(stores, c)
	}
	return stores, nil
}

// unfit says why a stream that somebody else made cannot serve as this one; empty when it can. Bounds are its
// maker's affair.
func (want messageStore) unfit(have messageStore) string {
	switch {
	case !slices.Equal(have.Subjects, want.Subjects):
		return fmt.Sprintf("its subjects are %v, not %v", have.Subjects, want.Subjects)
	case have.Retention != want.Retention:
		return fmt.Sprintf("its retention is %s, not %s", have.Retention, want.Retention)
	case have.MaxAge != want.MaxAge && want.MaxAge > 0:
		return fmt.Sprintf("a record of it lives %s, not %s", have.MaxAge, want.MaxAge)
	case have.AllowDirect && !want.AllowDirect:
		return "it answers direct reads"
	case want.MaxMsgsPerSubject == 1 && have.MaxMsgsPerSubject != 1:
		return "it keeps more than one value of a key"
	}
	return ""
}

// SetUpMessaging makes what is missing of the messaging plane of a space: channels, direct messages, tasks,
// presence, the channel registry with its defaults. known and made are those of Records: a stream with messages
// that this host has used before, and that the broker lacks, is not made again.
//
// Errors: ErrStoreLost, ErrStoreUnfit (the text names the stream and the repair), ErrUnavailable, that of made.
func (b *Bus) SetUpMessaging(ctx context.Context, space string, known func(name string) bool, made func(name string) error) error {
	stores, err := messageStores(space)
	if err != nil {
		return fmt.Errorf("set up messaging: %w", err)
	}
	js := b.messages(space)
	results := make(chan error, len(stores))
	for _, c := range stores {
		go func() { results <- js.openMessages(ctx, c, known(c.Name)) }()
	}
	if err = opened(results, len(stores), "messages"); err == nil {
		err = js.channelDefaults(ctx)
	}
	for _, c := range stores {
		if err == nil && c.lasting && !known(c.Name) {
			err = made(c.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("set up messaging of %s: %w", space, err)
	}
	return nil
}

// openMessages finds or makes one stream.
func (r *Records) openMessages(ctx context.Context, want messageStore, known bool) error {
	raw, err := r.api(ctx, "STREAM.INFO."+want.Name, struct{}{})
	var refusal *nats.APIError
	if err != nil && errors.As(err, &refusal) && refusal.ErrorCode == nats.JSErrCodeStreamNotFound {
		if known && want.lasting {
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
		Config messageStore `json:"config"`
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		return fmt.Errorf("stream %s: %w readably: %w", want.Name, ErrUnavailable, err)
	}
	if why := want.unfit(info.Config); why != "" {
		return fmt.Errorf("%w: stream %s: %s; change its configuration, or move it away", ErrStoreUnfit, want.Name, why)
	}
	return nil
}

// channelDefaults writes what channels have when they say nothing, unless that is written already.
func (r *Records) channelDefaults(ctx context.Context) error {
	body, err := wire.ChannelDefaults{DeliveryClass: wire.DeliveryDurable}.Encode()
	if err != nil {
		return err
	}
	bucket, err := wire.BucketName(wire.BucketChannels, r.space)
	if err != nil {
		return err
	}
	_, err = r.publish(ctx, wire.BucketSubject(bucket, wire.DefaultsKey), body, 0, "")
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// messages asks the store over the bus's own connection: what is asked here is harmless when it comes late.
func (b *Bus) messages(space string) *Records {
	return &Records{nc: b.nc, space: space, denied: &b.denied, link: b.line}
}

// Mesh is a client of a space on the bus's own connection, for what a host does as a participant. It ends with
// the bus.
func (b *Bus) Mesh(space string, self wire.Caller, name string) (*mesh.Client, error) {
	return mesh.FromConn(b.nc, mesh.Config{Space: space, Caller: self, Name: name})
}

// WatchPresence is mesh.Client.WatchPresence over the bus's own connection. Behind an embedded broker, which has
// only just started, everybody is still on the way back: the view says so for ten seconds.
func (b *Bus) WatchPresence(ctx context.Context, space string) (*mesh.Roster, error) {
	c, err := b.Mesh(space, wire.Caller{}, "")
	if err != nil {
		return nil, fmt.Errorf("watch presence: %w", err)
	}
	opts := []mesh.RosterOption{mesh.OnRejected(func(key string, err error) {
		b.log.Warn("a presence record is not believed", "op", key, "err", err)
	})}
	if b.embedded {
		opts = append(opts, mesh.Settling())
	}
	return c.WatchPresence(ctx, opts...)
}

// Purge clears the history of a space's channels, and with dms the direct messages that were not read yet as
// well. It returns how many messages went; dm is nil when they were not asked for. The queue of tasks stays.
//
// Errors: ErrUnavailable (how many went is unknown), a refusal of the broker.
func (b *Bus) Purge(ctx context.Context, space string, dms bool) (chat int64, dm *int64, err error) {
	js := b.messages(space)
	if chat, err = js.purge(ctx, wire.StreamChat); err != nil {
		return 0, nil, err
	}
	if dms {
		n, err := js.purge(ctx, wire.StreamDirect)
		if err != nil {
			return chat, nil, err
		}
		dm = &n
	}
	return chat, dm, nil
}

func (r *Records) purge(ctx context.Context, stream string) (int64, error) {
	name, err := wire.StreamName(stream, r.space)
	if err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	raw, err := r.api(ctx, "STREAM.PURGE."+name, struct{}{})
	if err != nil {
		return 0, fmt.Errorf("purge %s: %w", name, err)
	}
	var reply struct {
		Purged int64 `json:"purged"`
	}
	if err := json.Unmarshal(raw, &reply); err != nil {
		return 0, fmt.Errorf("purge %s: %w readably: %w", name, ErrUnavailable, err)
	}
	return reply.Purged, nil
}
