package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Fact is one fact as it was read.
type Fact struct {
	Subject wire.FactSubject
	Value   []byte
	Seq     uint64
	At      time.Time // when it was written, by the broker's clock
}

// NextFact reads the first fact of a kind of an endpoint, of any caller, that is at or after a sequence. Facts are
// in the order they were written. One whose subject is of no known form is nobody's here, and left out.
//
// Errors: ErrAbsent (there is none), ErrUnavailable, a *wire.SubjectError.
func (r *Records) NextFact(ctx context.Context, endpoint string, kind wire.FactKind, from uint64) (Fact, error) {
	filter, err := wire.FactFilter(r.space, endpoint, kind)
	if err != nil {
		return Fact{}, fmt.Errorf("read next fact: %w", err)
	}
	for {
		m, err := r.message(ctx, r.names[wire.StreamFact], map[string]any{"seq": max(from, 1), "next_by_subj": filter})
		if err != nil {
			return Fact{}, fmt.Errorf("read next fact %s: %w", filter, err)
		}
		f, err := wire.ParseFactSubject(m.Subject)
		if err == nil {
			return Fact{Subject: f, Value: m.Data, Seq: m.Seq, At: m.Time}, nil
		}
		from = m.Seq + 1
	}
}

// EvictFact puts what is left of a fact in its place: value is written if seq still is the last of the subject, then
// what it stands for is removed. It may be repeated: once value's predecessor is no longer the last, it is removed
// without a word, and reads never see neither.
//
// Errors: ErrUnavailable (unknown), a *wire.SubjectError.
func (r *Records) EvictFact(ctx context.Context, f wire.FactSubject, value []byte, seq uint64) error {
	subject, err := f.Subject()
	if err == nil && (seq == 0 || f.Space != r.space) {
		err = fmt.Errorf("no sequence, or the fact is of space %q", f.Space)
	}
	if err != nil {
		return fmt.Errorf("evict fact: %w", err)
	}
	last, err := r.LastFact(ctx, f)
	if err == nil && last.Seq == seq {
		_, err = r.publish(ctx, subject, value, seq, "")
		if errors.Is(err, ErrConflict) {
			err = nil // by another one, whose value stands
		}
		if err == nil {
			last, err = r.LastFact(ctx, f)
		}
	}
	if errors.Is(err, ErrAbsent) {
		return nil
	}
	if err == nil && last.Seq > seq { // never the only one: nothing would be left of it
		err = r.remove(ctx, r.names[wire.StreamFact], seq)
	}
	if err != nil {
		return fmt.Errorf("evict fact %s: %w", subject, err)
	}
	return nil
}

// DropFact removes a fact; that it is gone is success. After it the subject is free for a new one.
//
// Errors: ErrUnavailable (unknown).
func (r *Records) DropFact(ctx context.Context, seq uint64) error {
	if err := r.remove(ctx, r.names[wire.StreamFact], seq); err != nil {
		return fmt.Errorf("drop fact %d: %w", seq, err)
	}
	return nil
}

// LastFact is the fact that stands under a subject, with its sequence.
//
// Errors: ErrAbsent, ErrUnavailable, a *wire.SubjectError.
func (r *Records) LastFact(ctx context.Context, f wire.FactSubject) (Fact, error) {
	subject, err := f.Subject()
	if err != nil {
		return Fact{}, fmt.Errorf("read fact: %w", err)
	}
	m, err := r.message(ctx, r.names[wire.StreamFact], map[string]any{"last_by_subj": subject})
	if err != nil {
		return Fact{}, fmt.Errorf("read fact %s: %w", subject, err)
	}
	return Fact{Subject: f, Value: m.Data, Seq: m.Seq, At: m.Time}, nil
}

// DropGoal removes the record of a goal that is long over, spec and status; that it is gone is success. No marker
// is left: it would be damage to whoever uses the id again.
//
// Errors: ErrUnavailable (unknown), ErrCorrupt, a *wire.KeyError.
func (r *Records) DropGoal(ctx context.Context, ref wire.GoalRef) error {
	for _, key := range []wire.Key{ref.Key().Status(), ref.Key().Spec()} {
		e, err := r.Get(ctx, key)
		if errors.Is(err, ErrAbsent) {
			continue
		}
		if err == nil {
			err = r.remove(ctx, r.stream(key), e.Rev)
		}
		if err != nil {
			return fmt.Errorf("drop record: %w", err)
		}
	}
	return nil
}

// remove takes one message away; that it is gone is success.
func (r *Records) remove(ctx context.Context, stream string, seq uint64) error {
	err := r.erase(ctx, stream, seq)
	if err == nil || errors.Is(err, ErrAbsent) {
		return nil
	}
	if _, gerr := r.message(ctx, stream, map[string]any{"seq": seq}); errors.Is(gerr, ErrAbsent) {
		return nil
	}
	return err
}
