package sdk

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// What a plugin answers ends in journal rows, logs and replies that have limits of their own. So every text
// and list has one here, in bytes and entries; what is longer is cut, and says so.
const (
	maxWord      = 64      // a signal, a kind of evidence, a command name
	maxID        = 512     // an id, an alias, a principal
	maxSentence  = 4 << 10 // a reason, a detail, a path
	maxLast      = 1 << 10 // the last line of a program: 160 characters, and room
	maxKilled    = 128
	maxSentences = 256
	maxRef       = 1 << 10
)

const cutMark = " [cut]"

// cut shortens a text at a character and marks it.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	n := most - len(cutMark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + cutMark
}

// cutList shortens a list of sentences; its last entry then says how many are missing.
func cutList(list []string) []string {
	var out []string
	for i, s := range list {
		if i == maxSentences-1 && len(list) > maxSentences {
			return append(out, fmt.Sprintf("and %d more", len(list)-i))
		}
		out = append(out, cut(s, maxSentence))
	}
	return out
}

// contradiction says what makes an answer on a seat impossible, or nothing. Such an answer comes from a
// runtime with a fault, and nothing of it can be believed: least of all that the seat has ended.
func (s SeatStatus) contradiction(asked string) string {
	switch {
	case s.SeatID != "" && asked != "" && s.SeatID != asked:
		return fmt.Sprintf("it is about another seat (%s)", cut(s.SeatID, maxWord))
	case s.State == SeatExited && s.Exit == nil:
		return "it says exited, and not how"
	case s.Exit != nil && (s.State == SeatPrepared || s.State == SeatNotFound):
		return fmt.Sprintf("it says %s, and how it exited", s.State)
	case s.Identity.PID < 0 || s.Agent.PID < 0:
		return fmt.Sprintf("its process ids are %d and %d", s.Identity.PID, s.Agent.PID)
	case handleProblem(s.Handle) != "":
		return handleProblem(s.Handle)
	}
	if s.Exit != nil {
		return s.Exit.contradiction()
	}
	return ""
}

func (e *Exit) contradiction() string {
	for _, k := range e.Reaped {
		if k.PID < 0 {
			return fmt.Sprintf("it ended the process %d", k.PID)
		}
	}
	return ""
}

// checked is the answer itself, or unknown with the reason when it contradicts itself.
func (s SeatStatus) checked(asked string) SeatStatus {
	why := s.contradiction(asked)
	if why == "" {
		return s
	}
	reason := "the runtime's answer cannot be: " + why
	if s.Reason != "" {
		reason += "; its reason: " + s.Reason
	}
	return SeatStatus{SeatID: asked, State: SeatUnknown, Reason: cut(reason, maxSentence)}
}

// handleProblem says why a handle cannot be kept, or nothing.
func handleProblem(h Handle) string {
	switch {
	case len(h.State) > MaxHandleState:
		return fmt.Sprintf("the state of its handle has %d bytes, the limit is %d", len(h.State), MaxHandleState)
	case len(h.Ref) > maxRef:
		return fmt.Sprintf("the reference of its handle has %d bytes, the limit is %d", len(h.Ref), maxRef)
	}
	return ""
}

// bounded cuts what is too long to be kept, and leaves a time that no record can hold out.
func (e *Exit) bounded() *Exit {
	if e == nil {
		return nil
	}
	var notes []string
	if y := e.At.UTC().Year(); y < 1 || y > 9999 {
		e.At = time.Time{}
		notes = append(notes, "the time it named is none")
	}
	e.Signal, e.Evidence = cut(e.Signal, maxWord), Evidence(cut(string(e.Evidence), maxWord))
	if len(e.Last) > maxLast {
		e.Last = cut(e.Last, maxLast)
	}
	var dropped int
	e.Reaped, dropped = cutKilled(e.Reaped)
	if dropped > 0 {
		notes = append(notes, fmt.Sprintf("%d of the processes it ended are not listed", dropped))
	}
	e.Detail = cut(e.Detail, maxSentence)
	if len(notes) > 0 {
		e.Detail = strings.TrimPrefix(e.Detail+"; "+strings.Join(notes, "; "), "; ")
	}
	return e
}

func cutKilled(list []Killed) (out []Killed, dropped int) {
	for i, k := range list {
		if i == maxKilled {
			return out, len(list) - i
		}
		out = append(out, Killed{PID: k.PID, Command: cut(k.Command, maxWord), Signal: cut(k.Signal, maxWord)})
	}
	return out, 0
}

func (o SeatOwner) bounded() SeatOwner {
	for _, f := range []*string{&o.InstanceID, &o.Space, &o.Alias, &o.Principal, &o.LifecycleUID, &o.RequestID, &o.Fingerprint} {
		*f = cut(*f, maxID)
	}
	return o
}

// Check refuses facts that would make the host allocate without limit. Errors: ErrInvalid, naming the fact.
func (m MintCounts) Check() error {
	for _, c := range []struct {
		name    string
		n, most int
	}{{"ports", m.Ports, MaxMintPorts}, {"secrets", m.Secrets, MaxMintSecrets}, {"sessionIds", m.SessionIDs, MaxMintSessionIDs}} {
		if c.n < 0 || c.n > c.most {
			return Errorf(ErrInvalid, "the connector wants %d %s minted for each launch; between 0 and %d can be", c.n, c.name, c.most)
		}
	}
	return nil
}
