package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/store"
	"github.com/cotal-ai/cotal-host/sdk/describe"
)

// installFlags are what install and upgrade share.
type installFlags struct {
	sha256, command, kind string
	workspace, replace    bool
	asJSON                bool
}

const sourceArg = "<name|file|archive|directory>"

func extInstallCmd(a *app) *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:     "install " + sourceArg,
		Aliases: []string{"add"},
		Short:   "Install a connector or runtime",
		Long: `Install a plugin: a program, a tar.gz or zip with one in it, a directory with one in it, or the name of one that is
beside cotal or in an index of yours. It is copied and its SHA-256 shown; nothing of it is executed before you accept
that digest, with --sha256 (of the program, or of the archive) or by typing yes. Then it is asked who it is, kept in the
store by its digest, named in plugins.toml, and a host that runs here takes it at once: its new process is ready before
anything is changed, and seats go on working. With any error everything is as it was, also after a kill.

Of an archive or directory the one program is kept, and nothing else: --command says which, where several may be it.
A name that is taken is refused; cotal ext upgrade replaces a plugin.`,
		Example: `  cotal ext install ./cotal-connector-echo
  cotal ext install ./echo-1.2.0.tar.gz --sha256 9f2c...
  cotal ext install echo --workspace        from the bundle or an index, for this workspace alone`,
		Args: cli.Arg(sourceArg, false, sourceArg),
	}
	f.declare(cmd)
	cmd.Flags().BoolVar(&f.workspace, "workspace", false, "install it for this workspace alone, not for all of yours")
	cmd.Flags().BoolVar(&f.replace, "replace", false, "replace or cover a plugin of that name")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.offeredNames(), cobra.ShellCompDirectiveDefault
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		s, err := a.extScope()
		if err != nil {
			return err
		}
		to, err := s.layer(f.workspace)
		if err != nil {
			return err
		}
		src, err := a.source(cmd.Context(), s, args[0], f.kind)
		if err != nil {
			return err
		}
		defer src.done()
		if h, ok := s.shipped(src); ok && !f.workspace && !f.replace {
			return a.turnOn(cmd, s, h, f.asJSON)
		}
		return a.install(cmd, s, to, src, f, nil)
	}
	return cmd
}

func (f *installFlags) declare(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.sha256, "sha256", "", "accept exactly this digest, of the program or of the archive, without asking")
	fl.StringVar(&f.command, "command", "", "file to take of an archive or directory; of a file the name to keep it by")
	fl.StringVar(&f.kind, "kind", "", "connector or runtime: which is meant, or has to be what the plugin says")
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]cobra.Completion{"connector", "runtime"}, cobra.ShellCompDirectiveNoFileComp)) // fails for a flag that does not exist
}

// refused is an error before anything was changed.
func refused(err error) error {
	if errors.Is(err, context.Canceled) {
		return cli.Fail(cli.Interrupted, "interrupted; nothing was changed")
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return cli.Fail(cli.Refused, "%w; nothing was changed: make room, then try again", err)
	}
	return cli.Fail(cli.Refused, "%w", err)
}

var digestText = lazily(`^[0-9a-f]{64}$`)

func (f *installFlags) check() error {
	f.sha256 = strings.TrimPrefix(strings.ToLower(f.sha256), "sha256:")
	if f.sha256 != "" && !digestText().MatchString(f.sha256) {
		return cli.Fail(cli.Usage, "--sha256 %s: want 64 hex digits, as sha256sum prints them", f.sha256)
	}
	return checkKind(f.kind)
}

// found is a source, and what it has to be.
type found struct {
	path   string
	name   string // empty: whatever it says
	kind   string
	digest string // accepted already: an index that is signed by somebody who is trusted says so
	done   func() // removes what was fetched

	version string // what the index says it is; empty: no index does
	bundled bool   // it was found by its name, beside cotal
}

// shipped finds what is to be installed among the entries of the bundle, which are installed by that, though they may
// be turned off. Otherwise it lies beside cotal and is not in use.
func (s *extScope) shipped(src found) (hits []placed, ok bool) {
	if !src.bundled {
		return nil, false
	}
	hits, err := s.find(src.kind, src.name)
	if err != nil {
		return nil, false
	}
	last := hits[len(hits)-1]
	return hits, last.of == ofBundle && last.Command == filepath.Base(src.path) && (len(hits) == 1 || s.onlyOff(hits))
}

