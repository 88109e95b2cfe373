package seat

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Known is one seat whose end is not complete, as this machine knows it without a mesh: it lives, or may.
type Known struct {
	Life   provision.Life
	Spec   provision.Spec
	SeatID string
	State  State
	// Began: something of it was executed, or may have been.
	Began bool
	// Err: what is known of it cannot be used; whose life it is stands in Life, as far as it is known.
	Err error
}

// KnownLives lists the seats of an instance by its journal, and by their directories those that it does not have, in the
// order of their names; without a journal, which a host that runs has to itself, by the directories alone. Nothing is
// changed and no process is asked.
//
// Errors: those of reading the journal and the directory.
func KnownLives(j *journal.Journal, seatRoot, instanceID string) ([]Known, error) {
	var out []Known
	recorded := map[string]bool{}
	if j != nil {
		err := j.View(func(tx *journal.Tx) error {
			return tx.Seats(func(r journal.SeatRow) error {
				recorded[r.SeatID] = true
				if st := stateOf(r); st != Ended {
					out = append(out, knownOf(r, st))
				}
				return nil
			})
		})
		if err != nil {
			return nil, fmt.Errorf("list known seats: %w", err)
		}
	}
	entries, err := os.ReadDir(seatRoot)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list known seats: %w", err)
	}
	for _, e := range entries {
		if !record.ValidID(e.Name()) || recorded[e.Name()] {
			continue
		}
		in, err := record.ReadIntent(filepath.Join(seatRoot, e.Name()))
		if err != nil || in.Owner.InstanceID != instanceID || in.CustodyID != e.Name() {
			continue // another host's, or one of which nobody knows whose it is: whoever starts tells of it
		}
		r := journal.SeatRow{
			SeatID: in.CustodyID, UID: in.Owner.LifecycleUID, Alias: in.Owner.Alias, Principal: in.Owner.Principal, Form: in.Form,
			Runtime: runtimeOf(in.Runtime), Started: in.Created,
		}
		if f, err := launch.ParseForm(in.Form); err == nil {
			r.Role = f.Role
		}
		out = append(out, knownOf(r, Unknown))
	}
	slices.SortFunc(out, func(a, b Known) int { return strings.Compare(a.Life.Alias+a.SeatID, b.Life.Alias+b.SeatID) })
	return out, nil
}

func knownOf(r journal.SeatRow, st State) Known {
	k := Known{SeatID: r.SeatID, State: st, Began: !r.Started.IsZero() || st != Starting}
	if k.Life, k.Err = lifeOf(r); k.Err != nil {
		k.Life.Alias = r.Alias
		return k
	}
	k.Spec, k.Err = lifeSpec(r)
	return k
}
