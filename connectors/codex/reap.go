package codex

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/kept"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// reapTimeout bounds the question Reap asks.
const reapTimeout = 2 * time.Second

// Reap removes what BuildLaunch and the launcher put into the seat's directory, and the sockets of a launch, once
// nothing listens at them. Sessions stay: what was said outlives the seat. Then it prunes those of the workspace.
//
// Errors: ErrUnproven (a process of the launch still listens; nothing was removed).
func (c *Connector) Reap(ctx context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	var left sdk.Leftovers
	if req.Dir == "" {
		left.Say("no directory given: nothing of a launch can be left in one")
		return left.Report(), nil
	}
	for _, name := range []string{plan.APISocket, plan.ToolsSocket} {
		path, err := private.FindSocket(req.Dir, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			left.Say("the launch has no %s", name)
			continue
		case err != nil:
			return left.Report(), sdk.StillThere("%v", err)
		case listens(ctx, path):
			return left.Report(), sdk.StillThere("Codex may still live: something listens at %s", path)
		}
		left.Say("nothing listens at %s", path)
	}
	c.renew(req, &left)
	for _, name := range []string{plan.APISocket, plan.ToolsSocket, homeDir, plan.LogName, plan.SessionsName, planFile} {
		if err := left.Remove(filepath.Join(req.Dir, name)); err != nil {
			return left.Report(), err
		}
	}
	if err := left.RemoveSockets(req.Dir); err != nil {
		return left.Report(), err
	}
	left.Say("sessions stay in %s", storeDir(req.WorkspaceRoot))
	c.prune(req, &left)
	return left.Report(), nil
}

// renew begins the time of the seat's own sessions anew: a seat whose program ended by itself is about to go on with one.
func (c *Connector) renew(req sdk.LeftoverRequest, left *sdk.Leftovers) {
	if req.WorkspaceRoot == "" {
		return
	}
	ids, _ := plan.SessionsOf(req.Dir, planFile) // one that was never launched has none
	for _, id := range ids {
		if !sessionID.MatchString(id) {
			continue
		}
		if path := newest(storeDir(req.WorkspaceRoot), id); path != "" {
			if err := kept.Renew(path); err != nil {
				left.Say("%v", err)
			}
		}
	}
}

// prune bounds the sessions of a workspace, of which those that a live seat has open are in the same place. As long as it
// is not known of a seat which those are, none is removed. What could not be removed is for the next time.
func (c *Connector) prune(req sdk.LeftoverRequest, left *sdk.Leftovers) {
	if req.WorkspaceRoot == "" || c.seatRoot == "" { // who lives is not known
		return
	}
	now := c.now
	if now == nil {
		now = time.Now
	}
	var open []string
	var unknown error
	looked := false
	needed := func(path string) bool {
		if !looked { // once the sessions are listed: one that is opened later is not old
			looked = true
			if open, unknown = c.open(filepath.Base(req.Dir)); unknown != nil {
				left.Say("no session is removed: it is not known what a seat has open: %v", unknown)
			}
		}
		return unknown != nil || slices.ContainsFunc(open, func(id string) bool { return strings.HasSuffix(path, "-"+id+".jsonl") }) || speaksOf(path, open)
	}
	pruned, err := c.config.Prune(req.WorkspaceRoot, store, now(), needed, "*", "*", "*", "rollout-*.jsonl")
	if len(pruned) > 0 {
		left.Say("%d sessions that were kept in %s are removed: they were too old, or too many", len(pruned), storeDir(req.WorkspaceRoot))
	}
	if err != nil {
		left.Say("%v", err)
	}
}

// maxHead is how much of a session is looked at for where it comes from; its first line says that.
const maxHead = 64 << 10

// speaksOf reports whether a session names one of others where it begins: it is of an agent that was started in that one,
// or was forked from it.
func speaksOf(path string, ids []string) bool {
	if len(ids) == 0 {
		return false
	}
	f, err := program.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head, _ := bufio.NewReader(io.LimitReader(f, maxHead)).ReadString('\n')
	return slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(head, id) })
}

// open are the sessions of the seats that are there. launch is what their launches' directories are called. The error says
// that there may be others; a launch that goes meanwhile is none.
func (c *Connector) open(launch string) ([]string, error) {
	plans, err := filepath.Glob(kept.Pattern(c.seatRoot, "*", kept.Literal(launch), planFile))
	errs := []error{err}
	var ids []string
	for _, path := range plans {
		of, err := plan.SessionsOf(filepath.Dir(path), planFile)
		if _, serr := os.Lstat(path); serr == nil {
			errs = append(errs, err)
		}
		ids = append(ids, of...)
	}
	return ids, errors.Join(errs...)
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
