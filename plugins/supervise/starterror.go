package supervise

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Reason says why a plugin did not start. Each has its own message and its own fix.
type Reason string

// Reasons.
const (
	ReasonNotFound      Reason = "not-found"      // no such file in the bundle directory
	ReasonNotExecutable Reason = "not-executable" // no execute permission, or not a file
	ReasonDigest        Reason = "digest"         // not the file the manifest names
	ReasonFormat        Reason = "format"         // the kernel cannot execute it
	ReasonPrinted       Reason = "printed"        // wrote something else where the handshake belongs
	ReasonExited        Reason = "exited"         // ended before the handshake
	ReasonTimeout       Reason = "timeout"        // no handshake in time
	ReasonProtocol      Reason = "protocol"       // speaks another version of the contract
	ReasonHandshake     Reason = "handshake"      // the connection could not be made
	ReasonIdentity      Reason = "identity"       // describes itself otherwise than the manifest
	ReasonConfigure     Reason = "configure"      // refused its configuration
	ReasonHost          Reason = "host"           // a fault of this host: no descriptor, no directory
)

// StartError is a start that failed. A new start is always a new process.
type StartError struct {
	Plugin string // name in the manifest
	Path   string // of the binary
	Reason Reason
	Detail string // one sentence
	Fix    string // what to do; may be empty
	Status string // how the process ended, when it did: "exit status 3", "signal: killed"
	Stderr string // the last lines it wrote, cleaned and bounded
	Err    error  // the cause, when there is one

	proc *process // what was started, for the crash report
}

// Error gives everything on one line.
func (e *StartError) Error() string {
	if e.Fix != "" {
		return e.what() + ": " + e.Fix
	}
	return e.what()
}

// what is Error without what to do.
func (e *StartError) what() string {
	var b strings.Builder
	fmt.Fprintf(&b, "start plugin %s (%s): %s", e.Plugin, e.Path, e.Detail)
	if e.Status != "" {
		fmt.Fprintf(&b, "; the process ended with %s", e.Status)
	}
	if e.Stderr != "" {
		fmt.Fprintf(&b, "; its last output: %s", strings.ReplaceAll(e.Stderr, "\n", " | "))
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// clean makes bytes of a foreign program fit for a message: one line, no control characters, at
// most limit bytes.
func clean(p []byte, limit int) string {
	var b strings.Builder
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		p = p[n:]
		switch {
		case r == '\t':
			r = ' '
		case r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == utf8.RuneError || r == 0x2028 || r == 0x2029:
			r = '?'
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			b.WriteString("...")
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
