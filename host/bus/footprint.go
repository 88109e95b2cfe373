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

// jsConsumerExists: there is a durable of that name with another configuration. The library has no name for it.
const jsConsumerExists nats.ErrorCode = 10148

// markerLife is how long the mark of a removed row is kept. A server that was killed finds on its disk what it had not
// noted there as removed, which it does every two minutes: below a mark that was gone by then, the row was back.
const markerLife = 10 * time.Minute

// LastSequence is the sequence of the last message of a stream (wire.StreamDirect, …; wire.BucketRecords as a
// string for a bucket), by its leader; 0 of an empty one.
//
// Errors: ErrAbsent (there is no such stream), ErrUnavailable.
func (b *Bus) LastSequence(ctx context.Context, space, stream string) (uint64, error) {
	_, seq, err := b.messages(space).lastSequence(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("read last sequence: %w", err)
	}
	return seq, nil
}

func (r *Records) lastSequence(ctx context.Context, stream string) (name string, seq uint64, err error) {
	if name, err = storeName(r.space, stream); err != nil {
		return "", 0, err
	}
	raw, err := r.api(ctx, "STREAM.INFO."+name, struct{}{})
	var refusal *nats.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode == nats.JSErrCodeStreamNotFound {
		err = fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	var info struct {
		State struct {
			LastSeq *uint64 `json:"last_seq"`
		} `json:"state"`
	}
	if err == nil && (json.Unmarshal(raw, &info) != nil || info.State.LastSeq == nil) {
		err = fmt.Errorf("%w readably", ErrUnavailable)
	}
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", name, err)
	}
	return name, *info.State.LastSeq, nil
}

func storeName(space, stream string) (string, error) {
	if bucket, err := wire.BucketName(wire.Bucket(stream), space); err == nil {
		return wire.BucketStream(bucket), nil
	}
	return wire.StreamName(stream, space)
}

// MakeDirectQueue makes the durable of the direct messages to one life, from a sequence on. One that is there
// already was made for this life, since it carries its UID, and stands as it is.
//
// Errors: ErrUnavailable (unknown, unless it is ErrNotWritten), a *wire.SubjectError.
func (b *Bus) MakeDirectQueue(ctx context.Context, space string, life wire.Caller, from uint64) error {
	p := wire.Principal{Owner: life.Owner, Actor: life.Actor}
	filter, err := wire.DirectFilter(space, p)
	if err == nil {
		err = b.messages(space).makeDurable(ctx, wire.StreamDirect, wire.DurableDirect(p, life.UID), filter, map[string]any{
			"deliver_policy": "by_start_sequence", "opt_start_seq": max(from, 1),
		})
	}
	if err != nil {
		return fmt.Errorf("make queue of direct messages: %w", err)
	}
	return nil
}

// MakeTaskQueue makes the durable of a role. It belongs to everybody who has the role, and is never taken away
// with a life.
//
// Errors: as of MakeDirectQueue.
func (b *Bus) MakeTaskQueue(ctx context.Context, space, role string) error {
	filter, err := wire.ServiceFilter(space, role)
	if err == nil {
		err = b.messages(space).makeDurable(ctx, wire.StreamTask, wire.DurableService(role), filter, map[string]any{"deliver_policy": "all"})
	}
	if err != nil {
		return fmt.Errorf("make queue of tasks: %w", err)
	}
	return nil
}

func (r *Records) makeDurable(ctx context.Context, stream, name, filter string, config map[string]any) error {
	on, err := wire.StreamName(stream, r.space)
	if err != nil {
		return err
	}
	for k, v := range map[string]any{
		"durable_name": name, "name": name, "filter_subject": filter, "ack_policy": "explicit", "ack_wait": wire.AckWait,
		"max_ack_pending": wire.ConsumerPending,
	} {
		config[k] = v
	}
	_, err = r.api(ctx, "CONSUMER.CREATE."+on+"."+name+"."+filter, map[string]any{"stream_name": on, "config": config, "action": "create"})
	var refusal *nats.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode == jsConsumerExists {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", name, on, err)
	}
	return nil
}

// RemoveDurable takes a durable away, and says whether it was there.
//
// Errors: ErrUnavailable (unknown).
func (b *Bus) RemoveDurable(ctx context.Context, space, stream, name string) (was bool, err error) {
	on, err := wire.StreamName(stream, space)
	if err == nil {
		_, err = b.messages(space).api(ctx, "CONSUMER.DELETE."+on+"."+name, struct{}{})
	}
	var refusal *nats.APIError
	if errors.As(err, &refusal) && (refusal.ErrorCode == nats.JSErrCodeConsumerNotFound || refusal.ErrorCode == nats.JSErrCodeStreamNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove durable %s of %s: %w", name, on, err)
	}
	return true, nil
}

// PutMembership writes which channels a participant is on, for people to see.
//
// Errors: ErrUnavailable (unknown).
func (b *Bus) PutMembership(ctx context.Context, space string, p wire.Principal, m wire.Membership) error {
	raw, err := json.Marshal(m)
	if err == nil {
		_, err = wire.DecodeMembership(raw)
	}
	if err == nil {
		err = b.putRow(ctx, space, wire.BucketMembership, p.String(), nats.Header{}, raw)
	}
	if err != nil {
		return fmt.Errorf("write membership of %s: %w", p, err)
	}
	return nil
}

// RemoveMembership takes that row away. A mark of it stays for ten minutes, where the bucket can forget it.
//
// Errors: ErrUnavailable (unknown).
func (b *Bus) RemoveMembership(ctx context.Context, space string, p wire.Principal) error {
	h := nats.Header{
		wire.HeaderKVOperation: {"PURGE"}, // the bucket keeps the last value alone, and allows no rollups
		headerTTL:              {strconv.Itoa(int(markerLife/time.Second)) + "s"},
	}
	err := b.putRow(ctx, space, wire.BucketMembership, p.String(), h, nil)
	var refusal *nats.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode == jsTTLDisabled {
		h.Del(headerTTL)
		err = b.putRow(ctx, space, wire.BucketMembership, p.String(), h, nil)
	}
	if err != nil {
		return fmt.Errorf("remove membership of %s: %w", p, err)
	}
	return nil
}

func (b *Bus) putRow(ctx context.Context, space string, bucket wire.Bucket, key string, h nats.Header, value []byte) error {
	name, err := wire.BucketName(bucket, space)
	if err != nil {
		return err
	}
	raw, err := b.messages(space).request(ctx, &nats.Msg{Subject: wire.BucketSubject(name, key), Header: h, Data: value})
	var ack struct {
		Seq uint64 `json:"seq"`
	}
	if err == nil && (json.Unmarshal(raw, &ack) != nil || ack.Seq == 0) {
		err = fmt.Errorf("%w to a write readably", ErrUnavailable)
	}
	return err
}

// Frontier is where the streams stand that facts and records of a life are in: their last sequences, by name.
//
// Errors: ErrUnavailable.
func (r *Records) Frontier(ctx context.Context) (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, what := range []string{wire.StreamFact, string(wire.BucketRecords)} {
		name, seq, err := r.lastSequence(ctx, what)
		if err != nil {
			return nil, fmt.Errorf("read frontier: %w", err)
		}
		out[name] = seq
	}
	return out, nil
}
