package cli

import (
	"encoding/json"
	"fmt"
	"io"
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

// PrintStop prints what a stop did and what proves it. It is indented under the line that names the seat.
func PrintStop(w io.Writer, r *wire.StopReport) {
	if r == nil {
		return
	}
	for _, k := range r.Killed {
		fmt.Fprintf(w, "  killed   %d %s (%s)\n", k.PID, OneLine(k.Command), orWord(k.Signal, "ended by itself"))
	}
	if r.Exit != nil {
		for _, k := range r.Exit.Reaped {
			fmt.Fprintf(w, "  reaped   %d %s (%s)\n", k.PID, OneLine(k.Command), orWord(k.Signal, "ended by itself"))
		}
	}
	for _, e := range r.Evidence {
		fmt.Fprintf(w, "  proof    %s\n", OneLine(e))
	}
	for _, p := range r.Removed {
		fmt.Fprintf(w, "  removed  %s\n", OneLine(p))
	}
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
	seats := fmt.Sprintf("%d", s.AgentCount)
	if o := s.Occupancy; o != nil && o.Max > 0 {
		seats += fmt.Sprintf(" of at most %d", o.Max)
	}
	fmt.Fprintf(w, "seats     %s; runtime %s, custody %s\n", seats, s.Runtime, s.Custody)
	if s.Foreign > 0 {
		fmt.Fprintf(w, "foreign   %d seats on this machine belong to other hosts\n", s.Foreign)
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
			line += fmt.Sprintf(", %d restarts", p.Restarts)
		}
		fmt.Fprintln(w, line+reason(p.Reason))
	}
}

func reason(text string) string {
	if text == "" {
		return ""
	}
	return " (" + OneLine(text) + ")"
}
