package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// VerifyFlags are the command line of cotal ext verify.
type VerifyFlags struct {
	Config, Opts, Bins []string
	Bundle, Model      string
	Rules              []string
	Timeout, RuleLimit time.Duration
	JSON, List, Quiet  bool
}

// VerifyCmd is cotal ext verify without what it does, named name: cotal explains it and cotal-verify, which it hands
// over to, carries it out.
func VerifyCmd(name string, f *VerifyFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   name + " <binary> [flags]",
		DisableFlagsInUseLine: true,
		Short:                 "Try whether a plugin binary keeps the rules that a host relies on",
		Long: `Run the conformance suite on a connector or runtime binary: it is started as a host starts it, in
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
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.Config, "config", nil, "key=value of the plugin's configuration, or a JSON object; the value is JSON, else text (repeatable)")
	fl.StringArrayVar(&f.Opts, "opt", nil, "name=value of the launch options that a launch needs; the value is JSON, else text (repeatable)")
	fl.StringArrayVar(&f.Bins, "bin", nil, "name=path of an executable that the connector requires; else PATH, else a stand-in (repeatable)")
	fl.StringVar(&f.Bundle, "bundle", "", "directory of the host's own binaries (default: that of the plugin, when plugins.toml is there, else that of cotal)")
	fl.StringVar(&f.Model, "model", "", "a model that the connector takes (default: verify/model)")
	fl.StringArrayVar(&f.Rules, "rule", nil, "run this rule only (repeatable)")
	fl.DurationVar(&f.Timeout, "timeout", 10*time.Minute, "bound for everything")
	fl.DurationVar(&f.RuleLimit, "rule-timeout", time.Minute, "bound for one rule")
	fl.BoolVar(&f.JSON, "json", false, "print the report, or the list, as one JSON document over several lines")
	fl.BoolVar(&f.List, "list", false, "list the rules and run none")
	fl.BoolVarP(&f.Quiet, "quiet", "q", false, "print only what failed, and the sum")
	return cmd
}
