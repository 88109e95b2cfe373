package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// hostWait is how long a spawn whose reply was lost waits for a host to ask again.
const hostWait = 10 * time.Second

// What became of a spawn, in one word.
const (
	becameJoined    = "joined"    // the process runs, and joined the mesh
	becameRunning   = "running"   // the process runs
	becameExited    = "exited"    // it was started and has ended
	becameFailed    = "failed"    // nothing runs
	becameCancelled = "cancelled" // somebody stopped it first
	becameExpired   = "expired"
	becameUncertain = "uncertain"
)

// spawnEvent is one line of spawn --json before the result.
type spawnEvent struct {
	Event  string `json:"event"` // accepted, phase
	GoalID string `json:"goalId"`
	Name   string `json:"name"`
	Phase  string `json:"phase,omitempty"` // handoff, launched, presence
	// With accepted: who was allocated, and by whom.
	Owner               string   `json:"owner,omitempty"`
	Actor               string   `json:"actor,omitempty"`
	UID                 string   `json:"uid,omitempty"`
	InstanceID          string   `json:"instanceId,omitempty"`
	Epoch               uint64   `json:"epoch,omitempty"`
	ReadinessDeadlineMs int64    `json:"readinessDeadlineMs,omitempty"`
	Warnings            []string `json:"warnings,omitempty"`
}

// spawned is the result of a spawn, and its JSON form: the last line of spawn --json.
type spawned struct {
	Event  string            `json:"event"`  // result
	State  string            `json:"state"`  // a goal terminal
	Became string            `json:"became"` // joined, running, exited, failed, cancelled, expired, uncertain
	Name   string            `json:"name"`
	UID    string            `json:"uid"`
	GoalID string            `json:"goalId"`
	Result *wire.SpawnResult `json:"result,omitempty"` // of one that succeeded
	Reason string            `json:"reason,omitempty"` // of one that did not
	Error  *wire.Error       `json:"error,omitempty"`  // the same as the host gave it
	Exit   *wire.SeatExit    `json:"exit,omitempty"`
	Output []string          `json:"output,omitempty"` // the last lines of one that exited
}

func runSpawn(ctx context.Context, a *app, args wire.SpawnArgs, f spawnFlags) error {
	con := newConsole(a.in, a.outFile)
	attaching := !f.detach && !f.json && con.isTerminal()
	if attaching {
		if _, err := detachKeyFromEnv(); err != nil {
			return cli.Fail(cli.Usage, "%w", err)
		}
		if rows, cols, err := con.size(); err == nil {
			args.Rows, args.Cols = rows, cols
		}
	}
	show := newProgress(a.errw)
	defer show.close()
	var lines *json.Encoder
	if f.json {
		lines = json.NewEncoder(a.out)
		lines.SetEscapeHTML(false)
	}
	fol, acc, err := submit(ctx, a, args, show)
	if err != nil {
		return err
	}
	defer fol.close()
	event := func(e spawnEvent) {
		if lines != nil {
			e.Name, e.GoalID = acc.Name, acc.GoalID
			_ = lines.Encode(e) // an output that takes nothing is found out with the result
		}
	}
	event(spawnEvent{
		Event: "accepted", Owner: acc.Owner, Actor: acc.Actor, UID: acc.UID, InstanceID: acc.Executor.LifecycleUID,
		Epoch: acc.Executor.Epoch, ReadinessDeadlineMs: acc.ReadinessDeadlineMs, Warnings: acc.Warnings,
	})
	for _, w := range acc.Warnings {
		show.note(w)
	}
	if err := fol.c.Unkept; err != nil {
		show.note(err.Error() + ": this spawn can be followed by this command alone")
	}
	fol.note = show.note
	if note := fol.c.OneOf(ctx, acc.Executor.LifecycleUID); note != "" {
		show.note(note)
	}
	seen := map[string]bool{}
	window := windowOf(acc, a.target.Timeout)
	end, err := fol.await(ctx, time.Now().Add(window), acc.Fingerprint, func(phase string) {
		if phase == "" || phase == wire.PhaseTerminal || seen[phase] {
			return
		}
		seen[phase] = true
		show.phase(phase)
		event(spawnEvent{Event: "phase", Phase: phase})
	}, nil)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		show.close()
		return cli.Fail(cli.Interrupted, "interrupted; the spawn of %s goes on. Follow it: cotal goal %s --follow   end it: cotal stop %s", acc.Name, acc.GoalID, acc.Name)
	case errors.Is(err, errNotSettled):
		show.close()
		why := ""
		if fol.silent != "" {
			why = " (" + fol.silent + ")"
		}
		return cli.Fail(cli.Uncertain, "no result within %s%s; it may run. Look: cotal goal %s   cotal inspect %s   end it: cotal stop %s", window, why, acc.GoalID, acc.Name, acc.Name)
	default:
		show.close()
		return cli.Fail(cli.Uncertain, "not known what became of %s: %w", acc.Name, err)
	}
	out, err := outcomeOf(acc, end, seen[wire.PhasePresence])
	if err != nil {
		show.close()
		return err
	}
	if out.Became == becameExited || out.Became == becameFailed {
		fol.lastOutput(ctx, acc, &out)
	}
	if !attaching && out.Became == becameRunning {
		fol.since(ctx, acc, &out)
	}
	if out.err() == nil {
		a.out.Done("%s was spawned (end it: cotal stop %s)", acc.Name, acc.Name)
	}
	show.settled(out.Became)
	show.close()
	if f.json {
		if err := cli.PrintJSON(a.out, out); err != nil {
			return err
		}
	}
	if err := out.err(); err != nil {
		if !f.json {
			out.printOutput(a)
		}
		return err
	}
	if !attaching {
		if !f.json {
			fmt.Fprintln(a.out, out.line())
		}
		return nil
	}
	var row wire.AgentRow
	if err := fol.inspect(ctx, acc, &row); err != nil {
		return fmt.Errorf("%s runs, but attaching to it failed: %w", acc.Name, err)
	}
	p, err := placeOf(ctx, fol.c, row, fol.c.Endpoint, true)
	if err != nil {
		return fmt.Errorf("%s runs, but attaching to it failed: %w", acc.Name, err)
	}
	fol.close()
	return a.attachPlace(ctx, con, p, attachOptions{Fresh: true})
}

