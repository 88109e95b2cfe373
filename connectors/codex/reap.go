package codex

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk"
)

// reapTimeout bounds the question Reap asks.
const reapTimeout = 2 * time.Second

// Reap removes what BuildLaunch and the launcher put into the seat's directory, and the sockets of a launch, once
// nothing listens at them. Sessions stay: what was said outlives the seat. Errors: ErrUnproven (a process of the
// launch still listens; nothing was removed).
func (c *Connector) Reap(ctx context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	report := sdk.ReapReport{Outcome: sdk.ReapAbsent}
	say := func(format string, args ...any) {
		report.Evidence = append(report.Evidence, fmt.Sprintf(format, args...))
	}
	if req.Dir == "" {
		say("no directory given: nothing of a launch can be left in one")
		return report, nil
	}
	api, mcp := plan.Sockets(req.Dir)
	for _, path := range []string{api, mcp} {
		if listens(ctx, path) {
			return report, &sdk.Error{
				Code: sdk.ErrUnproven, Outcome: sdk.OutcomeNotExecuted, Retryable: true,
				Detail: "Codex may still live: something listens at " + path,
			}
		}
		say("nothing listens at %s", path)
	}
	dir := func(name string) string { return filepath.Join(req.Dir, name) }
	for _, path := range []string{api, mcp, dir(homeDir), dir(plan.LogName), dir(planFile)} {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return report, &sdk.Error{Code: sdk.ErrUnproven, Outcome: sdk.OutcomeUnknown, Retryable: true, Detail: fmt.Sprintf("remove leftover: %v", err)}
		}
		report.Outcome = sdk.ReapExited
		report.Removed = append(report.Removed, path)
	}
	say("sessions stay in %s", storeDir(req.WorkspaceRoot))
	return report, nil
}

// listens says whether a process has a socket open. Only a refusal and a missing file are proof that none has.
func listens(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
		return true
	}
	return !isGone(err)
}

func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}
