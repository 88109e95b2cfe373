package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/store"
	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The places of manifests, in words.
const (
	ofWorkspace = "workspace"
	ofUser      = "user"
	ofBundle    = "bundle"
)

// layer is one of the manifests that are laid over each other.
type layer struct {
	of      string // workspace, user or bundle
	path    string
	entries []manifest.Entry // none when there is no such file
}

// extScope is which manifests a command means, the strongest first, and where the bundle is.
type extScope struct {
	bundleDir string
	layers    []layer
	store     *store.Store
}

// besideSelf is the directory with the programs that belong to this one, which may have been started by a link.
func besideSelf() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the programs of cotal: %w", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return filepath.Dir(self), nil
}

// extScope reads the manifests. One that is not sound is an error, as it is to a host.
func (a *app) extScope() (*extScope, error) {
	dir, err := besideSelf()
	if err != nil {
		return nil, err
	}
	s := &extScope{bundleDir: dir}
	if s.store, err = store.Open(""); err != nil {
		return nil, err
	}
	root := a.target.Workspace()
	for _, path := range manifest.Places(root, dir) {
		l := layer{of: ofUser, path: path}
		switch {
		case root != "" && path == filepath.Join(root, ".cotal", manifest.FileName):
			l.of = ofWorkspace
		case path == filepath.Join(dir, manifest.FileName):
			l.of = ofBundle
		}
		m, err := manifest.Load(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			l.entries = m.Entries
		}
		s.layers = append(s.layers, l)
	}
	return s, nil
}

// layer is the manifest to write into.
func (s *extScope) layer(workspace bool) (layer, error) {
	want, why := ofUser, "there is no home directory to keep it in: set HOME or XDG_CONFIG_HOME"
	if workspace {
		want, why = ofWorkspace, "no workspace in this directory or above: say --root"
	}
	for _, l := range s.layers {
		if l.of == want {
			return l, nil
		}
	}
	return layer{}, cli.Fail(cli.Usage, "%s", why)
}

// placed is an entry and where it stands.
type placed struct {
	manifest.Entry
	of string
}

// find gives the entries of a name, the strongest first. An empty kind is any, as long as there is one alone.
// Error: exit code 4 with the names there are.
func (s *extScope) find(kind, name string) ([]placed, error) {
	var hits []placed
	var all []string
	for _, l := range s.layers {
		for _, e := range l.entries {
			if e.Name == name && (kind == "" || string(e.Kind) == kind) {
				hits = append(hits, placed{e, l.of})
			}
			all = append(all, e.Name)
		}
	}
	for _, h := range hits {
		if h.Kind != hits[0].Kind {
			return nil, cli.Fail(cli.Usage, "%q is a connector and a runtime: say --kind", name)
		}
	}
	if len(hits) == 0 {
		slices.Sort(all)
		return nil, cli.Fail(cli.NotFound, "no plugin %q is installed: there are %s", name, strings.Join(slices.Compact(all), ", "))
	}
	return hits, nil
}

// effective are the entries that a host of this scope goes by, with those that are turned off.
func (s *extScope) effective() []placed {
	var out []placed
	seen := map[string]bool{}
	for _, l := range s.layers {
		for _, e := range l.entries {
			if key := string(e.Kind) + "/" + e.Name; !seen[key] {
				seen[key] = true
				out = append(out, placed{e, l.of})
			}
		}
	}
	slices.SortFunc(out, func(a, b placed) int {
		return strings.Compare(string(a.Kind)+"/"+a.Name, string(b.Kind)+"/"+b.Name)
	})
	return out
}

// Words of extChange.Host.
const (
	hostReloaded  = "reloaded"
	hostNone      = "none"
	hostSilent    = "silent"
	hostElsewhere = "elsewhere"
	hostOther     = "other-manifest"
)

// extChange is what a command did to one plugin.
type extChange struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Change    string `json:"change"` // installed, upgraded, rolled-back, removed, enabled, disabled, unchanged
	Version   string `json:"version,omitempty"`
	Was       string `json:"was,omitempty"` // version before
	SHA256    string `json:"sha256,omitempty"`
	File      string `json:"file,omitempty"` // what a host executes
	Manifest  string `json:"manifest"`       // the file that was changed, or says so already
	Host      string `json:"host"`           // reloaded; none: no host runs here; silent: it does not answer; elsewhere: it is on another machine; other-manifest: it does not read this one
	PID       int    `json:"pid,omitempty"`  // of the new process
	Note      string `json:"note,omitempty"` // what is worth knowing besides
	unchanged bool
}

