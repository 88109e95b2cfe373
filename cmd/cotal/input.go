package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// waitWindow is how much of the output before the wait is looked at, and kept of what comes: it is more
	// than a screen.
	waitWindow = 64 << 10
	// screenEvery is the pause between two looks at the screen of a runtime that keeps no output.
	screenEvery = 250 * time.Millisecond
	// afterInterrupt is how long an input that is interrupted still waits for what became of it.
	afterInterrupt = 500 * time.Millisecond
)

type inputOptions struct {
	text, typeText, waitText string
	keys                     []string
	noEnter, json            bool
	wait                     time.Duration
}

func inputCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "input " + seatArg,
		Short: "Type text into a seat, or press keys",
		Long: `Type text into a seat, followed by Return. The text is delivered as it is: nothing in it is a key name
or a command; one line end at its end is taken for the Return. A program that has switched on bracketed paste
gets it as one paste, so that several lines are one message; control characters are refused then, because
they could end the paste early. Text that is no UTF-8 is refused. With --text - the text is standard input. No terminal is needed.

--keys presses keys instead: enter, esc, tab, shift-tab, space, backspace, delete, insert, up, down, left,
right, home, end, pageup, pagedown, f1 to f12, ctrl-a to ctrl-z, or single characters, separated by commas.

--type presses the characters of a short text as keys, followed by Return: for a program such as vim, which
puts a paste into the text it edits and takes no command from it.

--wait-text waits until the seat has printed a text, compared without spaces and control sequences, and types
then; the last 64 KiB of output count. Not seen within --wait, nothing is typed and the exit code is 1.

While a person types at the seat's terminal nothing else is typed: that is waited for, 2 seconds at most.`,
		Example: `  cotal input reviewer --text 'please look at main.go'
  cotal input reviewer --text - <question.txt
  cotal input reviewer --text y --no-enter
  cotal input reviewer --keys esc,ctrl-c
  cotal input vim --type ':set number'
  cotal input reviewer --wait-text 'Do you trust this folder?' --keys enter`,
		Args: cli.Arg(seatArg, false, seatArg+" --text <text>"),
	}
	var opt inputOptions
	f := cmd.Flags()
	f.StringVar(&opt.text, "text", "", "what to type, 1 to 65536 bytes; - reads standard input")
	f.StringVar(&opt.typeText, "type", "", "type this key by key instead, such as an editor's command; never a paste")
	f.StringSliceVar(&opt.keys, "keys", nil, "keys to press instead, such as esc or ctrl-c,enter")
	f.BoolVar(&opt.noEnter, "no-enter", false, "do not press Return after the text")
	f.StringVar(&opt.waitText, "wait-text", "", "type only once the seat has printed this")
	f.DurationVar(&opt.wait, "wait", 30*time.Second, "how long to wait for --wait-text")
	f.BoolVar(&opt.json, "json", false, "print one JSON object")
	cmd.ValidArgsFunction = a.seatNames(false, "starting", "running")
	_ = cmd.RegisterFlagCompletionFunc("keys", keyCompletions) // fails for a flag that does not exist
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := opt.request(cmd.Context(), a.in, f.Changed, args[0])
		if err != nil {
			return err
		}
		// One life is meant from here on, whatever its alias names later.
		row, err := inspect(cmd.Context(), a, args[0])
		if err != nil {
			return untyped(cmd.Context(), err)
		}
		if row.Exit != nil {
			return cli.Fail(cli.NotFound, "%s has ended, %s; nothing was typed. What it printed: cotal logs %s", row.Name, cli.HowEnded(row.Exit), row.Name)
		}
		if f.Changed("wait-text") {
			if err := awaitText(cmd.Context(), a, row, opt); err != nil {
				return err
			}
		}
		return typeInto(cmd.Context(), a, row, req, opt.json)
	}
	return cmd
}

