package host

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/catalog"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// RestartPlugin answers plugin-restart: a new process takes over, and the old one ends behind it.
func (h *Host) RestartPlugin(ctx context.Context, args wire.PluginRestartArgs) (wire.PluginRestartReply, error) {
	kind := sdk.Kind(args.Kind)
	if kind != "" && kind != sdk.KindConnector && kind != sdk.KindRuntime {
		return wire.PluginRestartReply{}, wire.Refuse(wire.CodeBadRequest, "kind %q: want connector or runtime", args.Kind)
	}
	begin := time.Now()
	kind, done, err := h.catalog.Restart(ctx, kind, args.Name)
	if err != nil {
		return wire.PluginRestartReply{}, pluginError(err)
	}
	return wire.PluginRestartReply{
		Name: args.Name, Kind: string(kind), Version: done.Info.Version, OldPID: done.OldPID, PID: done.PID,
		DurMs: time.Since(begin).Milliseconds(),
	}, nil
}

// ReloadPlugins answers plugin-reload: the manifest is read as at the start of the host, and applied whole or
// not at all.
func (h *Host) ReloadPlugins(ctx context.Context) (wire.PluginReloadReply, error) {
	m, err := manifest.Resolve(h.cfg.PluginsPath, h.cfg.Root, h.cfg.BundleDir)
	if err != nil {
		h.log.Error("plugin manifest not read again; the plugins go on as they are", "err", err)
		return wire.PluginReloadReply{}, wire.Refuse(wire.CodeFailedPrecondition, "nothing was changed: %v", err)
	}
	changes, err := h.catalog.Reload(ctx, m, h.pluginUsers)
	if err != nil {
		h.log.Error("plugin manifest not applied; the plugins go on as they are", "err", err)
		return wire.PluginReloadReply{}, pluginError(err)
	}
	reply := wire.PluginReloadReply{Path: m.Path, Plugins: []wire.PluginChange{}}
	for _, c := range changes {
		if c.Change != catalog.Unchanged || c.Note != "" {
			h.log.Info("plugin "+string(c.Change), "plugin", c.Name, "kind", string(c.Kind), "version", c.Version, "pid", c.PID, "note", c.Note)
		}
		reply.Plugins = append(reply.Plugins, wire.PluginChange{
			Name: c.Name, Kind: string(c.Kind), Change: string(c.Change), OldVersion: c.OldVersion, Version: c.Version, PID: c.PID, Note: c.Note,
		})
	}
	return reply, nil
}

// pluginUsers names the seats that need a plugin, and the host itself for the runtime of its new seats.
func (h *Host) pluginUsers(kind sdk.Kind, name string) []string {
	var users []string
	if kind == sdk.KindRuntime && name == h.runtimeName() {
		users = append(users, "this host for new seats (--runtime)")
	}
	for _, row := range h.seats.Rows() {
		of := row.Agent
		if kind == sdk.KindRuntime {
			of = row.Mode
		}
		if of == name && row.Exit == nil {
			users = append(users, "seat "+row.Name)
		}
	}
	slices.Sort(users)
	return users
}

// pluginError is the refusal of a command on plugins. Every one of them leaves things as they were: a new
// process that does not start is the only thing that was done.
func pluginError(err error) *wire.Error {
	code := wire.CodeFailedPrecondition
	var start *supervise.StartError
	switch {
	case errors.Is(err, sdk.ErrNotFound):
		code = wire.CodeNotFound
	case errors.As(err, &start):
	case errors.Is(err, sdk.ErrUnavailable):
		code = wire.CodeUnavailable
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	for _, sentinel := range []error{sdk.ErrNotFound, sdk.ErrInvalid} { // their own words add nothing
		text = strings.TrimPrefix(text, sentinel.Error()+": ")
	}
	return &wire.Error{Code: code, Outcome: wire.OutcomeNotExecuted, Message: text}
}
