package sdk

import "time"

// MaxMessageBytes is the limit of one message on the plugin connection, in both directions and on
// both sides. 4 MiB is gRPC's own default for receiving; stating it for sending too turns a reply
// that the peer would drop into ErrTooLarge where it was made. List is streamed in batches, so the
// number of seats is not limited by it; ListModels too.
const MaxMessageBytes = 4 << 20

// A catalogue of models is streamed, so that MaxMessageBytes does not limit it; these do. One that is larger
// is ErrTooLarge on both sides. The largest public catalogue has some 5,000 models in 3 MiB.
const (
	MaxModels      = 200_000
	MaxModelsBytes = 32 << 20
)

// MaxHandleState bounds Handle.State, which the host keeps in its journal.
const MaxHandleState = 16 << 10

// What a connector can have minted for one launch (MintCounts). The host makes it before anything else of the
// launch exists.
const (
	MaxMintPorts      = 64
	MaxMintSecrets    = 64
	MaxMintSessionIDs = 64
)

// List is streamed, too; these bound it on the host's side, and a longer one is ErrTooLarge. A machine has
// some thousands of seats at most, and one seat's listing a launch form of some KiB.
const (
	MaxListed      = 20_000
	MaxListedBytes = 64 << 20
)

const (
	// listBatchBytes is how much goes into one message of a stream. Seats and models are small: what one
	// more brings stays far below MaxMessageBytes.
	listBatchBytes = 1 << 20

	// maxDetailBytes bounds the text of an error: it travels in HTTP/2 headers.
	maxDetailBytes = 8 << 10

	// defaultDeadline is what a call gets that arrives without one: longer than anything a correct
	// host asks for, so that only a forgotten deadline ever meets it.
	defaultDeadline = 60 * time.Second

	// defaultReapDeadline is longer because a stop ladder waits for the grace of the seat.
	defaultReapDeadline = 5 * time.Minute

	// drainTimeout is how long calls in flight may take once the process was asked to end.
	drainTimeout = 1500 * time.Millisecond

	// flushTimeout is how long the last answers may take to leave the process.
	flushTimeout = 300 * time.Millisecond

	// exitTimeout ends the process whatever else happens: a plugin is gone 2 s after its host.
	exitTimeout = 1900 * time.Millisecond
)
