package plugintest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
)

func leftover(req sdk.LaunchRequest) sdk.LeftoverRequest {
	return sdk.LeftoverRequest{
		SeatID: req.SeatID, Name: req.Name, LifecycleUID: req.LifecycleUID, WorkspaceRoot: req.WorkspaceRoot,
		Cwd: req.Cwd, Dir: req.Dir, LaunchOptions: req.LaunchOptions, Binaries: req.Binaries,
	}
}

func checkReapUnknown(ctx context.Context, e *Env) error {
	c, err := e.connector(ctx)
	if err != nil {
		return err
	}
	req, err := e.request()
	if err != nil {
		return err
	}
	for _, dir := range []string{req.Dir, filepath.Join(e.dir.launches, "never-was"), ""} {
		q := leftover(req)
		q.Dir = dir
		report, err := c.Reap(ctx, q)
		switch {
		case err != nil:
			return found("Reap with the directory %q: %w", dir, err)
		case report.Outcome != sdk.ReapAbsent:
			return found("Reap with the directory %q says %q of a seat that never was", dir, report.Outcome)
		case len(report.Evidence) == 0 || slices.Contains(report.Evidence, ""):
			return found("Reap with the directory %q gives no evidence: %s", dir, asText(report))
		}
	}
	return nil
}

func checkReapTwice(ctx context.Context, e *Env) error {
	req, _, err := e.launch(ctx, nil)
	if err != nil {
		return err
	}
	c, err := e.connector(ctx)
	if err != nil {
		return err
	}
	for i := range 3 {
		report, err := c.Reap(ctx, leftover(req))
		if err != nil {
			return found("Reap, call %d: %w", i+1, err)
		}
		if i > 0 && len(report.Removed) > 0 {
			return found("Reap, call %d, still removed %v", i+1, report.Removed)
		}
	}
	return nil
}

func checkReapOwn(ctx context.Context, e *Env) error {
	req, _, err := e.launch(ctx, nil)
	if err != nil {
		return err
	}
	for _, file := range []string{filepath.Join(e.dir.work, "users.txt"), filepath.Join(e.dir.home, "users.txt")} {
		if err := os.WriteFile(file, []byte("the user's\n"), 0o600); err != nil {
			return fmt.Errorf("write the user's file: %w", err)
		}
	}
	c, err := e.connector(ctx)
	if err != nil {
		return err
	}
	before := e.tree(req.Dir)
	if _, err := c.Reap(ctx, leftover(req)); err != nil {
		return skip("Reap fails, which is a rule of its own: %v", err)
	}
	gone := slices.DeleteFunc(differences(before, e.tree(req.Dir)), func(s string) bool { return strings.HasPrefix(s, "new: ") })
	if len(gone) > 0 {
		return fmt.Errorf("outside req.Dir: %s", strings.Join(gone, ", "))
	}
	return nil
}
