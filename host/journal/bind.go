package journal

import (
	"context"
	"errors"
	"fmt"
)

// ErrForeign says that a journal was written by another instance.
var ErrForeign = errors.New("the journal belongs to another instance")

var keyInstance = []byte("instance")

// Bind ties the journal to the instance whose seats it records. The first bind is remembered; another
// instance is refused, since its rows name seats that would not obey this one.
//
// Errors: *FileError (errors.Is ErrForeign), which names both instances and the fix.
func (j *Journal) Bind(ctx context.Context, instanceID string) error {
	return j.Update(ctx, func(tx *Tx) error {
		switch have := string(tx.get(bucketMeta, tx.meta, string(keyInstance))); have {
		case instanceID:
			return nil
		case "":
			tx.put(&tx.meta, string(keyInstance), []byte(instanceID))
			return nil
		default:
			return &FileError{
				Path: j.path, Reason: ErrForeign,
				Err: fmt.Errorf("it was written by instance %s, and instance.json beside it says %s", have, instanceID),
				Fix: "put the former instance.json back, or move the journal away: seats of this instance are found without it",
			}
		}
	})
}
