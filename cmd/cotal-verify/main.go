// Command cotal-verify is "cotal ext verify": it runs the conformance suite on a plugin binary. It is a
// program of its own because it speaks the plugin protocol, which cotal, started for every keystroke of a
// script, does not link.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := cli.Main(ctx, newRoot(os.Stdout), os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

// flags are the command line.
type flags struct {
	config, opts, bins  []string
	bundle, model       string
	rules               []string
	timeout, ruleLimit  time.Duration
	asJSON, list, quiet bool
}

func newRoot(out io.Writer) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "cotal BINARY [flags]",
		// It is a command of cotal, which hands over to it.
		Annotations:           map[string]string{cobra.CommandDisplayNameAnnotation: "cotal ext verify"},
		DisableFlagsInUseLine: true,
		Short:                 "Try whether a plugin keeps the rules that a host relies on",
		Long: `Runs the conformance suite on a connector or runtime binary: it is started as a host starts it, in
directories of its own, without a host, and asked everything a host asks, the right and the wrong. Nothing is
left of it afterwards, also after Ctrl-C.

Where plugins.toml beside the binary names it, its configuration is taken from there, unless --config is given.

Exit codes: 0 every rule that applies is kept, 1 a rule is broken or the binary cannot be tried, 2 usage,
130 interrupted. A rule for the other kind of plugin, or for an ability that this one does not announce, does
not apply.`,
		Example: `  cotal ext verify ./cotal-connector-echo
  cotal ext verify bin/cotal-connector-command --opt 'argv=["true"]'
  cotal ext verify ./cotal-runtime-mine --rule exit-code-is-exact
  cotal ext verify ./cotal-connector-mine --config endpoint=http://127.0.0.1:8080
  cotal ext verify --list`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list {
				if len(args) > 0 {
					return cli.Fail(cli.Usage, "--list takes no binary")
				}
				return list(out, f.asJSON)
			}
			if err := cli.Arg("BINARY", false, "BINARY [flags]")(cmd, args); err != nil {
				return err
			}
			return f.verify(cmd.Context(), out, args[0])
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.config, "config", nil, "key=value of the plugin's configuration, or a JSON object; the value is JSON, else text (repeatable)")
	fl.StringArrayVar(&f.opts, "opt", nil, "name=value of the launch options that a launch needs; the value is JSON, else text (repeatable)")
	fl.StringArrayVar(&f.bins, "bin", nil, "name=path of an executable that the connector requires; else PATH, else a stand-in (repeatable)")
	fl.StringVar(&f.bundle, "bundle", "", "directory of the host's own binaries (default: that of the plugin, when plugins.toml is there, else that of cotal)")
	fl.StringVar(&f.model, "model", "", "a model that the connector takes (default: verify/model)")
	fl.StringArrayVar(&f.rules, "rule", nil, "run this rule only (repeatable)")
	fl.DurationVar(&f.timeout, "timeout", 10*time.Minute, "bound for everything")
	fl.DurationVar(&f.ruleLimit, "rule-timeout", time.Minute, "bound for one rule")
	fl.BoolVar(&f.asJSON, "json", false, "print the report as JSON")
	fl.BoolVar(&f.list, "list", false, "list the rules and run none")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only what failed, and the sum")
	cmd.SetOut(out)
	return cmd
}

func list(out io.Writer, asJSON bool) error {
	type row struct {
		ID    string `json:"id"`
		Kind  string `json:"kind,omitempty"`
		Needs string `json:"needs,omitempty"`
		Text  string `json:"text"`
	}
	var rows []row
	for _, r := range plugintest.Rules() {
		rows = append(rows, row{r.ID, string(r.Kind), string(r.Needs), r.Text})
	}
	if asJSON {
		return printJSON(out, rows)
	}
	for _, r := range rows {
		kind := r.Kind
		if kind == "" {
			kind = "any"
		}
		if r.Needs != "" {
			kind += ", " + r.Needs
		}
		if _, err := fmt.Fprintf(out, "%s  (%s)\n    %s\n", r.ID, kind, r.Text); err != nil {
			return fmt.Errorf("write list: %w", err)
		}
	}
	return nil
}

