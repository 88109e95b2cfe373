package main

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// verifyProgram runs the suite. It stands beside this program.
const verifyProgram = "cotal-verify"

// newExtVerify hands over to cotal-verify, which reads the flags: it links the plugin protocol, and this
// program, which is started for every keystroke of a script, does not.
func newExtVerify(_ *app) *cobra.Command {
	cmd := cli.VerifyCmd("verify", new(cli.VerifyFlags))
	cmd.DisableFlagParsing = true
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		self, err := os.Executable()
		if err != nil {
			return cli.Fail(cli.Refused, "find %s: %w", verifyProgram, err)
		}
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real // it may have been started through a link, as make install makes one
		}
		path := filepath.Join(filepath.Dir(self), verifyProgram)
		err = syscall.Exec(path, append([]string{verifyProgram}, args...), os.Environ())
		return cli.Fail(cli.Refused, "run %s: %w; it belongs beside cotal", path, err)
	}
	return cmd
}
