package wire

// TerminalArgs are the arguments of terminal (targeted): how the terminal of a seat is reached.
type TerminalArgs struct {
	Snapshot bool `json:"snapshot,omitempty"` // also give the screen, if there is one to be had
}

// TerminalReply answers terminal. Argv is the command line of a program that shows the terminal on the
// machine of the host (a multiplexer's client); without it the seat is dialled by its own socket, as its
// directory says. Tokens never stand here.
type TerminalReply struct {
	Name     string            `json:"name"`
	Runtime  string            `json:"runtime"`
	SeatID   string            `json:"seatId"`
	Argv     []string          `json:"argv,omitempty"`
	Snapshot *TerminalSnapshot `json:"snapshot,omitempty"`
	Reason   string            `json:"reason,omitempty"` // why there is no snapshot, though one was asked for
}

// TerminalSnapshot is the screen of a seat.
type TerminalSnapshot struct {
	Offset uint64 `json:"offset"` // output offset it stands for, bytes; output from there on follows it
	Rows   uint16 `json:"rows"`
	Cols   uint16 `json:"cols"`
	Modes  uint32 `json:"modes,omitempty"` // terminal modes in force, as of sdk/terminal
	Data   []byte `json:"data"`            // base64; paints a cleared terminal of that size
	Dirty  string `json:"dirty,omitempty"` // why it may be wrong; empty when exact
}
