package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// verifyProgram runs the suite. It stands beside this program.
const verifyProgram = "cotal-verify"

// newExtVerify hands over to cotal-verify, which reads the flags: it links the plugin protocol, and this
// program, which is started for every keystroke of a script, does not.
func newExtVerify(a *app) *cobra.Command {
	cmd := cli.VerifyCmd("verify", new(cli.VerifyFlags))
	cmd.DisableFlagParsing = true
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		dir, err := besideSelf()
		if err != nil {
			return cli.Fail(cli.Refused, "find %s: %w", verifyProgram, err)
		}
		path := filepath.Join(dir, verifyProgram)
		err = syscall.Exec(path, append([]string{verifyProgram}, a.installedFile(args)...), os.Environ())
		return cli.Fail(cli.Refused, "run %s: %w; it belongs beside cotal", path, err)
	}
	return cmd
}

// installedFile puts the file of an installed plugin in the place of its name, when that comes first.
func (a *app) installedFile(args []string) []string {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || strings.ContainsRune(args[0], '/') {
		return args
	}
	if _, err := os.Stat(args[0]); err == nil {
		return args
	}
	s, err := a.extScope()
	if err != nil {
		return args
	}
	hits, err := s.find("", args[0])
	if err != nil {
		return args
	}
	out := slices.Clone(args)
	out[0] = hits[0].File(s.bundleDir)
	return out
}
