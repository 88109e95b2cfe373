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
type flags struct{ cli.VerifyFlags }

func newRoot(out io.Writer) *cobra.Command {
	var f flags
	cmd := cli.VerifyCmd("cotal", &f.VerifyFlags)
	// It is a command of cotal, which hands over to it.
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "cotal ext verify"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.List {
			if len(args) > 0 {
				return cli.Fail(cli.Usage, "--list takes no binary")
			}
			return list(out, f.JSON)
		}
		if err := cli.Arg("<binary>", false, "<binary> [flags]")(cmd, args); err != nil {
			return err
		}
		return f.verify(cmd.Context(), out, args[0])
	}
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
	for _, id := range f.Rules {
		if !known[id] {
			return cli.Fail(cli.Usage, "there is no rule %q; --list shows them", id)
		}
	}
	untried := 0
	if !f.JSON {
		opts.Progress = func(r plugintest.Result) {
			switch {
			case r.Untried:
				untried++ // seventy lines would say one thing
			case !f.Quiet || r.Status == plugintest.Failed:
				_, _ = io.WriteString(out, plugintest.Line(r))
			}
		}
	}
	tctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	report := plugintest.Verify(tctx, path, opts)
	if ctx.Err() == nil && tctx.Err() != nil {
		report.Error = fmt.Sprintf("not done within %s (--timeout)", f.Timeout)
	}
	failed := report.Error
	switch {
	case f.JSON:
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
	case failed != "" && !f.JSON:
		return cli.Fail(cli.Refused, "%s", failed)
	case failed != "" || !report.OK():
		return cli.Silent(cli.Refused)
	}
	return nil
}

func (f *flags) options(path string) (plugintest.Options, error) {
	opts := plugintest.Options{Model: f.Model, Rules: f.Rules, Timeout: f.RuleLimit, BundleDir: f.Bundle, Binaries: map[string]string{}}
	config, err := pairs("--config", f.Config)
	if err != nil {
		return opts, err
	}
	if len(config) > 0 {
		if opts.Config, err = json.Marshal(config); err != nil {
			return opts, cli.Fail(cli.Usage, "--config: %w", err)
		}
	}
	if opts.LaunchOptions, err = pairs("--opt", f.Opts); err != nil {
		return opts, err
	}
	for _, kv := range f.Bins {
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
