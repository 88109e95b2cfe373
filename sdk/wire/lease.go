package wire

import (
	"fmt"
	"time"
)

// Times of the liveness lease of a manager instance.
const (
	// LeaseTTL is the age at which the broker drops a row that was not written again. It is the TTL of the whole
	// bucket: a TTL of a single key is lost with its first update, and its lease then never ends.
	LeaseTTL = 10 * time.Second
	// LeaseRenew is how often the holder writes its row again.
	LeaseRenew = 2500 * time.Millisecond
	// LeaseAttempt bounds one exchange of a renewal.
	LeaseAttempt = 2 * time.Second
)

// ManagerLease is the liveness lease of one manager instance: the row under its instance id in the bucket
// BucketManager. While it is there, the process that it names, or another one of its, has written it within
// LeaseTTL; that it is gone proves nothing of any process.
type ManagerLease struct {
	Holder     string `json:"holder"` // who serves, by its id on the mesh
	InstanceID string `json:"instanceId"`
	Runtime    string `json:"runtime"`
	Root       string `json:"root"` // workspace
	PID        int    `json:"pid"`
	Since      int64  `json:"since"` // epoch milliseconds; 0 when its writer said it in another form
	// Additions of this host; absent from other managers. The number of a process alone tells two of different
	// machines or containers not apart, so a process draws a claim, and says where its number counts.
	Claim      string `json:"claim,omitempty"`
	Epoch      uint64 `json:"epoch,omitempty"`
	StartTicks uint64 `json:"startTicks,omitempty"` // of the process, since the boot of its machine
	BootID     string `json:"bootId,omitempty"`
	PIDSpace   string `json:"pidSpace,omitempty"` // the namespace of process numbers
}

// maxPID is the largest process number that any system gives.
const maxPID = 1<<31 - 1

// DecodeManagerLease decodes and validates the row that was read under an instance id. A row that names no holder,
// or another instance than its key, is refused: empty values would be equal to each other.
func DecodeManagerLease(instanceID string, p []byte) (ManagerLease, error) {
	l, err := decodeManagerLease(p)
	if err == nil && l.InstanceID != instanceID {
		return ManagerLease{}, fmt.Errorf("decode manager lease: %w", &FieldError{"instanceId", "is not that of its key"})
	}
	return l, err
}

func decodeManagerLease(p []byte) (ManagerLease, error) {
	return decode("manager lease", p, func(f *fields, l *ManagerLease) {
		f.str("holder", true, isSet, "", &l.Holder)
		f.str("instanceId", true, ValidUID, whyUID, &l.InstanceID)
		f.str("runtime", true, isSet, "", &l.Runtime)
		f.str("root", true, isSet, "", &l.Root)
		f.integer("pid", true, 1, maxPID, func(n int64) { l.PID = int(n) })
		if v := f.lookup("since", true, kindNumber, kindString); v != nil && v.kind == kindNumber {
			f.millis("since", true, 0, &l.Since)
		} else if v != nil {
			if at, err := time.Parse(time.RFC3339, v.str); err == nil {
				l.Since = at.UnixMilli()
			}
		}
		f.str("claim", false, ValidUID, whyUID, &l.Claim)
		f.uint("epoch", false, 0, &l.Epoch)
		f.uint("startTicks", false, 0, &l.StartTicks)
		f.str("bootId", false, isSet, "", &l.BootID)
		f.str("pidSpace", false, isSet, "", &l.PIDSpace)
	})
}

// Encode returns the row as JSON, after it was read back.
func (l ManagerLease) Encode() ([]byte, error) { return encode("manager lease", l, decodeManagerLease) }
