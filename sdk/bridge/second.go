package bridge

import (
	"encoding/json"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The hooks of a program do not tell everything: none fires when a turn is interrupted by hand, or a question is
// answered. Some programs keep a file that says their state; for those without one there is a limit to how long a
// turn may say nothing.
const (
	lookEvery     = 500 * time.Millisecond
	maxStatusFile = 64 << 10
	// DefaultSilence is how long a turn may tell nothing before it counts as over: longer than any one answer of a
	// model and the longest tool that programs allow by default.
	DefaultSilence = 15 * time.Minute
)

// filed is what a status file says.
type filed struct {
	status  string    // of the mesh; "": it says nothing
	since   time.Time // when the program came to it
	waiting string    // for what, in the program's words
}

// readStatusFile reads the status file of a program: one JSON object with the members status (idle, busy or working,
// waiting), statusUpdatedAt (epoch milliseconds; absent: when the file was written) and waitingFor. What is missing,
// larger than 64 KiB or something else says nothing.
func readStatusFile(path string) filed {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // an ordinary open of a FIFO waits for its writer
	if err != nil {
		return filed{}
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return filed{}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxStatusFile))
	if err != nil {
		return filed{}
	}
	return parseStatusFile(text, st.ModTime())
}

func parseStatusFile(text []byte, written time.Time) filed {
	var in map[string]json.RawMessage
	if json.Unmarshal(text, &in) != nil {
		return filed{}
	}
	var status, waiting string
	var at float64
	_ = json.Unmarshal(in["status"], &status)
	_ = json.Unmarshal(in["waitingFor"], &waiting)
	out := filed{since: written, waiting: clip(waiting)}
	if json.Unmarshal(in["statusUpdatedAt"], &at) == nil && at > 0 && at < 1e15 {
		out.since = time.UnixMilli(int64(at))
	}
	switch word(status) {
	case "idle":
		out.status = wire.StatusIdle
	case "busy", "working":
		out.status = wire.StatusWorking
	case "waiting":
		out.status = wire.StatusWaiting
	}
	return out
}

// amend says what a state is in truth, given what else is known: told is when a hook last told anything, quiet how long
// nothing has come anew, f what the status file of the program says, limit that of a turn which tells nothing (0: there
// is none). The later of hook and file counts.
func amend(s State, told time.Time, quiet time.Duration, f filed, limit time.Duration) State {
	switch {
	case s.Gone:
	case f.status != "" && f.since.After(told):
		return fileSays(s, f)
	case f.status != wire.StatusWorking && limit > 0 && s.Status == wire.StatusWorking && quiet >= limit:
		return State{Status: wire.StatusIdle, By: BySilence}
	}
	return s
}

func fileSays(s State, f filed) State {
	if s.Status == f.status { // the hooks know more of it
		return s
	}
	next := State{Status: f.status, By: ByFile}
	switch f.status {
	case wire.StatusWorking:
		next.Turn, next.Tool, next.Activity = true, s.Tool, s.Activity
	case wire.StatusWaiting:
		next.Turn, next.Tool, next.Activity = s.Turn, s.Tool, s.Activity
		next.Condition = &wire.PresenceCondition{Code: "input", Source: "status file", Message: f.waiting}
	}
	return next
}

// look amends the state while the bridge lives. What a file says counts when it says so twice: hook and file of the
// same moment come one after the other.
func (b *Bridge) look() {
	pause := time.NewTimer(lookEvery) // behind each look: those of a ticker that is late come right after each other
	defer pause.Stop()
	var before filed
	for ; ; pause.Reset(lookEvery) {
		select {
		case <-b.ctx.Done():
			return
		case <-pause.C:
		}
		var f, now filed
		if b.opts.StatusFile != "" {
			if now = readStatusFile(b.opts.StatusFile); now == before {
				f = now
			}
			before = now
		}
		b.mu.Lock()
		quiet := time.Since(b.lately)
		if b.amended.After(b.lately) {
			quiet = time.Since(b.amended)
		}
		next := amend(b.state, b.lately, quiet, f, b.opts.Silence)
		moved := next != b.state
		if moved {
			b.state, b.heard, b.amended = next, true, time.Now()
		}
		b.mu.Unlock()
		if moved {
			b.changed()
			b.wake()
		}
	}
}
