package custodied

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// CheckSpawn refuses what can be refused before anything is made. Errors: sdk.ErrInvalid.
func CheckSpawn(sockets string, req *sdk.SpawnRequest) error {
	if err := CheckID(req.SeatID); err != nil {
		return err
	}
	if err := CheckSocketPath(sockets, req.SeatID); err != nil {
		return err
	}
	size := len(req.Launch.Path)
	for i, a := range req.Launch.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return sdk.Errorf(sdk.ErrInvalid, "launch.args[%d] holds a zero byte", i)
		}
		size += len(a) + 9
	}
	for i, kv := range req.Launch.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.IndexByte(kv, 0) >= 0 {
			return sdk.Errorf(sdk.ErrInvalid, "launch.env[%d] is not NAME=value", i)
		}
		size += len(kv) + 9
	}
	switch {
	case req.Nonce == "" || strings.ContainsAny(req.Nonce, "\x00\n"):
		return sdk.Errorf(sdk.ErrInvalid, "nonce is empty or not printable")
	case !filepath.IsAbs(req.Launch.Path) || strings.IndexByte(req.Launch.Path, 0) >= 0:
		return sdk.Errorf(sdk.ErrInvalid, "launch.path %q is not an absolute path", req.Launch.Path)
	case !filepath.IsAbs(req.Cwd) || strings.IndexByte(req.Cwd, 0) >= 0:
		return sdk.Errorf(sdk.ErrInvalid, "cwd %q is not an absolute path", req.Cwd)
	case size > maxEnvAndArgs:
		return sdk.Errorf(sdk.ErrInvalid, "argv and environment have %d bytes and the limit is %d", size, maxEnvAndArgs)
	case req.StopGraceMs < 0 || req.StopGraceMs > int(maxGrace/time.Millisecond):
		return sdk.Errorf(sdk.ErrInvalid, "stopGraceMs %d is not in 0..%d", req.StopGraceMs, maxGrace/time.Millisecond)
	case len(req.Form) > 0 && !json.Valid(req.Form):
		return sdk.Errorf(sdk.ErrInvalid, "form is not JSON")
	}
	if st, err := os.Stat(req.Cwd); err != nil {
		return sdk.Errorf(sdk.ErrInvalid, "cwd: %v", err)
	} else if !st.IsDir() {
		return sdk.Errorf(sdk.ErrInvalid, "cwd %s is no directory", req.Cwd)
	}
	return nil
}

// Existing answers a Spawn whose seat exists already (done). What an earlier Spawn left that was killed
// before its custody process wrote a record is ended, and then clear removes its files.
// Errors: sdk.ErrInvalid, sdk.ErrStaleFence, sdk.ErrUnavailable.
func (v *Seat) Existing(ctx context.Context, req sdk.SpawnRequest, clear func() error) (h sdk.Handle, done bool, err error) {
	bound, cancel := context.WithTimeout(ctx, startingWait)
	defer cancel()
	for {
		if err := v.Read(); err != nil {
			return h, true, err
		}
		switch {
		case v.RecErr == nil:
			h, err := v.sameSeat(req)
			return h, true, err
		case !Missing(v.RecErr):
			return h, true, &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeUnknown, Detail: v.RecErr.Error()}
		case Missing(v.TokenErr):
			return h, false, nil // the token comes first: nothing was started here
		}
		// A Spawn was interrupted. Its custody process may be about to write the record.
		found, err := seat.FindByNonce(req.Nonce)
		if err != nil {
			return h, true, Unavailable("look for an interrupted spawn of seat %s: %v", v.ID, err)
		}
		if len(found) > 0 && proctree.Pause(bound, PollEvery) == nil {
			continue
		}
		if v.Read() == nil && v.RecErr == nil {
			continue // it wrote its record, and may have ended, between our two looks
		}
		if _, err := v.Term.End(ctx); err != nil {
			return h, true, Unavailable("an interrupted spawn of seat %s is not ended: %v", v.ID, err)
		}
		sw, err := proctree.Hunt(ctx, proctree.Quarry{Nonce: req.Nonce})
		if err != nil || len(sw.Left) > 0 {
			return h, true, Unavailable("an interrupted spawn of seat %s left processes: %v %s", v.ID, err, strings.Join(sw.Left, "; "))
		}
		return h, false, clear()
	}
}

// sameSeat returns the handle of an existing seat after checking that this request is the one that made it.
func (v *Seat) sameSeat(req sdk.SpawnRequest) (sdk.Handle, error) {
	rec := v.Rec
	if rec.CustodyID != req.SeatID || rec.Nonce != req.Nonce || sdk.SeatOwner(rec.Record.Owner) != req.Owner {
		return sdk.Handle{}, sdk.Errorf(sdk.ErrInvalid, "seat %s exists and belongs to another request (%s of instance %s)", req.SeatID, rec.Record.Owner.Alias, rec.Record.Owner.InstanceID)
	}
	if rec.Fence > req.Fence {
		return sdk.Handle{}, sdk.Errorf(sdk.ErrStaleFence, "seat %s was made by host epoch %d, this is epoch %d", req.SeatID, rec.Fence, req.Fence)
	}
	// Read now: after the exit record that Read looked for, custody may have written one and ended.
	if _, err := record.ReadExit(v.Dir); Missing(err) {
		if live, why := seat.Check(rec.Identity()); live != seat.Alive {
			return sdk.Handle{}, &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeUnknown, Detail: fmt.Sprintf("seat %s exists and its custody process does not live (%s); adopt it to learn its end", req.SeatID, why)}
		}
	}
	return v.Handle(), nil
}

// FailedSpawn is the error of a Spawn that failed: first as the headline, then what could not be undone.
func FailedSpawn(first error, left []string) error {
	e := &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeNotExecuted, Retryable: true, Detail: first.Error()}
	if len(left) > 0 {
		e.Outcome, e.Retryable = sdk.OutcomeUnknown, false
		e.Detail += "; undoing it failed too: " + strings.Join(left, "; ")
	}
	return e
}