// source finds what install was told. A path is one with a slash, or of something that is there.
func (a *app) source(ctx context.Context, s *extScope, arg, kind string) (found, error) {
	none := func() {}
	_, err := os.Stat(arg)
	if strings.ContainsRune(arg, '/') || err == nil {
		if err != nil {
			return found{}, cli.Fail(cli.Refused, "install %s: %w", arg, err)
		}
		return found{path: arg, kind: kind, done: none}, nil
	}
	for _, k := range []string{"connector", "runtime"} {
		path := filepath.Join(s.bundleDir, "cotal-"+k+"-"+arg)
		if st, err := os.Stat(path); (kind == "" || kind == k) && err == nil && st.Mode().IsRegular() {
			return found{path: path, name: arg, kind: k, bundled: true, done: none}, nil
		}
	}
	indexes, err := s.store.Indexes()
	if err != nil {
		return found{}, refused(err)
	}
	item, err := indexes.Find(ctx, kind, arg)
	if errors.Is(err, store.ErrNone) {
		return found{}, cli.Fail(cli.NotFound, "no plugin %q: there is no such file, %s has none, and %s. A file is named with its path: ./%s", arg, s.bundleDir, indexes.Said(), arg)
	}
	if err != nil {
		return found{}, refused(err)
	}
	path, done, err := indexes.Fetch(ctx, item, a.progress("fetching "+arg))
	if err != nil {
		return found{}, refused(err)
	}
	return found{path: path, name: item.Name, kind: string(item.Kind), digest: item.SHA256, version: item.Version, done: done}, nil
}

// offeredNames are the plugins beside cotal that can be installed by name.
func (a *app) offeredNames() []cobra.Completion {
	dir, err := besideSelf()
	if err != nil {
		return nil
	}
	var names []cobra.Completion
	for _, kind := range []string{"connector", "runtime"} {
		paths, _ := filepath.Glob(filepath.Join(dir, "cotal-"+kind+"-*"))
		for _, p := range paths {
			names = append(names, offer(strings.TrimPrefix(filepath.Base(p), "cotal-"+kind+"-"), kind+", in the bundle"))
		}
	}
	return names
}

// install brings a source into a manifest. was is the entry that it replaces; nil: it is new there.
func (a *app) install(cmd *cobra.Command, s *extScope, to layer, src found, f installFlags, was *manifest.Entry) error {
	ctx := cmd.Context()
	st, err := s.store.Stage(ctx, store.Source{Path: src.path, Command: f.command, Progress: a.progress("copying")})
	if err != nil {
		return refused(err)
	}
	defer st.Discard()
	if len(st.Left) > 0 {
		fmt.Fprintf(a.errw, "note: of %s only %s is kept: a plugin is one file\n", cli.OneLine(src.path), st.Command)
	}
	digest := f.sha256
	if digest == "" {
		digest = src.digest
	}
	if digest == "" {
		if digest, err = a.acceptDigest(ctx, st, src); err != nil {
			return err
		}
	}
	id, err := st.Accept(ctx, digest)
	if err != nil {
		return refused(err)
	}
	if err := rightOne(id, src, f, was); err != nil {
		return err
	}
	if was == nil && !f.replace {
		if err := s.free(id, to); err != nil {
			return err
		}
	}
	covered := s.covers(id, to)
	change := "installed"
	if was != nil {
		change = "upgraded"
	}
	c := store.Change{Manifest: to.path, Kind: id.Kind, Name: id.Name, Staged: st}
	c.Decide = func(now *manifest.Entry) (*manifest.Edit, error) {
		put := manifest.Entry{Name: id.Name, Kind: id.Kind, Version: id.Version, Command: st.Command, SHA256: st.Digest}
		if now == nil { // what it covers was configured for this machine
			put.Env, put.Config = covered.Env, covered.Config
		}
		switch {
		case now != nil && now.SHA256 == st.Digest && now.Command == st.Command && now.Version == id.Version && (now.On() || was != nil):
			return nil, nil
		case now != nil && was == nil && !f.replace:
			return nil, taken(id, to.path, now.Version)
		case now == nil && was != nil:
			return nil, fmt.Errorf("%w: somebody removed %s %s meanwhile", store.ErrNone, id.Kind, id.Name)
		case was != nil: // an upgrade turns nothing on
			put.Enabled = now.Enabled
		}
		return &manifest.Edit{Kind: id.Kind, Name: id.Name, Put: put}, nil
	}
	return a.enter(cmd, s, f.asJSON, c, extChange{Change: change})
}