// request turns the command line into the arguments of the input command. Every error is a usage error, or
// that standard input could not be read.
func (opt *inputOptions) request(ctx context.Context, in io.Reader, given func(string) bool, ref string) (wire.InputArgs, error) {
	enter := !opt.noEnter
	switch {
	case given("wait") && !given("wait-text"):
		return wire.InputArgs{}, cli.Fail(cli.Usage, "--wait is for --wait-text: say what to wait for")
	case given("type") && (given("text") || given("keys")):
		return wire.InputArgs{}, cli.Fail(cli.Usage, "--type, --text and --keys are several inputs; send one after the other")
	case given("type"):
		return opt.typed(enter)
	case given("text") && given("keys"):
		return wire.InputArgs{}, cli.Fail(cli.Usage, "--text and --keys are two inputs; send one after the other")
	case given("keys"):
		if len(opt.keys) == 0 || len(opt.keys) > wire.MaxKeys {
			return wire.InputArgs{}, cli.Fail(cli.Usage, "--keys has %d keys; 1 to %d can be pressed at once", len(opt.keys), wire.MaxKeys)
		}
		for _, k := range opt.keys {
			if !isKeyName(k) {
				return wire.InputArgs{}, cli.Fail(cli.Usage, "--keys: %q is no key; there are %s, or one character", k, strings.Join(keyNames, ", "))
			}
		}
		return wire.InputArgs{Keys: opt.keys}, nil
	case !given("text"):
		return wire.InputArgs{}, cli.Fail(cli.Usage, "say what to type: cotal input %s --text 'hello', or --keys enter", ref)
	}
	if given("wait-text") && len(squeeze([]byte(opt.waitText))) == 0 {
		return wire.InputArgs{}, cli.Fail(cli.Usage, "--wait-text holds nothing that could be waited for")
	}
	body := opt.text
	if body == "-" {
		var err error
		if body, err = readAll(ctx, in, "standard input", wire.MaxText+3); err != nil {
			return wire.InputArgs{}, err
		}
		if !enter || len(body) > wire.MaxText { // the line end of a pipe is none of the text; else the host takes it off
			body = strings.TrimSuffix(strings.TrimSuffix(body, "\n"), "\r")
		}
	}
	if opt.text == "-" && len(body) > wire.MaxText { // so much was read, and there may be more
		return wire.InputArgs{}, cli.Fail(cli.Usage, "--text is read from standard input, which has more than %d bytes; so much can be typed at once", wire.MaxText)
	}
	if body == "" || len(body) > wire.MaxText {
		return wire.InputArgs{}, cli.Fail(cli.Usage, "text has %d bytes; 1 to %d can be typed at once", len(body), wire.MaxText)
	}
	if i := notUTF8(body); i >= 0 {
		return wire.InputArgs{}, cli.Fail(cli.Usage, "byte %d of the text is 0x%02x and no UTF-8; nothing was typed", i, body[i])
	}
	return wire.InputArgs{Text: body, Enter: &enter}, nil
}

// typed makes keys of a text: a program that reads commands takes no paste for one.
func (opt *inputOptions) typed(enter bool) (wire.InputArgs, error) {
	if i := notUTF8(opt.typeText); i >= 0 {
		return wire.InputArgs{}, cli.Fail(cli.Usage, "byte %d of the text is 0x%02x and no UTF-8; nothing was typed", i, opt.typeText[i])
	}
	var keys []string
	for _, r := range opt.typeText {
		switch {
		case r == ' ':
			keys = append(keys, "space")
		case r == '\n', r == '\r':
			keys = append(keys, "enter")
		case r == '\t':
			keys = append(keys, "tab")
		case isKeyName(string(r)):
			keys = append(keys, string(r))
		default:
			return wire.InputArgs{}, cli.Fail(cli.Usage, "--type: %q is no key", r)
		}
	}
	if enter {
		keys = append(keys, "enter")
	}
	if opt.typeText == "" || len(keys) > wire.MaxKeys {
		return wire.InputArgs{}, cli.Fail(cli.Usage, "--type presses %d keys; 1 to %d can be pressed at once", len(keys), wire.MaxKeys)
	}
	return wire.InputArgs{Keys: keys}, nil
}

// notUTF8 is the index of the first byte of text that belongs to no character, or -1.
func notUTF8(text string) int {
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)) {
			return i
		}
	}
	return -1
}

// keyNames are the keys that have a name; their host knows what they send.
var keyNames = []string{
	"enter", "return", "esc", "escape", "tab", "shift-tab", "space", "backspace", "delete", "insert", "up", "down", "left", "right",
	"home", "end", "pageup", "pagedown", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10", "f11", "f12", "ctrl-a to ctrl-z",
}

// isKeyName says whether a host knows a key.
func isKeyName(k string) bool {
	if c, ok := strings.CutPrefix(k, "ctrl-"); ok {
		return len(c) == 1 && (c[0] >= 'a' && c[0] <= 'z' || strings.Contains("[]\\^_@", c))
	}
	r, n := utf8.DecodeRuneInString(k)
	return slices.Contains(keyNames, k) || n > 0 && n == len(k) && r > 0x20 && r != utf8.RuneError && (r < 0x7f || r >= 0xa0)
}

// squeeze is text without control sequences, controls and spaces: a screen is drawn with any of them in
// between.
func squeeze(text []byte) []byte {
	var esc terminal.Escaper
	plain := esc.Flush(esc.Append(nil, text))
	return bytes.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			return -1
		}
		return r
	}, plain)
}

