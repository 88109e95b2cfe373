package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/store"
)

// extManage is a command on one plugin by its name.
func extManage(a *app, use, short, long, example string, do func(cmd *cobra.Command, s *extScope, hits []placed, asJSON bool) error) *cobra.Command {
	cmd := &cobra.Command{Use: use + " " + pluginArg, Short: short, Long: long, Example: example, Args: cli.Arg(pluginArg, false, pluginArg)}
	kind := kindFlag(cmd)
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.ValidArgsFunction = a.installedNames
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkKind(*kind); err != nil {
			return err
		}
		s, err := a.extScope()
		if err != nil {
			return err
		}
		hits, err := s.find(*kind, args[0])
		if err != nil {
			return err
		}
		return do(cmd, s, hits, *asJSON)
	}
	return cmd
}

func extRemoveCmd(a *app) *cobra.Command {
	return extManage(a, "remove", "Remove an installed plugin",
		`Take a plugin out of plugins.toml, and have a host that runs here end it. It is refused, naming them, while seats need
it. Its file is kept until the next change, so that cotal ext rollback brings it back. One of the bundle cannot be taken
out of it: it is turned off in your plugins.toml, and stays so when the bundle is upgraded.`,
		"  cotal ext remove echo",
		func(cmd *cobra.Command, s *extScope, hits []placed, asJSON bool) error {
			h := hits[0]
			if h.of == ofBundle {
				return a.turnOff(cmd, s, h, "removed", asJSON)
			}
			if !h.On() && s.onlyOff(hits) {
				return a.enter(cmd, s, asJSON, unchanged(h), extChange{Note: "it is turned off already; cotal ext enable brings it back"})
			}
			to, err := s.layer(h.of == ofWorkspace)
			if err != nil {
				return err
			}
			out := extChange{Change: "removed"}
			c := store.Change{Manifest: to.path, Kind: h.Kind, Name: h.Name, Users: a.seatsThatNeed(to.path)}
			if len(hits) > 1 && hits[1].On() {
				c.Users = nil // somebody goes on serving its seats
				out.Note = fmt.Sprintf("that of the %s, version %s, takes its place", hits[1].of, hits[1].Version)
			}
			c.Decide = func(now *manifest.Entry) (*manifest.Edit, error) {
				if now == nil {
					return nil, nil
				}
				return &manifest.Edit{Kind: h.Kind, Name: h.Name, Remove: true}, nil
			}
			return a.enter(cmd, s, asJSON, c, out)
		})
}

// onlyOff reports whether the entry that counts is a copy of the bundle's, made to turn it off.
func (s *extScope) onlyOff(hits []placed) bool {
	first, last := hits[0], hits[len(hits)-1]
	return first.of != ofBundle && last.of == ofBundle && last.Command == first.Command && first.StoreFile() != first.File(s.bundleDir)
}

// unchanged is a change that changes nothing.
func unchanged(h placed) store.Change {
	return store.Change{Manifest: h.Source, Kind: h.Kind, Name: h.Name, Decide: func(*manifest.Entry) (*manifest.Edit, error) { return nil, nil }}
}

// turnOff writes an entry that is off: over one of the bundle, a copy of it into the user's manifest.
func (a *app) turnOff(cmd *cobra.Command, s *extScope, h placed, change string, asJSON bool) error {
	to, err := s.layer(h.of == ofWorkspace)
	if err != nil {
		return err
	}
	off := false
	c := store.Change{Manifest: to.path, Kind: h.Kind, Name: h.Name, Users: a.seatsThatNeed(to.path)}
	c.Decide = func(now *manifest.Entry) (*manifest.Edit, error) {
		put := h.Entry
		if now != nil {
			put = *now
		}
		if now != nil && !now.On() {
			return nil, nil
		}
		put.Enabled = &off
		return &manifest.Edit{Kind: h.Kind, Name: h.Name, Put: put}, nil
	}
	return a.enter(cmd, s, asJSON, c, extChange{Change: change})
}

func extDisableCmd(a *app) *cobra.Command {
	return extManage(a, "disable", "Turn a plugin off",
		`Turn a plugin off in plugins.toml, and have a host that runs here end it. It is refused, naming them, while seats need
it. It stays installed.`,
		"  cotal ext disable tmux",
		func(cmd *cobra.Command, s *extScope, hits []placed, asJSON bool) error {
			if !hits[0].On() {
				return a.enter(cmd, s, asJSON, unchanged(hits[0]), extChange{})
			}
			return a.turnOff(cmd, s, hits[0], "disabled", asJSON)
		})
}

func extEnableCmd(a *app) *cobra.Command {
	return extManage(a, "enable", "Turn a plugin on again",
		`Turn a plugin on that was turned off, or removed from the bundle, and have a host that runs here start it. When it does
not start, it stays off and exit code 1 says why.`,
		"  cotal ext enable tmux",
		a.turnOn)
}