func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func (f *flags) verify(ctx context.Context, out io.Writer, path string) error {
	opts, err := f.options(path)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, r := range plugintest.Rules() {
		known[r.ID] = true
	}
	for _, id := range f.rules {
		if !known[id] {
			return cli.Fail(cli.Usage, "there is no rule %q; --list shows them", id)
		}
	}
	untried := 0
	if !f.asJSON {
		opts.Progress = func(r plugintest.Result) {
			switch {
			case r.Untried:
				untried++ // seventy lines would say one thing
			case !f.quiet || r.Status == plugintest.Failed:
				_, _ = io.WriteString(out, plugintest.Line(r))
			}
		}
	}
	tctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	report := plugintest.Verify(tctx, path, opts)
	if ctx.Err() == nil && tctx.Err() != nil {
		report.Error = fmt.Sprintf("not done within %s (--timeout)", f.timeout)
	}
	failed := report.Error
	switch {
	case f.asJSON:
		err = printJSON(out, report)
	case len(report.Results) > 0:
		if untried > 0 {
			_, _ = fmt.Fprintf(out, "skipped  %d rules: the plugin does not start\n", untried)
		}
		report.Error = "" // it is told as every error is
		_, err = io.WriteString(out, report.Summary())
	}
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return cli.Silent(cli.Interrupted)
	case failed != "" && !f.asJSON:
		return cli.Fail(cli.Refused, "%s", failed)
	case failed != "" || !report.OK():
		return cli.Silent(cli.Refused)
	}
	return nil
}

func (f *flags) options(path string) (plugintest.Options, error) {
	opts := plugintest.Options{Model: f.model, Rules: f.rules, Timeout: f.ruleLimit, BundleDir: f.bundle, Binaries: map[string]string{}}
	config, err := pairs("--config", f.config)
	if err != nil {
		return opts, err
	}
	if len(config) > 0 {
		if opts.Config, err = json.Marshal(config); err != nil {
			return opts, cli.Fail(cli.Usage, "--config: %w", err)
		}
	}
	if opts.LaunchOptions, err = pairs("--opt", f.opts); err != nil {
		return opts, err
	}
	for _, kv := range f.bins {
		name, file, ok := strings.Cut(kv, "=")
		if !ok || name == "" || file == "" {
			return opts, cli.Fail(cli.Usage, "--bin %q is not name=path", kv)
		}
		opts.Binaries[name] = file
	}
	return opts, fromManifest(path, &opts)
}

// pairs reads key=value flags; one that begins with { is an object of its own.
func pairs(flag string, list []string) (map[string]any, error) {
	out := map[string]any{}
	for _, kv := range list {
		if strings.HasPrefix(strings.TrimSpace(kv), "{") {
			if err := json.Unmarshal([]byte(kv), &out); err != nil {
				return nil, cli.Fail(cli.Usage, "%s %q: %w", flag, kv, err)
			}
			continue
		}
		key, text, ok := strings.Cut(kv, "=")
		if !ok || key == "" {
			return nil, cli.Fail(cli.Usage, "%s %q is neither key=value nor a JSON object", flag, kv)
		}
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}
		out[key] = value
	}
	return out, nil
}

// fromManifest takes what plugins.toml beside the binary says of it.
func fromManifest(path string, opts *plugintest.Options) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("find the plugin: %w", err)
	}
	dir := filepath.Dir(abs)
	m, err := manifest.Load(filepath.Join(dir, "plugins.toml"))
	if errors.Is(err, fs.ErrNotExist) {
		if self, err := os.Executable(); err == nil && opts.BundleDir == "" {
			opts.BundleDir = filepath.Dir(self)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the manifest beside the plugin: %w", err)
	}
	if opts.BundleDir == "" {
		opts.BundleDir = dir
	}
	for _, entry := range m.Entries {
		if entry.Command != filepath.Base(abs) || len(opts.Config) > 0 {
			continue
		}
		if opts.Config, err = entry.ConfigJSON(); err != nil {
			return fmt.Errorf("read the manifest beside the plugin: %w", err)
		}
	}
	return nil
}
