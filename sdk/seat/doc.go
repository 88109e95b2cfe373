// Package seat is the custody protocol: how a host, a runtime plugin or a viewer talks to the
// cotal-seat process that holds one agent's terminal, and how such a process is identified.
//
// The package holds the frame codec, the launch record, a client (Dial, Conn) and the identity
// helpers. The records on disk are in sdk/seat/record. The protocol is described in
// docs/seat-protocol.md.
//
// cotal-seat links this package, so it may use only a small part of the standard library: no net,
// no fmt, no encoding/json and no os/exec. That keeps a seat under 3 MB.
package seat

// Protocol versions this package speaks. Seats outlive hosts, so every version that ever shipped
// stays supported for a year.
const (
	VersionMin uint16 = 1
	VersionMax uint16 = 2

	// VersionSlices is the first in which a seat writes the input of a host in slices (Slices), so that
	// one frame may hold many of them.
	VersionSlices uint16 = 2
)

// NonceVar is the variable that every process of a seat carries. It finds candidates; it proves nothing.
const NonceVar = "COTAL_SEAT_NONCE"

// SameToken takes the same time whatever the difference. Both have TokenBytes.
func SameToken(a, b []byte) bool {
	var diff byte
	for i := range a {
		diff |= a[i] ^ b[i]
	}
	return diff == 0
}

// Limits of the protocol.
const (
	MaxFrame    = 1 << 20  // type byte and payload of one frame
	MaxOutput   = 64 << 10 // output bytes in one OUTPUT frame
	MaxInput    = 64 << 10 // input bytes in one INPUT frame, and in the seat's input queue
	MaxLine     = 4095     // bytes of one line to a terminal in canonical mode, its end not counted
	MaxSize     = 1000     // rows and columns of a terminal; programs allocate by them
	MaxSocket   = 107      // bytes of a unix socket path on Linux; sun_path has 108 with the final zero
	TokenBytes  = 32       // length of a seat token
	FromLive    = ^uint64(0)
	headerBytes = 5
)

// Role is a set of rights a connection asks for. The seat may answer with fewer (Status.Role).
type Role uint8

// Roles.
const (
	RoleOutput   Role = 1 << iota // receives OUTPUT
	RoleInput                     // may send INPUT; with it goes the one writer lease, unless RoleControl is held too
	RoleTerminal                  // a terminal is at the other end: counted as attached, answers queries
	RoleMirror                    // the screen mirror: answers queries while no terminal does
	RoleControl                   // may commit, signal and acknowledge; needs a fence that is not stale
	RoleTakeover                  // take the writer lease from whoever holds it
)

// Has reports whether every right in want is held.
func (r Role) Has(want Role) bool { return r&want == want }

// State is where a seat is in its life.
type State uint8

// States, in order. A seat never goes back.
const (
	StatePrepared State = 1 + iota // terminal and socket exist, nothing has executed
	StateRunning                   // the agent was executed
	StateDraining                  // the agent was reaped; the rest of its tree and output are being collected
	StateExited                    // exit.json is durable
)

// String returns the word used in documents and logs.
func (s State) String() string {
	switch s {
	case StatePrepared:
		return "prepared"
	case StateRunning:
		return "running"
	case StateDraining:
		return "draining"
	case StateExited:
		return "exited"
	}
	return "state-" + itoa(int(s))
}

// Answerer says who answers the terminal queries of the agent.
type Answerer uint8

// Answerers.
const (
	AnswererNone     Answerer = iota // nobody does
	AnswererTerminal                 // the attached terminal
	AnswererMirror                   // the mirror
)

// Action is what SIGNAL asks for.
type Action uint8

// Actions.
const (
	ActionInterrupt Action = 1 + iota // INT to the foreground group of the terminal
	ActionHangup                      // HUP to the agent's group and the foreground group
	ActionTerm                        // TERM to the agent's group and the foreground group
	ActionKill                        // KILL to the whole tree, walked until none is left
)

// Status is what a seat says of itself.
type Status struct {
	State        State
	First, Next  uint64   // output offsets: oldest byte still readable, and one after the last
	Seat         Identity // the custody process
	Agent        Identity // zero before the commit
	Code         int32    // exit code, 128+signal for a signal; valid if CodeKnown
	CodeKnown    bool
	Signal       uint8 // number of the signal that ended the agent, 0 for none
	Rows, Cols   uint16
	Attached     uint8 // terminals attached
	Answerer     Answerer
	Role         Role   // rights of the connection this status was sent on
	Modes        uint32 // private terminal modes in force (sdk/terminal.Modes)
	Fence        uint64 // highest fence seen
	InputPending uint32 // input bytes accepted and not yet taken by the terminal

	// The rest is in WELCOME and STATUS, not in EXIT, and a seat from before it was added does not send it:
	// its zero value is "not said".
	Typed uint32 // milliseconds since a terminal last typed, at least 1; 0: none has, or not said
	Lines Lines  // whether the program reads whole lines
	Line  uint16 // with LinesOn: bytes of the unfinished line

	// The mirror's questions: those whose first byte has an offset from AskFrom on and below AskTo. Those
	// below were answered, or are nobody's; those from AskTo on are the terminal's.
	AskFrom, AskTo uint64
}

// Lines says whether the agent's terminal hands its input on by whole lines (canonical mode), of which it
// keeps MaxLine bytes.
type Lines uint8

// Values of Lines.
const (
	LinesUnknown Lines = iota
	LinesOff
	LinesOn
)

// Killed is one process that outlived the agent and was ended by the seat.
type Killed struct {
	PID     int
	Command string // comm, at most 15 characters
	Signal  string // "SIGTERM", ...; empty when it ended by itself
}

// ExitRecord is the recorded end of a seat, as in exit.json.
type ExitRecord struct {
	Code      int
	CodeKnown bool
	Signal    string // "SIGKILL", ...; empty when none
	AtUnixNs  int64  // when the agent ended, nanoseconds since 1970
	Asked     bool   // a host had asked for the end
	Evidence  string // "reaped", "uncommitted" or "exec-failed"
	Detail    string
	Reaped    []Killed // at most 64
	Last      string   // last output line, at most 160 characters, control codes stripped
}

// Evidence of an exit as the seat itself can give it.
const (
	EvidenceReaped      = "reaped"
	EvidenceUncommitted = "uncommitted"
	EvidenceExecFailed  = "exec-failed"
)
