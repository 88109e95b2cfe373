package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// ErrForeign says that a journal was written by another instance.
var ErrForeign = errors.New("the journal belongs to another instance")

var (
	keyInstance = "instance"
	keyEpoch    = "epoch"
)

// Identity returns the instance the journal is bound to and the highest epoch it has seen; zero for a
// journal that was never bound.
func (j *Journal) Identity() (instanceID string, epoch uint64, err error) {
	err = j.View(func(tx *Tx) error {
		instanceID = string(tx.get(bucketMeta, tx.meta, keyInstance))
		epoch, _ = strconv.ParseUint(string(tx.get(bucketMeta, tx.meta, keyEpoch)), 10, 64)
		return tx.Seats(func(r SeatRow) error {
			epoch = max(epoch, r.Fence)
			return nil
		})
	})
	return instanceID, epoch, err
}

// Bind ties the journal to the instance whose seats it records, and remembers its epoch. The first bind
// decides; another instance is refused, since the rows name seats that would not obey it.
//
// Errors: *FileError (errors.Is ErrForeign), which names both instances and the fix.
func (j *Journal) Bind(ctx context.Context, instanceID string, epoch uint64) error {
	return j.Update(ctx, func(tx *Tx) error {
		if have := string(tx.get(bucketMeta, tx.meta, keyInstance)); have != "" && have != instanceID {
			return &FileError{
				Path: j.path, Reason: ErrForeign,
				Err: fmt.Errorf("it was written by instance %s, and instance.json beside it says %s", have, instanceID),
				Fix: "if that instance.json came from elsewhere, move it away: the right one is restored from the journal; " +
					"else move the journal away: seats of this instance are found without it",
			}
		}
		tx.put(&tx.meta, keyInstance, []byte(instanceID))
		tx.put(&tx.meta, keyEpoch, strconv.AppendUint(nil, epoch, 10))
		return nil
	})
}

// streamPrefix begins the keys of the streams that are known.
const streamPrefix = "stream:"

// Known reports whether this host has kept records in a stream: one that the broker then lacks was lost.
func (j *Journal) Known(stream string) (known bool, err error) {
	err = j.View(func(tx *Tx) error {
		known = tx.get(bucketMeta, tx.meta, streamPrefix+stream) != nil
		return nil
	})
	return known, err
}

// SetKnown remembers that this host keeps records in these streams.
func (j *Journal) SetKnown(ctx context.Context, streams ...string) error {
	return j.Update(ctx, func(tx *Tx) error {
		for _, name := range streams {
			tx.put(&tx.meta, streamPrefix+name, []byte{1})
		}
		return nil
	})
}

// keySpace holds the space that the seats of this host live in.
const keySpace = "space"

// SetSpace records the space that a host serves. A host whose seats live in another one is refused: they would
// be listed where nobody can reach them. other is that space, and names are those seats; empty when all is well.
func (j *Journal) SetSpace(ctx context.Context, space string) (other string, names []string, err error) {
	err = j.Update(ctx, func(tx *Tx) error {
		other, names = "", nil
		had := string(tx.get(bucketMeta, tx.meta, keySpace))
		if had == space {
			return nil
		}
		if had != "" {
			err := tx.Seats(func(r SeatRow) error {
				if !r.State.Ended() {
					names = append(names, r.Alias)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if len(names) > 0 {
			other = had
			return nil
		}
		tx.put(&tx.meta, keySpace, []byte(space))
		return nil
	})
	return other, names, err
}