// swap has the host of this place read its manifests. An error that is not store.ErrKeep means that it goes on as
// it was.
func (a *app) swap(cmd *cobra.Command, out *extChange) func(context.Context) error {
	return func(context.Context) error {
		e, path, err := a.target.Endpoint()
		switch {
		case err != nil && cli.CodeOf(err) == cli.Unreachable:
			out.Host = hostNone
			// One that boots may have read the manifest as it was; of several none is told apart here.
			root := a.target.Workspace()
			if run, perr := instance.Probe(root); errors.Is(err, mesh.ErrSeveralHosts) || root != "" && (perr != nil || run.Held) {
				out.Host, out.Note = hostSilent, cli.Text(err)+"; once it answers: cotal ext reload"
			}
			return nil
		case err != nil:
			return err
		case path == "" || e.PID == 0:
			out.Host, out.Note = hostElsewhere, "the host that is meant was named by its address: have it read the manifest with cotal ext reload, if it is on this machine"
			return nil
		}
		var r wire.PluginReloadReply
		err = extCall(cmd, a, wire.CmdPluginReload, nil, &r)
		switch code := cli.CodeOf(err); {
		case code == cli.Unreachable:
			out.Host, out.Note = hostSilent, "the host does not answer now; once it does: cotal ext reload"
			return nil
		case code == cli.Uncertain, code == cli.Interrupted:
			return fmt.Errorf("%w (%w)", err, store.ErrKeep)
		case err != nil:
			return err
		}
		out.Host = hostOther
		for _, p := range r.Plugins {
			if p.Name == out.Name && p.Kind == out.Kind {
				out.Host, out.PID = hostReloaded, p.PID
				if p.Note != "" {
					out.Note = p.Note
				}
			}
		}
		if out.Host == hostOther && (out.Change == "removed" || out.Change == "disabled") {
			out.Host = hostReloaded // what is off or gone is not in the list
		}
		if out.Host == hostOther {
			out.Note = "the host reads " + r.Path + ", which does not name it: was it started with --plugins?"
		}
		return nil
	}
}

// printChange says what was done.
func (a *app) printChange(asJSON bool, c extChange) error {
	if asJSON {
		return cli.PrintJSON(a.out, c)
	}
	line := fmt.Sprintf("%s %s %s", c.Change, c.Kind, c.Name)
	if c.Version != "" {
		line += " " + c.Version
	}
	if c.Was != "" && c.Was != c.Version {
		line += ", was " + c.Was
	}
	switch {
	case c.PID > 0:
		line += fmt.Sprintf(", pid %d", c.PID)
	case c.Host == hostNone && !c.unchanged:
		line += "; no host runs here, the next one reads it"
	}
	if c.Note != "" {
		line += " (" + c.Note + ")"
	}
	_, err := fmt.Fprintln(a.out, cli.OneLine(line))
	return err
}

// tellWait is how long a command waits for another one before it says so.
const tellWait = 2 * time.Second

