package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Error codes of the endpoint rails. Extensions add codes in reverse-DNS form only.
const (
	CodeBadRequest         = "bad-request"
	CodeUnsupportedVersion = "unsupported-version"
	CodeOpMismatch         = "op-mismatch"
	CodeClassMismatch      = "class-mismatch"
	CodeTargetMismatch     = "target-mismatch"
	CodeSenderMismatch     = "sender-mismatch"
	CodeUnauthenticated    = "unauthenticated"
	CodePermissionDenied   = "permission-denied"
	CodeNotFound           = "not-found"
	CodeAlreadyExists      = "already-exists"
	CodeConflict           = "conflict"
	CodeContractMismatch   = "contract-mismatch"
	CodeContractInvalid    = "contract-invalid"
	CodeFailedPrecondition = "failed-precondition"
	CodeDeadlineExceeded   = "deadline-exceeded"
	CodeCancelled          = "cancelled"
	CodeExpired            = "expired"
	CodeUnavailable        = "unavailable"
	CodeUnimplemented      = "unimplemented"
	CodeResourceExhausted  = "resource-exhausted"
	CodeInternal           = "internal"
)

// Codes lists the codes above, in the order of the contract.
func Codes() []string {
	return []string{
		CodeBadRequest, CodeUnsupportedVersion, CodeOpMismatch, CodeClassMismatch, CodeTargetMismatch,
		CodeSenderMismatch, CodeUnauthenticated, CodePermissionDenied, CodeNotFound, CodeAlreadyExists,
		CodeConflict, CodeContractMismatch, CodeContractInvalid, CodeFailedPrecondition,
		CodeDeadlineExceeded, CodeCancelled, CodeExpired, CodeUnavailable, CodeUnimplemented,
		CodeResourceExhausted, CodeInternal,
	}
}

// codeMeanings says in a few words what each code is for.
var codeMeanings = map[string]string{
	CodeBadRequest:         "arguments, schema or limits are violated, or bind stands where it may not",
	CodeUnsupportedVersion: "an envelope or descriptor of another version",
	CodeOpMismatch:         "the body names another command than the subject",
	CodeClassMismatch:      "the class is not the command's",
	CodeTargetMismatch:     "the target disagrees with the subject or its mode",
	CodeSenderMismatch:     "from.id is not the subject's caller",
	CodeUnauthenticated:    "the caller is not known",
	CodePermissionDenied:   "the caller may not do this",
	CodeNotFound:           "there is no such thing",
	CodeAlreadyExists:      "there is such a thing already",
	CodeConflict:           "a compare-and-set, a fence or a fingerprint was lost",
	CodeContractMismatch:   "contract digests are missing or are not those served",
	CodeContractInvalid:    "a contract document or handle breaks its schema or budget",
	CodeFailedPrecondition: "the state does not allow it, or another instance is bound",
	CodeDeadlineExceeded:   "the deadline passed",
	CodeCancelled:          "it was cancelled",
	CodeExpired:            "a lease, grant, life, epoch or token is over",
	CodeUnavailable:        "nobody answers, or an authority cannot be read; later it may",
	CodeUnimplemented:      "not owned here",
	CodeResourceExhausted:  "full: queue, pool, window or message size",
	CodeInternal:           "a fault of the responder",
}

// CodeMeaning says in a few words what a code is for; "" for a code that is not in the list.
func CodeMeaning(code string) string { return codeMeanings[code] }

// ValidCode reports whether s is an error code: one of Codes, or a reverse-DNS name of at most 64 bytes.
func ValidCode(s string) bool {
	return codeMeanings[s] != "" || len(s) <= MaxErrCode && ValidURN(s)
}

// Detail kinds.
const (
	DetailBindRefused       = "ai.cotal.ep.bind-refused"
	DetailUnboundResponder  = "ai.cotal.ep.unbound-responder"
	DetailUnboundAuthority  = "ai.cotal.ep.unbound-caller-authority"
	DetailLifecycleBlocked  = "ai.cotal.ep.lifecycle-blocked" // LifecycleBlocked
	DetailForeignSlotHeld   = "ai.cotal.ep.foreign-slot-held" // condition: one of SlotConditions
	DetailSlotObservation   = "ai.cotal.manager.static-slot-observation"
	DetailSlotReadFailed    = "ai.cotal.manager.static-slot-read-failed"
	DetailGoalEntityRunning = "ai.cotal.goal.entity-running"
)

