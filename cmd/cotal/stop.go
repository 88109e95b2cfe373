package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// defaultGrace is assumed for a seat whose record cannot be read from here (sdk.DefaultStopGraceMs;
	// package sdk brings gRPC with it and is not worth it).
	defaultGrace = 10 * time.Second
	// stopMargin is what a stop may take beyond the seat's grace: KILL, collecting the tree, removing.
	stopMargin = 15 * time.Second
	// stopParallel bounds how many seats are stopped at once.
	stopParallel = 8
)

// stopped is the result of one stop, and its JSON form.
type stopped struct {
	Name   string           `json:"name"`
	OK     bool             `json:"ok"`
	Report *wire.StopReport `json:"report,omitempty"`
	Error  string           `json:"error,omitempty"`
	Code   string           `json:"code,omitempty"`
	err    error
}

func stopCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "stop " + seatArg + "...",
		Aliases: []string{"kill"},
		Short:   "End seats, and say what was ended and what proves it",
		Long: `End seats. The agent and its foreground program are asked to end (TERM and HUP), and after the grace
of the seat (10 s unless its connector says otherwise) everything that is left of it is killed. It is done
when nothing of the seat is left. One line a seat says what was ended and what proves it; --verbose prints
every process and every proof. Exit code 5 when only some could be stopped.`,
		Example: "  cotal stop reviewer\n  cotal stop --now reviewer tester",
		Args:    cli.Arg(seatArg, true, seatArg+"..."),
	}
	now := cmd.Flags().Bool("now", false, "kill at once instead of asking first")
	verbose := cmd.Flags().BoolP("verbose", "v", false, "print everything that was ended and every proof")
	asJSON := jsonFlag(cmd, "print one JSON object a seat")
	cmd.ValidArgsFunction = a.seatNames(true, "starting", "running", "stopping", "unknown")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.target.Connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		results := stopAll(cmd.Context(), c, args, *now, func(name string, wait time.Duration) {
			if !*asJSON && !*now {
				fmt.Fprintf(a.errw, "stopping %s, at most %s before it is killed\n", name, wait)
			}
		})
		return reportStops(a, results, *asJSON, *verbose)
	}
	return cmd
}

// stopAll stops several seats side by side and returns the results in the order of refs.
func stopAll(ctx context.Context, c *cli.Client, refs []string, now bool, begun func(string, time.Duration)) []stopped {
	results := make([]stopped, len(refs))
	slots := make(chan struct{}, stopParallel)
	var wg sync.WaitGroup
	for i, ref := range refs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = stopOne(ctx, c, ref, now, begun)
		})
	}
	wg.Wait()
	return results
}

func stopOne(ctx context.Context, c *cli.Client, ref string, now bool, begun func(string, time.Duration)) stopped {
	fail := func(name string, err error) stopped {
		s := stopped{Name: name, Error: cli.Text(err), err: err}
		var refused *wire.Error
		if errors.As(err, &refused) {
			s.Code = refused.Code
		}
		return s
	}
	row, err := c.Locate(ctx, ref)
	if err != nil {
		return fail(ref, err)
	}
	target, err := cli.TargetOf(row)
	if err != nil {
		return fail(row.Name, err)
	}
	grace := graceOf(c, row)
	if row.Exit == nil {
		begun(row.Name, grace)
	}
	graceful := !now
	var reply wire.DespawnReply
	err = c.Manager(ctx, mesh.Call{
		Command: wire.CmdDespawn, Instance: row.InstanceID, Authz: wire.AuthzAny, Target: target, Deadline: grace + stopMargin,
		Args: wire.DespawnArgs{Graceful: &graceful, WaitForExit: true},
	}, &reply)
	if err != nil {
		if cli.CodeOf(err) == cli.NotFound { // it may have ended before, or just now: that is what was wanted
			if row.Exit == nil {
				_ = c.Ask(ctx, mesh.Call{Command: wire.CmdInspect, Instance: row.InstanceID, Args: wire.NameArgs{Name: row.LifecycleUID}}, &row) // else the refusal stands
			}
			if row.Exit != nil {
				return stopped{Name: row.Name, OK: true, Report: &wire.StopReport{
					Outcome: "exited", Exit: row.Exit, Evidence: []string{"the host holds its exit record (" + row.Exit.Evidence + ")"},
				}}
			}
		}
		switch {
		case errors.Is(err, context.Canceled) && mesh.OutcomeOf(err) == wire.OutcomeNotExecuted:
			err = cli.Fail(cli.Interrupted, "interrupted; %s was not asked to end", row.Name)
		case errors.Is(err, context.Canceled):
			err = cli.Fail(cli.Interrupted, "interrupted; %s is being ended, as far as is known: the host was asked for it, and has not said how it went. Look with: cotal inspect %s", row.Name, row.Name)
		case cli.CodeOf(err) == cli.Uncertain:
			err = cli.Fail(cli.Uncertain, "not known whether it ended: %w; look with: cotal inspect %s", err, row.Name)
		}
		return fail(row.Name, err)
	}
	if reply.Report != nil {
		reply.Report.Evidence = cli.Proofs(reply.Report)
	}
	return stopped{Name: row.Name, OK: true, Report: reply.Report}
}