// rightOne refuses a plugin that says it is another than the one that is wanted.
func rightOne(id describe.Identity, src found, f installFlags, was *manifest.Entry) error {
	kind, name := src.kind, src.name
	if f.kind != "" {
		kind = f.kind
	}
	if was != nil {
		kind, name = string(was.Kind), was.Name
	}
	if kind != "" && kind != string(id.Kind) || name != "" && name != id.Name {
		want := strings.TrimSpace(kind + " " + name)
		return cli.Fail(cli.Refused, "%s describes itself as %s %s %s, not as %s: nothing was changed", src.path, id.Kind, id.Name, cli.OneLine(id.Version), want)
	}
	if src.version != "" && src.version != id.Version {
		return cli.Fail(cli.Refused, "%s %s describes itself as version %s, and the index has it as %s: nothing was changed; tell whoever made the index", id.Kind, id.Name, cli.OneLine(id.Version), cli.OneLine(src.version))
	}
	return nil
}

func taken(id describe.Identity, path, version string) error {
	return fmt.Errorf("%w: %s has %s %s %s; to replace it: cotal ext upgrade %s SOURCE", store.ErrTaken, path, id.Kind, id.Name, version, id.Name)
}

// free refuses a name that another manifest of this place has: the stronger one would hide the weaker one.
func (s *extScope) free(id describe.Identity, to layer) error {
	for _, l := range s.layers {
		for _, e := range l.entries {
			if l.path == to.path || e.Kind != id.Kind || e.Name != id.Name {
				continue
			}
			if l.of == ofBundle {
				return cli.Fail(cli.Refused, "%s %s is one of the plugins that come with cotal-host (%s): this one would take its place; --replace if that is meant. Nothing was changed", id.Kind, id.Name, l.path)
			}
			return cli.Fail(cli.Refused, "%s has %s %s %s already, and of the two the one of the workspace counts; --replace if that is meant. Nothing was changed", l.path, id.Kind, id.Name, e.Version)
		}
	}
	return nil
}

// covers is the entry that one of a manifest takes the place of; zero: none.
func (s *extScope) covers(id describe.Identity, to layer) manifest.Entry {
	for _, l := range s.layers {
		for _, e := range l.entries {
			if l.path != to.path && e.Kind == id.Kind && e.Name == id.Name {
				return e
			}
		}
	}
	return manifest.Entry{}
}

// acceptDigest shows what was copied and has a person accept it.
func (a *app) acceptDigest(ctx context.Context, st *store.Staged, src found) (string, error) {
	shown := st.Digest
	what := fmt.Sprintf("%s, %s", cli.OneLine(src.path), size(st.Size))
	if st.Archive != "" {
		shown = st.Archive
		what = fmt.Sprintf("%s, which holds %s, %s", cli.OneLine(src.path), st.Command, size(st.Size))
	}
	if os.Getenv(noPrompt) != "" || a.in == nil || !term.IsTerminal(int(a.in.Fd())) {
		return "", cli.Fail(cli.Usage, "the digest of %s is %s; compare it with the one that is published, then say it: --sha256 %s. Nothing of it was executed or installed", what, shown, shown)
	}
	fmt.Fprintf(a.errw, "%s\nsha256 %s\n", what, st.Digest)
	if st.Archive != "" {
		fmt.Fprintf(a.errw, "sha256 %s of the archive\n", st.Archive)
	}
	err := a.confirm(ctx, "It will run with your rights. Compare the digest with the one that is published. Do you trust it?")
	return shown, err
}

