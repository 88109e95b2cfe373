package wire

import "time"

// Bounds of the endpoint rails, in bytes.
const (
	MaxSubject  = 1024 // a whole subject of an endpoint plane
	MaxOwner    = 64
	MaxActor    = 64
	MaxCommand  = 32
	MaxPool     = 32
	MaxEndpoint = 64
	MaxID       = 64 // id, goal id, nonce
	MaxSpace    = 64
	MaxErrCode  = 64
	// MaxErrDetail bounds the detail of an error in a fact.
	MaxErrDetail = 256
)

// Bounds of the messaging plane.
const (
	MaxChannel      = 4096 // bytes of a whole channel name
	MaxName         = 128  // characters of a display name
	MaxDescription  = 200  // characters
	MaxInstructions = 2000 // characters
)

// Bounds of contract documents.
const (
	MaxDocument  = 256 << 10 // bytes of one document in its canonical form
	MaxClosure   = 1 << 20   // bytes of all documents of one closure
	MaxNesting   = 32        // levels of objects and arrays in a document
	MaxRefChain  = 32        // references by digest, one behind the other
	MaxArtifacts = 64        // documents of one closure besides its root
	MaxSummary   = 1024      // bytes of what a command does, in words
)

// MaxInteger is the largest integer the wire carries: 2^53-1, what a JSON number holds exactly.
const MaxInteger = 1<<53 - 1

// MaxText is the largest text of input, in bytes.
const MaxText = 65536

// Bounds of sessions.
const (
	SessionWindow    = 64       // data frames in flight per direction, when nothing else is said
	MaxSessionWindow = 1024     // the most a grant may declare
	MaxSessionData   = 64 << 10 // bytes of terminal data that are put into one frame
	// MaxSessionFrame is the largest frame that is read, in bytes: the payload a broker carries.
	MaxSessionFrame = 1 << 20
	MaxSessionGrant = 16 << 10 // bytes of a grant in its canonical form
	MaxSessionTTL   = 24 * time.Hour
	MaxTerminalSize = 100_000 // rows or columns
)

// Times of the contract.
const (
	PresenceHeartbeat = 2 * time.Second
	PresenceWindow    = 6 * time.Second // older presence is offline; also the TTL of its bucket
	AckWait           = 60 * time.Second
	CallDeadline      = 15 * time.Second // of a call that names none
	RetryBase         = 250 * time.Millisecond
	RetryCap          = 15 * time.Second
	ReadinessDeadline = 30 * time.Second
	RestartWindow     = 60 * time.Second
	IdempotencyWindow = 24 * time.Hour // how long a request id means the same request
	ResultRetention   = 24 * time.Hour // how long the result of a goal is kept whole
	// IdempotencyHorizon is how long what is left of a goal afterwards keeps its id from being new work.
	IdempotencyHorizon = 24 * time.Hour
	ReceiptRetention   = 90 * 24 * time.Hour
	DuplicateWindow    = 120 * time.Second
	// MinDuplicateWindow is the duplicate window of the submission log: the least a server takes.
	MinDuplicateWindow = 100 * time.Millisecond
)

// Numbers of the contract.
const (
	RetryFactor       = 2
	MaxRestarts       = 3 // within RestartWindow; one more escalates
	ConsumerPending   = 1024
	ChatPerSubject    = 1000     // messages kept per chat subject
	MaxCredentialJWT  = 16 << 10 // bytes: the policy gate
	MaxControlLine    = 65536    // bytes: what a broker is to be configured with
	MinServerPayload  = 256 << 10
	MinServerVersion  = "2.12.0"
	ProtocolVersion   = "0.4" // of AgentCard.protocolVersion
	DescriptorVersion = 1     // of protocol.v in a service record and a descriptor
)

// RetryDelay is the longest wait before attempt n (1 is the first repeat); the wait itself is drawn
// evenly from zero to it. Only what is idempotent at its scope is repeated at all.
func RetryDelay(n int) time.Duration {
	d := RetryBase
	for ; n > 1 && d < RetryCap; n-- {
		d *= RetryFactor
	}
	return min(d, RetryCap)
}

// MaxMintedJWT is how large a user JWT may be, in bytes, on a broker with that max_control_line: what
// is left of the line beside the rest of CONNECT. Zero means that the line is too short for any.
func MaxMintedJWT(controlLine, connectEnvelope int) int { return max(0, controlLine-connectEnvelope) }