// outcomeOf reads the terminal of a spawn.
func outcomeOf(acc wire.Acceptance, end goalTerminal, joined bool) (spawned, error) {
	out := spawned{Event: "result", State: end.State, Became: end.State, Name: acc.Name, UID: acc.UID, GoalID: acc.GoalID, Error: end.Error}
	if end.State != wire.GoalSucceeded {
		out.Reason = end.reasonOf()
		return out, nil
	}
	out.Became = becameRunning
	if joined {
		out.Became = becameJoined
	}
	if len(end.Data) > 0 {
		out.Result = &wire.SpawnResult{}
		if err := json.Unmarshal(end.Data, out.Result); err != nil {
			return out, fmt.Errorf("read result of spawn: %w", err)
		}
	}
	return out, nil
}

// err is nil for a seat that runs; else it says why not, or that nobody knows.
func (s spawned) err() error {
	why := s.Reason
	if why == "" {
		why = "no reason was given"
	}
	switch s.State {
	case wire.GoalSucceeded:
		return nil
	case wire.GoalUncertain:
		return cli.Fail(cli.Uncertain, "it is uncertain whether %s runs: %s; look: cotal inspect %s   cotal logs %s   end it: cotal stop %s; do not spawn it again before", s.Name, why, s.Name, s.Name, s.Name)
	case wire.GoalFailed:
		if s.Became == becameExited {
			return cli.Fail(cli.Refused, "%s exited before it was ready: %s", s.Name, why)
		}
		return cli.Fail(cli.Refused, "%s did not start: %s", s.Name, why)
	}
	return cli.Fail(cli.Refused, "the spawn of %s was %s: %s", s.Name, s.State, why)
}

// line is the one line about a seat that runs.
func (s spawned) line() string {
	line := "spawned " + s.Name
	if r := s.Result; r != nil {
		role := "no role"
		if r.Role != "" {
			role = "role " + r.Role
		}
		line += fmt.Sprintf(" (%s), agent %s on %s", role, r.Agent, r.Mode)
		if r.PID > 0 {
			line += fmt.Sprintf(", pid %d", r.PID)
		}
	}
	if s.Became == becameJoined {
		line += ", joined"
	}
	if s.Exit != nil { // it was ready when its process ran, however short that was
		return cli.OneLine(line + "; it has ended already, " + cli.HowEnded(s.Exit) + "; what it printed: cotal logs " + s.Name)
	}
	line += "; attach: cotal attach " + s.Name
	if r := s.Result; r != nil && r.Mode == tmuxRuntime {
		line += " (C-b d detaches)"
	}
	return cli.OneLine(line)
}

const (
	// outputLines and outputBytes bound what is shown of the output of a seat that ended before it was ready.
	outputLines = 12
	outputBytes = 4 << 10
)

// lastOutput finds out how a seat ended that was started and is gone, and what it printed at last.
func (f *follower) lastOutput(ctx context.Context, acc wire.Acceptance, out *spawned) {
	if out.UID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var row wire.AgentRow
	if f.inspect(ctx, acc, &row) != nil || row.LifecycleUID != out.UID || row.Exit == nil {
		return // it was never there, or nobody knows: the reason has to do
	}
	out.Became, out.Exit = becameExited, row.Exit
	s := &local{Alias: row.Name, CustodyID: row.SeatID, root: f.c.Endpoint.Root}
	var text strings.Builder
	if err := printKept(s, logsOptions{bytes: outputBytes}, &text, &strings.Builder{}); err == nil {
		out.Output = lastLines(text.String(), outputLines)
	}
	if len(out.Output) == 0 && row.Exit.Last != "" { // the host is elsewhere, or has kept nothing yet
		out.Output = []string{cli.OneLine(row.Exit.Last)}
	}
}

