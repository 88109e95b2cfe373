package custodied

import (
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Listing describes the directory of a seat. It looks at the directory only: Adopt says what lives.
func (v *Seat) Listing(instance string) sdk.SeatListing {
	l := sdk.SeatListing{SeatID: v.ID}
	var known bool
	l.Owner, known = v.Owner()
	l.Ours = known && l.Owner.InstanceID == instance
	l.Nonce, l.Fence = v.Nonce, v.Fence()
	switch {
	case v.RecErr == nil:
		l.Form, l.Created = v.Rec.Record.Form, v.Rec.Created
	case v.IntentErr == nil:
		l.Form, l.Created = v.Intent.Form, v.Intent.Created
	}
	switch {
	case v.RecErr != nil && !Missing(v.RecErr):
		l.Problem = v.RecErr.Error()
	case v.RecErr == nil && v.ExitErr != nil && !Missing(v.ExitErr):
		l.Problem = v.ExitErr.Error()
	case v.RecErr == nil && v.TokenErr != nil:
		l.Problem = v.TokenErr.Error()
	case v.RecErr != nil && v.IntentErr != nil && !Missing(v.IntentErr):
		l.Problem = v.IntentErr.Error()
	case v.RecErr != nil && v.IntentErr == nil:
		l.Problem = "no seat was started: there is no " + record.SeatFile + " in " + v.Dir
	case v.RecErr != nil:
		l.Problem = "neither " + record.SeatFile + " nor " + record.IntentFile + " in " + v.Dir
	}
	return l
}