// graceOf reads the grace a seat was spawned with from its own record; the host may be elsewhere, and
// then the default is assumed.
func graceOf(c *cli.Client, row wire.AgentRow) time.Duration {
	grace := defaultGrace
	root, err := cli.SeatRoot(c.Endpoint)
	if err != nil || row.SeatID == "" {
		return grace
	}
	rec, err := record.ReadSeat(filepath.Join(root, row.SeatID))
	if err == nil && rec.Record.StopGraceMs > 0 {
		grace = time.Duration(rec.Record.StopGraceMs) * time.Millisecond
	}
	return grace
}

// reportStops prints every result and returns the error that gives the exit code.
func reportStops(a *app, results []stopped, asJSON, verbose bool) error {
	var ended []string
	for _, r := range results {
		if r.err == nil {
			ended = append(ended, r.Name)
		}
	}
	if len(ended) > 0 {
		a.out.Done("%s ended", strings.Join(ended, ", "))
	}
	failed, open := 0, 0
	interrupted := false
	for _, r := range results {
		if r.err != nil {
			failed++
		}
		switch cli.CodeOf(r.err) {
		case cli.Interrupted:
			interrupted = true
			open++
		case cli.Uncertain:
			open++
		}
		switch {
		case asJSON:
			if err := cli.PrintJSON(a.out, r); err != nil {
				return err
			}
		case r.err == nil:
			cli.PrintStop(a.out, r.Name, r.Report, verbose)
		}
		if r.err != nil && len(results) > 1 {
			fmt.Fprintf(a.errw, "cotal: %s: %s\n", r.Name, cli.OneLine(r.Error))
		}
	}
	switch {
	case failed == 0:
		return nil
	case len(results) == 1:
		return results[0].err
	case interrupted:
		return cli.Fail(cli.Interrupted, "interrupted; how it went with %d of %s is not known", open, cli.Count(len(results), "seat"))
	case open == len(results):
		return cli.Fail(cli.Uncertain, "whether they ended is not known of any of %s", cli.Count(len(results), "seat"))
	case failed == len(results) && sameCode(results):
		return cli.Fail(cli.CodeOf(results[0].err), "none of %s was stopped", cli.Count(failed, "seat"))
	}
	text := fmt.Sprintf("%d of %s could not be stopped", failed, cli.Count(len(results), "seat"))
	if open > 0 {
		text += fmt.Sprintf(", as far as is known: %d of them may have ended", open)
	}
	return cli.Fail(cli.Partial, "%s", text)
}

func sameCode(results []stopped) bool {
	for _, r := range results {
		if cli.CodeOf(r.err) != cli.CodeOf(results[0].err) {
			return false
		}
	}
	return true
}