func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", (n+1023)>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// progressEvery is how often a copy that takes long is reported on.
const progressEvery = 500 * time.Millisecond

// progress tells people at a terminal how far something is, when it takes long.
func (a *app) progress(what string) func(done, total int64) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	next := time.Now().Add(progressEvery)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressEvery)
			fmt.Fprintf(a.errw, "%s: %s of %s\n", what, size(done), size(max(total, done)))
		}
	}
}

func extUpgradeCmd(a *app) *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "upgrade <plugin> [file|archive|directory]",
		Short: "Replace an installed plugin by another version",
		Long: `Replace an installed plugin by what a file, archive or directory holds, or without one by what your indexes have of it.
Everything is as with install: the digest is accepted before anything is executed, the plugin must say that it is the
one it replaces, its new process is ready before the old one ends, and seats go on working. Its configuration and
what you wrote beside it in plugins.toml stay. The version before is kept for cotal ext rollback.

--all upgrades everything that an index has in another version, each by itself: exit code 5 when some could not be.`,
		Example: "  cotal ext upgrade echo ./cotal-connector-echo\n  cotal ext upgrade echo\n  cotal ext upgrade --all",
		Args: func(cmd *cobra.Command, args []string) error {
			if all, _ := cmd.Flags().GetBool("all"); all {
				return cli.NoArgs(cmd, args)
			}
			if len(args) > 2 {
				return cli.Fail(cli.Usage, "upgrade takes a plugin and what it is replaced by, got %d: %s", len(args), strings.Join(args, " "))
			}
			return cli.Arg(pluginArg, true, "<plugin> [file|archive|directory]")(cmd, args)
		},
	}
	f.declare(cmd)
	all := cmd.Flags().Bool("all", false, "everything that an index has in another version")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.installedNames(cmd, args, text)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		s, err := a.extScope()
		if err != nil {
			return err
		}
		if *all && f.sha256+f.command+f.kind != "" {
			return cli.Fail(cli.Usage, "--all goes by the indexes alone: --sha256, --command and --kind are for one plugin")
		}
		if *all {
			return a.upgradeAll(cmd, s, f)
		}
		was, to, err := s.own(f.kind, args[0])
		if err != nil {
			return err
		}
		if len(args) == 1 {
			return a.upgradeByIndex(cmd, s, f, was, to)
		}
		if _, err := os.Stat(args[1]); err != nil {
			return cli.Fail(cli.Refused, "upgrade %s: %w", was.Name, err)
		}
		return a.install(cmd, s, to, found{path: args[1], done: func() {}}, f, &was)
	}
	return cmd
}

func (a *app) upgradeByIndex(cmd *cobra.Command, s *extScope, f installFlags, was manifest.Entry, to layer) error {
	indexes, err := s.store.Indexes()
	if err != nil {
		return refused(err)
	}
	item, err := indexes.Find(cmd.Context(), string(was.Kind), was.Name)
	if errors.Is(err, store.ErrNone) {
		return cli.Fail(cli.NotFound, "%s: say the file that replaces %s %s", indexes.Said(), was.Kind, was.Name)
	}
	if err != nil {
		return refused(err)
	}
	path, done, err := indexes.Fetch(cmd.Context(), item, a.progress("fetching "+was.Name))
	if err != nil {
		return refused(err)
	}
	defer done()
	return a.install(cmd, s, to, found{path: path, name: was.Name, kind: string(was.Kind), digest: item.SHA256, version: item.Version}, f, &was)
}

