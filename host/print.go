package host

import (
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// printVerdicts tells what became of every seat an earlier host had, before ready.
func (h *Host) printVerdicts(verdicts []seat.Verdict) {
	for _, v := range verdicts {
		line := fmt.Sprintf("took back %s: %s", v.Alias, v.State)
		if v.PID > 0 {
			line += fmt.Sprintf(", pid %d", v.PID)
		}
		if v.Reason != "" {
			line += " (" + v.Reason + ")"
		}
		fmt.Fprintln(h.cfg.Stderr, line)
		h.log.Info("took back seat", "seat", v.Alias, "state", string(v.State), "pid", v.PID, "reason", v.Reason)
	}
}

// printReady is the one line that says this host serves, and what to type next. A host whose runtime
// does not start serves what it can, and says at once what it cannot.
func (h *Host) printReady(url string, runtimeErr error) {
	fmt.Fprintf(h.cfg.Stdout, "ready in %d ms: space %s, %s, workspace %s\n",
		time.Since(h.started).Milliseconds(), h.cfg.Space, url, h.cfg.Root)
	if runtimeErr != nil {
		fmt.Fprintf(h.cfg.Stdout, "BUT NO SEAT CAN RUN: runtime %s does not start: %v\n", h.runtimeName(), runtimeErr)
	}
	fmt.Fprintf(h.cfg.Stdout, `
In another terminal, in this workspace:
  cotal spawn PERSONA                              start a seat from .cotal/agents/PERSONA.md and attach (Ctrl-] detaches)
  cotal spawn --agent command --name top -- top    run any program
  cotal ps                                         what runs
  cotal stop NAME                                  end a seat, with proof
Ctrl-C stops this host and leaves the seats running; "cotal-host stop --with-agents" ends them too.
`)
	h.log.Info("ready", "space", h.cfg.Space, "epoch", h.inst.Epoch, "dur", time.Since(h.started).String())
}

// serveCommand serves this workspace as it was.
func (h *Host) serveCommand() string {
	open := ""
	if h.cfg.Open {
		open = " --open"
	}
	return "cotal-host serve" + open + " --root " + h.cfg.Root
}

// printStop tells the fate of every seat, whichever way the host stops.
func (h *Host) printStop(reply wire.ShutdownReply) {
	w := h.cfg.Stderr
	for _, row := range reply.Spared {
		fmt.Fprintf(w, "left running: %s (pid %d); to end it: %s, then cotal stop %s\n",
			row.Name, row.PID, h.serveCommand(), row.Name)
	}
	for _, s := range reply.Stopped {
		fmt.Fprintf(w, "stopped: %s\n", s.Name)
	}
	for _, row := range reply.Left {
		fmt.Fprintf(w, problemMark+"NOT PROVED GONE: %s (pid %d): %s\n", row.Name, row.PID, row.Reason)
	}
	h.log.Info("stopped", "spared", len(reply.Spared), "stopped", len(reply.Stopped), "left", len(reply.Left))
}