// SlotConditions lists the conditions of DetailForeignSlotHeld. Callers decide by them, never by the
// text of a message.
func SlotConditions() []string {
	return []string{"in-flight", "no-seam", "unreadable", "garbled", "behind"}
}

// LifecycleBlocked is the refusal of an operation that another operation on the same life holds up. The
// facts stand in its details and in its message too, because some callers print only that.
func LifecycleBlocked(blockedOp, opID, headState, gateState, remedy string) *Error {
	data := map[string]any{"blockedOp": blockedOp, "opId": opID, "remedy": remedy}
	if headState != "" {
		data["headState"] = headState
	}
	if gateState != "" {
		data["gateState"] = gateState
	}
	return Refuse(CodeFailedPrecondition, "held up by %s %s: %s", blockedOp, opID, remedy).With(DetailLifecycleBlocked, data)
}

// Outcome says whether the effect of a refused call happened. It never describes a goal's end.
type Outcome string

// Outcomes. An absent outcome is read as unknown.
const (
	OutcomeExecuted    Outcome = "executed"
	OutcomeNotExecuted Outcome = "not-executed"
	OutcomeUnknown     Outcome = "unknown"
)

// Detail is one structured fact of an error. Data members stand beside kind in JSON.
type Detail struct {
	Kind string         // reverse-DNS
	Data map[string]any // must not hold the key "kind"
}

// MarshalJSON writes {"kind": ..., <data members>}.
func (d Detail) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(d.Data)+1)
	for k, v := range d.Data {
		m[k] = v
	}
	m["kind"] = d.Kind
	return json.Marshal(m)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (d *Detail) UnmarshalJSON(p []byte) error {
	var m map[string]any
	if err := json.Unmarshal(p, &m); err != nil {
		return err
	}
	kind, _ := m["kind"].(string)
	delete(m, "kind")
	*d = Detail{Kind: kind}
	if len(m) > 0 {
		d.Data = m
	}
	return nil
}

// Error is the error of a reply: what was refused, why, and whether the effect happened.
type Error struct {
	Code    string   `json:"code"`
	Message string   `json:"message"`
	Details []Detail `json:"details,omitempty"`
	Outcome Outcome  `json:"outcome,omitempty"`
}

// Error returns the message, with the code in front of it.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code
	}
	return e.Code + ": " + e.Message
}

// Is makes errors.Is(err, &Error{Code: c}) match any Error of that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// OutcomeOrUnknown is the stated outcome, or unknown.
func (e *Error) OutcomeOrUnknown() Outcome {
	switch e.Outcome {
	case OutcomeExecuted, OutcomeNotExecuted:
		return e.Outcome
	default:
		return OutcomeUnknown
	}
}

// Detail returns the first detail of a kind.
func (e *Error) Detail(kind string) (Detail, bool) {
	for _, d := range e.Details {
		if d.Kind == kind {
			return d, true
		}
	}
	return Detail{}, false
}

// With returns a copy with one more detail.
func (e *Error) With(kind string, data map[string]any) *Error {
	c := *e
	c.Details = append(append([]Detail(nil), e.Details...), Detail{Kind: kind, Data: data})
	return &c
}

// Refuse makes an error whose effect did not happen.
func Refuse(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Outcome: OutcomeNotExecuted}
}

// Fail makes an error that claims nothing about the effect.
func Fail(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Outcome: OutcomeUnknown}
}

// ErrorFrom turns any error into a wire error: a *Error in its chain as it is, anything else
// failed-precondition (unavailable, if a context's deadline is in its chain) with its text and outcome unknown. It survives a value whose text cannot be had.
// It returns nil for nil.
func ErrorFrom(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e // a nil *Error in an error interface was meant as success, and becomes it
	}
	if errors.Is(err, context.DeadlineExceeded) { // something within did not answer
		return Fail(CodeUnavailable, "%s", textOf(err))
	}
	return Fail(CodeFailedPrecondition, "%s", textOf(err))
}

// textOf guards against foreign errors whose Error method panics: a refusal must still be told.
func textOf(err error) (text string) {
	defer func() {
		if recover() != nil {
			text = "an error whose text could not be read"
		}
	}()
	return err.Error()
}