// since notes what its row tells of a seat that was ready: that it is on the mesh, though the event that said so
// was lost or came later than the result, and that it has ended already.
func (f *follower) since(ctx context.Context, acc wire.Acceptance, out *spawned) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var row wire.AgentRow
	if f.inspect(ctx, acc, &row) != nil || row.LifecycleUID != out.UID {
		return
	}
	out.Exit = row.Exit
	if slices.Contains([]string{wire.StatusIdle, wire.StatusWorking, wire.StatusWaiting}, row.Mesh) {
		out.Became = becameJoined
	}
}

// inspect asks the host that accepted a spawn for the row of its seat.
func (f *follower) inspect(ctx context.Context, acc wire.Acceptance, row *wire.AgentRow) error {
	return f.c.Ask(ctx, mesh.Call{
		Command: wire.CmdInspect, Instance: acc.Executor.LifecycleUID, Args: wire.NameArgs{Name: acc.UID}, Deadline: 5 * time.Second,
	}, row)
}

// lastLines is the end of a text: whole lines, without empty ones at its end.
func lastLines(text string, n int) []string {
	text = strings.TrimRight(text, "\r\n\t ")
	if text == "" {
		return nil
	}
	all := strings.Split(text, "\n")
	all = all[max(0, len(all)-n):]
	for i := range all {
		all[i] = strings.TrimRight(all[i], "\r")
	}
	return all
}

// printOutput shows the last lines of a seat that exited, before the line that says so.
func (s spawned) printOutput(a *app) {
	if len(s.Output) == 0 {
		return
	}
	fmt.Fprintf(a.errw, "the last output of %s:\n", cli.OneLine(s.Name))
	for _, l := range s.Output {
		fmt.Fprintf(a.errw, "  | %s\n", cli.OneLine(l))
	}
}

// submit sends the request. Without a reply it is sent once more with the same id, which starts nothing
// twice: a host that accepted it, or the one that comes after it, answers with the same acceptance. The goal is
// watched before the request leaves.
func submit(ctx context.Context, a *app, args wire.SpawnArgs, show *progress) (*follower, wire.Acceptance, error) {
	call := mesh.Call{Command: wire.CmdSpawn, ID: goalID(wire.NewID), Args: args}
	call.GoalID = call.ID
	f, acc, connected, err := submitOnce(ctx, a, call)
	maybe := sentUnanswered(err) // it may have been accepted
	if connected && err != nil && (maybe || cli.CodeOf(err) == cli.Unreachable) && ctx.Err() == nil {
		show.note("no reply; asking again with the same request id")
		first := err
		limit := time.Now().Add(hostWait)
		for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			f, acc, _, err = submitOnce(ctx, a, call)
			maybe = maybe || sentUnanswered(err)
			if err == nil || cli.CodeOf(err) != cli.Unreachable || ctx.Err() != nil || time.Now().After(limit) {
				break
			}
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
		var refused *wire.Error
		if err != nil && maybe && !errors.As(err, &refused) { // a refusal is an answer: it was not started
			err = cli.Fail(cli.Uncertain, "it may have been started: %w; look with: cotal goal %s   cotal ps; before trying again", first, call.GoalID)
		}
	}
	switch {
	case err == nil:
		show.accepted(acc.Name)
		return f, acc, nil
	case ctx.Err() != nil && maybe:
		return nil, acc, cli.Fail(cli.Interrupted, "interrupted; the spawn may have been accepted. Look: cotal goal %s   cotal ps", call.GoalID)
	case ctx.Err() != nil:
		return nil, acc, cli.Fail(cli.Interrupted, "interrupted; nothing was started")
	}
	return nil, acc, err
}

// goalID makes an id that people can put on a command line: one that begins with a dash would be a flag.
func goalID(fresh func() string) string {
	for {
		if id := fresh(); !strings.HasPrefix(id, "-") {
			return id
		}
	}
}

// sentUnanswered says whether a request was sent, and nobody knows what became of it.
func sentUnanswered(err error) bool {
	var refused *wire.Error
	switch {
	case err == nil, errors.As(err, &refused): // a refusal remains one
		return false
	case errors.Is(err, context.Canceled):
		return mesh.OutcomeOf(err) == wire.OutcomeUnknown
	}
	return cli.CodeOf(err) == cli.Uncertain
}

// submitOnce finds the host anew, which may be another process by now, watches the goal and sends the request.
func submitOnce(ctx context.Context, a *app, call mesh.Call) (f *follower, acc wire.Acceptance, connected bool, err error) {
	c, err := a.target.Connect(ctx)
	if err != nil {
		return nil, acc, false, err
	}
	if f, err = follow(ctx, c, call.GoalID); err != nil {
		c.Close()
		return nil, acc, true, cli.Fail(cli.Unreachable, "%w; nothing was sent", err)
	}
	if err := c.Manager(ctx, call, &acc); err != nil {
		f.close()
		return nil, acc, true, err
	}
	return f, acc, true, nil
}