// turnOn turns the first of the entries on.
func (a *app) turnOn(cmd *cobra.Command, s *extScope, hits []placed, asJSON bool) error {
	h := hits[0]
	if h.On() {
		return a.enter(cmd, s, asJSON, unchanged(h), extChange{})
	}
	if h.of == ofBundle {
		return cli.Fail(cli.Refused, "%s is turned off in %s, which the build writes", h.Name, h.Source)
	}
	to, err := s.layer(h.of == ofWorkspace)
	if err != nil {
		return err
	}
	out := extChange{Change: "enabled"}
	onlyOff := s.onlyOff(hits)
	if onlyOff {
		own := hits[len(hits)-1]
		out.Version, out.SHA256, out.File = own.Version, own.SHA256, own.File(s.bundleDir)
	}
	c := store.Change{Manifest: to.path, Kind: h.Kind, Name: h.Name}
	c.Decide = func(now *manifest.Entry) (*manifest.Edit, error) {
		if now == nil || now.On() {
			return nil, nil
		}
		// A copy that is there only to be off goes, so that the bundle's own counts, also after an upgrade of it.
		if onlyOff {
			return &manifest.Edit{Kind: h.Kind, Name: h.Name, Remove: true}, nil
		}
		put := *now
		put.Enabled = nil
		return &manifest.Edit{Kind: h.Kind, Name: h.Name, Put: put}, nil
	}
	return a.enter(cmd, s, asJSON, c, out)
}

// extInfo is a line of cotal ext info.
type extInfo struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Version  string   `json:"version"`
	Enabled  bool     `json:"enabled"`
	Of       string   `json:"of"` // workspace, user or bundle
	Manifest string   `json:"manifest"`
	File     string   `json:"file"` // what a host executes
	SHA256   string   `json:"sha256"`
	Sound    bool     `json:"sound"`             // the file has that digest
	Problem  string   `json:"problem,omitempty"` // why it is not sound
	Env      []string `json:"env,omitempty"`     // names of the variables it gets
	Before   string   `json:"before,omitempty"`  // version that cotal ext rollback goes back to
	Covers   []string `json:"covers,omitempty"`  // manifests that name it too, and do not count
}

func extInfoCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info [plugin]",
		Short: "Show what is installed, and whether the files are sound",
		Long: `Show what the manifests name that are laid over each other for this directory, with those that are turned off, and
compare every file with its digest. It needs no host: cotal ext list shows what runs. Exit code 1 when a file is not the
one that was installed.`,
		Example: "  cotal ext info\n  cotal ext info echo\n  cotal ext info --json | jq -r 'select(.sound | not) | .file'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return cli.Arg("[plugin]", false, "[plugin]")(cmd, args)
		},
	}
	kind := kindFlag(cmd)
	asJSON := jsonFlag(cmd, "print one JSON object a line")
	cmd.ValidArgsFunction = a.installedNames
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkKind(*kind); err != nil {
			return err
		}
		s, err := a.extScope()
		if err != nil {
			return err
		}
		list := s.effective()
		if len(args) > 0 {
			hits, err := s.find(*kind, args[0])
			if err != nil {
				return err
			}
			list = hits[:1]
		} else if *kind != "" {
			list = slices.DeleteFunc(list, func(n placed) bool { return string(n.Kind) != *kind })
		}
		bad := 0
		for n, e := range list {
			info := s.info(e)
			if !info.Sound {
				bad++
			}
			if *asJSON {
				err = cli.PrintJSON(a.out, info)
			} else {
				if n > 0 {
					fmt.Fprintln(a.out)
				}
				err = a.printInfo(info)
			}
			if err != nil {
				return err
			}
		}
		if bad > 0 {
			return cli.Fail(cli.Refused, "%s not sound: put the file back, or install the plugin again", cli.Count(bad, "file"))
		}
		return nil
	}
	return cmd
}

func (s *extScope) info(e placed) extInfo {
	out := extInfo{
		Name: e.Name, Kind: string(e.Kind), Version: e.Version, Enabled: e.On(), Of: e.of, Manifest: e.Source,
		SHA256: e.SHA256, Env: e.Env,
	}
	var err error
	if out.File, err = s.store.Verify(e.Entry, s.bundleDir); err != nil {
		out.Problem = err.Error()
	}
	out.Sound = err == nil
	if was, err := s.store.Previous(e.Source, e.Kind, e.Name); err == nil && (was.SHA256 != e.SHA256 || was.Version != e.Version) {
		out.Before = was.Version
	} else if err != nil && !errors.Is(err, store.ErrNoWayBack) {
		out.Problem = err.Error()
	}
	for _, l := range s.layers {
		for _, o := range l.entries {
			if o.Kind == e.Kind && o.Name == e.Name && o.Source != e.Source {
				out.Covers = append(out.Covers, o.Source)
			}
		}
	}
	return out
}

func (a *app) printInfo(i extInfo) error {
	state := ""
	if !i.Enabled {
		state = ", turned off"
	}
	lines := [][2]string{{"file", i.File}, {"sha256", i.SHA256}, {"manifest", fmt.Sprintf("%s (of the %s)", i.Manifest, i.Of)}}
	if i.Problem != "" {
		lines = append(lines, [2]string{"problem", i.Problem})
	}
	if len(i.Env) > 0 {
		lines = append(lines, [2]string{"env", strings.Join(i.Env, ", ")})
	}
	if i.Before != "" {
		lines = append(lines, [2]string{"before", i.Before + ": cotal ext rollback " + i.Name})
	}
	for _, c := range i.Covers {
		lines = append(lines, [2]string{"covers", c})
	}
	fmt.Fprintf(a.out, "%s %s %s%s\n", i.Kind, i.Name, cli.OneLine(i.Version), state)
	for _, l := range lines {
		if _, err := fmt.Fprintf(a.out, "  %-9s %s\n", l[0], cli.OneLine(l[1])); err != nil {
			return fmt.Errorf("write result: %w", err)
		}
	}
	return nil
}
