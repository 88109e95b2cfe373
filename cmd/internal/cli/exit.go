// Package cli holds what cotal and cotal-host share: exit codes, the flags that find a host, and how
// seats, ends and stop reports are printed.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Code is the exit code of a command.
type Code int

// Exit codes. docs/operating.md holds the same table, and a test compares them.
const (
	OK          Code = 0
	Refused     Code = 1
	Usage       Code = 2
	Unreachable Code = 3
	NotFound    Code = 4
	Partial     Code = 5
	Uncertain   Code = 75
	Interrupted Code = 130
)

// Codes lists every exit code with its meaning, in the words of the documentation.
var Codes = []struct {
	Code    Code
	Meaning string
}{
	{OK, "done; for an attached terminal also: you detached, or the agent ended well or because it was asked to"},
	{Refused, "refused or failed; standard error says why"},
	{Usage, "the command line is wrong; nothing was done"},
	{Unreachable, "no host, or it does not answer; a command that changes something did not happen"},
	{NotFound, "no such seat, persona or connector"},
	{Partial, "some of it was done; standard error lists what was not"},
	{Uncertain, "it may or may not have happened; look before repeating"},
	{Interrupted, "interrupted by a signal"},
}

// Error is an error with the exit code it asks for.
type Error struct {
	Code Code
	Err  error
}

// Error returns the text.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fail makes an error with an exit code.
func Fail(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Silent ends a command with a code when everything there is to say was said already.
func Silent(code Code) error { return &Error{Code: code, Err: errSaid} }

var errSaid = errors.New("said already")

// CodeOf returns the exit code of an error.
func CodeOf(err error) Code {
	var own *Error
	var we *wire.Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &own):
		return own.Code
	case errors.Is(err, context.Canceled):
		return Interrupted
	case errors.As(err, &we):
		return codeOfWire(we)
	case errors.Is(err, mesh.ErrUnreachable), errors.Is(err, mesh.ErrNoResponder):
		return Unreachable
	case errors.Is(err, mesh.ErrNoReply), errors.Is(err, mesh.ErrBadReply), errors.Is(err, context.DeadlineExceeded):
		switch mesh.OutcomeOf(err) {
		case wire.OutcomeNotExecuted: // nobody answered before the request itself was sent
			return Unreachable
		case wire.OutcomeUnknown:
			return Uncertain
		}
	}
	return Refused
}

func codeOfWire(e *wire.Error) Code {
	switch e.Code {
	case wire.CodeNotFound, wire.CodeExpired:
		return NotFound
	}
	// There is no seat: something else holds its name.
	if _, held := e.Detail(wire.DetailSlotObservation); held {
		return NotFound
	}
	// What waits for the end of another life was not begun; how far that end is, is what it does not claim.
	if _, held := e.Detail(wire.DetailLifecycleBlocked); held {
		return Refused
	}
	// A refusal that cannot say whether it had an effect is what "uncertain" is for.
	if e.Outcome == wire.OutcomeUnknown {
		return Uncertain
	}
	return Refused
}

// Main runs a command tree and returns the exit code. Every error is one line on errw. Of a tree whose output is an
// Output, a result that could not be written is an error, too.
func Main(ctx context.Context, root *cobra.Command, args []string, errw io.Writer) int {
	root.SetArgs(args)
	root.SilenceErrors, root.SilenceUsage = true, true
	helpers(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Fail(Usage, "%s; see %s --help", flagText(err), cmd.CommandPath())
	})
	noFiles(root)
	cmd, err := root.ExecuteContextC(ctx)
	if out, ok := root.OutOrStdout().(*Output); ok {
		err = out.lost(err)
	}
	if err == nil {
		return int(OK)
	}
	var own *Error
	if !errors.As(err, &own) && isUsage(err) {
		err = Fail(Usage, "%s; see %s --help", groupText(err), cmd.CommandPath())
	}
	code := CodeOf(err)
	if !errors.Is(err, errSaid) {
		fmt.Fprintf(errw, "%s: %s\n", root.Name(), OneLine(Text(err)))
	}
	return int(code)
}

// group is what cobra says of flags that belong together, of which some or none were given.
var group = regexp.MustCompile(`^(?:at least one of the flags in the group \[(.+)\] is required|if any flags in the group .* none of the others can be; \[(.+)\] were all set)$`)

// groupText names the flags of a group as they are written.
func groupText(err error) string {
	m := group.FindStringSubmatch(err.Error())
	switch {
	case m == nil:
		return err.Error()
	case m[1] != "":
		return "--" + strings.ReplaceAll(m[1], " ", " or --") + " is needed"
	}
	return "--" + strings.ReplaceAll(m[2], " ", " and --") + " exclude each other"
}

