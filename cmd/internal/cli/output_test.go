package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/spf13/cobra"
)

type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, errors.New("write /dev/stdout: no space left on device")
}

func TestALostResultIsNoSuccess(t *testing.T) {
	const lost = "the output is lost: write /dev/stdout: no space left on device\n"
	for name, c := range map[string]struct {
		done string
		err  func(written error) error // what the command ends with
		code Code
		text string
	}{
		"a command that does not look at what it writes":   {"", func(error) error { return nil }, Refused, "x: " + lost},
		"one that does says it in the same words":          {"", func(w error) error { return fmt.Errorf("write list: %w", w) }, Refused, "x: " + lost},
		"one that had its effect says that it had":         {"a ended", func(error) error { return nil }, Refused, "x: a ended, and only " + lost},
		"an error of its own stays, with its code":         {"", func(error) error { return Fail(Partial, "not all") }, Partial, "x: not all; and " + lost},
		"one that has said it all in what is lost says so": {"", func(error) error { return Silent(Uncertain) }, Uncertain, "x: " + lost},
	} {
		t.Run(name, func(t *testing.T) {
			out := NewOutput(full{})
			root := &cobra.Command{Use: "x", RunE: func(cmd *cobra.Command, _ []string) error {
				if c.done != "" {
					out.Done("%s", c.done)
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "text")
				return c.err(err)
			}}
			root.SetOut(out)
			var errw bytes.Buffer
			if code := Main(t.Context(), root, []string{}, &errw); code != int(c.code) || errw.String() != c.text {
				t.Errorf("exit code %d, %q; want %d, %q", code, errw.String(), c.code, c.text)
			}
			if out.Err() == nil {
				t.Error("it knows of no loss")
			}
		})
	}
	if err := NewOutput(io.Discard).lost(nil); err != nil {
		t.Error(err)
	}
}
