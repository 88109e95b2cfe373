package sdk

import (
	"errors"
	"fmt"
)

// Outcome says whether the effect of a refused call happened.
type Outcome string

// Outcomes. An empty outcome is read as unknown.
const (
	OutcomeExecuted    Outcome = "executed"
	OutcomeNotExecuted Outcome = "not-executed"
	OutcomeUnknown     Outcome = "unknown"
)

// Sentinel errors of the plugin contract. errors.Is finds them on both sides of the wire.
var (
	ErrInvalid     = errors.New("invalid request")
	ErrUnsupported = errors.New("unsupported")
	ErrNotFound    = errors.New("not found")
	ErrUnavailable = errors.New("unavailable")
	ErrNotOurs     = errors.New("not ours")
	ErrStaleFence  = errors.New("stale fence")
	ErrGone        = errors.New("gone")
	ErrUnproven    = errors.New("unproven")
	ErrExecFailed  = errors.New("exec failed")
	ErrInternal    = errors.New("internal plugin error")
	ErrTooLarge    = errors.New("message too large")
	// ErrPluginDown is made by the host when the plugin process ended or could not be reached
	// while a call was in flight. Its outcome is unknown.
	ErrPluginDown = errors.New("plugin down")
)

// Error is a contract error with what the caller needs to act on it. It unwraps to its sentinel.
type Error struct {
	Code      error   // one of the sentinels above
	Outcome   Outcome // did the effect happen
	Retryable bool    // the same call may succeed later
	Detail    string  // one sentence that names the cause and, where there is one, the fix; no secret
}

// Error returns the detail, or the sentinel's text when there is none.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Code.Error()
	}
	return e.Code.Error() + ": " + e.Detail
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Code }

// Errorf makes a contract error whose effect did not happen.
func Errorf(code error, format string, args ...any) error {
	return &Error{Code: code, Outcome: OutcomeNotExecuted, Detail: fmt.Sprintf(format, args...)}
}

// OutcomeOf returns the outcome an error states, or OutcomeUnknown.
func OutcomeOf(err error) Outcome {
	var e *Error
	if errors.As(err, &e) && e.Outcome != "" {
		return e.Outcome
	}
	return OutcomeUnknown
}