// enter carries a change out and says what came of it.
func (a *app) enter(cmd *cobra.Command, s *extScope, asJSON bool, c store.Change, out extChange) error {
	out.Name, out.Kind, out.Manifest = c.Name, string(c.Kind), c.Manifest
	c.Swap = a.swap(cmd, &out)
	// Decide is asked under the lock.
	waits := time.AfterFunc(tellWait, func() {
		fmt.Fprintln(a.errw, "note: another cotal ext is at work; this one goes on when that is done")
	})
	decide := c.Decide
	c.Decide = func(now *manifest.Entry) (*manifest.Edit, error) {
		waits.Stop()
		return decide(now)
	}
	done, err := s.store.Enter(cmd.Context(), c)
	waits.Stop()
	switch {
	case errors.Is(err, store.ErrKeep):
		fmt.Fprintf(a.errw, "note: %s stays changed\n", cli.OneLine(c.Manifest))
		return err
	case errors.Is(err, context.Canceled):
		return refused(err)
	case errors.Is(err, store.ErrNeeded), errors.Is(err, store.ErrTaken), errors.Is(err, store.ErrNone):
		return cli.Fail(cli.Refused, "%w; nothing was changed", err)
	case err != nil && cli.CodeOf(err) == cli.Refused:
		return refused(err)
	case err != nil:
		return err
	}
	if done.Was != nil {
		out.Was = done.Was.Version
	}
	if done.Now != nil {
		e := *done.Now
		e.Source = c.Manifest
		out.Version, out.SHA256, out.File = e.Version, e.SHA256, e.File(s.bundleDir)
	}
	if !done.Changed {
		out.Change, out.unchanged, out.Was = "unchanged", true, ""
	}
	if done.SweepErr != nil {
		fmt.Fprintf(a.errw, "note: %s\n", cli.OneLine(done.SweepErr.Error()))
	}
	return a.printChange(asJSON, out)
}

// seatsThatNeed names the living seats of this machine that need a plugin: those of the workspace when it is the
// workspace's own manifest that changes. What cannot be read counts.
func (a *app) seatsThatNeed(path string) store.Users {
	return func(_ context.Context, kind describe.Kind, name string) ([]string, error) {
		e, _, _ := a.target.Endpoint() // without a host the seat root is the usual one
		dir, err := cli.SeatRoot(e)
		if err != nil {
			return nil, err
		}
		found, err := record.List(dir)
		if err != nil {
			return nil, fmt.Errorf("list seats: %w", err)
		}
		var only map[string]bool
		if root := a.target.Workspace(); root != "" && path == filepath.Join(root, ".cotal", manifest.FileName) {
			rows, err := cli.LivingSeats(root, wire.Endpoint{SeatRoot: dir})
			if err != nil {
				return nil, err
			}
			only = map[string]bool{}
			for _, r := range rows {
				only[r.SeatID] = true
			}
		}
		var need []string
		for _, f := range found {
			if f.Exit != nil || only != nil && !only[f.CustodyID] {
				continue
			}
			if f.Err != nil {
				if errors.Is(f.Err, fs.ErrNotExist) {
					continue // nothing runs in it: the host that made it, or its next one, takes it away
				}
				need = append(need, fmt.Sprintf("seat %s, whose record cannot be read", f.CustodyID[:8]))
				continue
			}
			if live, _ := seat.Check(f.Seat.Identity()); live == seat.Dead {
				continue
			}
			intent, err := record.ReadIntent(f.Dir)
			if needs(f.Seat.Record.Form, intent.Runtime, err != nil, kind, name) {
				need = append(need, "seat "+f.Seat.Record.Owner.Alias)
			}
		}
		return need, nil
	}
}

// needs reports whether a seat needs a plugin, by its launch form and the runtime that it was meant for. What cannot
// be read may name any.
func needs(form json.RawMessage, runtime string, unreadable bool, kind describe.Kind, name string) bool {
	var f struct {
		Agent   string `json:"agent"`
		Runtime string `json:"runtime"` // empty: that of the host
	}
	if err := json.Unmarshal(form, &f); err != nil {
		return true
	}
	if kind != describe.Runtime {
		return f.Agent == name
	}
	if f.Runtime == "" && unreadable {
		return true
	}
	return cmp.Or(f.Runtime, runtime, "pty") == name
}

// kindFlag declares --kind.
func kindFlag(cmd *cobra.Command) *string {
	kind := cmd.Flags().String("kind", "", "connector or runtime; needed only where both have a plugin of that name")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]cobra.Completion{"connector", "runtime"}, cobra.ShellCompDirectiveNoFileComp)) // fails for a flag that does not exist
	return kind
}

func checkKind(kind string) error {
	if kind != "" && kind != "connector" && kind != "runtime" {
		return cli.Fail(cli.Usage, "--kind %q: want connector or runtime", kind)
	}
	return nil
}

// installedNames completes the names of plugins that manifests name, with or without a host.
func (a *app) installedNames(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s, err := a.extScope()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, e := range s.effective() {
		names = append(names, offer(e.Name, fmt.Sprintf("%s, %s", e.Kind, e.Version)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