// parsing is what the parsers of the standard library say of themselves before they say what is wrong.
var parsing = regexp.MustCompile(`(strconv\.\w+: parsing "(?:[^"\\]|\\.)*"|time): (.*)$`)

// flagText is what a person is told of a flag's value: what to write there.
func flagText(err error) string {
	return parsing.ReplaceAllStringFunc(err.Error(), func(text string) string {
		m := parsing.FindStringSubmatch(text)
		switch {
		case strings.HasPrefix(text, "time: "), strings.Contains(text, "ParseDuration"):
			return "write a time with its unit, such as 30s or 2m"
		case strings.Contains(text, "ParseBool"):
			return "write true or false"
		case strings.Contains(m[2], "out of range"):
			return "the number is too large"
		}
		return "write a whole number"
	})
}

// noFiles keeps the shell from offering files where a command takes no argument.
func noFiles(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.ValidArgsFunction == nil && len(sub.ValidArgs) == 0 && !strings.Contains(sub.Use, " ") && !sub.HasSubCommands() {
			sub.ValidArgsFunction = cobra.NoFileCompletions
		}
		noFiles(sub)
	}
}

// Text is what a person is told of an error: a refusal speaks for itself, without its code.
func Text(err error) string {
	var refused *wire.Error
	if errors.As(err, &refused) && err.Error() == refused.Error() {
		return refused.Message
	}
	if errors.Is(err, context.Canceled) && CodeOf(err) == Interrupted {
		var own *Error
		if !errors.As(err, &own) {
			return "interrupted"
		}
	}
	return err.Error()
}

// isUsage recognises the errors cobra makes itself for a wrong command line. It has no type for them.
func isUsage(err error) bool {
	text := err.Error()
	for _, begin := range []string{"unknown command", "required flag", "if any flags in the group", "at least one of the flags", "unknown flag", "unknown shorthand"} {
		if strings.HasPrefix(text, begin) {
			return true
		}
	}
	return false
}

// completions are how the script of a shell is used, by its command.
var completions = map[string]string{
	"bash":       "  source <(%s completion bash)",
	"zsh":        "  source <(%s completion zsh)",
	"fish":       "  %s completion fish | source",
	"powershell": "  %s completion powershell | Out-String | Invoke-Expression",
}

// helpers makes the commands that cobra adds by itself refuse what they do not know.
func helpers(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args = NoArgs
			cmd.Example = fmt.Sprintf("  source <(%s completion bash)", root.Name())
			for _, shell := range cmd.Commands() {
				shell.Example = fmt.Sprintf(completions[shell.Name()], root.Name())
			}
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		case "help":
			cmd.Example = "  " + root.Name() + " help completion"
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if found, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return unknown(found, rest)
				}
				return nil
			}
		}
	}
}

// Arg demands one positional argument, or with many at least one. name is what it is called, such as
// <seat>; usage is the command line after the command.
func Arg(name string, many bool, usage string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return Fail(Usage, "%s is missing; usage: %s %s", name, cmd.CommandPath(), usage)
		case slices.Contains(args, ""):
			return Fail(Usage, "%s is empty; usage: %s %s", name, cmd.CommandPath(), usage)
		case len(args) > 1 && !many:
			return Fail(Usage, "%s takes one %s, got %d: %s; usage: %s %s", cmd.Name(), name, len(args), strings.Join(args, " "), cmd.CommandPath(), usage)
		}
		return nil
	}
}

// NoArgs refuses every positional argument. Where a command was expected, it names those that are near.
func NoArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasAvailableSubCommands():
		return unknown(cmd, args)
	}
	return Fail(Usage, "%s takes no arguments, got %q; usage: %s [flags]", cmd.Name(), args[0], cmd.CommandPath())
}

// unknown is the error about a word below cmd that is no command.
func unknown(cmd *cobra.Command, args []string) error {
	if cmd == nil || len(args) == 0 {
		return Fail(Usage, "unknown command")
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		slices.Sort(near)
		text += "; did you mean " + strings.Join(slices.Compact(near), " or ") + "?"
	}
	return Fail(Usage, "%s; see %s --help", text, cmd.CommandPath())
}

// OneLine makes text safe for one line of a terminal.
func OneLine(text string) string {
	text = strings.TrimRight(text, "\r\n")
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n':
			b.WriteString("; ")
		case r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0:
			fmt.Fprintf(&b, "\\x%02x", r)
		case unicode.Is(unicode.Bidi_Control, r), r == 0x2028, r == 0x2029: // text that reads other than it is
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
