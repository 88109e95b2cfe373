package wire

import "errors"

// Seen is what a caller saw of one call.
type Seen int

// What a caller can see.
const (
	SeenNothingSent  Seen = iota // refused before the publish, or stopped before it
	SeenNoResponder              // the broker said so on the subject reserved for it
	SeenNoReply                  // sent, and then nothing: time passed, connection lost, caller stopped
	SeenReply                    // a reply, believed
	SeenBadReply                 // a reply, not believed: stale epoch, wrong instance, garbled data
	SeenPublishError             // the broker refused the publish
)

// OutcomeOfCall says whether the effect of a call happened, by what its caller saw. reply is the decoded
// reply of SeenReply and SeenBadReply, nil if it could not even be decoded. A reply proves handling; that
// it is not believed does not undo that. Stopping the caller never cancels what was accepted.
func OutcomeOfCall(seen Seen, reply *EndpointReply) Outcome {
	switch seen {
	case SeenNothingSent, SeenNoResponder, SeenPublishError:
		return OutcomeNotExecuted
	case SeenReply, SeenBadReply:
		switch {
		case reply == nil:
			return OutcomeUnknown
		case reply.OK:
			return OutcomeExecuted
		case reply.Error != nil:
			return reply.Error.OutcomeOrUnknown()
		}
	}
	return OutcomeUnknown
}

// MaxReissue is how often a caller may resolve and issue again a request that the bind fence refused.
const MaxReissue = 16

// MayReissue reports whether a request that got this error may be sent to another incarnation: only when
// the bind fence refused it, said that nothing happened, and the caller pinned no instance of its own.
// attempt counts from 1.
func MayReissue(err error, pinned bool, attempt int) bool {
	var e *Error
	if pinned || attempt > MaxReissue || !errors.As(err, &e) || e == nil {
		return false
	}
	_, bind := e.Detail(DetailBindRefused)
	return bind && e.OutcomeOrUnknown() == OutcomeNotExecuted
}
