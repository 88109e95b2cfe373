package journal

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrNotFound says that there is no such row.
var ErrNotFound = errors.New("no such row")

// ErrReadOnly is returned by a write inside View.
var ErrReadOnly = errors.New("journal: write inside View")

var (
	bucketMeta  = []byte("meta")
	bucketSeats = []byte("seats")
	bucketGoals = []byte("goals")
)

// Tx is one unit of work. What it wrote is visible to its own reads and to nobody else until Update
// returns. It is valid only during the function it was given to, on that goroutine.
type Tx struct {
	bolt     *bolt.Tx
	writable bool
	// Writes are held here until the function has succeeded: many callers share one commit, and
	// one of them failing must leave no write of its own and cost the others nothing.
	seats, goals, meta overlay
}

// overlay holds pending writes of one bucket; a nil value is a deletion.
type overlay map[string][]byte

func (tx *Tx) get(b []byte, o overlay, key string) []byte {
	if raw, ok := o[key]; ok {
		return raw
	}
	return tx.bolt.Bucket(b).Get([]byte(key))
}

func (tx *Tx) put(o *overlay, key string, raw []byte) {
	if *o == nil {
		*o = overlay{}
	}
	(*o)[key] = raw
}

// each visits the merged view in key order.
func (tx *Tx) each(b []byte, o overlay, fn func(k, v []byte) error) error {
	pending := make([]string, 0, len(o))
	for k := range o {
		pending = append(pending, k)
	}
	slices.Sort(pending)
	c := tx.bolt.Bucket(b).Cursor()
	k, v := c.First()
	for k != nil || len(pending) > 0 {
		cmp := -1
		if k == nil {
			cmp = 1
		} else if len(pending) > 0 {
			cmp = bytes.Compare(k, []byte(pending[0]))
		}
		if cmp < 0 {
			if err := fn(k, v); err != nil {
				return err
			}
			k, v = c.Next()
			continue
		}
		name := pending[0]
		pending = pending[1:]
		if cmp == 0 {
			k, v = c.Next()
		}
		if raw := o[name]; raw != nil {
			if err := fn([]byte(name), raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply moves the pending writes into the shared transaction.
func (tx *Tx) apply() error {
	for _, w := range []struct {
		bucket []byte
		o      overlay
	}{{bucketMeta, tx.meta}, {bucketSeats, tx.seats}, {bucketGoals, tx.goals}} {
		b := tx.bolt.Bucket(w.bucket)
		for k, raw := range w.o {
			var err error
			if raw == nil {
				err = b.Delete([]byte(k))
			} else {
				err = b.Put([]byte(k), raw)
			}
			if err != nil {
				return fmt.Errorf("write row %s/%q: %w", w.bucket, k, err)
			}
		}
	}
	return nil
}

func (tx *Tx) dirty() bool { return len(tx.seats)+len(tx.goals)+len(tx.meta) > 0 }

// PutSeat creates or replaces a seat row. A row over MaxRow bytes is refused.
func (tx *Tx) PutSeat(r SeatRow) error {
	if !tx.writable {
		return ErrReadOnly
	}
	raw, err := encodeSeat(r)
	if err != nil {
		return fmt.Errorf("put seat %s: %w", r.SeatID, err)
	}
	tx.put(&tx.seats, r.SeatID, raw)
	return nil
}

// Seat returns one seat row. Errors: ErrNotFound, *RowError.
func (tx *Tx) Seat(id string) (SeatRow, error) {
	raw := tx.get(bucketSeats, tx.seats, id)
	if raw == nil {
		return SeatRow{}, fmt.Errorf("seat %s: %w", id, ErrNotFound)
	}
	return decodeSeat([]byte(id), raw)
}

// Seats calls fn for every seat row in the order of ids. It stops at fn's first error and returns
// it. Rows that cannot be read do not hide the others: they are joined, as *RowError, into the
// result after the last row.
func (tx *Tx) Seats(fn func(SeatRow) error) error {
	var bad []error
	err := tx.each(bucketSeats, tx.seats, func(k, v []byte) error {
		r, err := decodeSeat(k, v)
		if err != nil {
			bad = append(bad, err)
			return nil
		}
		return fn(r)
	})
	if err != nil {
		return err
	}
	return errors.Join(bad...)
}

// DeleteSeat removes a seat row; that there is none is success.
func (tx *Tx) DeleteSeat(id string) error {
	if !tx.writable {
		return ErrReadOnly
	}
	tx.put(&tx.seats, id, nil)
	return nil
}

// PutGoal creates or replaces a goal row. The result of a settled goal cannot be changed or taken
// away: SettleGoal decides that once.
func (tx *Tx) PutGoal(r GoalRow) error {
	if !tx.writable {
		return ErrReadOnly
	}
	raw, err := encodeGoal(r)
	if err != nil {
		return fmt.Errorf("put goal %q: %w", r.ID, err)
	}
	if old, err := tx.Goal(r.ID); err == nil && old.Result != nil {
		return fmt.Errorf("put goal %q: it is settled as %s", r.ID, old.Result.State)
	} else if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("put goal: %w", err)
	}
	tx.put(&tx.goals, r.ID, raw)
	return nil
}

// Goal returns one goal row. Errors: ErrNotFound, *RowError.
func (tx *Tx) Goal(id string) (GoalRow, error) {
	raw := tx.get(bucketGoals, tx.goals, id)
	if raw == nil {
		return GoalRow{}, fmt.Errorf("goal %q: %w", id, ErrNotFound)
	}
	return decodeGoal([]byte(id), raw)
}

// Goals is Seats for goal rows.
func (tx *Tx) Goals(fn func(GoalRow) error) error {
	var bad []error
	err := tx.each(bucketGoals, tx.goals, func(k, v []byte) error {
		r, err := decodeGoal(k, v)
		if err != nil {
			bad = append(bad, err)
			return nil
		}
		return fn(r)
	})
	if err != nil {
		return err
	}
	return errors.Join(bad...)
}

// SettleGoal gives a goal its one terminal. The first terminal wins: first is false and landed is
// the earlier one when the goal was settled before. Errors: ErrNotFound, *RowError.
func (tx *Tx) SettleGoal(id string, result wire.GoalResult) (landed wire.GoalResult, first bool, err error) {
	if !tx.writable {
		return wire.GoalResult{}, false, ErrReadOnly
	}
	row, err := tx.Goal(id)
	if err != nil {
		return wire.GoalResult{}, false, fmt.Errorf("settle goal: %w", err)
	}
	if row.Result != nil {
		return *row.Result, false, nil
	}
	row.Result, row.Settled = &result, time.Now().UTC()
	raw, err := encodeGoal(row)
	if err != nil {
		return wire.GoalResult{}, false, fmt.Errorf("settle goal %q: %w", id, err)
	}
	tx.put(&tx.goals, id, raw)
	return result, true, nil
}

// CommitGoal notes that the mesh has a goal's terminal: the one that stands there, which need not be the
// one that was decided here. Errors: ErrNotFound, *RowError.
func (tx *Tx) CommitGoal(id string, stands wire.GoalResult) error {
	if !tx.writable {
		return ErrReadOnly
	}
	row, err := tx.Goal(id)
	if err != nil {
		return fmt.Errorf("commit goal: %w", err)
	}
	if row.Settled.IsZero() {
		row.Settled = time.Now().UTC()
	}
	row.Result, row.Committed = &stands, true
	raw, err := encodeGoal(row)
	if err != nil {
		return fmt.Errorf("commit goal %q: %w", id, err)
	}
	tx.put(&tx.goals, id, raw)
	return nil
}

// DeleteGoal forgets a goal that the mesh never accepted; that there is none is success.
func (tx *Tx) DeleteGoal(id string) error {
	if !tx.writable {
		return ErrReadOnly
	}
	tx.put(&tx.goals, id, nil)
	return nil
}

// Prune forgets what nobody asks for any more: a seat row that ended, of which nothing is left
// (Reaped), and a settled goal, out of the outbox, whose seat row is gone. A row goes only when it is both older than
// seatAge or goalAge and not among the newest keep of its kind, so that a retried request still finds its goal for
// at least goalAge. It returns how many rows went.
func (tx *Tx) Prune(now time.Time, keep int, seatAge, goalAge time.Duration) (seats, goals int, err error) {
	if !tx.writable {
		return 0, 0, ErrReadOnly
	}
	type old struct {
		key string
		at  time.Time
	}
	newestFirst := func(a, b old) int { return b.at.Compare(a.at) }
	var ended, settled []old
	held := map[string]bool{}
	err = tx.Seats(func(r SeatRow) error {
		held[r.SeatID] = true
		if r.State.Ended() && r.Reaped {
			ended = append(ended, old{r.SeatID, r.Ended})
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("prune: %w", err)
	}
	slices.SortFunc(ended, newestFirst)
	for i, o := range ended {
		if i >= keep && now.Sub(o.at) > seatAge {
			tx.put(&tx.seats, o.key, nil)
			delete(held, o.key)
			seats++
		}
	}
	err = tx.Goals(func(r GoalRow) error {
		if r.Result != nil && !r.InOutbox() && !held[r.SeatID] {
			settled = append(settled, old{r.ID, r.Settled})
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("prune: %w", err)
	}
	slices.SortFunc(settled, newestFirst)
	for i, o := range settled {
		if i >= keep && now.Sub(o.at) > goalAge {
			tx.put(&tx.goals, o.key, nil)
			goals++
		}
	}
	return seats, goals, nil
}
