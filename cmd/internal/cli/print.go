package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// PrintJSON writes v as one line of JSON.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// Age is a duration as people read it: 12s, 47m, 3.5h, 2d 7h.
func Age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		tenths := int(d / (6 * time.Minute))
		if tenths%10 == 0 {
			return fmt.Sprintf("%dh", tenths/10)
		}
		return fmt.Sprintf("%d.%dh", tenths/10, tenths%10)
	}
	days, hours := int(d/(24*time.Hour)), int(d%(24*time.Hour)/time.Hour)
	if hours == 0 {
		return fmt.Sprintf("%dd", days)
	}
	return fmt.Sprintf("%dd %dh", days, hours)
}

// Count is a number of things: 1 byte, 2 bytes.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// HowEnded says in words how a seat ended: "with code 3", "by SIGKILL", and who wanted it.
func HowEnded(x *wire.SeatExit) string {
	if x == nil {
		return "with its end not recorded"
	}
	var b strings.Builder
	switch {
	case x.Signal != "":
		b.WriteString("by " + x.Signal)
	case x.Code != nil:
		fmt.Fprintf(&b, "with code %d", *x.Code)
	default:
		b.WriteString("with a code that is not known")
	}
	if x.Asked {
		b.WriteString(", as asked")
	}
	if x.Evidence != "" && x.Evidence != "reaped" {
		fmt.Fprintf(&b, " (%s)", x.Evidence)
	}
	if x.Detail != "" {
		b.WriteString(": " + OneLine(x.Detail))
	}
	return b.String()
}

// EndedWell says whether an end counts as success: code 0, or asked for.
func EndedWell(x *wire.SeatExit) bool {
	return x != nil && (x.Asked || x.Signal == "" && x.Code != nil && *x.Code == 0)
}

// PrintStop prints the report of a stop: one line, or with verbose everything that was ended, every
// proof and everything that was removed, indented under it.
func PrintStop(w io.Writer, name string, r *wire.StopReport, verbose bool) {
	if !verbose || r == nil {
		fmt.Fprintln(w, StopLine(name, r)+stopTail(r))
		return
	}
	fmt.Fprintln(w, StopLine(name, r))
	for _, k := range endedBy(r) {
		fmt.Fprintf(w, "  ended    %s\n", process(k))
	}
	for _, e := range Proofs(r) {
		fmt.Fprintf(w, "  proof    %s\n", OneLine(e))
	}
	for _, p := range r.Removed {
		fmt.Fprintf(w, "  removed  %s\n", OneLine(p))
	}
}

// Proofs is the evidence of a report without records that were kept until the end was recorded and are removed.
func Proofs(r *wire.StopReport) []string {
	return slices.DeleteFunc(slices.Clone(r.Evidence), func(e string) bool {
		dir, ok := strings.CutPrefix(e, "records kept in ")
		return ok && slices.Contains(r.Removed, dir)
	})
}

// stopNamed is how many processes the one line about a stop names.
const stopNamed = 4

// stopTail is the rest of that line: what was ended, and the proof that decides.
func stopTail(r *wire.StopReport) string {
	if r == nil {
		return ""
	}
	var names []string
	procs := r.Killed // what had ended before is not what this stop did
	if r.Outcome == "stopped" {
		procs = endedBy(r)
	}
	for i, k := range procs {
		if i == stopNamed {
			names = append(names, fmt.Sprintf("%d more", len(procs)-i))
			break
		}
		names = append(names, process(k))
	}
	text := ""
	if len(names) > 0 {
		text += "; ended " + strings.Join(names, ", ")
	}
	if proof := decisive(r.Evidence); proof != "" {
		text += "; proof: " + OneLine(proof)
	}
	return text
}

// endedBy lists every process of a report once: the runtime and the exit record may both name it.
func endedBy(r *wire.StopReport) []wire.KilledProc {
	all := slices.Clone(r.Killed)
	if r.Exit != nil {
		all = append(all, r.Exit.Reaped...)
	}
	var out []wire.KilledProc
	for _, k := range all {
		i := slices.IndexFunc(out, func(o wire.KilledProc) bool { return o.PID == k.PID })
		if i < 0 {
			out = append(out, k)
			continue
		}
		out[i].Command = orWord(out[i].Command, k.Command)
		out[i].Signal = orWord(out[i].Signal, k.Signal)
	}
	return out
}

// process names a process that was ended, and how it ended.
func process(k wire.KilledProc) string {
	name := fmt.Sprintf("%d %s", k.PID, OneLine(k.Command))
	if k.Command == "" {
		name = fmt.Sprintf("pid %d", k.PID)
	}
	switch {
	case k.Signal != "":
		return name + " (" + OneLine(k.Signal) + ")"
	case k.Command == "":
		return name + " ended by itself"
	}
	return name + " (ended by itself)"
}

// decisive picks the one proof that tells most: that no process is left, else that custody is gone,
// else the last one.
func decisive(evidence []string) string {
	for _, word := range []string{"no process", "is gone", "is dead"} {
		for _, e := range slices.Backward(evidence) {
			if strings.Contains(e, word) {
				return e
			}
		}
	}
	if len(evidence) == 0 {
		return ""
	}
	return evidence[len(evidence)-1]
}

// StopLine is the headline of a stop.
func StopLine(name string, r *wire.StopReport) string {
	switch {
	case r == nil:
		return "stopped " + name
	case r.Outcome == "absent":
		return name + " was gone already: nothing of it exists"
	case r.Outcome == "exited":
		return name + " had ended already, " + HowEnded(r.Exit)
	}
	line := "stopped " + name
	if r.Exit != nil {
		line += ": the agent ended " + HowEnded(r.Exit)
	}
	return line
}