// upgradeAll goes on when one cannot be upgraded.
func (a *app) upgradeAll(cmd *cobra.Command, s *extScope, f installFlags) error {
	indexes, err := s.store.Indexes()
	if err != nil {
		return refused(err)
	}
	// Those whose file is not sound first: a host takes nothing else while one is not.
	var list, sound []placed
	for _, e := range s.effective() {
		if _, err := s.store.Verify(e.Entry, s.bundleDir); err == nil {
			sound = append(sound, e)
		} else {
			list = append(list, e)
		}
	}
	list = append(list, sound...)
	tried, failed := 0, 0
	for _, e := range list {
		if e.of == ofBundle {
			continue
		}
		item, err := indexes.Find(cmd.Context(), string(e.Kind), e.Name)
		if errors.Is(err, store.ErrNone) || err == nil && item.Version == e.Version {
			continue
		}
		tried++
		if err == nil {
			to, _ := s.layer(e.of == ofWorkspace)
			err = a.upgradeByIndex(cmd, s, f, e.Entry, to)
		}
		if cmd.Context().Err() != nil {
			return err
		}
		if err != nil {
			failed++
			fmt.Fprintf(a.errw, "%s %s: %s\n", e.Kind, e.Name, cli.OneLine(cli.Text(err)))
		}
	}
	switch {
	case tried == 0 && !f.asJSON:
		fmt.Fprintln(a.out, "nothing to upgrade: "+indexes.Said())
	case failed == tried && failed > 0:
		return cli.Fail(cli.Refused, "none of %s was upgraded", cli.Count(tried, "plugin"))
	case failed > 0:
		return cli.Fail(cli.Partial, "%d of %d plugins were not upgraded", failed, tried)
	}
	return nil
}

// own finds the entry that can be changed: not one of the bundle.
func (s *extScope) own(kind, name string) (manifest.Entry, layer, error) {
	hits, err := s.find(kind, name)
	if err != nil {
		return manifest.Entry{}, layer{}, err
	}
	i := slices.IndexFunc(hits, func(h placed) bool { return h.of != ofBundle })
	if i < 0 {
		return manifest.Entry{}, layer{}, cli.Fail(cli.Refused, "%s %s is one of the plugins that come with cotal-host, and is upgraded with it; to put another in its place: cotal ext install SOURCE --replace", hits[0].Kind, name)
	}
	to, err := s.layer(hits[i].of == ofWorkspace)
	return hits[i].Entry, to, err
}

func extRollbackCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback <plugin>",
		Short: "Go back to the version before",
		Long: `Put the version back that a plugin had before its last upgrade, or the plugin that was removed last by that name. It
is kept until the next change. Done again it goes forward again.`,
		Example: "  cotal ext rollback echo",
		Args:    cli.Arg(pluginArg, false, pluginArg),
	}
	kind := kindFlag(cmd)
	workspace := cmd.Flags().Bool("workspace", false, "of a plugin that was removed: that of this workspace, not yours")
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
		_, to, err := s.own(*kind, args[0])
		if code := cli.CodeOf(err); code == cli.NotFound || code == cli.Refused {
			to, err = s.layer(*workspace)
		}
		if err != nil {
			return err
		}
		before, err := s.before(to.path, *kind, args[0])
		if err != nil {
			return err
		}
		c := store.Change{Manifest: to.path, Kind: before.Kind, Name: before.Name}
		c.Decide = func(now *manifest.Entry) (*manifest.Edit, error) {
			if now != nil && now.SHA256 == before.SHA256 && now.Version == before.Version {
				return nil, fmt.Errorf("%s %s in %s: %w", before.Kind, before.Name, to.path, store.ErrNoWayBack)
			}
			put := before
			put.Source = to.path
			if path, err := s.store.Verify(put, s.bundleDir); err != nil {
				return nil, fmt.Errorf("the version before is not there any more: %s: %w", path, err)
			}
			if now != nil {
				put.Enabled = now.Enabled
			}
			return &manifest.Edit{Kind: before.Kind, Name: before.Name, Put: put}, nil
		}
		return a.enter(cmd, s, *asJSON, c, extChange{Change: "rolled-back"})
	}
	return cmd
}

// before finds what a plugin was before its last change.
func (s *extScope) before(path, kind, name string) (manifest.Entry, error) {
	var last error
	for _, k := range []describe.Kind{describe.Connector, describe.Runtime} {
		if kind != "" && kind != string(k) {
			continue
		}
		e, err := s.store.Previous(path, k, name)
		if err == nil {
			return e, nil
		}
		if last == nil || !errors.Is(err, store.ErrNoWayBack) {
			last = err
		}
	}
	if errors.Is(last, fs.ErrNotExist) {
		last = store.ErrNoWayBack
	}
	return manifest.Entry{}, refused(last)
}
