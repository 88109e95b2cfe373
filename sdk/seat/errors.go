package seat

import (
	"errors"
	"strconv"
)

// Code is the number of a refusal on the wire.
type Code uint16

// Codes.
const (
	CodeProtocol    Code = 1 + iota // malformed or unexpected frame; the connection ends
	CodeVersion                     // no common protocol version
	CodeToken                       // wrong token
	CodeStaleFence                  // a newer host holds the seat
	CodeBusy                        // the writer lease or the input queue is taken
	CodeForbidden                   // the connection lacks the role
	CodeNotRunning                  // there is no agent to act on
	CodeLineTooLong                 // a line the terminal would truncate
	CodeExec                        // the agent could not be executed; the seat is still prepared
	CodeTooLarge                    // more than MaxInput in one INPUT
	CodeNotExited                   // ACK_EXIT before the exit
	CodeLimit                       // too many connections
	CodeUID                         // the peer is another user
	CodeInternal                    // the seat failed; text says how
	CodeClosed      Code = 0xffff   // made by the client: the connection ended before the answer
)

// Outcome says whether the effect of a refused request happened. The words are those of sdk.Outcome.
type Outcome string

// Outcomes.
const (
	OutcomeExecuted    Outcome = "executed"
	OutcomeNotExecuted Outcome = "not-executed"
	OutcomeUnknown     Outcome = "unknown"
)

// Sentinels that *Error unwraps to.
var (
	ErrProtocol    = errors.New("seat: protocol error")
	ErrVersion     = errors.New("seat: no common protocol version")
	ErrBadToken    = errors.New("seat: wrong token")
	ErrStaleFence  = errors.New("seat: stale fence")
	ErrBusy        = errors.New("seat: busy")
	ErrForbidden   = errors.New("seat: forbidden")
	ErrNotRunning  = errors.New("seat: not running")
	ErrLineTooLong = errors.New("seat: line too long")
	ErrExec        = errors.New("seat: exec failed")
	ErrTooLarge    = errors.New("seat: too large")
	ErrNotExited   = errors.New("seat: not exited")
	ErrLimit       = errors.New("seat: too many connections")
	ErrWrongUser   = errors.New("seat: another user's seat")
	ErrInternal    = errors.New("seat: internal error")
	ErrClosed      = errors.New("seat: connection closed")
)

// Error is a refusal by the seat, or, with CodeClosed, the loss of the connection under a request.
type Error struct {
	Code    Code
	Outcome Outcome
	Text    string
}

// Error returns the sentinel's text and the seat's own words.
func (e *Error) Error() string {
	if e.Text == "" {
		return e.Unwrap().Error()
	}
	return e.Unwrap().Error() + ": " + e.Text
}

// Unwrap returns the sentinel of the code.
func (e *Error) Unwrap() error {
	switch e.Code {
	case CodeProtocol:
		return ErrProtocol
	case CodeVersion:
		return ErrVersion
	case CodeToken:
		return ErrBadToken
	case CodeStaleFence:
		return ErrStaleFence
	case CodeBusy:
		return ErrBusy
	case CodeForbidden:
		return ErrForbidden
	case CodeNotRunning:
		return ErrNotRunning
	case CodeLineTooLong:
		return ErrLineTooLong
	case CodeExec:
		return ErrExec
	case CodeTooLarge:
		return ErrTooLarge
	case CodeNotExited:
		return ErrNotExited
	case CodeLimit:
		return ErrLimit
	case CodeUID:
		return ErrWrongUser
	case CodeClosed:
		return ErrClosed
	}
	return ErrInternal
}

// Refuse makes a refusal whose effect did not happen.
func Refuse(code Code, text string) *Error {
	return &Error{Code: code, Outcome: OutcomeNotExecuted, Text: text}
}

func itoa(n int) string { return strconv.Itoa(n) }

func outcomeByte(o Outcome) uint8 {
	switch o {
	case OutcomeExecuted:
		return 1
	case OutcomeNotExecuted:
		return 2
	}
	return 0
}

func outcomeOf(b uint8) Outcome {
	switch b {
	case 1:
		return OutcomeExecuted
	case 2:
		return OutcomeNotExecuted
	}
	return OutcomeUnknown
}