func orWord(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// PrintStatus prints what a host says of itself.
func PrintStatus(w io.Writer, s wire.StatusReply) {
	fmt.Fprintf(w, "running   cotal-host %s, pid %d, up %s\n", orWord(s.Version, "(version not said)"), s.PID, Age(time.Duration(s.UptimeMs)*time.Millisecond))
	fmt.Fprintf(w, "space     %s\n", orWord(s.Space, "not said"))
	fmt.Fprintf(w, "instance  %s, epoch %d\n", s.InstanceID, s.Epoch)
	printLease(w, s.Lease)
	printCredentials(w, s.Credentials)
	printReconciliation(w, s.StaticReconciliation)
	seats := fmt.Sprintf("%d", s.AgentCount)
	if o := s.Occupancy; o != nil && o.Max > 0 {
		seats += fmt.Sprintf(" of at most %d", o.Max)
	}
	fmt.Fprintf(w, "seats     %s; runtime %s, custody %s\n", seats, s.Runtime, s.Custody)
	if s.Foreign > 0 {
		fmt.Fprintf(w, "foreign   %s on this machine of other hosts\n", Count(s.Foreign, "seat"))
	}
	for _, c := range s.Connectors {
		fmt.Fprintf(w, "agent     %s: %s%s\n", c.Agent, c.State, reason(c.Reason))
	}
	for _, p := range s.Plugins {
		line := fmt.Sprintf("plugin    %s (%s", p.Name, p.Kind)
		if p.Version != "" {
			line += " " + p.Version
		}
		line += "): " + p.State
		if p.PID > 0 {
			line += fmt.Sprintf(", pid %d", p.PID)
		}
		if p.Restarts > 0 {
			line += ", " + Count(int(p.Restarts), "restart")
		}
		fmt.Fprintln(w, OneLine(line))
		PrintPluginTrouble(w, p)
	}
}

// printLease says how a host stands to its lease; nothing where it has none.
func printLease(w io.Writer, l *wire.LeaseStatus) {
	if l == nil {
		return
	}
	line := fmt.Sprintf("lease     %s for %s", l.State, Age(time.Duration(l.ForMs)*time.Millisecond))
	if l.RenewedMs != nil {
		line += fmt.Sprintf(", renewed %s ago", (time.Duration(*l.RenewedMs) * time.Millisecond).Round(100*time.Millisecond))
	}
	if l.Fenced != "" {
		line += "; NOTHING NEW IS STARTED: " + l.Fenced
	} else if l.Reason != "" {
		line += " (" + l.Reason + ")"
	}
	fmt.Fprintln(w, OneLine(line))
}

// printCredentials says how the credentials stand that the host renews; nothing where it has none. Those that are well
// are counted, and the others named.
func printCredentials(w io.Writer, all []wire.CredentialStatus) {
	if len(all) == 0 {
		return
	}
	bad := slices.DeleteFunc(slices.Clone(all), func(c wire.CredentialStatus) bool { return c.Health == "healthy" && c.Reason == "" })
	fmt.Fprintf(w, "creds     %d of %d credentials are well\n", len(all)-len(bad), len(all))
	for _, c := range bad {
		line := "creds     " + c.Profile
		if c.Seat != "" {
			line += " of " + c.Seat
		}
		line += ": " + c.Health
		switch left := time.Until(time.UnixMilli(c.Expires)); {
		case c.Expires == 0:
		case left > 0:
			line += ", ends in " + Age(left)
		default:
			line += ", ended " + Age(-left) + " ago"
		}
		if c.Reason != "" {
			line += "; NOT RENEWED: " + c.Reason
		}
		fmt.Fprintln(w, OneLine(line))
	}
}

// printReconciliation says what became of the lives that an earlier process of this host left; nothing where no slots
// are kept.
func printReconciliation(w io.Writer, r *wire.StaticReconciliation) {
	if r == nil {
		return
	}
	line := "slots     " + r.State
	if s := r.LastSweep; s != nil {
		at := s.StartedAt
		if s.CompletedAt > 0 {
			at = s.CompletedAt
		}
		line += fmt.Sprintf("; %s sweep %s ago: %d left over, %d ended, %d not", s.Kind, Age(time.Since(time.UnixMilli(at))), s.Attempted, s.Succeeded, s.Failed)
	}
	fmt.Fprintln(w, OneLine(line))
	for _, f := range r.Failures {
		line := fmt.Sprintf("slot      %s (%s): %s after %s", f.Alias, f.Phase, f.Disposition, Count(f.Attempts, "attempt"))
		if f.NextRetryAt > 0 {
			line += ", again in " + Age(max(time.Until(time.UnixMilli(f.NextRetryAt)), 0))
		}
		if f.LastError != "" {
			line += "; " + f.LastError
		}
		if f.Remedy != "" {
			line += "; to do: " + f.Remedy
		}
		fmt.Fprintln(w, OneLine(line))
	}
}

// PrintPluginTrouble says below a plugin what is wrong with it: the reason, what to do, and where the
// report on its latest death is. It prints nothing for a plugin that is well and never died.
func PrintPluginTrouble(w io.Writer, p wire.PluginStatus) {
	for _, l := range []struct{ name, text string }{{"reason", p.Reason}, {"to do", p.Fix}, {"crash log", p.Crash}} {
		if l.text != "" {
			fmt.Fprintf(w, "  %-9s %s: %s\n", l.name, OneLine(p.Name), OneLine(l.text))
		}
	}
}

func reason(text string) string {
	if text == "" {
		return ""
	}
	return " (" + OneLine(text) + ")"
}