// awaitText returns once the life of a seat that a row shows has printed the text.
func awaitText(ctx context.Context, a *app, row wire.AgentRow, opt inputOptions) error {
	ref := row.Name
	want := squeeze([]byte(opt.waitText))
	if len(want) == 0 {
		return cli.Fail(cli.Usage, "--wait-text holds nothing that could be waited for")
	}
	if row.Exit != nil {
		return cli.Fail(cli.Refused, "%s has ended, %s; nothing was typed", ref, cli.HowEnded(row.Exit))
	}
	p, err := locateTerminal(ctx, a, row.LifecycleUID, false)
	if err != nil {
		return untyped(ctx, err)
	}
	wctx, cancel := context.WithTimeout(ctx, opt.wait)
	defer cancel()
	if p.argv != nil {
		err = awaitScreen(wctx, a, p, row.LifecycleUID, want)
	} else {
		err = awaitOutput(wctx, p.local, want)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return untyped(ctx, err)
	case errors.Is(err, context.DeadlineExceeded):
		return cli.Fail(cli.Refused, "%s did not print %q within %s; nothing was typed", ref, opt.waitText, opt.wait)
	case errors.Is(err, errNotSeen):
		return cli.Fail(cli.Refused, "%s has ended and did not print %q; nothing was typed", ref, opt.waitText)
	}
	return fmt.Errorf("wait for text of %s: %w; nothing was typed", ref, err)
}

// untyped is the error of an input that has not begun: who interrupts it is told so.
func untyped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return cli.Fail(cli.Interrupted, "interrupted; nothing was typed")
	}
	return err
}

var errNotSeen = errors.New("the seat has ended")

// awaitOutput reads the output of a seat until the text has come.
func awaitOutput(ctx context.Context, s *local, want []byte) error {
	st, err := s.status(ctx)
	if err != nil {
		return err
	}
	c, err := s.dial(ctx, seat.RoleOutput, max(st.First, st.Next-min(st.Next, waitWindow)), 0, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	var text []byte
	err = c.Run(ctx, seat.Handler{Output: func(_ uint64, p []byte) error {
		if text = append(text, p...); len(text) > 2*waitWindow {
			text = append(text[:0], text[len(text)-waitWindow:]...)
		}
		if bytes.Contains(squeeze(text), want) {
			return errEnough
		}
		return nil
	}})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err == nil:
		return errNotSeen
	}
	return err
}

// awaitScreen looks at the screen of a seat until it shows the text.
func awaitScreen(ctx context.Context, a *app, p *place, uid string, want []byte) error {
	tick := time.NewTicker(screenEvery)
	defer tick.Stop()
	for {
		if p.screen == nil {
			return errors.New(p.reason)
		}
		if bytes.Contains(squeeze(p.screen.Data), want) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var err error
		if p, err = locateTerminal(ctx, a, uid, false); err != nil {
			if cli.CodeOf(err) == cli.NotFound {
				return errNotSeen
			}
			return err
		}
		if p.argv == nil {
			return errNotSeen
		}
	}
}

// typeInto types into the life of a seat that a row shows, and into no other.
func typeInto(ctx context.Context, a *app, row wire.AgentRow, req wire.InputArgs, asJSON bool) error {
	c, err := a.target.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	target, err := cli.TargetOf(row)
	if err != nil {
		return err
	}
	var reply wire.InputReply
	// Who interrupts it is told what became of the text: the host goes on typing.
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(afterInterrupt, cancel) })()
	err = c.Manager(call, mesh.Call{Command: wire.CmdInput, Instance: row.InstanceID, Authz: wire.AuthzAny, Target: target, Args: req}, &reply)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) && mesh.OutcomeOf(err) == wire.OutcomeNotExecuted {
			return cli.Fail(cli.Interrupted, "interrupted; nothing was typed")
		}
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return cli.Fail(cli.Interrupted, "interrupted: the host was asked to type %s into %s and has not said how much of it is typed; all, some or nothing may be, and it may go on for some seconds. Look with `cotal logs %s` before typing it again",
				amount(req), row.Name, row.Name)
		}
		if cli.CodeOf(err) == cli.Uncertain {
			return cli.Fail(cli.Uncertain, "it may or may not have been typed: %w; look with `cotal logs %s` before typing it again", err, row.Name)
		}
		return err
	}
	a.out.Done("%s of input went to %s", cli.Count(reply.Bytes, "byte"), reply.Name)
	if asJSON {
		return cli.PrintJSON(a.out, reply)
	}
	fmt.Fprintf(a.out, "sent %s to %s\n", cli.Count(reply.Bytes, "byte"), reply.Name)
	return nil
}

// amount says how much an input is.
func amount(req wire.InputArgs) string {
	if len(req.Keys) > 0 {
		return cli.Count(len(req.Keys), "key")
	}
	return cli.Count(len(req.Text), "byte")
}
