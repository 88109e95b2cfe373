package sdk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/internal/pb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sentinels maps the sentinel errors to their names on the wire and to the gRPC code a peer sees
// that does not read ErrorDetail. ErrPluginDown is missing on purpose: only a host can say it.
var sentinels = []struct {
	err  error
	name string
	code codes.Code
}{
	{ErrInvalid, "invalid", codes.InvalidArgument},
	{ErrUnsupported, "unsupported", codes.Unimplemented},
	{ErrNotFound, "not_found", codes.NotFound},
	{ErrUnavailable, "unavailable", codes.Unavailable},
	{ErrNotOurs, "not_ours", codes.PermissionDenied},
	{ErrStaleFence, "stale_fence", codes.FailedPrecondition},
	{ErrGone, "gone", codes.NotFound},
	{ErrUnproven, "unproven", codes.Aborted},
	{ErrExecFailed, "exec_failed", codes.FailedPrecondition},
	{ErrInternal, "internal", codes.Internal},
	{ErrTooLarge, "too_large", codes.ResourceExhausted},
}

var outcomes = map[Outcome]pb.Outcome{
	OutcomeExecuted:    pb.Outcome_OUTCOME_EXECUTED,
	OutcomeNotExecuted: pb.Outcome_OUTCOME_NOT_EXECUTED,
	OutcomeUnknown:     pb.Outcome_OUTCOME_UNKNOWN,
}

// toStatus turns what an implementation returned into a gRPC status with an ErrorDetail.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	// Ended by its own deadline or by its caller: the caller knows, and no sentinel says it better.
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, bounded(err.Error()))
	}
	if errors.Is(err, context.Canceled) {
		return status.Error(codes.Canceled, bounded(err.Error()))
	}
	name, code, sentinel := "internal", codes.Internal, ErrInternal
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			name, code, sentinel = s.name, s.code, s.err
			break
		}
	}
	detail := &pb.ErrorDetail{Code: name, Outcome: pb.Outcome_OUTCOME_UNKNOWN}
	text := strings.TrimPrefix(err.Error(), sentinel.Error())
	var typed *Error
	if errors.As(err, &typed) {
		detail.Retryable = typed.Retryable
		if o, ok := outcomes[typed.Outcome]; ok {
			detail.Outcome = o
		}
	}
	detail.Detail = bounded(strings.TrimPrefix(text, ": "))
	st, serr := status.New(code, bounded(err.Error())).WithDetails(detail)
	if serr != nil {
		return status.Error(codes.Internal, bounded(err.Error()))
	}
	return st.Err()
}

// fromStatus turns a failed call into a contract error. A status without ErrorDetail was made by
// gRPC itself, or by a plugin that is not built on this package.
func fromStatus(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%s: %w", method, err)
	}
	for _, d := range st.Details() {
		if detail, ok := d.(*pb.ErrorDetail); ok {
			return fromDetail(detail)
		}
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		return fmt.Errorf("%s: %w", method, context.DeadlineExceeded)
	case codes.Canceled, codes.Unavailable:
		if st.Code() == codes.Canceled && ctx.Err() != nil {
			return fmt.Errorf("%s: %w", method, context.Canceled)
		}
		// Canceled, and not by the caller: the plugin shuts down, or the connection was closed.
		return &Error{
			Code: ErrPluginDown, Outcome: OutcomeUnknown, Retryable: true,
			Detail: method + ": the connection to the plugin ended: " + bounded(st.Message()),
		}
	case codes.Unimplemented:
		return Errorf(ErrUnsupported, "%s: the plugin does not know this method", method)
	case codes.ResourceExhausted:
		// The request was measured before it was sent, so it is the reply that was too large.
		return &Error{
			Code: ErrTooLarge, Outcome: OutcomeExecuted,
			Detail: fmt.Sprintf("%s: the reply is above the limit of %d bytes: %s", method, MaxMessageBytes, bounded(st.Message())),
		}
	}
	return &Error{Code: ErrInternal, Outcome: OutcomeUnknown, Detail: fmt.Sprintf("%s: %s: %s", method, st.Code(), bounded(st.Message()))}
}

func fromDetail(d *pb.ErrorDetail) error {
	e := &Error{Code: ErrInternal, Outcome: OutcomeUnknown, Retryable: d.GetRetryable(), Detail: d.GetDetail()}
	for o, v := range outcomes {
		if v == d.GetOutcome() {
			e.Outcome = o
		}
	}
	for _, s := range sentinels {
		if s.name == d.GetCode() {
			e.Code = s.err
			return e
		}
	}
	e.Detail = fmt.Sprintf("unknown error code %q: %s", bounded(d.GetCode()), d.GetDetail())
	return e
}

func bounded(s string) string {
	if len(s) > maxDetailBytes {
		s = s[:maxDetailBytes] + " ..."
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	return s
}
